"""Which contents are coded, and where."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from quintet.search.errors import StaleIndex
from quintet.search.items import Kind, Place
from quintet.search.segments import SEGMENT_NAME, Coded, CodeTable, Segment, SegmentWriter, read_journal
from quintet.search.stores import Scalar

MANY_SEGMENTS = 32  # every build adds one
COPIED = 1024  # rows at a time


@dataclass
class Codebook:
    """Which contents are coded, and where: all segments that the same runs wrote, finished or cut off by a kill."""

    folder: Path
    kind: Kind
    encoder: str
    precision: str
    places: dict[str, tuple[str, int]] = field(default_factory=dict)  # content -> segment and row
    facts: dict[str, dict[str, Scalar]] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)  # of each segment

    @staticmethod
    def open(folder: Path, kind: Kind, encoder: str, precision: str) -> Codebook:
        book = Codebook(folder, kind, encoder, precision)
        for place in sorted(folder.glob("*/segment.json")):
            if not SEGMENT_NAME.fullmatch(place.parent.name):
                continue
            coded = read_journal(place.parent)
            try:
                segment = Segment(place.parent, len(coded))
            except StaleIndex:  # damaged: what it held is encoded again
                continue
            if (segment.kind, segment.encoder) == (kind, encoder):
                book.add(segment.folder.name, coded)
        return book

    def add(self, segment: str, coded: Sequence[Coded]) -> None:
        first = self.rows.get(segment, 0)
        for row, each in enumerate(coded, first):
            self.places[each.content] = (segment, row)
            self.facts[each.content] = each.facts
        self.rows[segment] = first + len(coded)

    def new_segment(self) -> SegmentWriter:
        names = [SEGMENT_NAME.fullmatch(path.name) for path in self.folder.glob("*")]
        taken = [int(name[1]) for name in names if name]
        name = f"{self.kind}-{max(taken, default=0) + 1:06}"
        return SegmentWriter(self.folder / name, self.kind, self.encoder, self.precision)

    def compact(self, live: Collection[str]) -> None:
        """Write codes in use anew where most are not, or where there are many small segments."""
        rows = sum(self.rows.values())
        if rows <= 2 * len(live) and len(self.rows) <= MANY_SEGMENTS:
            return
        segments = [Segment(self.folder / name, count) for name, count in self.rows.items()]
        for parts in {tuple(segment.parts) for segment in segments}:  # with boxes and without cannot be in one
            alike = CodeTable([segment for segment in segments if tuple(segment.parts) == parts])
            number = {segment.folder.name: place for place, segment in enumerate(alike.segments)}
            chosen = sorted(content for content in live if self.places[content][0] in number)
            with closing(self.new_segment()) as writer:
                for start in range(0, len(chosen), COPIED):
                    some = chosen[start : start + COPIED]
                    places = [Place(number[self.places[content][0]], self.places[content][1]) for content in some]
                    coded = [Coded(content, self.facts[content]) for content in some]
                    writer.write([alike.codes(member, places) for member in range(alike.segments[0].members)], coded)
                    self.add(writer.folder.name, coded)
