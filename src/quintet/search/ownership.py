"""What in a folder is the index's own. Nothing else is ever written over or removed, whatever its name.

An index is known by its index.json or, where that is gone, by its database. Vectors, kept runs and kept towers are
removed when the database names them (see `vectors.py`), unpacked images when their name is the checksum of what is in
them. Links are never followed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from quintet.data.images import IMAGE_SUFFIXES
from quintet.files import UNFINISHED, header_format, remove_partials
from quintet.locks import LockedError, folder_lock
from quintet.search import SearchError
from quintet.search.index_folder import FORMAT, UNPACKED, write_marker
from quintet.search.items import APPLICATION, ItemDatabase, content_of
from quintet.search.vectors import read_file_sets, remove_unused_files, retire

DATABASE = ("items.sqlite", "items.sqlite-wal", "items.sqlite-shm")
_IMAGE = re.compile(rf"([0-9a-f]{{32}})({'|'.join(map(re.escape, IMAGE_SUFFIXES))})")


def check_place(index: Path) -> None:
    """Refuse a folder with somebody's things in it that is not an index."""
    names = {path.name for path in index.iterdir() if not path.name.endswith(".partial")} if index.is_dir() else set()
    marker = index / "index.json"
    if os.path.lexists(marker):
        ours = not marker.is_symlink() and header_format(marker) in (FORMAT, FORMAT + UNFINISHED)
        if not ours:
            raise SearchError(
                f"{index} holds a file 'index.json' that is not of a Quintet index, or is damaged; nothing was "
                "changed: name a new or empty folder for the index, or move that file away"
            )
    elif names - {"lock"} and not _is_ours(index / "items.sqlite"):
        raise SearchError(f"{index} is a folder with other things in it; name a new or empty one for the index")
    for name in (*DATABASE, "vectors"):
        if (index / name).is_symlink():
            raise SearchError(f"{index / name} is a link, where an index writes; nothing was changed: move it away")


def _is_ours(database: Path) -> bool:
    """Whether a file says that it is an index's database."""
    if database.is_symlink() or not database.is_file():
        return False
    with database.open("rb") as file:
        return file.read(72)[68:] == APPLICATION.to_bytes(4, "big")


def check_sources(index: Path, sources: Sequence[Path]) -> None:
    """Refuse sources that the index would lie in, or that lie in the index."""
    for source in sources:
        if lies_in(Path(os.path.realpath(source)), index):
            raise SearchError(
                f"{source} lies in the folder of the index, {index}, where only the index keeps files; nothing was "
                "changed: name a folder for the index that is outside of what is indexed"
            )
        if source.is_dir() and lies_in(index, source):
            raise SearchError(
                f"the index {index} would lie inside {source}, which is to be indexed; nothing was changed: name a "
                "folder outside of it"
            )


def lies_in(path: Path, folder: Path) -> bool:
    """Whether it is the folder or inside it, by whatever names the two are called."""
    return folder.exists() and any(each.exists() and each.samefile(folder) for each in (path, *path.parents))


@contextmanager
def writing(index: Path) -> Iterator[None]:
    """Hold the index for writing; a second writer is refused at once.

    Where the folder was new or empty and writing fails before anything is encoded, nothing is left.
    """
    try:
        check_place(index)
        new = not os.path.lexists(index / "index.json") and not (index / "items.sqlite").exists()
        with folder_lock(index, "writing the index"):
            remove_partials(index, {"index.json", "items.sqlite"})
            try:
                if new:
                    write_marker(index, unfinished=True)
                yield
            except BaseException:
                if new:
                    _remove_beginning(index)
                raise
    except LockedError as error:
        raise SearchError(str(error)) from None
    except OSError as error:
        raise SearchError(f"could not write to {index}: {error.strerror or error}") from error


def _remove_beginning(index: Path) -> None:
    """After a failed first build; what is encoded already stays, for the next try to go on from."""
    with suppress(SearchError):
        if (index / "items.sqlite").exists():
            with closing(ItemDatabase.open_writer(index / "items.sqlite")) as database:
                if database.head("manifest") is not None or database.query("SELECT 1 FROM codes LIMIT 1"):
                    return
                with database.transaction():
                    for files in read_file_sets(database).values():
                        retire(database, files)
                remove_unused_files(database, index / "vectors")
    remove_unused_images(index)
    for name in (*DATABASE, "index.json"):
        (index / name).unlink(missing_ok=True)
    for name in ("vectors", "images"):
        _remove_if_empty(index / name)


def check_kept(index: Path, names: Iterable[str], known: Collection[str]) -> None:
    """Refuse to write weights over a file that is not known to be the index's own."""
    for name in names:
        if name not in known and os.path.lexists(index / name):
            raise SearchError(
                f"{index / name} is in the way: Quintet did not write it and does not replace it; move it away"
            )


def remove_unused_images(index: Path, contents: Collection[str] = ()) -> None:
    """Remove unpacked images of other contents, and the notes of what was unpacked."""
    if not (index / UNPACKED).is_symlink():
        for note in (index / UNPACKED).glob("*.json"):
            if re.fullmatch(r"[0-9a-f]{32}", note.stem) and _is_file(note):
                note.unlink()
        _remove_if_empty(index / UNPACKED)
    for folder in _folders(index / "images", re.compile(r"[0-9a-f]{2}")):
        partial = [path.name[1 : -len(".12345678.partial")] for path in folder.glob(".*.partial")]
        remove_partials(folder, {name for name in partial if _IMAGE.fullmatch(name) and name[:2] == folder.name})
        for path in list(folder.iterdir()):
            name = _IMAGE.fullmatch(path.name)
            if name is None or not _is_file(path) or name[1][:2] != folder.name or name[1] in contents:
                continue
            if content_of(path.read_bytes()) == name[1]:
                path.unlink()
        _remove_if_empty(folder)


def _folders(parent: Path, name: re.Pattern[str]) -> list[Path]:
    if parent.is_symlink() or not parent.is_dir():
        return []
    return [path for path in parent.iterdir() if name.fullmatch(path.name) and path.is_dir() and not path.is_symlink()]


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _remove_if_empty(folder: Path) -> None:
    if not folder.is_symlink():
        with suppress(OSError):
            folder.rmdir()
