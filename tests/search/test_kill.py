"""Killed at random moments, an index is never harmed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from quintet.search.build import build_index
from quintet.search.searcher import Searcher

BUILD = """
import sys
from pathlib import Path
from quintet.search.build import build_index
build_index(Path(sys.argv[1]), [Path(sys.argv[2])], Path(sys.argv[3]), batch_size=1, workers=1, device="cpu",
            progress=lambda done, total: print(done, flush=True))
"""


@pytest.mark.slow
def test_the_old_index_serves_and_the_build_goes_on_after_a_kill_at_any_moment(
    vse: Path, pictures: Path, make_images: Any, tmp_path: Path
) -> None:
    index = tmp_path / "index"
    build_index(vse, [pictures], index, device="cpu")
    with Searcher.open(index, device="cpu") as searcher:
        before = searcher.search_text(["a red thing"], k=99)
    make_images(pictures / "more", count=60, seed=1)
    chance = random.Random(0)
    killed = 0
    for lines in (0, 1, 20, 40, 59, 60, 61, 62):  # of progress; the last builds are killed while the new one is written
        process = subprocess.Popen(
            [sys.executable, "-c", BUILD, str(vse), str(pictures), str(index)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for _ in range(lines):
            process.stdout.readline()
        time.sleep(chance.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
        with Searcher.open(index, device="cpu") as searcher:
            (hits,) = searcher.search_text(["a red thing"], k=99)
            assert [hits] == before or len(hits) == 66, "either the old index or the new one, nothing between"
    assert killed, "no build was killed; make it slower"
    build_index(vse, [pictures], index, device="cpu")
    build_index(vse, [pictures], tmp_path / "fresh", device="cpu")
    with Searcher.open(index, device="cpu") as one, Searcher.open(tmp_path / "fresh", device="cpu") as other:
        found, expected = one.search_text(["a red thing"], k=99)[0], other.search_text(["a red thing"], k=99)[0]
        assert {hit.item.id for hit in found} == {hit.item.id for hit in expected}
        scores = {hit.item.id: hit.score for hit in expected}
        assert all(hit.score == pytest.approx(scores[hit.item.id], abs=1e-5) for hit in found)
