"""What in a folder is the index's own. Nothing else is ever written over or removed, whatever its name.

An index is known by its index.json, or, before its first build has finished, by what its `lock` says. What is removed
has a name that only an index gives and, with it, only content that only an index makes: one file of somebody else in a
folder of ours keeps that whole folder. Links are never followed.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, TextIO

from quintet.data.images import IMAGE_SUFFIXES
from quintet.errors import QuintetError
from quintet.files import read_json
from quintet.search.errors import SearchError, StaleIndex
from quintet.search.found import content_of
from quintet.search.items import ItemTable
from quintet.search.manifest import FORMAT
from quintet.search.segments import SEGMENT_NAME
from quintet.search.stores.folder import OWN_NAME as STORE_FILE

Mark = Literal["absent", "ours", "token", "empty", "foreign"]
LONGEST_MARK = 1_000  # characters
_TOKEN = re.compile(r"[0-9a-f]{16}")  # all that the lock of an older index says
_TEMPORARY = re.compile(r"\.(.+)\.[a-z0-9_]{8}\.partial")  # of `atomic_write`, where it was killed
_UNFINISHED = re.compile(r"\.(.+?)(\.[0-9a-f]{8})?\.partial")  # a folder that was being made or removed
_CHECKSUM = re.compile(r"[0-9a-f]{64}")
_IMAGE = re.compile(rf"([0-9a-f]{{32}})({'|'.join(map(re.escape, IMAGE_SUFFIXES))})")
# Where folders of the index are, how they are named, and what is in them.
_KINDS = {
    "generation": ("", re.compile(r"generation-\d+"), re.compile(r"items\.sqlite(-journal)?")),
    "segments": (
        "segments",
        SEGMENT_NAME,
        re.compile(r"(segment\.json|journal\.jsonl|\d+\.(embedding|fragments|boxes|lengths))"),
    ),
    "runs": ("runs", _CHECKSUM, re.compile(r"(model|tokenizer|run|images)\.json|weights\.safetensors")),
    "towers": ("towers", _CHECKSUM, re.compile(r"tower\.safetensors|(preprocessor_)?config\.json")),
}


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
    if marks["index.json"] == "ours" or marks["lock"] == "ours" or (names == {"lock"} and marks["lock"] == "empty"):
        return
    raise SearchError(f"{index} is a folder with other things in it; name a new or empty one for the index")


def check_sources(index: Path, sources: Sequence[Path]) -> None:
    """Refuse sources that are not there, and those that the index would lie in, or that lie in the index."""
    for source in sources:
        if not source.exists():
            raise SearchError(f"{source} does not exist; the index is as it was")
        if _lies_in(source.resolve(), index):
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
    return folder.exists() and any(place.exists() and place.samefile(folder) for place in (path, *path.parents))


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
                _remove_empty([index / "segments", index / "runs", index / "towers", index / "pictures", *made])
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
    if (index / "index.json").exists() or any(index.glob("generation-*")):
        return True
    return any(journal.stat().st_size for journal in index.glob("segments/*/journal.jsonl"))


def remove_unused(index: Path, used: Collection[str] = (), contents: Collection[str] = ()) -> None:
    """Remove the index's own folders whose names are not in `used`, and unpacked images of other contents.

    Readers keep the files they have open.
    """
    for kind, (place, name, _) in _KINDS.items():
        parent = index / place
        for folder in () if _is_no_folder(parent) else list(parent.iterdir()):
            unfinished = _UNFINISHED.fullmatch(folder.name)
            if folder.name not in used and name.fullmatch(unfinished[1] if unfinished else folder.name):
                remove_folder(folder, kind, whole=unfinished is None)
    for folder in () if _is_no_folder(index / "pictures") else list((index / "pictures").iterdir()):
        if re.fullmatch(r"[0-9a-f]{2}", folder.name) and not _is_no_folder(folder):
            for path in list(folder.iterdir()):
                if _is_unpacked(path, contents):
                    path.unlink(missing_ok=True)
            _remove_empty([folder])


def remove_folder(folder: Path, kind: str, *, whole: bool = True) -> None:
    """Remove a folder of the index if all that is in it is the index's own; else it stays as it is.

    `whole`: it was finished once, so a generation is known by its table of items.
    """
    if _is_no_folder(folder):
        return
    found = sorted(folder.rglob("*"), reverse=True)  # what is in a folder comes before the folder
    if not all(_is_own(path, folder, kind) for path in found):
        return
    if kind == "generation" and whole and not _is_generation(folder):
        return
    with suppress(OSError):
        # Under another name first: killed in the middle, it does not look whole.
        going = folder if not whole else folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.partial")
        folder.rename(going)
        for path in found:
            place = going / path.relative_to(folder)
            place.rmdir() if place.is_dir() else place.unlink()
        going.rmdir()


def _is_own(path: Path, folder: Path, kind: str) -> bool:
    if path.is_symlink():
        return False
    parents, name = path.relative_to(folder).parts[:-1], path.name
    if path.is_dir():
        return kind == "generation" and not parents and name in ("store-image", "store-text")
    temporary = _TEMPORARY.fullmatch(name)
    plain = temporary[1] if temporary else name
    return path.is_file() and bool((STORE_FILE if parents else _KINDS[kind][2]).fullmatch(plain))


def _is_generation(folder: Path) -> bool:
    try:
        ItemTable(folder / "items.sqlite").close()
    except StaleIndex:
        return False
    return True


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
