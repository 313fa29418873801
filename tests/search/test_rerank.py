from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from quintet.codes import Codes
from quintet.search import rerank as module
from quintet.search.rerank import rerank, shortlist


class Negated:
    """Scores opposite to the embeddings, so that the second stage turns every list around."""

    def __init__(self) -> None:
        self.pairs = 0

    def score_pairs(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        self.pairs += len(image_codes)
        assert image_codes.embedding is not None
        assert text_codes.embedding is not None
        return -(image_codes.embedding * text_codes.embedding).sum(dim=1)


def codes(n: int, seed: int) -> Codes:
    return Codes(embedding=torch.randn(n, 4, generator=torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize("queries", ["texts", "images"])
@pytest.mark.parametrize("chunk", [256 << 20, 1])
def test_only_candidates_are_scored_and_each_once(queries: Any, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BYTES", chunk)
    images, texts, matcher = codes(7, 0), codes(5, 1), Negated()
    assert images.embedding is not None
    assert texts.embedding is not None
    near = images.embedding @ texts.embedding.T
    near = near.T if queries == "texts" else near
    chosen = shortlist(images, texts, 3, queries=queries)
    assert torch.equal(chosen, near.topk(3, dim=1).indices)
    scores, rows = rerank(matcher, images, texts, chosen, queries=queries)
    assert matcher.pairs == chosen.numel()
    assert torch.equal(rows, chosen.flip(1))
    torch.testing.assert_close(scores, -near.gather(1, rows))


def test_nobody_asks() -> None:
    images, texts = codes(7, 0), codes(0, 1)
    assert len(shortlist(images, texts, 3)) == 0
    scores, rows = rerank(Negated(), images, texts, shortlist(images, texts, 3))
    assert scores.shape == rows.shape == (0, 3)


def test_wrong_candidates_are_refused() -> None:
    images, texts = codes(7, 0), codes(5, 1)
    with pytest.raises(ValueError, match="5 queries need candidates"):
        rerank(Negated(), images, texts, torch.zeros(4, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match="rows from 0 to 6"):
        rerank(Negated(), images, texts, torch.full((5, 2), 7))
    with pytest.raises(ValueError, match="at least one"):
        shortlist(images, texts, 0)
    with pytest.raises(ValueError, match="queries must be"):
        shortlist(images, texts, 1, queries="words")  # type: ignore[arg-type]
