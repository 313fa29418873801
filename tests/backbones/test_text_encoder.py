from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from quintet.backbones.text_encoder import HuggingFaceText, SmallText, text_encoder_config
from quintet.errors import QuintetError

TOKENS, LENGTHS = torch.tensor([[1, 5, 7, 2], [1, 2, 0, 0], [1, 9, 2, 0]]), torch.tensor([4, 2, 3])


@pytest.fixture
def bert(tmp_path: Path) -> tuple[str, Any]:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        vocab_size=20,
        max_position_embeddings=6,
    )
    model = transformers.BertModel(config).eval()
    model.save_pretrained(tmp_path / "bert")
    return str(tmp_path / "bert"), model


def test_the_last_layer_of_real_tokens(bert: tuple[str, Any]) -> None:
    name, model = bert
    encoder = HuggingFaceText(name)
    assert (encoder.dim, encoder.vocabulary_size) == (8, 20)
    found = encoder(TOKENS, LENGTHS)
    with torch.no_grad():
        for row, length in enumerate(LENGTHS.tolist()):
            alone = model(input_ids=TOKENS[row : row + 1, :length]).last_hidden_state[0]
            torch.testing.assert_close(found[row, :length], alone, atol=1e-6, rtol=1e-5)


def test_a_frozen_encoder_never_changes(bert: tuple[str, Any]) -> None:
    encoder = HuggingFaceText(bert[0]).train()
    assert encoder.frozen
    assert encoder.repeatable
    assert not encoder.model.training
    found = encoder(TOKENS, LENGTHS)
    assert not found.requires_grad
    assert torch.equal(found, encoder(TOKENS, LENGTHS))


def test_dropout_of_a_frozen_encoder_can_stay_on(bert: tuple[str, Any]) -> None:
    encoder = HuggingFaceText(bert[0], dropout=True).train()
    assert encoder.frozen
    assert not encoder.repeatable
    assert not torch.equal(encoder(TOKENS, LENGTHS), encoder(TOKENS, LENGTHS))
    encoder.eval()
    assert torch.equal(encoder(TOKENS, LENGTHS), encoder(TOKENS, LENGTHS))


def test_a_trainable_encoder_learns_everywhere(bert: tuple[str, Any]) -> None:
    encoder = HuggingFaceText(bert[0], trainable=True).train()
    assert encoder.model.training
    (encoder(TOKENS, LENGTHS) ** 2).sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, name


def test_it_is_made_again_from_its_configuration_and_weights_alone(bert: tuple[str, Any], tmp_path: Path) -> None:
    first = HuggingFaceText(bert[0])
    config = text_encoder_config(bert[0])
    (tmp_path / "bert").rename(tmp_path / "moved")
    second = HuggingFaceText(bert[0], config=config, pretrained=False)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(TOKENS, LENGTHS), second(TOKENS, LENGTHS))


def test_errors_say_what_to_do(bert: tuple[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    with pytest.raises(QuintetError, match="takes 6; cut texts"):
        HuggingFaceText(bert[0])(torch.ones(1, 7, dtype=torch.int64), torch.tensor([7]))
    (tmp_path / "empty").mkdir()
    for make in (HuggingFaceText, text_encoder_config):
        with pytest.raises(QuintetError, match="path of its folder"):
            make(str(tmp_path / "empty"))
    vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    transformers.ViTModel(vit).save_pretrained(tmp_path / "vit")
    with pytest.raises(QuintetError, match="not a text encoder"):
        HuggingFaceText(str(tmp_path / "vit"))
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(QuintetError, match=r"quintet-retrieval\[hf\]"):
        HuggingFaceText(bert[0])


def test_nothing_to_encode(bert: tuple[str, Any]) -> None:
    for encoder in (HuggingFaceText(bert[0]), SmallText(20, 8)):
        assert encoder(TOKENS[:0], LENGTHS[:0]).shape == (0, 4, 8)


def test_the_small_encoder_sees_order_but_neither_padding_nor_neighbours() -> None:
    torch.manual_seed(0)
    encoder = SmallText(20, 8, heads=2, dropout=0.1).double().eval()
    with torch.no_grad():
        found = encoder(TOKENS, LENGTHS)
        for row, length in enumerate(LENGTHS.tolist()):
            alone = encoder(TOKENS[row : row + 1, :length], LENGTHS[row : row + 1])[0]
            assert (found[row, :length] - alone).abs().max() < 1e-12
        turned = encoder(torch.tensor([[1, 7, 5, 2]]), torch.tensor([4]))[0]
    assert (turned[[0, 2, 1, 3]] - found[0]).abs().max() > 1e-3


def test_the_small_encoder_starts_with_different_layers() -> None:
    layers = SmallText(20, 8).layers.layers
    assert not torch.equal(layers[0].linear1.weight, layers[1].linear1.weight)  # type: ignore[union-attr, arg-type]
    with pytest.raises(ValueError, match="its 4 heads"):
        SmallText(20, 6)
