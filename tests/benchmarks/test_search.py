"""The measurement of searching, on a handful of vectors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.measure.search import build, measure

pytest.importorskip("faiss")


@pytest.mark.parametrize("kind", ["flat", "ivf"])
def test_an_index_is_measured_and_finds_what_comparing_everything_finds(kind: str, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    try:
        built = build(tmp_path, 200, 8, kind, seed=0)  # type: ignore[arg-type]
        found = measure(tmp_path, 8, queries=4, k=5, seed=0)
    finally:
        torch.set_num_threads(threads)
    assert (built["kind"], found["recall"]) == (kind, 1.0)
    assert min(found["ratio_p50"], found["end_to_end_ratio_p50"]) > 0
