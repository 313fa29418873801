"""An index compared with its checksums, and copied while it is in use."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from quintet.errors import QuintetError
from quintet.files import atomic_write, begin_folder, open_regular, user_path, write_json
from quintet.locks import folder_lock
from quintet.search import SearchError, StaleIndex
from quintet.search.encoder import is_intact
from quintet.search.found import unpacked
from quintet.search.index_folder import Manifest, check_marker, marker
from quintet.search.items import ItemDatabase, content_of
from quintet.search.ownership import lies_in
from quintet.search.vectors import (
    FileSet,
    committed_bytes,
    crc32_of,
    damaged_rows,
    open_file,
    read_file_sets,
    retire,
)

ATTEMPTS = 10  # while builds exchange the files in the same moment
BACKUP = "quintet-backup"  # in the head of a copy that is not complete


def verify_index(path: Path | str) -> list[str]:
    """What in an index is damaged: everything it keeps is compared with the checksums from when it was written.

    Nothing is changed. The next `build_index` of the same runs and sources makes anew what is damaged. Vectors in an
    engine (Milvus, PostgreSQL) are not looked at.

        assert not quintet.verify_index("photos.index")
    """
    index = user_path(path).resolve()
    check_marker(index)
    for _ in range(ATTEMPTS):
        generation, found = _verify(index)
        with suppress(QuintetError):
            if found and Manifest.read(index).generation != generation:
                continue  # a build has removed what it replaced
        break
    return found


def _verify(index: Path) -> tuple[int | None, list[str]]:
    try:
        database = ItemDatabase.open_snapshot(index / "items.sqlite")
    except StaleIndex as error:
        return None, [str(error)]
    with closing(database):
        found = [f"items.sqlite: {line}" for line in database.damage()]
        if found:
            return None, found
        try:
            manifest, sets = Manifest.of(database), read_file_sets(database)
        except StaleIndex as error:
            return None, [str(error)]
        if database.counts() != manifest.counts:
            found.append("items.sqlite: it does not hold as many items as were indexed")
        for name in manifest.files.values():
            found += _verify_files(database, index / "vectors", sets.get(name))
        for notes in manifest.faiss.values():
            with suppress(OSError), open_file(index / "vectors" / str(notes["file"])) as file:
                if crc32_of(file) == notes["checksum"]:
                    continue
            found.append(f"vectors/{notes['file']}: damaged or missing")
        for name, checksum in manifest.kept.items():
            if not is_intact(index / name, checksum):
                found.append(f"{name}: damaged or missing")
        for name, content in _unpacked(index, database, manifest):
            with suppress(QuintetError), open_regular(index / name) as file:
                if content_of(file) == content:
                    continue
            found.append(f"{name}: damaged or missing")
    return manifest.generation, found


def _unpacked(index: Path, database: ItemDatabase, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Images from shards, with their checksums."""
    if any(root.kind == "shards" for root in manifest.roots):
        for entry in database.all("image"):
            number = entry.item.root
            if number is not None and number < len(manifest.roots) and manifest.roots[number].kind == "shards":
                if not re.fullmatch(r"[0-9a-f]{32}", entry.content):
                    raise StaleIndex(
                        f"{database.path} is damaged: {entry.content!r:.80} is no checksum; build it again"
                    )
                yield unpacked(index, entry).relative_to(index).as_posix(), entry.content


def _verify_files(database: ItemDatabase, folder: Path, files: FileSet | None) -> Iterator[str]:
    if files is None:
        yield "items.sqlite: it names files that it does not know"
    else:
        bad = damaged_rows(database, folder, files)
        for name in sorted(set(bad.values())):
            rows = sum(name == each for each in bad.values())
            yield f"vectors/{name}: {rows:,} of {files.rows:,} rows are damaged"


# A copy


@dataclass(frozen=True)
class _Copied:
    """A file of the index, open, so that a build that removes it meanwhile does no harm."""

    name: str
    file: IO[bytes]
    size: int  # what is behind is not committed


def backup_index(path: Path | str, out: Path | str) -> Path:
    """Copy an index, of one generation and whole, while it is searched and written. Returns where the copy is.

    `out`: a new folder, which is an index like any other, or a file NAME.tar, which unpacks to one. Searching it needs
    nothing else, and `build_index` goes on with it. Vectors in an engine are not copied; the next build adds them.

        quintet.backup_index("photos.index", "/backups/photos.tar")
    """
    index, out = user_path(path).resolve(), user_path(out)
    check_marker(index)
    if lies_in(out.resolve(), index):
        raise SearchError(f"the backup {out} would lie in the index {index}; name a path outside of it")
    with _opened(index) as files:
        if out.suffix == ".tar":
            _write_tar(files, out)
        else:
            _write_folder(files, out)
    return out


@contextmanager
def _opened(index: Path) -> Iterator[list[_Copied]]:
    for attempt in range(ATTEMPTS):
        with ExitStack() as stack:
            try:
                files = _open_files(index, stack)
            except (StaleIndex, OSError) as error:
                if attempt + 1 < ATTEMPTS:
                    continue
                raise SearchError(f"the index {index} cannot be copied: {error}") from error
            yield files
        return


def _open_files(index: Path, stack: ExitStack) -> list[_Copied]:
    database = stack.enter_context(closing(ItemDatabase.open_snapshot(index / "items.sqlite")))
    manifest, sets = Manifest.of(database), read_file_sets(database)
    sizes: dict[str, int | None] = dict.fromkeys(manifest.kept)
    sizes |= {f"vectors/{notes['file']}": None for notes in manifest.faiss.values()}
    for name in manifest.files.values():
        if name not in sets:
            raise StaleIndex(f"{database.path} is damaged: it names files that it does not know; build it again")
        committed = committed_bytes(index / "vectors", sets[name])
        sizes |= {f"vectors/{file}": size for file, size in committed.items()}
    sizes |= {name: None for name, _ in _unpacked(index, database, manifest)}
    found = []
    for name, size in sizes.items():
        file = stack.enter_context(open_file(index / name))
        found.append(_Copied(name, file, os.fstat(file.fileno()).st_size if size is None else size))
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="quintet-backup-")))
    database.copy_to(folder / "items.sqlite")
    with closing(ItemDatabase.open_writer(folder / "items.sqlite")) as copy, copy.transaction():
        for name, files in read_file_sets(copy).items():
            if name not in manifest.files.values():  # of a build that has not finished
                retire(copy, files)
        copy.change("DELETE FROM unused")
    items = stack.enter_context((folder / "items.sqlite").open("rb"))
    return [*found, _Copied("items.sqlite", items, os.fstat(items.fileno()).st_size)]


def _write_tar(files: list[_Copied], out: Path) -> None:
    if os.path.lexists(out):
        raise SearchError(f"{out} exists; name a new file for the backup")
    with atomic_write(out) as temporary, tarfile.open(temporary, "w") as tar:
        for each in files:
            facts = tarfile.TarInfo(f"{out.stem}/{each.name}")
            facts.size, facts.mode = each.size, 0o644
            tar.addfile(facts, each.file)
        head = json.dumps(marker()).encode()
        facts = tarfile.TarInfo(f"{out.stem}/index.json")
        facts.size, facts.mode = len(head), 0o644
        tar.addfile(facts, io.BytesIO(head))


def _write_folder(files: list[_Copied], out: Path) -> None:
    if out.is_dir() and any(out.iterdir()) and not (out / "index.json").exists():
        raise SearchError(f"{out} is a folder with other things in it; name a new or empty one for the backup")
    with folder_lock(out, "copying an index"):
        begin_folder(out, "index.json", BACKUP, [each.name for each in files])
        try:
            for each in files:
                with atomic_write(out / each.name) as temporary, temporary.open("wb") as target:
                    tarfile.copyfileobj(each.file, target, each.size)  # type: ignore[attr-defined]
            write_json(out / "index.json", marker())
        except BaseException:
            for name in (*(each.name for each in files), "index.json"):
                (out / name).unlink(missing_ok=True)
                for folder in (out / name).parents[: name.count("/")]:
                    with suppress(OSError):
                        folder.rmdir()
            raise
