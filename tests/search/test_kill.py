"""Killed at random moments, an index is never harmed."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from quintet.search.indexing import build_index
from quintet.search.searcher import Searcher

BUILD = """
import sys
from pathlib import Path
from quintet.search.indexing import build_index
build_index(Path(sys.argv[1]), [Path(sys.argv[2])], Path(sys.argv[3]), batch_size=1, workers=1, device="cpu",
            progress=lambda done, total: print(done, flush=True))
"""
LOOP = """
import sys
from pathlib import Path
from quintet.search.indexing import build_index
run, out = Path(sys.argv[1]), Path(sys.argv[4])
print("ready", flush=True)
for turn in range(1000):  # back and forth between many images and few: the files are copied again and again
    build_index(run, [Path(sys.argv[2 + turn % 2])], out, batch_size=4, workers=1, device="cpu", prune=True)
"""


def check(index: Path) -> None:
    with sqlite3.connect(index / "items.sqlite") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def found(index: Path) -> dict[str, float]:
    with Searcher.open(index, device="cpu") as searcher:
        return {hit.item.id: hit.score for hit in searcher.search_text(["a red thing"], k=999)[0]}


@pytest.mark.slow
def test_the_old_index_serves_and_the_build_goes_on_after_a_kill_at_any_moment(
    vse: Path, pictures: Path, make_images: Any, tmp_path: Path
) -> None:
    index = tmp_path / "index"
    build_index(vse, [pictures], index, device="cpu")
    before = found(index)
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
        now = found(index)
        assert now == before or len(now) == 66, "either the old index or the new one, nothing between"
        check(index)
    assert killed, "no build was killed; make it slower"
    build_index(vse, [pictures], index, device="cpu")
    build_index(vse, [pictures], tmp_path / "fresh", device="cpu")
    assert found(index) == pytest.approx(found(tmp_path / "fresh"), abs=1e-5)


@pytest.mark.slow
def test_builds_that_are_killed_again_and_again_leave_one_of_two_indexes_and_no_file_too_many(
    vse: Path, make_images: Any, tmp_path: Path
) -> None:
    make_images(tmp_path / "many", count=24, seed=1)
    make_images(tmp_path / "few", count=5, seed=1)  # the first of them
    index = tmp_path / "index"
    expected = []
    for name in ("many", "few"):
        build_index(vse, [tmp_path / name], tmp_path / f"fresh {name}", device="cpu")
        expected.append(found(tmp_path / f"fresh {name}"))
    build_index(vse, [tmp_path / "few"], index, device="cpu")
    chance = random.Random(1)
    command = [sys.executable, "-c", LOOP, str(vse), str(tmp_path / "many"), str(tmp_path / "few"), str(index)]
    for _ in range(8):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            reader = Searcher.open(index, device="cpu")
            hits = reader.search_text(["a red thing"], k=999)
            time.sleep(chance.uniform(0, 1.5))
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        check(index)
        assert reader.search_text(["a red thing"], k=999) == hits, "a reader keeps its generation"
        reader.close()
        now = found(index)
        assert any(now == pytest.approx(other, abs=1e-5) for other in expected)
    build_index(vse, [tmp_path / "many"], index, device="cpu", prune=True)
    assert found(index) == pytest.approx(expected[0], abs=1e-5)
    assert len(list((index / "vectors").iterdir())) == 1
    assert not list(index.glob("**/.*"))
