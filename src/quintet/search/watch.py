"""An index that follows its sources: it is brought up to date when a file in them appears, changes or goes."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from quintet.data.remote import is_url, shown_url
from quintet.files import user_path
from quintet.runs.run import Run, load
from quintet.search import SearchError
from quintet.search.indexing import BuildReport, build_index, several

SECONDS = 2.0  # between two looks


def watch_index(
    run: Path | str | Run | Sequence[Path | str | Run],
    sources: Path | str | Sequence[Path | str],
    out: Path | str,
    *,
    seconds: float = SECONDS,
    **options: Any,
) -> Iterator[BuildReport]:
    """Build the index, and build it again after every change of the sources; a report for each build, without end.

    Folders are looked at every few `seconds`, which works on every file system. A build waits until two looks agree, so
    that photos that are being copied are read when they are complete. The runs stay loaded. `options` are those of
    `build_index`.

        for report in watch_index("quintet-small", "~/Pictures", "photos.index"):
            print(report.added)
    """
    runs = [each if isinstance(each, Run) else load(each, device="cpu") for each in several(run)]
    urls = [each for each in several(sources) if is_url(each)]
    if urls:
        raise SearchError(
            f"{shown_url(urls[0])}: only folders of this machine can be watched; index it without --watch"
        )
    paths = [user_path(each) for each in several(sources)]
    seen = look(paths)
    yield build_index(runs, paths, out, **options)
    options["overwrite"] = False  # once is enough
    while True:
        time.sleep(seconds)
        now = look(paths)
        if now == seen:
            continue
        while now != (settled := _after(seconds, paths)):
            now = settled
        seen = now
        yield build_index(runs, paths, out, **options)


def look(sources: Sequence[Path]) -> str:
    """A checksum of the names, sizes and times of everything in the sources; what cannot be listed counts as empty."""
    found = hashlib.sha256()
    for source in sources:
        waiting = [os.fspath(source)]
        while waiting:
            folder = waiting.pop()
            try:
                with os.scandir(folder) as listed:
                    entries = sorted(listed, key=lambda each: each.name)
            except OSError:
                entries = []
                _add(found, folder)
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                _add(found, entry.path)
    return found.hexdigest()


def _add(found: Any, path: str) -> None:
    try:
        facts = Path(path).stat()
        known = f"{facts.st_size}:{facts.st_mtime_ns}:{facts.st_ino}"
    except (OSError, ValueError) as error:
        known = type(error).__name__
    found.update(os.fsencode(path) + b"\0" + known.encode() + b"\0")


def _after(seconds: float, sources: Sequence[Path]) -> str:
    time.sleep(seconds)
    return look(sources)
