from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quintet
from quintet.data.batches import ImageBatch, TextBatch
from quintet.errors import RecipeError
from quintet.models.hrem import HREM, build_hrem
from quintet.runs.convert import ConversionError, convert, read_checkpoint, translate

SENTENCES = [[1, 5, 6, 2], [1, 7, 2], [1, 2], [1, 8, 9, 4, 2]]
TEXTS = TextBatch.from_ids(SENTENCES)
LENGTHS = [5, 2, 3, 4]  # regions of an image


def images() -> ImageBatch:
    torch.manual_seed(1)
    mask = torch.arange(5) < torch.tensor(LENGTHS)[:, None]
    return ImageBatch(fragments=torch.randn(4, 5, 8) * mask[..., None], mask=mask)


def small(**options: Any) -> HREM:
    torch.manual_seed(0)
    return build_hrem(
        **{"image_dim": 8, "vocabulary_size": 12, "embed_dim": 16, "word_dim": 5, "text_dim": 8} | options
    )


def unit(x: Tensor) -> Tensor:
    return x / (x.norm() + 1e-8)


def pooled(aggregation: Any, own: Tensor, beta: float, top: int) -> Tensor:
    strongest = own.sort(dim=0, descending=True).values[:top].mean(0)
    return unit(beta * strongest + (1 - beta) * aggregation.layer(own[None])[0].mean(0))


@pytest.mark.parametrize("projection", ["linear", "mlp"])
@pytest.mark.parametrize("top", [1, 2])
def test_images_one_at_a_time(projection: str, top: int) -> None:
    """Section 3.1 and Eq. 2, without padding; in evaluation the MLP's statistics are fixed."""
    matcher = small(projection=projection, top=top, beta=0.6).eval()
    batch = images()
    assert batch.fragments is not None
    found = matcher.encode_images(batch).embedding
    assert found is not None
    head = matcher.image_encoder.projection
    for row, count in enumerate(LENGTHS):
        regions = batch.fragments[row, :count]
        own = regions @ head.fc.weight.T + head.fc.bias
        if head.mlp is not None:
            own = own + head.mlp.layers[1](torch.relu(head.mlp.bns[0](head.mlp.layers[0](regions))))
        torch.testing.assert_close(
            found[row], pooled(matcher.image_encoder.aggregation, own, 0.6, top), atol=1e-6, rtol=1e-5
        )


@pytest.mark.parametrize("text", ["bigru", "small"])
def test_texts_one_at_a_time(text: str) -> None:
    """Eq. 3 over the words of either encoder, whatever the neighbours' lengths."""
    matcher = small(text=text).eval()
    found = matcher.encode_texts(TEXTS).embedding
    assert found is not None
    for row, ids in enumerate(SENTENCES):
        alone = TextBatch.from_ids([ids])
        words = matcher.text_encoder.words(alone.tokens, alone.lengths)
        words = (words[0] if isinstance(words, tuple) else words)[0]
        expected = pooled(matcher.text_encoder.aggregation, matcher.text_encoder.linear(words), 0.8, 1)
        torch.testing.assert_close(found[row], expected, atol=1e-5, rtol=1e-4)


def test_fragments_are_handed_over_in_training_only() -> None:
    matcher = small()
    for codes in (matcher.train().encode_images(images()), matcher.encode_texts(TEXTS)):
        assert codes.fragments is not None
        assert codes.fragments.shape[2] == 16
        assert codes.mask is not None
    for codes in (matcher.eval().encode_images(images()), matcher.encode_texts(TEXTS)):
        assert set(codes.tensors()) == {"embedding"}


def test_fragments_are_those_before_pooling_and_attention() -> None:
    matcher = small().train()
    batch = images()
    assert batch.fragments is not None
    regions = matcher.encode_images(batch).fragments
    assert regions is not None
    expected = matcher.image_encoder.projection.fc(batch.fragments)
    torch.testing.assert_close(regions, expected.masked_fill(~batch.real()[..., None], 0))


@pytest.mark.parametrize("padding", ["ignored", "counted"])
def test_whether_padding_enters_the_batch_statistics(padding: str) -> None:
    matcher = small(projection="mlp", padding=padding, dropout=0.0).train()
    batch = images()
    assert batch.fragments is not None
    regions = matcher.encode_images(batch).fragments
    assert regions is not None
    norm = matcher.image_encoder.projection.mlp.bns[0]  # type: ignore[union-attr]
    rows = batch.fragments.flatten(0, 1) if padding == "counted" else batch.fragments[batch.real()]
    expected = matcher.image_encoder.projection.mlp.layers[0](rows).mean(0) * norm.momentum  # type: ignore[union-attr]
    torch.testing.assert_close(norm.running_mean, expected)
    assert bool(regions[~batch.real()].any()) == (padding == "counted")
    more = torch.cat([batch.fragments, torch.zeros(4, 3, 8)], dim=1)
    padded = ImageBatch(fragments=more, mask=torch.cat([batch.real(), torch.zeros(4, 3, dtype=torch.bool)], dim=1))
    same = torch.allclose(matcher.encode_images(padded).embedding, matcher.encode_images(batch).embedding, atol=1e-6)  # type: ignore[arg-type]
    assert same == (padding == "ignored")


def test_relations_of_fragments_can_be_left_out() -> None:
    matcher = small(image_relation=False, text_relation=False)
    assert not any(isinstance(module, nn.TransformerEncoderLayer) for module in matcher.modules())
    assert matcher.eval().encode_images(images()).embedding is not None


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(RecipeError, match="did you mean 'linear'"):
        small(projection="linea")
    with pytest.raises(RecipeError, match="'hf:FOLDER_OR_HUB_NAME'"):
        small(text="bert")
    with pytest.raises(RecipeError, match="extract features first"):
        small().encode_images(ImageBatch(pixels=torch.zeros(1, 3, 4, 4)))


BERT = {
    "model_type": "bert",
    "vocab_size": 12,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 10,
    "max_position_embeddings": 20,
}


def with_bert(**options: Any) -> HREM:
    return small(text="hf:nowhere", text_config=BERT, text_pretrained=False, **options)


def test_a_bert_like_encoder_is_fine_tuned() -> None:
    matcher = with_bert().train()
    matcher.encode_texts(TEXTS).embedding.sum().backward()  # type: ignore[union-attr]
    names = [name for name, parameter in matcher.named_parameters() if parameter.grad is not None]
    assert sum(name.startswith("text_encoder.words.model.") for name in names) > 20
    with pytest.raises(RecipeError, match="knows 12"):
        small(text="hf:nowhere", text_config=BERT, text_pretrained=False, vocabulary_size=13)


def released_checkpoint(path: Path, flat: bool = False, **options: Any) -> tuple[Path, HREM]:
    """A file in the authors' layout from a matcher of ours: their names, and the tensors that only they have."""
    beta = options.get("residual_weight", 0.8)
    matcher = with_bert(projection="mlp", top=2, padding="counted", heads=4, hidden=16, beta=beta)
    with torch.no_grad():
        for parameter in matcher.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
        for buffer in matcher.buffers():
            if buffer.is_floating_point():
                buffer.uniform_(0.5, 1.5)
    back = {
        "image_encoder.projection.": "fc.",
        "image_encoder.aggregation.layer.": "aggr.layers.0.",
        "text_encoder.words.model.": "bert.",
        "text_encoder.linear.": "linear.",
        "text_encoder.aggregation.layer.": "aggr.layers.0.",
    }
    halves: list[dict[str, Tensor]] = [{}, {}]
    for name, tensor in matcher.state_dict().items():
        ours, theirs = next((a, b) for a, b in back.items() if name.startswith(a))
        halves[name.startswith("text_encoder.")][theirs + name.removeprefix(ours)] = tensor
    halves[0] |= {"fc.mlp.bns.1.weight": torch.ones(16), "fc.mlp.bns.1.running_mean": torch.zeros(16)}
    halves[1] |= {
        "bert.pooler.dense.weight": torch.zeros(8, 8),
        "bert.embeddings.position_ids": torch.arange(20)[None],
    }
    graph = {"adj_model.adj_learning.mlp_t2i.0.weight": torch.zeros(10, 10)}
    model: Any = [*halves, graph]
    if flat:
        prefixed = zip(("img_enc.", "txt_enc.", "criterion."), model, strict=True)
        model = {prefix + name: tensor for prefix, part in prefixed for name, tensor in part.items()}
    torch.save({"epoch": 3, "model": model, "opt": argparse.Namespace(**options), "best_rsum": 1.0}, path)
    return path, matcher.eval()


@pytest.mark.parametrize("flat", [False, True])
def test_released_checkpoints_are_converted(tmp_path: Path, flat: bool) -> None:
    path, matcher = released_checkpoint(tmp_path / "best", flat, residual_weight=0.7, nhead=4, dropout=0.3)
    loaded = convert("hrem", path, tmp_path / "run", options={"bert_heads": 2})
    assert loaded.model["arguments"]["dropout"] == 0.3
    with torch.no_grad():
        expected = matcher.score(matcher.encode_images(images()), matcher.encode_texts(TEXTS))
        found = loaded.score(loaded.encode_images(images()), loaded.encode_texts(TEXTS))
    torch.testing.assert_close(found, expected)
    made = translate("hrem", read_checkpoint(path), {"bert_heads": 2})
    assert made.assumed == {"no_imgnorm": False, "no_txtnorm": False}
    assert len(made.dropped) == 4
    assert any("relation graph" in what for what in made.dropped)


def test_what_a_released_checkpoint_does_not_say_is_told(tmp_path: Path) -> None:
    path, _ = released_checkpoint(tmp_path / "best")
    made = translate("hrem", read_checkpoint(path), {"residual_weight": 0.5})
    assert made.arguments["beta"] == 0.5
    assert made.arguments["heads"] == 16
    assumed = {"residual_weight": 0.8, "nhead": 16, "dropout": 0.1, "bert_heads": 1}
    assumed |= {"no_imgnorm": False, "no_txtnorm": False}
    assert translate("hrem", read_checkpoint(path)).assumed == assumed
    with pytest.raises(ConversionError, match="no option 'heads'"):  # theirs is nhead
        translate("hrem", read_checkpoint(path), {"heads": 4})
    config = made.arguments["text_config"]
    assert {key: config[key] for key in BERT if key != "num_attention_heads"} == {
        key: value for key, value in BERT.items() if key != "num_attention_heads"
    }
    torch.save({"model": [{"fc.weight": torch.zeros(2, 2)}, {}]}, tmp_path / "scan")
    with pytest.raises(ConversionError, match="released checkpoints with BERT"):
        translate("hrem", read_checkpoint(tmp_path / "scan"))
    with pytest.raises(ConversionError, match=r"no matrix 'fc\.weight'"):
        translate("scan", read_checkpoint(path))


def test_a_converted_run_reads_texts_with_berts_vocabulary(tmp_path: Path) -> None:
    path, _ = released_checkpoint(tmp_path / "best", nhead=4)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "red", "dog", "##s", ".", "cat", "on"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    convert("hrem", path, tmp_path / "run", tmp_path / "vocab.txt")
    run = quintet.load(tmp_path / "run")
    assert run.tokenizer is not None
    assert run.tokenizer.ids("A red dogs.") == [2, 5, 6, 7, 8, 9, 3]
