"""The codes of an index on disk: segments that only grow, each with a journal, read by memory mapping.

segments/NAME/
    segment.json       kind, encoder (which runs, in which precision), and the width and type of every part
    0.embedding        (n, d) of the index's first run, raw rows one after another
    0.fragments        (sum of lengths, d): regions or words without padding
    0.boxes            (sum of lengths, 4)
    0.lengths          (n,) int32: how many fragments each item has
    journal.jsonl      a line per finished batch, after its data is on disk: {"content": [...], "facts": [...]}

A kill at any moment costs the batch that was being written: readers go by the journal. A build never appends to an
earlier build's segment, so what is being served is never touched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.codes import Codes
from quintet.errors import QuintetError
from quintet.files import read_json, write_json, write_synced
from quintet.search.errors import SearchError, StaleIndex
from quintet.search.items import Kind, Place

PARTS = ("embedding", "fragments", "boxes")
RAGGED = PARTS[1:]
SEGMENT_NAME = re.compile(r"(?:image|text)-(\d+)")  # what else lies beside the segments is not ours
STORED = {"float32": torch.int32, "float16": torch.int16, "bfloat16": torch.int16}  # numpy knows no bfloat16: as bits
ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Coded:
    """One finished row: whose code it is, and what was learned while reading the image (its size, its date)."""

    content: str
    facts: dict[str, Any]


class SegmentWriter:
    """A new segment, written batch by batch."""

    def __init__(self, folder: Path, kind: Kind, encoder: str, precision: str) -> None:
        self.folder, self.kind, self.encoder, self.precision = folder, kind, encoder, precision
        self._files: dict[str, FileIO] = {}
        self._parts: dict[str, dict[str, Any]] = {}

    def write(self, codes: Sequence[Codes], rows: Sequence[Coded]) -> None:
        """The codes of one batch, one `Codes` for each run; on disk when it returns."""
        try:
            if not self._files:
                self._start(codes)
            for member, part in enumerate(codes):
                for name, data in _raw(part.to("cpu"), self._parts, member).items():
                    write_synced(self._files[name], data)
            line = {"content": [row.content for row in rows], "facts": [row.facts for row in rows]}
            write_synced(self._files["journal.jsonl"], json.dumps(line, ensure_ascii=False).encode() + b"\n")
        except OSError as error:
            raise SearchError(
                f"could not write {self.folder}: {error.strerror or error}; the index is as it was: make room and run "
                "the same command again, it resumes"
            ) from error

    def _start(self, codes: Sequence[Codes]) -> None:
        self.folder.mkdir(parents=True)
        for member, part in enumerate(codes):
            for name, tensor in part.tensors().items():
                if name != "mask":
                    dtype = self.precision if name == "fragments" else "float32"
                    self._parts[f"{member}.{name}"] = {"width": tensor.shape[-1], "dtype": dtype}
        lengths = [f"{name.partition('.')[0]}.lengths" for name in self._parts if name.endswith(".fragments")]
        for name in (*self._parts, *lengths, "journal.jsonl"):
            self._files[name] = (self.folder / name).open("xb", buffering=0)
        # Last: a folder without it is a false start.
        head = {"kind": self.kind, "encoder": self.encoder, "members": len(codes), "parts": self._parts}
        write_json(self.folder / "segment.json", head)

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def _raw(codes: Codes, parts: Mapping[str, Mapping[str, Any]], member: int) -> dict[str, bytes]:
    """The batch as bytes, by file name; padding left out."""
    found: dict[str, bytes] = {}
    for name, tensor in codes.tensors().items():
        if name == "mask":
            continue
        dtype = str(parts[f"{member}.{name}"]["dtype"])
        rows = tensor[codes.real()] if name in RAGGED else tensor  # (sum of lengths, d) or (n, d)
        stored = rows.to(getattr(torch, dtype)).contiguous().view(STORED[dtype])
        found[f"{member}.{name}"] = stored.numpy().tobytes()
    if codes.fragments is not None:
        found[f"{member}.lengths"] = codes.real().sum(dim=1).to(torch.int32).numpy().tobytes()
    return found


class Segment:
    """The finished rows of a segment (as many as its journal vouches for), memory-mapped."""

    def __init__(self, folder: Path, rows: int) -> None:
        try:
            head = read_json(folder / "segment.json")
            self.kind: Kind = head["kind"]
            self.encoder: str = head["encoder"]
            self.members: int = head["members"]
            self.parts: dict[str, dict[str, Any]] = head["parts"]
        except (QuintetError, KeyError, TypeError) as error:
            raise StaleIndex(f"segment {folder} is damaged or missing ({error}); build the index again") from None
        self.folder = folder
        self.rows = rows
        self._arrays: dict[str, np.ndarray] = {}
        self._offsets: dict[int, np.ndarray] = {}
        for member in range(self.members):
            if f"{member}.fragments" in self.parts:
                lengths = self._map(f"{member}.lengths", "int32", self.rows, 1)[:, 0]
                self._offsets[member] = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])  # (n + 1,)
        for name, part in self.parts.items():
            member_text, _, kind = name.partition(".")
            rows = int(self._offsets[int(member_text)][-1]) if kind in RAGGED else self.rows
            bits = "float32" if part["dtype"] == "float32" else "int16"
            self._arrays[name] = self._map(name, bits, rows, part["width"])

    def _map(self, name: str, dtype: str, rows: int, width: int) -> np.ndarray:
        path = self.folder / name
        needed = rows * width * np.dtype(dtype).itemsize
        if not path.is_file() or path.stat().st_size < needed:
            raise StaleIndex(f"{path} is missing or cut short; build the index again")
        if not rows:
            return np.empty((0, width), dtype)
        return np.memmap(path, dtype=dtype, mode="r", shape=(rows, width))

    def lengths(self, member: int, rows: np.ndarray) -> np.ndarray:
        return self._offsets[member][rows + 1] - self._offsets[member][rows]

    def take(self, member: int, name: str, rows: np.ndarray, longest: int) -> Tensor:
        """(n, d) of these rows, or (n, longest, d) of fragments and boxes, zeros behind the last."""
        array = self._arrays[f"{member}.{name}"]
        if name not in RAGGED:
            taken = np.asarray(array[rows])
        else:
            taken = np.zeros((len(rows), longest, array.shape[1]), array.dtype)
            offsets = self._offsets[member]
            for place, row in enumerate(rows):
                start, stop = offsets[row], offsets[row + 1]
                taken[place, : stop - start] = array[start:stop]
        tensor = torch.from_numpy(taken)
        dtype = getattr(torch, self.parts[f"{member}.{name}"]["dtype"])
        return tensor if tensor.dtype == dtype else tensor.view(dtype)


class CodeTable:
    """The codes of a generation's items, of one kind: its segments side by side."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = list(segments)

    def codes(self, member: int, places: Sequence[Place], parts: Sequence[str] = PARTS) -> Codes:
        """The codes that one run made of these items, in float32, in their order; of its parts those named."""
        if not places:
            raise ValueError("no places")
        number = np.array([place.segment for place in places])
        row = np.array([place.row for place in places])
        chosen = np.unique(number)
        # Boxes are there only where every segment has them.
        names = [
            name for name in parts if all(f"{member}.{name}" in self.segments[segment].parts for segment in chosen)
        ]
        lengths = np.zeros(len(places), np.int64)
        if "fragments" in names:
            for segment in chosen:
                mine = number == segment
                lengths[mine] = self.segments[segment].lengths(member, row[mine])
        longest = int(lengths.max())
        found: dict[str, Tensor] = {name: self._gather(member, name, number, row, longest) for name in names}
        if (lengths != longest).any():
            found["mask"] = torch.arange(longest) < torch.from_numpy(lengths)[:, None]  # (n, L)
        return Codes(**found)

    def _gather(self, member: int, name: str, number: np.ndarray, row: np.ndarray, longest: int) -> Tensor:
        chosen = np.unique(number)
        if len(chosen) == 1:
            return self.segments[chosen[0]].take(member, name, row, longest).float()
        parts = [self.segments[segment].take(member, name, row[number == segment], longest) for segment in chosen]
        order = np.concatenate([np.flatnonzero(number == segment) for segment in chosen])
        joined = torch.cat(parts)
        back = torch.empty(len(order), dtype=torch.int64)
        back[torch.from_numpy(order)] = torch.arange(len(order))
        return joined[back].float()


def read_journal(folder: Path) -> list[Coded]:
    """The finished rows of a segment; a line that a kill has cut off is none."""
    try:
        data = (folder / "journal.jsonl").read_bytes()
    except FileNotFoundError:
        return []
    rows: list[Coded] = []
    for line in data.splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break
        batch = json.loads(line)
        rows += [Coded(content, facts) for content, facts in zip(batch["content"], batch["facts"], strict=True)]
    return rows
