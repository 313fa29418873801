"""What an import has done so far: a killed one goes on behind the last part of the source that it finished.

`OUT/.quintet-import.jsonl` has a header that says what is imported, then the entries of each part and a mark at its
end. What is behind the last mark is read from the source again; images that are there already are compared, not
written.
The journal also keeps the entries of a large source out of memory until its tables are written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from quintet.data.formats.assembly import _IS_COPIED, COPIED, Entry, ImageFolder, Notes, read_journal
from quintet.errors import QuintetError

NAME = ".quintet-import.jsonl"
FORMAT = "quintet-import"


class Journal:
    """`source`: everything that the entries depend on: files with size and time of change, options.

    The journal of another source is undone: the images that it names are removed.
    """

    def __init__(self, folder: ImageFolder, source: dict[str, Any], notes: Notes) -> None:
        self._folder, self._notes = folder, notes
        self._path = folder.out / NAME
        self._done: set[str] = set()
        self._shared: dict[str, str] = {}  # splits and groups occur often
        header = json.loads(json.dumps({"format": FORMAT, "version": 1, "source": source}))
        end = self._read(header)
        folder.resumed = end > 0
        if not end:
            self._path.write_text(json.dumps(header) + "\n", encoding="utf-8")
            end = self._path.stat().st_size
        os.truncate(self._path, end)
        folder.journal = self._path

    def __contains__(self, part: str) -> bool:
        return part in self._done

    def add(self, part: str, entries: Iterable[Entry]) -> None:
        """The entries of a part of the source, which is then finished."""
        with self._path.open("ab") as file:
            for entry in entries:
                _write(file, _row(entry, self._folder.out))
            _write(file, {"done": part, "skipped": self._notes.found})
        self._done.add(part)
        self._folder.settle()

    def entries(self) -> Iterator[Entry]:
        """Those of all parts that are finished."""
        for _, row in read_journal(self._path):
            if "id" in row:
                yield self._entry(row)

    def all_entries(self) -> Iterator[Entry]:
        """Those of the whole source: nothing more comes."""
        self._folder.close()
        return self.entries()

    def _read(self, header: dict[str, Any]) -> int:
        """Where the last finished part ends; 0 where there is no journal of this source."""
        if not self._path.exists():
            return 0
        rows = read_journal(self._path)
        found = next(rows, None)
        ours = found is not None and found[1].get("format") == FORMAT
        if found is None or not ours:
            raise QuintetError(
                f"{self._path} is in the way: Quintet did not write it and does not replace it; move it away"
            )
        end, same, waiting = found[0], found[1] == header, list[dict[str, Any]]()
        for position, row in rows:
            if "done" not in row:
                waiting.append(row)
                continue
            for each in waiting:
                if each.get(COPIED) and not each.get("more"):
                    self._folder.known(each["path"])
            waiting.clear()
            if same:
                end = position
                self._done.add(row["done"])
                self._notes.found = {what: list(count) for what, count in row["skipped"].items()}
        if same:
            return end
        self._folder.journal = self._path
        self._folder.undo()
        return 0

    def _entry(self, row: dict[str, Any]) -> Entry:
        group, split = row.get("group"), row.get("split")
        path = row.get("path")
        extra = row.get("extra") or {}
        return Entry(
            row["id"],
            row["captions"],
            None if split is None else self._shared.setdefault(split, split),
            None if path is None else self._folder.out / path,
            None if group is None else self._shared.setdefault(group, group),
            (extra | _IS_COPIED if extra else _IS_COPIED) if row.get(COPIED) else extra,
            row.get("numbers"),
            row.get("facts"),
            row.get("more", False),
        )


def _row(entry: Entry, out: Path) -> dict[str, Any]:
    row: dict[str, Any] = {"id": entry.id, "captions": entry.captions}
    extra = {key: value for key, value in entry.extra.items() if key != COPIED}
    path = None if entry.path is None else str(entry.path).removeprefix(f"{out}/")
    found: dict[str, Any] = {"split": entry.split, "path": path, "group": entry.group, "extra": extra}
    found |= {"numbers": entry.numbers, "facts": entry.caption_facts}
    row |= {key: value for key, value in found.items() if value}
    return row | ({COPIED: True} if COPIED in entry.extra else {}) | ({"more": True} if entry.more else {})


def _write(file: BinaryIO, row: dict[str, Any]) -> None:
    try:
        file.write(json.dumps(row).encode() + b"\n")
    except OSError as error:
        raise QuintetError(f"could not write {file.name}: {error.strerror or error}") from error
