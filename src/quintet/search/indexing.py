"""`build_index`: make an index, or bring one up to date."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch

from quintet.cluster import Cluster, Pool, worker_pool
from quintet.data.corpus import Corpus
from quintet.data.remote import is_url
from quintet.evaluation.result import provenance
from quintet.files import header_format, remove_partials, user_path
from quintet.runs.encoding import Progress, reported
from quintet.runs.run import Run, load
from quintet.search import SearchError, StaleIndex
from quintet.search.chance import packed
from quintet.search.encoded import EncodedItems, ImageEncoder, encode_texts
from quintet.search.encoder import (
    Encoder,
    Roles,
    assign_roles,
    describe_run,
    first_vectors,
    is_intact,
    keep_run,
    keep_tower,
    kept_names,
)
from quintet.search.found import Sources
from quintet.search.index_batches import IndexWorker, StoreTask
from quintet.search.index_folder import FORMAT, Manifest, Root, check_marker, path_text, text_path, write_marker
from quintet.search.items import KINDS, Entry, Item, ItemDatabase, Kind, rescue
from quintet.search.kept import Earlier, Unlisted, check_dropped, key
from quintet.search.ownership import check_kept, check_sources, remove_unused_images, writing
from quintet.search.sources import IndexedText, find_images, find_texts, numbered
from quintet.search.stores import Scalar, open_store
from quintet.search.stores.choice import choose_store, faiss_kind, is_own, store_address, takes_many_writers, try_store
from quintet.search.stores.store import is_text
from quintet.search.vector_search import exchange_index, prepare_index
from quintet.search.vectors import CodeFiles, adopt, announce, read_file_sets, remove_unused_files, retire

PathLike = Path | str
PRECISIONS = ("bfloat16", "float16", "float32")
AT_ONCE = 4096  # vectors given to an engine


@dataclass(frozen=True)
class BuildReport:
    added: int
    kept: int
    dropped: int
    unreadable: list[tuple[str, str]] = field(default_factory=list)  # path, why
    unlisted: list[Unlisted] = field(default_factory=list)
    encoded: int = 0  # images and texts whose codes were made now; the codes of the others were there
    generation: int = 0
    seconds: float = 0.0
    repaired: list[str] = field(default_factory=list)  # what was damaged in the index, and is made anew
    videos: int = 0  # in the folders, those of live photos included; they are passed over


def build_index(
    run: PathLike | Run | Sequence[PathLike | Run],
    sources: PathLike | Corpus | Sequence[PathLike | Corpus],
    out: PathLike,
    *,
    texts: PathLike | Corpus | None = None,
    rerank_with: PathLike | Run | Sequence[PathLike | Run] = (),
    split: str | None = None,
    store: str = "auto",
    precision: str = "bfloat16",
    device: torch.device | str = "auto",
    batch_size: int = 32,
    workers: int = 4,
    overwrite: bool = False,
    prune: bool = False,
    progress: bool | Progress = False,
    ray: str | None = None,
    ray_workers: int | None = None,
    ray_gpus: float = 0.0,
) -> BuildReport:
    """Index the images of `sources` and the texts of `texts`.

    `sources`: folders, corpora, tar shards, Parquet files, URLs of all but corpora.

    On an index that exists it adds what is new, drops what is gone and keeps the codes of everything else, moved files
    included. Killed or stopped, it leaves the old index serving, and the next call goes on where it was.

    `run`: an opened run, the folder of one, or the name of one that comes with Quintet; several are one ensemble,
    whose score is the mean of theirs. `rerank_with`: runs whose whole score can put the best candidates in order.
    `precision`: of stored fragments. `split`: of corpora, only this split. `overwrite`: replace what is there, an index
    of other runs, say. `progress`: True draws a bar; a function is called with (done, total) after every batch.

    `ray`: a Ray cluster whose workers encode (auto, local, ray://HOST:PORT); images must be at the same path on every
    node. `ray_workers`: how many, by default one a CPU. `ray_gpus`: GPUs of each, 0.5 for two on one.

    What cannot be listed stays in the index, and `unlisted` of the report names it; so does what a folder had that is
    empty or missing now. Dropping more than a fifth of the images or texts (and more than ten) is refused. `prune`:
    drop that much, and what empty or missing folders had.

    >>> from tempfile import TemporaryDirectory
    >>> from PIL import Image
    >>> with TemporaryDirectory() as folder:
    ...     Image.new("RGB", (64, 48), "green").save(f"{folder}/grass.png")
    ...     report = build_index("quintet-small", f"{folder}/grass.png", f"{folder}/photos.index", device="cpu")
    >>> report.added, report.encoded
    (1, 1)
    """
    began = time.monotonic()
    cluster = Cluster.of(ray, ray_workers, ray_gpus, device)
    paths = [_source(source) for source in several(sources)]
    local = [source for source in paths if isinstance(source, Path)]
    texts = None if texts is None else texts.root if isinstance(texts, Corpus) else user_path(texts)
    _check(paths, texts, precision, batch_size)
    index = user_path(out).resolve()
    if not is_text(str(index)):
        raise SearchError(f"the path {index} is not UTF-8, which reading an index needs; choose another folder")
    check_sources(index, [*local, *([] if texts is None else [texts])])
    _check_missing(local, index, overwrite)
    team = _open_team(several(run), several(rerank_with), device if cluster is None else "cpu", precision)
    with writing(index), ExitStack() as stack:
        repaired = _repair(index, overwrite)
        with (
            closing(ItemDatabase.open_writer(index / "items.sqlite")) as database,
            reported(progress, f"indexing {index.name}", None) as report,
        ):
            before = _before(index, database, team, overwrite)
            remove_unused_files(database, index / "vectors")
            old = _entries_of(database, before)
            earlier = Earlier(() if before is None else before.roots, old.values())
            encoded = {
                kind: EncodedItems(database, index / "vectors", kind, team.fingerprint, precision) for kind in KINDS
            }
            pool = None
            if cluster is not None:
                made_by = IndexWorker, team.encoder.travelling(), cluster.device, workers, encoded["image"].contents()
                pool = stack.enter_context(worker_pool(cluster, *made_by))
            found = find_images(paths, index, split=split, earlier=earlier, prune=prune, pool=pool)
            found_texts = find_texts(texts, split=split) if texts is not None else []
            _check_listed(found, old, len(found_texts), overwrite and database.head("manifest") is not None)
            most = max(len(found.images), len(found_texts))
            store = choose_store(store, most, _name(database) + team.fingerprint)
            if team.roles.first:
                try_store(store, team.roles.dim, most)
            kept = {} if before is None else before.kept
            repaired += [name for name, checksum in kept.items() if not is_intact(index / name, checksum)]
            names = kept_names(team.encoder.runs)
            recorded = _recorded(database)
            if not repaired:  # else the record may be lost
                check_kept(index, names, recorded)
            with database.transaction():
                announce(database, {*names} - {*recorded})
            now_kept: dict[str, str] = {}
            for each in team.encoder.runs:
                now_kept |= keep_run(index, each, kept) | keep_tower(index, each.image_input.get("tower"), kept)

            repaired += [f"vectors/{each}" for kind in KINDS for each in encoded[kind].damaged]
            count = _Count(len(found.images) + len(found_texts), report)
            images = ImageEncoder(encoded["image"], team.encoder, batch_size=batch_size, workers=workers, pool=pool)
            contents = found.without_moved(images.encode(found, _known_contents(found), count))
            made = images.encoded
            made += encode_texts(encoded["text"], team.encoder, found_texts, batch_size, count, pool)
            if not any(contents) and not found_texts and found.unreadable:
                raise SearchError(f"none of the images can be read, the first because: {found.unreadable[0][1]}")
            _check_dropped(found, contents, found_texts, old)
            encoded["image"].compact({content for content in contents if content})
            encoded["text"].compact({text.content for text in found_texts})

            entries: dict[Kind, list[Entry]] = {
                "image": _image_entries(found, contents, encoded["image"]),
                "text": _text_entries(found_texts, encoded["text"]),
            }
            manifest = Manifest(
                generation=1 + (database.head("manifest") or {}).get("generation", 0),
                encoder=team.fingerprint,
                precision=precision,
                runs=tuple(map(describe_run, team.encoder.runs)),
                first=team.roles.first,
                rerank=team.roles.rerank,
                dim=team.roles.dim,
                store=store,
                files={kind: encoded[kind].files.name for kind in KINDS if entries[kind]},
                faiss=_prepare_indexes(database, index, before, team.roles, store, encoded, entries),
                counts={kind: len(entries[kind]) for kind in KINDS},
                roots=tuple(found.roots),
                kept=now_kept,
                texts=None if texts is None else path_text(texts.resolve()),
                made=provenance(),
            )
            new = {entry.item.id: entry for kind in KINDS for entry in entries[kind]}
            if before is not None and not repaired and _same(before, manifest, old, new):
                manifest = before
            else:
                in_engine = bool(manifest.first) and not is_own(store)
                if in_engine:
                    _add_to_engine(index, manifest, entries, old, encoded, pool)
                by_chance = None
                if manifest.first and (before is None or database.head("random texts") is None):
                    by_chance = packed(team.encoder.random_texts(manifest.first))
                _commit(database, manifest, before, encoded, old, new, by_chance)
                if in_engine:
                    _drop_from_engine(manifest, entries)
            _finish(index, database, manifest, entries["image"])
    return BuildReport(
        added=len(new.keys() - old.keys()),
        kept=len(new.keys() & old.keys()),
        dropped=len(old.keys() - new.keys()),
        unreadable=found.unreadable,
        unlisted=[each for each in found.unlisted.values() if each.kept or not each.gone],
        encoded=made,
        generation=manifest.generation,
        seconds=time.monotonic() - began,
        repaired=repaired,
        videos=found.videos,
    )


def _source(source: Any) -> Path | str:
    """A URL as a string, anything else as a path."""
    if isinstance(source, Corpus):
        return source.root
    return str(source) if is_url(source) else user_path(source)


def several(value: Any) -> list[Any]:
    return [value] if isinstance(value, str | os.PathLike | Run | Corpus) else list(value)


def _check(sources: Sequence[Path | str], texts: Path | None, precision: str, batch_size: int) -> None:
    if precision not in PRECISIONS:
        raise SearchError(f"fragments are stored as {', '.join(PRECISIONS)}, not {precision!r}")
    if not sources and texts is None:
        raise SearchError("there is nothing to index: name images, or a file of texts")
    if batch_size < 1:
        raise SearchError(f"a batch has at least one image, got {batch_size}")


def _check_missing(sources: Sequence[Path], index: Path, overwrite: bool) -> None:
    """Refuse sources that are not there, before anything is opened; those that the index has may be on a disk."""
    for source in sources:
        if os.path.lexists(source):
            continue
        roots: Sequence[Root] = ()
        if not overwrite and (index / "index.json").exists():
            roots = Manifest.read(index).roots
        path = path_text(os.path.realpath(source))
        if not any(f"{root.path}/".startswith(f"{path}/") or f"{path}/".startswith(f"{root.path}/") for root in roots):
            raise SearchError(f"{source} does not exist; the index is as it was")


class _Count:
    """Adds up what is done, for a progress bar."""

    def __init__(self, total: int, progress: Progress) -> None:
        self.total, self.progress, self.done = total, progress, 0

    def __call__(self, more: int) -> None:
        self.done += more
        self.progress(self.done, self.total)


@dataclass(frozen=True)
class _Team:
    """The runs of an index, each once, and what they are for."""

    encoder: Encoder
    roles: Roles
    fingerprint: str


def _open_team(
    own: Sequence[PathLike | Run], rerank_with: Sequence[PathLike | Run], device: torch.device | str, precision: str
) -> _Team:
    opened = [each if isinstance(each, Run) else load(each, device="cpu") for each in own]
    if device == "auto" and opened and isinstance(own[0], Run):
        device = str(own[0].device)
    runs, rerank = list(opened), []
    for each in rerank_with:
        run = each if isinstance(each, Run) else load(each, device="cpu")
        if run.weights_checksum not in [other.weights_checksum for other in runs]:
            runs.append(run)
        rerank.append([other.weights_checksum for other in runs].index(run.weights_checksum))
    encoder = Encoder(runs, device=device)
    return _Team(encoder, assign_roles(encoder, len(opened), rerank), encoder.fingerprint(precision))


def _before(index: Path, database: ItemDatabase, team: _Team, overwrite: bool) -> Manifest | None:
    """The index as it is; None where there is none yet, or where it is to be replaced."""
    if overwrite or database.head("manifest") is None:
        return None
    before = Manifest.of(database)
    if (before.encoder, before.first, before.rerank) == (team.fingerprint, team.roles.first, team.roles.rerank):
        return before
    names = [run.name for run in before.runs]
    same = [run.name for run in team.encoder.runs] == names
    by = f"an earlier version of {' and '.join(names)}" if same else f"other runs ({', '.join(names)})"
    raise StaleIndex(
        f"index {index} was built by {by} or in another precision, and codes of different runs cannot "
        "be compared; use the same runs, another folder, or --overwrite to replace it"
    )


def _repair(index: Path, overwrite: bool) -> list[str]:
    """See that there is a database to go on with; what of it was damaged."""
    path, finished = index / "items.sqlite", header_format(index / "index.json") == FORMAT
    if finished:
        check_marker(index)
    if not path.exists():
        if finished and not overwrite:
            raise StaleIndex(f"{path} is missing; build the index again with --overwrite")
        return [f"{path.name}: missing"] if finished else []
    try:
        with closing(ItemDatabase.open_writer(path)) as database:
            if not (damage := database.damage()):
                return []
    except StaleIndex as error:
        damage = [str(error)]
    rescue(path)
    return [f"{path.name}: {line}" for line in damage]


def _name(database: ItemDatabase) -> str:
    """What tells this index from others in an engine."""
    name = database.head("name")
    if name is None:
        name = secrets.token_hex(8)
        with database.transaction():
            database.set_head("name", name)
    return str(name)


def _recorded(database: ItemDatabase) -> dict[str, str]:
    """The files of runs and towers that the last build has kept, with their checksums."""
    return {} if database.head("manifest") is None else Manifest.of(database).kept


def _entries_of(database: ItemDatabase, before: Manifest | None) -> dict[str, Entry]:
    return {} if before is None else {entry.item.id: entry for entry in database.all()}


def _check_listed(found: Sources, old: Mapping[str, Entry], texts: int, replaces: bool) -> None:
    """Before anything is encoded: refuse what is sure to empty an index."""
    if not found.images and not texts:
        raise SearchError("nothing would be left in the index; it is as it was. Remove its folder to be rid of it")
    if replaces and found.unlisted and not found.prune:
        first = next(iter(found.unlisted.values()))
        raise SearchError(
            f"{first.path}: {first.why}; an index that is replaced cannot keep what cannot be listed, so it is as it "
            "was. Make it readable, or add --prune (from Python: prune=True)"
        )
    images = sum(entry.item.kind == "image" for entry in old.values())
    check_dropped("image", images - len(found.images), images, _gone_image(found), found.prune)


def _gone_image(found: Sources) -> str:
    """The first image of the index that is not where it was."""
    here = {found.key(image) for image in found.images}
    paths = (path for _, path in found.earlier.keys() - here)
    return text_path(min(paths, default=""))


def _check_dropped(
    found: Sources, contents: Sequence[str | None], texts: Sequence[IndexedText], old: Mapping[str, Entry]
) -> None:
    """Once all is read: an image is gone where neither its path nor its content is there, a text where it is not."""
    here = {found.key(image) for image, content in zip(found.images, contents, strict=True) if content is not None}
    known = {*contents, *(text.content for text in texts)}
    gone = [entry for entry in old.values() if entry.content not in known]
    images = [
        entry.item.path or entry.item.id
        for entry in gone
        if entry.item.kind == "image"
        and (entry.item.root is None or key(found.earlier.roots[entry.item.root], entry.item.path or "") not in here)
    ]
    kinds: dict[Kind, list[str]] = {
        "image": images,
        "text": [entry.item.text or "" for entry in gone if entry.item.kind == "text"],
    }
    for kind, names in kinds.items():
        of = sum(entry.item.kind == kind for entry in old.values())
        check_dropped(kind, len(names), of, min(names, default=""), found.prune)


def _known_contents(found: Sources) -> list[str | None]:
    """Files whose size and time of change are as they were need not be read."""
    known = []
    for image in found.images:
        entry = found.earlier.at(found.key(image))
        same = entry is not None and image.file is not None and entry.stamp == image.stamp
        known.append(image.content or (entry.content if entry is not None and same else None))
    return known


def _image_entries(found: Sources, contents: Sequence[str | None], encoded: EncodedItems) -> list[Entry]:
    read = [(image, content) for image, content in zip(found.images, contents, strict=True) if content]
    entries = []
    for id_, (image, content) in zip(numbered([content for _, content in read]), read, strict=True):
        path = None if image.file is None else image.path
        folder: dict[str, Scalar] = {} if path is None else {"folder": str(PurePosixPath(path).parent)}
        metadata = folder | image.metadata | encoded.facts[content]
        item = Item(id_, "image", path, image.root, metadata=metadata)
        entries.append(Entry(item, encoded.rows[content], content, image.stamp))
    return entries


def _text_entries(texts: Sequence[IndexedText], encoded: EncodedItems) -> list[Entry]:
    contents = [text.content for text in texts]
    return [
        Entry(Item(id_, "text", text=text.text, metadata=text.metadata), encoded.rows[content], content, "")
        for id_, content, text in zip(numbered(contents), contents, texts, strict=True)
    ]


def _same(before: Manifest, now: Manifest, old: Mapping[str, Entry], new: Mapping[str, Entry]) -> bool:
    """Whether nothing changed, so that no searcher needs to open anything anew."""
    facts = ("store", "roots", "texts", "files", "faiss", "kept")
    return old == new and all(getattr(before, name) == getattr(now, name) for name in facts)


def _prepare_indexes(
    database: ItemDatabase,
    index: Path,
    before: Manifest | None,
    roles: Roles,
    store: str,
    encoded: Mapping[Kind, EncodedItems],
    entries: Mapping[Kind, Sequence[Entry]],
) -> dict[str, dict[str, Any]]:
    """FAISS's indexes, of the kinds that have one."""
    if not roles.first or not is_own(store):
        return {}
    found = {}
    for kind in KINDS:
        if entries[kind]:
            files = encoded[kind].files
            vectors = CodeFiles(index / "vectors", files).vectors(roles.first)
            notes = before.faiss.get(kind, {}) if before is not None else {}
            wanted = faiss_kind(store, files.rows)
            found[kind] = prepare_index(database, index / "vectors", files, vectors, wanted, notes)
    return {kind: notes for kind, notes in found.items() if notes}


def _commit(
    database: ItemDatabase,
    manifest: Manifest,
    before: Manifest | None,
    encoded: Mapping[Kind, EncodedItems],
    old: Mapping[str, Entry],
    new: Mapping[str, Entry],
    by_chance: dict[str, Any] | None,
) -> None:
    """From here on the new generation is the index."""
    with database.transaction():
        if by_chance is not None:
            database.set_head("random texts", by_chance)
        earlier = None if database.head("manifest") is None else Manifest.of(database)
        if before is None:
            database.remove_all()
        else:
            database.remove(old.keys() - new.keys())
        database.put(entry for id_, entry in new.items() if old.get(id_) != entry)
        for kind in KINDS:
            encoded[kind].commit()
            exchange_index(database, earlier.faiss.get(kind, {}) if earlier else {}, manifest.faiss.get(kind, {}))
        announce(database, earlier.kept if earlier else ())
        adopt(database, manifest.kept)
        for name, files in read_file_sets(database).items():
            if name not in manifest.files.values():
                retire(database, files)
        manifest.put(database)


def _finish(index: Path, database: ItemDatabase, manifest: Manifest, images: Sequence[Entry]) -> None:
    """After the commit: mark the folder and remove what nothing needs any more. Killed here, the next build does it."""
    write_marker(index)
    remove_unused_files(database, index / "vectors")
    for name in manifest.kept:
        remove_partials((index / name).parent, {PurePosixPath(name).name})
    remove_unused_images(index, {entry.content for entry in images})


# Engines outside of the index


def _add_to_engine(
    index: Path,
    manifest: Manifest,
    entries: Mapping[Kind, Sequence[Entry]],
    old: Mapping[str, Entry],
    encoded: Mapping[Kind, EncodedItems],
    pool: Pool | None,
) -> None:
    """Before the commit: until then searchers pass over what their generation does not know."""
    for kind in KINDS:
        with closing(open_store(store_address(manifest.store, kind), manifest.dim, create=True)) as store:
            known = {id_: old[id_].item for id_ in store.ids() if id_ in old}
            changed = [entry for entry in entries[kind] if known.get(entry.item.id) != entry.item]
            changed.sort(key=lambda entry: entry.row)
            tasks = _store_tasks(index, manifest, store_address(manifest.store, kind), changed, encoded[kind])
            if pool is not None and takes_many_writers(manifest.store):
                for _ in pool.map(tasks):
                    pass
            else:
                for task in tasks:
                    store.add(task.ids, task.vectors, task.facts)
                store.flush()


def _store_tasks(
    index: Path, manifest: Manifest, address: str, changed: Sequence[Entry], encoded: EncodedItems
) -> Iterator[StoreTask]:
    codes = CodeFiles(index / "vectors", encoded.files) if changed else None
    for start in range(0, len(changed), AT_ONCE):
        assert codes is not None
        some = changed[start : start + AT_ONCE]
        rows = np.array([entry.row for entry in some])
        parts = {member: codes.codes(member, rows, parts=("embedding",)) for member in manifest.first}
        vectors = first_vectors(parts, manifest.first).numpy()  # (n, dim)
        ids, facts = [entry.item.id for entry in some], [entry.item.facts() for entry in some]
        yield StoreTask(address=address, ids=ids, vectors=vectors, facts=facts)


def _drop_from_engine(manifest: Manifest, entries: Mapping[Kind, Sequence[Entry]]) -> None:
    """After the commit: what no item is any more."""
    for kind in KINDS:
        with closing(open_store(store_address(manifest.store, kind), manifest.dim)) as store:
            gone = set(store.ids()) - {entry.item.id for entry in entries[kind]}
            if gone:
                store.delete(gone)
                store.flush()
