"""What in a folder is the index's own. Nothing else is ever written over or removed, whatever its name.

An index is known by its index.json, or, before its first build has finished, by what its `lock` says. Files in
`vectors/` are removed when the index's own database names them (see `vectors.py`). Kept runs and towers are removed
when the folder has a name that only an index gives and only files that only an index makes: one file of somebody else
keeps that whole folder. Unpacked images are known by their content. Links are never followed.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Literal, TextIO

from quintet.data.images import IMAGE_SUFFIXES
from quintet.errors import QuintetError
from quintet.files import read_json
from quintet.search import SearchError
from quintet.search.index_folder import FORMAT, VERSION
from quintet.search.items import ItemDatabase
from quintet.search.sources import content_of
from quintet.search.vectors import read_file_sets, remove_unused_files, retire

Mark = Literal["absent", "ours", "token", "empty", "foreign"]
LONGEST_MARK = 1_000  # characters
_TOKEN = re.compile(r"[0-9a-f]{16}")  # all that the lock of an older index says
_TEMPORARY = re.compile(r"\.(.+)\.[a-z0-9_]{8}\.partial")  # of `atomic_write`, where it was killed
_UNFINISHED = re.compile(r"\.(.+?)(\.[0-9a-f]{8})?\.partial")  # a folder that was being made or removed
_CHECKSUM = re.compile(r"[0-9a-f]{64}")
_IMAGE = re.compile(rf"([0-9a-f]{{32}})({'|'.join(map(re.escape, IMAGE_SUFFIXES))})")
# Folders with folders of the index, how these are named, and what is in them.
_KINDS = {
    "runs": (_CHECKSUM, re.compile(r"(model|tokenizer|run|images)\.json|weights\.safetensors")),
    "towers": (_CHECKSUM, re.compile(r"tower\.safetensors|(preprocessor_)?config\.json")),
}
# Of format 2 and before: what was in a generation (with its stores) and in a segment.
_OLD_GENERATION = re.compile(
    r"items\.sqlite(-journal)?|lock|store\.json|vectors-\d+\.f32|items-\d+\.safetensors|index-\d+\.faiss"
)
_OLD_SEGMENT = re.compile(r"segment\.json|journal\.jsonl|\d+\.(embedding|fragments|boxes|lengths)")
_DATABASE = ("items.sqlite", "items.sqlite-wal", "items.sqlite-shm")


def check_place(index: Path) -> None:
    """Refuse a folder with somebody's things in it that is not an index."""
    if not index.is_dir() or not (names := {path.name for path in index.iterdir()}):
        return
    marks = {"index.json": _read_head(index / "index.json"), "lock": _read_lock(index / "lock")}
    for name, mark in marks.items():
        if mark == "foreign":
            raise SearchError(
                f"{index} holds a file {name!r} that is not of a Quintet index, or is damaged; nothing was changed: "
                "name a new or empty folder for the index, or move that file away"
            )
    for name in (*_DATABASE, "vectors"):
        if (index / name).is_symlink():
            raise SearchError(f"{index / name} is a link, where an index writes; nothing was changed: move it away")
    if marks["index.json"] == "ours" or marks["lock"] == "ours" or (names == {"lock"} and marks["lock"] == "empty"):
        return
    raise SearchError(f"{index} is a folder with other things in it; name a new or empty one for the index")


def check_sources(index: Path, sources: Sequence[Path]) -> None:
    """Refuse sources that the index would lie in, or that lie in the index."""
    for source in sources:
        if _lies_in(Path(os.path.realpath(source)), index):
            raise SearchError(
                f"{source} lies in the folder of the index, {index}, where only the index keeps files; nothing was "
                "changed: name a folder for the index that is outside of what is indexed"
            )
        if source.is_dir() and _lies_in(index, source):
            raise SearchError(
                f"the index {index} would lie inside {source}, which is to be indexed; nothing was changed: name a "
                "folder outside of it"
            )


def _lies_in(path: Path, folder: Path) -> bool:
    """Whether it is the folder or inside it, by whatever names the two are called."""
    return folder.exists() and any(each.exists() and each.samefile(folder) for each in (path, *path.parents))


def _read_head(path: Path) -> Mark:
    if not os.path.lexists(path):
        return "absent"
    if path.is_symlink() or not path.is_file():
        return "foreign"
    try:
        head = read_json(path)
    except QuintetError:
        return "foreign"
    return "ours" if isinstance(head, dict) and head.get("format") == FORMAT else "foreign"


def _read_lock(path: Path) -> Mark:
    if not os.path.lexists(path):
        return "absent"
    if path.is_symlink() or not path.is_file():
        return "foreign"
    with path.open(encoding="utf-8", errors="replace") as file:
        return _parse_lock(file.read(LONGEST_MARK))[0]


def _parse_lock(text: str) -> tuple[Mark, str]:
    """What kind of lock it is, and the index's name in engines."""
    if not text:
        return "empty", ""
    if _TOKEN.fullmatch(text):
        return "token", text
    try:
        value = json.loads(text)
    except ValueError:
        return "foreign", ""
    ours = isinstance(value, dict) and value.get("format") == FORMAT and isinstance(value.get("name"), str)
    return ("ours", value["name"]) if ours else ("foreign", "")


@contextmanager
def writing(index: Path) -> Iterator[str]:
    """Hold the index for writing; a second writer is refused at once. Gives a name that no other index has.

    Where the folder was new or empty and writing fails before there is anything to go on from, nothing is left.
    """
    made: list[Path] = []
    try:
        check_place(index)
        made = [folder for folder in (index, *index.parents) if not folder.exists()]
        index.mkdir(parents=True, exist_ok=True)
        file, new = _open_lock(index / "lock")
    except OSError as error:
        _remove_empty(made)
        raise SearchError(f"could not write to {index}: {error.strerror or error}") from error
    with file:
        _hold(file, index)
        try:
            yield _name(file, index)
        except BaseException:
            if new and not _can_go_on(index):
                remove_unused(index)
                (index / "lock").unlink(missing_ok=True)
                _remove_empty([*(index / name for name in ("vectors", "runs", "towers", "images")), *made])
            raise


def _open_lock(path: Path) -> tuple[TextIO, bool]:
    """The file, and whether it was made now."""
    flags = os.O_RDWR | os.O_NOFOLLOW
    try:
        handle, new = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666), True
    except FileExistsError:
        handle, new = os.open(path, flags), False
    return os.fdopen(handle, "r+", encoding="utf-8", errors="replace"), new


def _hold(file: TextIO, index: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file.fileno()).st_ino == (index / "lock").stat().st_ino:
            return
    except (BlockingIOError, FileNotFoundError):  # not found: another writer has failed and cleared up, just now
        pass
    raise SearchError(f"another process is writing the index {index}; wait for it, or choose another folder")


def _name(file: TextIO, index: Path) -> str:
    try:
        _, name = _parse_lock(file.read(LONGEST_MARK))
        if not name:
            name = secrets.token_hex(8)
            file.write(json.dumps({"format": FORMAT, "name": name}))
            file.flush()
    except OSError as error:
        raise SearchError(f"could not write to {index}: {error.strerror or error}") from error
    return name


def _can_go_on(index: Path) -> bool:
    """Whether something is encoded already. Where nothing is, the database and its files go."""
    if not (index / "items.sqlite").is_file():
        return (index / "index.json").exists()
    with suppress(SearchError), closing(ItemDatabase.open_writer(index / "items.sqlite")) as database:
        if database.head("manifest") is not None or database.query("SELECT 1 FROM codes LIMIT 1"):
            return True
        with database.transaction():
            for files in read_file_sets(database).values():
                retire(database, files)
        remove_unused_files(database, index / "vectors")
        database.close()
        for name in _DATABASE:
            (index / name).unlink(missing_ok=True)
    return False


def remove_unused(index: Path, used: Collection[str] = (), contents: Collection[str] = ()) -> None:
    """Remove kept runs and towers whose names are not in `used`, and unpacked images of other contents."""
    for kind, (name, own) in _KINDS.items():
        parent = index / kind
        for folder in () if _is_no_folder(parent) else list(parent.iterdir()):
            unfinished = _UNFINISHED.fullmatch(folder.name)
            if folder.name not in used and name.fullmatch(unfinished[1] if unfinished else folder.name):
                _remove_folder(folder, own)
    _remove_unpacked(index / "images", contents)


def _remove_unpacked(images: Path, contents: Collection[str]) -> None:
    for folder in () if _is_no_folder(images) else list(images.iterdir()):
        if re.fullmatch(r"[0-9a-f]{2}", folder.name) and not _is_no_folder(folder):
            for path in list(folder.iterdir()):
                if _is_unpacked(path, contents):
                    path.unlink(missing_ok=True)
            _remove_empty([folder])


def remove_older_format(index: Path) -> None:
    """What an index of format 2 was, by the names that its index.json says; after the new one is committed."""
    if _read_head(index / "index.json") != "ours":
        return
    head = read_json(index / "index.json")
    if not isinstance(head.get("version"), int) or head["version"] >= VERSION:
        return
    generation = index / f"generation-{head.get('generation')}"
    _remove_folder(generation, _OLD_GENERATION, inner=("store-image", "store-text"))
    segments = head.get("segments")
    for parts in segments.values() if isinstance(segments, dict) else ():
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict) and re.fullmatch(r"(image|text)-\d+", str(part.get("name"))):
                _remove_folder(index / "segments" / part["name"], _OLD_SEGMENT)
    _remove_unpacked(index / "pictures", ())
    _remove_empty([index / "segments", index / "pictures"])


def _remove_folder(folder: Path, own: re.Pattern[str], inner: Collection[str] = ()) -> None:
    """Remove a folder of the index if all that is in it is the index's own; else it stays as it is.

    `inner`: folders that it may have.
    """
    if _is_no_folder(folder):
        return
    found = sorted(folder.rglob("*"), reverse=True)  # what is in a folder comes before the folder
    for path in found:
        temporary = _TEMPORARY.fullmatch(path.name)
        name, at = temporary[1] if temporary else path.name, path.relative_to(folder).parts
        is_inner = len(at) == 1 and at[0] in inner and path.is_dir()
        is_file = path.is_file() and own.fullmatch(name) and (len(at) == 1 or at[0] in inner)
        if path.is_symlink() or not (is_inner or is_file):
            return
    with suppress(OSError):
        # Under another name first: killed in the middle, it does not look whole.
        going = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.partial")
        folder.rename(going)
        for path in found:
            moved = going / path.relative_to(folder)
            moved.rmdir() if moved.is_dir() else moved.unlink()
        going.rmdir()


def _is_unpacked(path: Path, contents: Collection[str]) -> bool:
    """Whether it is an image from a shard that no item uses: its name is the checksum of what is in it."""
    if path.is_symlink() or not path.is_file():
        return False
    temporary = _TEMPORARY.fullmatch(path.name)
    image = _IMAGE.fullmatch(temporary[1] if temporary else path.name)
    if image is None or image[1][:2] != path.parent.name:
        return False
    if temporary:
        return True
    return image[1] not in contents and content_of(path.read_bytes()) == image[1]


def _is_no_folder(path: Path) -> bool:
    return path.is_symlink() or not path.is_dir()


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        if not folder.is_symlink():
            with suppress(OSError):
                folder.rmdir()
