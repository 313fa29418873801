from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from quintet.codes import Codes
from quintet.errors import QuintetError
from quintet.files import write_json
from quintet.scores.embedding import dot_scores
from quintet.search import exact
from quintet.search.exact import ExactIndex


class Dot:
    score = staticmethod(dot_scores)


def test_equals_sorting_all_scores_for_every_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    pictures, texts = torch.randn(23, 4, generator=generator), torch.randn(3, 4, generator=generator)
    index = ExactIndex([f"p{n}" for n in range(23)], Codes(embedding=pictures), "w")
    order = (pictures @ texts.T).argsort(dim=0, descending=True)
    for block in (1, 7, 100):
        monkeypatch.setattr(exact, "BLOCK", block)
        hits = index.search(Dot(), Codes(embedding=texts), k=5)
        assert [[hit.id for hit in row] for row in hits] == [[f"p{n}" for n in order[:5, t]] for t in range(3)]
        assert all(row == sorted(row, key=lambda hit: -hit.score) for row in hits)


def test_asking_for_more_than_there_is(tmp_path: Path) -> None:
    index = ExactIndex(["a"], Codes(embedding=torch.ones(1, 2)), "w")
    assert len(index.search(Dot(), Codes(embedding=torch.ones(1, 2)), k=9)[0]) == 1


def test_saving_and_the_wrong_matcher(tmp_path: Path) -> None:
    ExactIndex(["a", "ü"], Codes(embedding=torch.eye(2)), "w").save(tmp_path)
    again = ExactIndex.open(tmp_path, "w")
    assert again.ids == ["a", "ü"]
    assert again.search(Dot(), Codes(embedding=torch.tensor([[0.0, 1.0]])), k=1)[0][0].id == "ü"
    with pytest.raises(QuintetError, match="other weights"):
        ExactIndex.open(tmp_path, "v")
    write_json(tmp_path / "index.json", {"format": "quintet-index", "version": 2, "weights": "w", "ids": []})
    with pytest.raises(QuintetError, match="version 1"):
        ExactIndex.open(tmp_path, "w")
    bad: Any = ["a"]
    with pytest.raises(ValueError, match="1 ids for 2"):
        ExactIndex(bad, Codes(embedding=torch.eye(2)), "w")
