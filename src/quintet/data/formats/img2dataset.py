"""What img2dataset writes: shards 00000.tar (or folders 00000/), and 00000_stats.json and 00000.parquet beside them.

An image is 000000007.jpg with 000000007.txt and 000000007.json. What could not be fetched is in the statistics only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from quintet.data.corpus import Corpus
from quintet.data.formats.assembly import Entry, ImageFolder, Notes, assemble, parse_fractions, read_lines, read_text
from quintet.data.formats.import_journal import Journal
from quintet.data.formats.shards import Shard, describe, find_shards, source_name
from quintet.data.formats.webdataset import OPTIONS as SHARD_OPTIONS
from quintet.data.formats.webdataset import _json_captions, read_shards
from quintet.data.images import IMAGE_SUFFIXES
from quintet.data.remote import RemoteFile, read_small
from quintet.errors import CorpusError, QuintetError
from quintet.files import check_shape, read_bytes

LARGEST_STATS = 2**24
PATTERNS = ("*.tar", "*_stats.json", *(f"*{suffix}" for suffix in (".jpg", ".png", ".webp")))
OPTIONS = {key: text for key, text in SHARD_OPTIONS.items() if key != "caption"}


def read(
    source: Sequence[Path | str],
    *,
    out: ImageFolder,
    fractions: str = "0.8,0.1,0.1",
    seed: int = 0,
    strict: bool = False,
) -> Corpus:
    notes = Notes(strict)
    shares = parse_fractions(fractions)
    found = find_shards(source, PATTERNS, "shards of img2dataset", notes)
    tars = [each for each in found if each.name.endswith(".tar")]
    files = [each for each in found if not each.name.endswith((".tar", "_stats.json"))]
    if not (tars or files):
        raise CorpusError(
            f"{', '.join(map(str, source))}: no image was fetched yet; for Parquet files with images in them use the "
            "format parquet"
        )
    journal = Journal(out, {"files": describe(tars), "strict": strict}, notes)
    read_shards(tars, out, None, notes, journal)
    _note_failures(found, notes)
    entries = list(_beside(files, notes)) if files else []
    return assemble(
        source_name(source),
        [*journal.all_entries(), *entries] if entries else journal.all_entries(),
        notes,
        fractions=shares,
        seed=seed,
        splits=("train", "dev", "test"),
    )


def _note_failures(found: Sequence[Shard], notes: Notes) -> None:
    """Count the rows whose images could not be fetched or resized, and shards that img2dataset had not finished."""
    finished = set()
    for shard in found:
        if not shard.name.endswith("_stats.json"):
            continue
        finished.add(shard.name.removesuffix("_stats.json"))
        try:
            if isinstance(shard.file, RemoteFile):
                content = read_small(shard.file, LARGEST_STATS)
            else:
                content = read_bytes(shard.file, LARGEST_STATS)
            counts = check_shape(json.loads(content), dict[str, object], str(shard))
            failed = [counts.get(key, 0) for key in ("failed_to_download", "failed_to_resize")]
        except (QuintetError, ValueError, RecursionError) as error:
            notes.leave_out("statistics that cannot be read", f"{shard}: {error}")
            continue
        for what, count in zip(("fetched", "resized"), failed, strict=True):
            if isinstance(count, int) and count > 0:
                notes.leave_out(f"rows whose images could not be {what}, by img2dataset's count", shard, count)
    for shard in found:
        if shard.name.endswith(".tar") and shard.name.removesuffix(".tar") not in finished and finished:
            notes.leave_out("statistics of shards, which are missing: is img2dataset still writing them?", shard)


def _beside(files: Sequence[Shard], notes: Notes) -> Iterator[Entry]:
    """Images in folders, each with its caption beside it."""
    for shard in files:
        path = shard.file
        if isinstance(path, RemoteFile):
            raise CorpusError(f"{shard}: of folders behind URLs only tar shards are read; let img2dataset write these")
        if path.suffix.lower() not in IMAGE_SUFFIXES:
            continue
        text, facts = path.with_suffix(".txt"), path.with_suffix(".json")
        try:
            captions = [line for line in read_lines(text) if line] if text.is_file() else []
            if not captions and facts.is_file():
                captions = _json_captions(read_text(facts), None, str(facts))
        except CorpusError as error:
            notes.skip("images whose caption file is damaged", error)
            continue
        yield Entry(path.stem, captions, shard.split, path)
