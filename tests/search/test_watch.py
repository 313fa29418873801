from __future__ import annotations

import os
import shutil
from pathlib import Path

from PIL import Image

from quintet.search.searcher import Searcher
from quintet.search.watch import look, watch_index


def paths(index: Path) -> set[str | None]:
    with Searcher.open(index, device="cpu") as searcher:
        return {hit.item.path for hit in searcher.search_text(["a red thing"], k=99)[0]}


def test_an_index_follows_its_folder(pixel_vse: Path, pictures: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    reports = watch_index(pixel_vse, pictures, index, seconds=0.02, device="cpu")
    assert next(reports).added == 6
    (pictures / "new").mkdir()
    Image.new("RGB", (20, 10), "teal").save(pictures / "new/teal.png")
    assert next(reports).added == 1
    shutil.move(pictures / "0.png", pictures / "new/0.png")
    (pictures / "1.png").unlink()
    report = next(reports)
    assert (report.added, report.dropped, report.encoded) == (0, 1, 0)
    assert paths(index) == {*(f"{number}.png" for number in range(2, 6)), "new/teal.png", "new/0.png"}
    reports.close()


def test_a_look_sees_every_change_and_nothing_else(pictures: Path) -> None:
    before = look([pictures])
    assert look([pictures]) == before
    (pictures / ".hidden").touch()
    assert look([pictures]) == before
    os.mkfifo(pictures / "fifo")
    (pictures / "loop").symlink_to(pictures)
    seen = {before, look([pictures])}
    for change in (
        lambda: os.utime(pictures / "0.png", (1, 1)),
        lambda: (pictures / "1.png").rename(pictures / "one.png"),
        lambda: (pictures / "one.png").unlink(),
        lambda: shutil.rmtree(pictures),
    ):
        change()
        now = look([pictures])
        assert now not in seen
        seen.add(now)
