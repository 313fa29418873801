"""One generation of an index: its items and its store, written beside the old one and exchanged at the end."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from quintet.files import read_json
from quintet.search.errors import SearchError
from quintet.search.items import KINDS, Entry, Kind, write_items
from quintet.search.manifest import Manifest
from quintet.search.ownership import remove_folder, remove_unused
from quintet.search.roles import first_vectors
from quintet.search.segments import CodeTable, Segment
from quintet.search.store_choice import is_ours, store_address
from quintet.search.stores import open_store
from quintet.search.stores.folder import OWN_NAME as STORE_FILE

AT_ONCE = 4096  # vectors given to a store


def open_tables(index: Path, manifest: Manifest) -> dict[Kind, CodeTable]:
    return {
        kind: CodeTable([Segment(index / "segments" / part.name, part.rows) for part in manifest.segments[kind]])
        for kind in KINDS
    }


def write_generation(
    index: Path,
    manifest: Manifest,
    entries: Mapping[Kind, Sequence[Entry]],
    before: Manifest | None,
    old: Mapping[str, Entry],
) -> None:
    """Write items and stores of `manifest`'s generation, then make it the index's own. `old`: items as they were."""
    final = manifest.folder(index)
    partial = final.with_name(f".{final.name}.{secrets.token_hex(4)}.partial")
    try:
        partial.mkdir()
        write_items(partial / "items.sqlite", [entry for kind in KINDS for entry in entries[kind]])
        if manifest.first:
            tables = open_tables(index, manifest)
            for kind in KINDS:
                _write_store(index, partial, kind, manifest, before, entries[kind], old, tables[kind])
        _sync(partial)
        partial.rename(final)
        manifest.write(index)  # from here on the new generation is the index
    except OSError as error:
        raise SearchError(
            f"could not write {final}: {error.strerror or error}; the index is as it was: make room and run the same "
            "command again, it resumes"
        ) from error
    finally:
        remove_folder(partial, "generation", whole=False)
    if manifest.first and not is_ours(manifest.store):
        _drop_from_engine(manifest, final, entries)


def _write_store(
    index: Path,
    partial: Path,
    kind: Kind,
    manifest: Manifest,
    before: Manifest | None,
    entries: Sequence[Entry],
    old: Mapping[str, Entry],
    table: CodeTable,
) -> None:
    """A copy of the old store with what changed, a new one where most of it changed, or the engine outside."""
    wanted = {entry.item.id: entry for entry in entries}
    known: dict[str, Entry] = {}
    if is_ours(manifest.store):
        if not wanted:
            return
        mine = {id_: entry for id_, entry in old.items() if entry.item.kind == kind}
        common = len(mine.keys() & wanted.keys())
        if before is not None and before.store == manifest.store and 2 * common > max(len(wanted), len(mine)):
            shutil.copytree(
                before.folder(index) / f"store-{kind}",
                partial / f"store-{kind}",
                ignore=lambda _, names: {name for name in names if not STORE_FILE.fullmatch(name)},
            )
            known = mine
    store = open_store(store_address(manifest.store, partial, kind), manifest.dim, create=not known)
    if not is_ours(manifest.store):
        known = {id_: old[id_] for id_ in store.ids() if id_ in old}
    with closing(store):
        if is_ours(manifest.store):
            store.delete(known.keys() - wanted.keys())
        changed = [entry for id_, entry in wanted.items() if id_ not in known or known[id_].item != entry.item]
        for some, vectors in _vectors(changed, manifest, table):
            store.add([entry.item.id for entry in some], vectors, [entry.item.facts() for entry in some])
        store.flush()


def _vectors(
    entries: Sequence[Entry], manifest: Manifest, table: CodeTable
) -> Iterator[tuple[Sequence[Entry], np.ndarray]]:
    ordered = sorted(entries, key=lambda entry: entry.place)
    for start in range(0, len(ordered), AT_ONCE):
        some = ordered[start : start + AT_ONCE]
        yield some, place_vectors(table, manifest, some)


def place_vectors(table: CodeTable, manifest: Manifest, entries: Sequence[Entry]) -> np.ndarray:
    """(n, dim) float32: the first stage's vectors of items, from their codes."""
    places = [entry.place for entry in entries]
    codes = {member: table.codes(member, places, parts=("embedding",)) for member in manifest.first}
    return first_vectors(codes, manifest.first).numpy()


def _drop_from_engine(manifest: Manifest, final: Path, entries: Mapping[Kind, Sequence[Entry]]) -> None:
    """From an engine that old and new generation share: last, and until then searchers pass over what is gone."""
    for kind in KINDS:
        with closing(open_store(store_address(manifest.store, final, kind), manifest.dim)) as store:
            gone = set(store.ids()) - {entry.item.id for entry in entries[kind]}
            if gone:
                store.delete(gone)
                store.flush()


def _sync(folder: Path) -> None:
    """On disk, before anything names it."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def tidy(index: Path, manifest: Manifest, images: Sequence[Entry]) -> None:
    """Remove what no generation needs any more. Readers of the old generation keep the files they have open."""
    runs = {run.weights for run in manifest.runs}
    used = {manifest.folder(index).name, *runs, *(_tower_of(index / "runs" / run) for run in runs)}
    used |= {part.name for parts in manifest.segments.values() for part in parts}
    remove_unused(index, used, {entry.content for entry in images})


def _tower_of(run: Path) -> str:
    """The checksum of the image tower whose features a run reads; empty where that is not known."""
    return str((read_json(run / "images.json").get("tower") or {}).get("checksum", ""))
