from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from quintet.codes import Codes
from quintet.search import segments as module
from quintet.search.errors import SearchError, StaleIndex
from quintet.search.items import Place
from quintet.search.segments import Coded, CodeTable, Segment, SegmentWriter, read_journal


def made(lengths: list[int], seed: int = 0, boxes: bool = True) -> Codes:
    generator = torch.Generator().manual_seed(seed)
    longest = max(lengths)
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    fragments = torch.randn(len(lengths), longest, 4, generator=generator).masked_fill(~mask[..., None], 0)
    where = torch.rand(len(lengths), longest, 4, generator=generator).masked_fill(~mask[..., None], 0)
    return Codes(torch.randn(len(lengths), 3, generator=generator), fragments, mask, where if boxes else None)


def write(folder: Path, codes: Codes, precision: str = "bfloat16", batch: int = 2) -> Segment:
    writer = SegmentWriter(folder, "image", "me", precision)
    for start in range(0, len(codes), batch):
        some = codes[start : start + batch]
        writer.write([some], [Coded(f"{start + row}", {"row": start + row}) for row in range(len(some))])
    writer.close()
    return Segment(folder, len(codes))


@pytest.mark.parametrize("precision", ["bfloat16", "float16", "float32"])
def test_codes_come_back_as_they_were_stored(tmp_path: Path, precision: str) -> None:
    codes = made([5, 2, 4, 5, 1])
    table = CodeTable([write(tmp_path / "a", codes, precision)])
    rows = [4, 0, 2]
    back = table.codes(0, [Place(0, row) for row in rows])
    assert back.fragments is not None
    assert codes.fragments is not None
    assert torch.equal(back.embedding, codes.embedding[rows])  # type: ignore[arg-type,index]
    assert torch.equal(back.boxes, codes.boxes[rows])  # type: ignore[arg-type,index]
    assert torch.equal(back.real(), codes.real()[rows])
    assert torch.equal(back.fragments, codes.fragments[rows].to(getattr(torch, precision)).float())


def test_padding_is_only_as_long_as_needed(tmp_path: Path) -> None:
    table = CodeTable([write(tmp_path / "a", made([5, 2, 2]))])
    back = table.codes(0, [Place(0, 1), Place(0, 2)])
    assert back.fragments is not None
    assert back.fragments.shape == (2, 2, 4)
    assert back.mask is None


def test_segments_stand_side_by_side_in_any_order(tmp_path: Path) -> None:
    first, second = made([3, 2], seed=1), made([4, 1, 2], seed=2)
    table = CodeTable([write(tmp_path / "a", first, "float32"), write(tmp_path / "b", second, "float32")])
    back = table.codes(0, [Place(1, 2), Place(0, 0), Place(1, 0), Place(0, 1)])
    joined = Codes.cat([first, second])
    assert torch.equal(back.fragments, joined.fragments[[4, 0, 2, 1]])  # type: ignore[arg-type,index]
    assert torch.equal(back.real(), joined.real()[[4, 0, 2, 1]])


def test_boxes_are_left_out_where_a_segment_has_none(tmp_path: Path) -> None:
    with_boxes, without = write(tmp_path / "a", made([2])), write(tmp_path / "b", made([2], boxes=False))
    table = CodeTable([with_boxes, without])
    assert table.codes(0, [Place(0, 0)]).boxes is not None
    assert table.codes(0, [Place(0, 0), Place(1, 0)]).boxes is None


def test_a_batch_that_a_kill_cut_off_does_not_count(tmp_path: Path) -> None:
    codes = made([2, 3, 1])
    write(tmp_path / "a", codes, "float32", batch=1)
    journal = tmp_path / "a" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-5])  # the last line is torn; its data may be on disk or not
    rows = read_journal(tmp_path / "a")
    assert [row.content for row in rows] == ["0", "1"]
    back = CodeTable([Segment(tmp_path / "a", len(rows))]).codes(0, [Place(0, 1)])
    assert torch.equal(back.embedding, codes.embedding[1:2])  # type: ignore[arg-type,index]


def test_data_that_the_journal_vouches_for_must_be_there(tmp_path: Path) -> None:
    write(tmp_path / "a", made([2, 3]))
    path = tmp_path / "a" / "0.fragments"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(StaleIndex, match="cut short"):
        Segment(tmp_path / "a", 2)
    with pytest.raises(StaleIndex, match="missing"):
        Segment(tmp_path / "nowhere", 2)


def test_a_full_disk_is_told_and_leaves_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = made([2, 2])
    writer = SegmentWriter(tmp_path / "a", "image", "me", "bfloat16")
    writer.write([codes[:1]], [Coded("0", {})])

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "write_synced", full)
    with pytest.raises(SearchError, match=r"No space left.*resumes"):
        writer.write([codes[1:]], [Coded("1", {})])
    writer.close()
    assert [row.content for row in read_journal(tmp_path / "a")] == ["0"]


def test_the_journal_is_readable_json(tmp_path: Path) -> None:
    write(tmp_path / "a", made([1]))
    (line,) = (tmp_path / "a" / "journal.jsonl").read_text().splitlines()
    assert json.loads(line) == {"content": ["0"], "facts": [{"row": 0}]}
