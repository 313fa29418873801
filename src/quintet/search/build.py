"""Make an index, or bring one up to date."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from quintet.evaluation.result import provenance
from quintet.runs.run import open_run
from quintet.search.codebook import Codebook
from quintet.search.coding import ImageCoder, encode_sentences
from quintet.search.encoder import Encoder
from quintet.search.errors import SearchError, StaleIndex
from quintet.search.found import Sources, numbered
from quintet.search.generation import tidy, write_generation
from quintet.search.items import KINDS, Entry, Item, ItemTable, Kind, Place
from quintet.search.manifest import Manifest, SegmentRows, describe_run, keep_run, next_generation
from quintet.search.ownership import check_sources, writing
from quintet.search.roles import Roles, assign_roles
from quintet.search.sources import find_images
from quintet.search.store_choice import choose_store, try_store
from quintet.search.texts import IndexedText, find_texts
from quintet.search.towers import keep_tower

Progress = Callable[[int, int], None]  # images and texts done, and in all
PRECISIONS = ("bfloat16", "float16", "float32")


@dataclass(frozen=True)
class BuildReport:
    added: int
    kept: int
    dropped: int
    unreadable: list[tuple[str, str]] = field(default_factory=list)  # path, why
    encoded: int = 0  # images and texts whose codes were made now; the codes of the others were there
    generation: int = 0
    seconds: float = 0.0


def build_index(
    run: Path | Sequence[Path],
    sources: Sequence[Path],
    out: Path,
    *,
    texts: Path | None = None,
    rerank_with: Sequence[Path] = (),
    split: str | None = None,
    store: str = "auto",
    precision: str = "bfloat16",
    device: str = "auto",
    batch_size: int = 32,
    workers: int = 4,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> BuildReport:
    """Index the images of `sources` (folders, corpora, tar shards) and the texts of `texts`.

    On an index that exists it adds what is new, drops what is gone and keeps the codes of everything else, moved files
    included. Killed or stopped, it leaves the old index serving, and the next call goes on where it was.

    `run`: several are one ensemble, whose score is the mean of theirs. `rerank_with`: runs whose whole score can put
    the best candidates in order. `precision`: of stored fragments. `split`: of corpora, only this split. `overwrite`:
    replace what is there, an index of other runs, say. `progress(done, total)` is called after every batch.
    """
    began = time.monotonic()
    _check(sources, texts, precision, batch_size)
    own = [Path(run)] if isinstance(run, str | Path) else [Path(each) for each in run]
    index = Path(out).resolve()
    check_sources(index, [*map(Path, sources), *([] if texts is None else [texts])])
    team = _open_team(own, rerank_with, device, precision)
    with writing(index) as name:
        before = None if overwrite else _before(index, team)
        old = _entries_of(index, before)
        found = find_images(sources, index, split=split, before=_by_path(before, old))
        sentences = find_texts(texts, split=split) if texts is not None else []
        store = choose_store(store, max(len(found.images), len(sentences)), name + team.fingerprint)
        if team.roles.first:
            try_store(index, store, team.roles.dim)
        for each, folder in zip(team.encoder.runs, team.folders, strict=True):
            keep_run(index, each, folder)
            keep_tower(index / "towers", each.image_input.get("tower"))

        books = {kind: Codebook.open(index / "segments", kind, team.fingerprint, precision) for kind in KINDS}
        count = _Count(len(found.images) + len(sentences), progress)
        coder = ImageCoder(books["image"], team.encoder, batch_size=batch_size, workers=workers)
        contents = coder.code(found, _known_contents(found, _by_path(before, old)), count)
        encoded = coder.encoded + encode_sentences(books["text"], team.encoder, sentences, batch_size, count)
        books["image"].compact({content for content in contents if content})
        books["text"].compact({sentence.content for sentence in sentences})

        entries: dict[Kind, list[Entry]] = {
            "image": _image_entries(found, contents, books["image"]),
            "text": _text_entries(sentences, books["text"]),
        }
        manifest = Manifest(
            generation=next_generation(index),
            encoder=team.fingerprint,
            precision=precision,
            runs=tuple(describe_run(each) for each in team.encoder.runs),
            first=team.roles.first,
            rerank=team.roles.rerank,
            dim=team.roles.dim,
            store=store,
            segments={kind: _segments(books[kind], entries[kind]) for kind in KINDS},
            counts={kind: len(entries[kind]) for kind in KINDS},
            roots=tuple(found.roots),
            texts=None if texts is None else str(texts.resolve()),
            made=provenance(),
        )
        new = {entry.item.id: entry for kind in KINDS for entry in entries[kind]}
        if before is not None and _same(before, manifest, old, new):
            manifest = before
        else:
            write_generation(index, manifest, entries, before, old)
        tidy(index, manifest, entries["image"])
    return BuildReport(
        added=len(new.keys() - old.keys()),
        kept=len(new.keys() & old.keys()),
        dropped=len(old.keys() - new.keys()),
        unreadable=found.unreadable,
        encoded=encoded,
        generation=manifest.generation,
        seconds=time.monotonic() - began,
    )


def _check(sources: Sequence[Path], texts: Path | None, precision: str, batch_size: int) -> None:
    if precision not in PRECISIONS:
        raise SearchError(f"fragments are stored as {', '.join(PRECISIONS)}, not {precision!r}")
    if not sources and texts is None:
        raise SearchError("there is nothing to index: name images, or a file of texts")
    if batch_size < 1:
        raise SearchError(f"a batch has at least one image, got {batch_size}")


class _Count:
    """Adds up what is done, for a progress bar."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.total, self.progress, self.done = total, progress, 0

    def __call__(self, more: int) -> None:
        self.done += more
        if self.progress is not None:
            self.progress(self.done, self.total)


@dataclass(frozen=True)
class _Team:
    """The runs of an index, each once, and what they are for."""

    encoder: Encoder
    folders: list[Path]  # where each was opened from
    roles: Roles
    fingerprint: str


def _open_team(own: Sequence[Path], rerank_with: Sequence[Path], device: str, precision: str) -> _Team:
    runs, folders = [open_run(folder) for folder in own], list(own)
    rerank = []
    for folder in map(Path, rerank_with):
        run = open_run(folder)
        if run.weights_checksum not in [each.weights_checksum for each in runs]:
            runs.append(run)
            folders.append(folder)
        rerank.append([each.weights_checksum for each in runs].index(run.weights_checksum))
    encoder = Encoder(runs, device=device)
    return _Team(encoder, folders, assign_roles(encoder, len(own), rerank), encoder.fingerprint(precision))


def _before(index: Path, team: _Team) -> Manifest | None:
    """The index as it is; None where there is none."""
    if not (index / "index.json").exists():
        return None
    before = Manifest.read(index)
    if (before.encoder, before.first, before.rerank) == (team.fingerprint, team.roles.first, team.roles.rerank):
        return before
    names = ", ".join(run.name for run in before.runs)
    raise StaleIndex(
        f"index {index} was built by other runs ({names}) or in another precision, and codes of different runs cannot "
        "be compared; use the same runs, another folder, or --overwrite to replace it"
    )


def _entries_of(index: Path, manifest: Manifest | None) -> dict[str, Entry]:
    if manifest is None:
        return {}
    with closing(ItemTable(manifest.folder(index) / "items.sqlite")) as table:
        return {entry.item.id: entry for entry in table.all()}


def _by_path(manifest: Manifest | None, entries: Mapping[str, Entry]) -> dict[tuple[str, str], Entry]:
    """Images by the path of their root and their own."""
    return {
        (manifest.roots[entry.item.root].path, entry.item.path): entry
        for entry in entries.values()
        if manifest is not None and entry.item.root is not None and entry.item.path is not None
    }


def _known_contents(found: Sources, before: Mapping[tuple[str, str], Entry]) -> list[str | None]:
    """Files whose size and time of change are as they were need not be read."""
    known = []
    for image in found.images:
        entry = before.get((found.roots[image.root].path, image.path))
        same = entry is not None and image.file is not None and entry.stamp == image.stamp
        known.append(image.content or (entry.content if entry is not None and same else None))
    return known


def _image_entries(found: Sources, contents: Sequence[str | None], book: Codebook) -> list[Entry]:
    read = [(image, content) for image, content in zip(found.images, contents, strict=True) if content]
    ids = numbered([content for _, content in read])
    segments = _segment_numbers(book, [content for _, content in read])
    entries = []
    for id_, (image, content) in zip(ids, read, strict=True):
        segment, row = book.places[content]
        metadata = image.metadata | book.facts[content]
        path = None if image.file is None else image.path
        item = Item(id_, "image", path, image.root, metadata=metadata)
        entries.append(Entry(item, Place(segments[segment], row), content, image.stamp))
    return entries


def _text_entries(sentences: Sequence[IndexedText], book: Codebook) -> list[Entry]:
    contents = [sentence.content for sentence in sentences]
    segments = _segment_numbers(book, contents)
    entries = []
    for id_, content, sentence in zip(numbered(contents), contents, sentences, strict=True):
        segment, row = book.places[content]
        item = Item(id_, "text", text=sentence.text, metadata=sentence.metadata)
        entries.append(Entry(item, Place(segments[segment], row), content, ""))
    return entries


def _segment_numbers(book: Codebook, contents: Sequence[str]) -> dict[str, int]:
    """The segments in use, numbered by name."""
    return {name: number for number, name in enumerate(sorted({book.places[content][0] for content in contents}))}


def _segments(book: Codebook, entries: Sequence[Entry]) -> tuple[SegmentRows, ...]:
    names = _segment_numbers(book, [entry.content for entry in entries])
    return tuple(SegmentRows(name, book.rows[name]) for name in names)


def _same(before: Manifest, now: Manifest, old: Mapping[str, Entry], new: Mapping[str, Entry]) -> bool:
    """Whether nothing changed, so that no searcher needs to open anything anew."""
    facts = ("store", "roots", "texts")
    return all(getattr(before, name) == getattr(now, name) for name in facts) and {
        id_: (entry.item, entry.content, entry.stamp) for id_, entry in old.items()
    } == {id_: (entry.item, entry.content, entry.stamp) for id_, entry in new.items()}
