"""Atomic writes, validated reads, checksums, and what shows that a file or folder is Quintet's own.

A folder that Quintet writes has a header, such as corpus.json, whose "format" names its kind. `begin_folder` refuses to
overwrite files of others and marks the folder as unfinished; the final header is written last. Pages, figures, tables
and results, which people put where they like, say so themselves (`write_output`).
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import re
import stat
import tempfile
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, TypeVar, overload

from quintet.errors import CorpusError, QuintetError

T = TypeVar("T")
UNFINISHED = "-unfinished"  # added to the format in a header while its folder is written

LARGEST_JSON = 2**30  # bytes of a JSON file, and of a line of a JSONL file
MARK = "quintet-output"  # at the beginning of what `write_output` writes; JSON has a "format" of Quintet instead
_MARKED = re.compile(rb'"format": "quintet-|' + MARK.encode())
_TEMPORARY = re.compile(r"\.(.+)\.[a-z0-9_]{8}\.partial")  # what `atomic_write` writes to

# The umask can only be read by setting it, for the whole process: once, before there are threads.
_UMASK = os.umask(0o077)
os.umask(_UMASK)


def user_path(path: Path | str | os.PathLike[str]) -> Path:
    """A path as people write it: a leading ~ is the home folder, as in a shell. A file called "~copy.jpg" stays itself.

    >>> user_path("runs/first"), user_path("~copy.jpg"), user_path("~/runs") == Path.home() / "runs"
    (PosixPath('runs/first'), PosixPath('~copy.jpg'), True)
    """
    return Path(os.path.expanduser(path))  # noqa: PTH111  # Path.expanduser fails for a file called "~copy.jpg"


@contextmanager
def atomic_write(path: Path | str, *, sync: bool = True) -> Iterator[Path]:
    """Yield a temporary path in the same folder; on success it replaces `path`, on any failure it is removed.

    A crash, a kill or a full disk while writing keeps the previous file at `path`. With `sync=False` that does not
    cover a power failure: for many small files, followed by one `os.sync()`. The temporary file of a writer that was
    killed is removed by the next one of the same path.
    """
    path = user_path(path)
    try:
        if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
            raise QuintetError(f"{path} is a link, a folder or a device, which Quintet does not replace; move it away")
        made = make_folder(path.parent)
        handle, temporary = temporary_file(path)
    except OSError as error:
        raise QuintetError(f"could not write {path}: {error.strerror or error}") from error
    try:
        yield temporary
        if sync:
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_UMASK)
        temporary.replace(path)
        if sync:
            sync_folder(path.parent)
            remove_partials(path.parent, {path.name})
    except OSError as error:
        temporary.unlink(missing_ok=True)
        kept = "; the previous file was kept" if path.exists() else ""
        raise QuintetError(f"could not write {path}: {error.strerror or error}{kept}") from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)
        remove_empty(made)


def make_folder(folder: Path) -> list[Path]:
    """Make a folder and those that it lies in; which were made, for `remove_empty` where nothing comes into them."""
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except BaseException:
        remove_empty(made)
        raise
    return made


def remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def temporary_file(path: Path) -> tuple[int, Path]:
    """A new file beside `path`, open and locked, so that `remove_partials` leaves it alone until it is closed."""
    while True:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:  # else it was removed before it was locked
            return handle, Path(name)
        os.close(handle)


def remove_partials(folder: Path, names: Container[str]) -> None:
    """Remove what killed atomic writes of files of these names left in the folder. Writers that live are left alone."""
    with suppress(OSError):
        for path in partials(folder):
            match = _TEMPORARY.fullmatch(path.name)
            if match is None or match[1] not in names or path.is_symlink() or not path.is_file():
                continue
            with suppress(OSError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


def partials(folder: Path) -> list[Path]:
    """What is named as the temporary file of an atomic write; the folder may have millions of other files."""
    with os.scandir(folder) as entries:
        return [Path(entry.path) for entry in entries if _TEMPORARY.fullmatch(entry.name)]


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def write_output(path: Path | str) -> Iterator[Path]:
    """`atomic_write` of a page, figure, table or result, which does not replace what Quintet did not write."""
    check_output(path)
    with atomic_write(path) as temporary:
        yield temporary


def check_output(path: Path | str) -> None:
    """Raise where somebody else's file has the path of an output. Its first bytes say who wrote it."""
    path = user_path(path)
    try:
        if not os.path.lexists(path):
            return
        with open_regular(path) as file:
            ours = _MARKED.search(file.read(4096)) and not path.is_symlink()
    except (OSError, ValueError) as error:
        raise QuintetError(f"could not write {path}: {getattr(error, 'strerror', None) or error}") from error
    if not ours:
        raise QuintetError(
            f"{path} is in the way: Quintet did not write it and does not replace it; move it, or choose another name"
        )


def write_synced(file: FileIO, data: bytes) -> None:
    """Append to an unbuffered file and sync it. After a failed write, nothing of it comes later."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]
    os.fdatasync(file.fileno())


def write_text(path: Path | str, text: str) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path | str, value: Any) -> None:
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def output_text(path: Path | str, text: str) -> None:
    """`write_output` of a text, which has the mark or a format of Quintet in its beginning."""
    with write_output(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def open_regular(path: Path | str) -> BufferedReader:
    """Open a file for reading; a folder, FIFO or device is an error, and so is a link to nothing or to itself."""
    path = user_path(path)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise QuintetError(f"{path} is not a file")
        return os.fdopen(handle, "rb")
    except FileNotFoundError:
        raise QuintetError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:  # a ValueError: a null byte in the path
        raise QuintetError(f"could not read {path}: {getattr(error, 'strerror', None) or error}") from error


def lies_in(path: Path, folder: str) -> bool:
    """Whether a path, its links followed, lies in a folder, given by its real path."""
    try:
        return Path(os.path.realpath(path)).is_relative_to(folder)
    except ValueError:  # a null byte
        return False


def read_bytes(path: Path | str, limit: int) -> bytes:
    """A whole file of at most `limit` bytes."""
    with open_regular(path) as file:
        try:
            content = file.read(limit + 1)
        except OSError as error:
            raise QuintetError(f"could not read {path}: {error.strerror or error}") from error
    if len(content) > limit:
        raise QuintetError(f"{path} is too large: {limit:,} bytes are the most that is read")
    return content


@overload
def read_json(path: Path | str) -> Any: ...
@overload
def read_json(path: Path | str, shape: type[T]) -> T: ...
def read_json(path: Path | str, shape: Any = None) -> Any:
    """The value in a JSON file; with a `shape`, checked and made by `check_shape`."""
    value = _parse_json(read_bytes(path, LARGEST_JSON), f"{path} is not valid JSON")
    return value if shape is None else check_shape(value, shape, str(path))


def _parse_json(content: bytes, error: str) -> Any:
    try:
        text = content.decode("utf-8")
        value = json.loads(text)
        if "\\ud" in text or "\\uD" in text:  # half of a surrogate pair cannot be written again
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise QuintetError(f"{error}: it is nested too deeply") from None
    except ValueError as found:  # JSONDecodeError, UnicodeError, an integer of too many digits
        raise QuintetError(f"{error}: {found}") from None
    return value


def check_shape(value: Any, shape: type[T], where: str) -> T:
    """A JSON value as a `shape`: a dataclass, a pydantic model, `list[str]` and the like. Types are strict.

    >>> check_shape({"parts": [1, "2"]}, dict[str, list[int]], "manifest.json")
    Traceback (most recent call last):
        ...
    quintet.errors.QuintetError: manifest.json: parts.1: input should be a valid integer, not '2'
    """
    from pydantic import ValidationError  # takes 70 ms, which most commands do not need

    try:
        # As JSON: strict Python input would have to be a dataclass already.
        checked: T = _validator(shape).validate_json(json.dumps(value), strict=True)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        message = first["msg"][:1].lower() + first["msg"][1:]
        found = "" if first["type"] == "missing" else f", not {first['input']!r:.80}"
        raise QuintetError(f"{where}: {field + ': ' if field else ''}{message}{found}") from None
    except (TypeError, ValueError, RecursionError) as error:  # not of JSON
        raise QuintetError(f"{where}: {error}") from None
    return checked


@cache
def _validator(shape: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(shape)


def file_checksum(path: Path | str) -> str:
    """SHA-256 of a file."""
    with open_regular(path) as file:
        try:
            return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise QuintetError(f"could not read {path}: {error.strerror or error}") from error


def checksums(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Name -> checksum of files in a folder, for its header."""
    return {name: file_checksum(folder / name) for name in names}


def verify_checksums(folder: Path, expected: Mapping[str, str], remedy: str) -> None:
    """Raise where a file is missing or has changed since its checksum was taken. `remedy`: what to do then."""
    for name, checksum in expected.items():
        if file_checksum(folder / name) != checksum:
            raise QuintetError(f"{folder / name} is damaged: it is not the file that was written; {remedy}")


def write_jsonl(path: Path | str, rows: Iterable[dict[str, Any]]) -> None:
    encode = json.JSONEncoder(ensure_ascii=False).encode  # `dumps` would make an encoder for every row
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(encode(row) + "\n")


def read_jsonl(path: Path | str) -> Iterator[dict[str, Any]]:
    """The rows of a JSONL file; an error names the line."""
    with open_regular(path) as file:
        for number in itertools.count(1):
            try:
                line = file.readline(LARGEST_JSON)
            except OSError as error:
                raise QuintetError(f"could not read {path}: {error.strerror or error}") from error
            if not line:
                return
            if not line.strip():
                continue
            row = _parse_json(line, f"{path}, line {number}: not a JSON row in UTF-8")
            if not isinstance(row, dict):
                raise QuintetError(f"{path}, line {number}: expected an object, found {type(row).__name__}")
            yield row


def header_format(header: Path) -> str | None:
    """The format that a header file names; None where it is missing or no header."""
    try:
        found = read_json(header) if header.is_file() else None
    except QuintetError:
        return None
    return found.get("format") if isinstance(found, dict) else None


def check_folder(folder: Path, header: str, format: str, names: Sequence[str]) -> None:
    """Raise where `header` or one of `names` exists in a folder that is not of this format: someone else made it."""
    if header_format(folder / header) in (format, format + UNFINISHED):
        return
    for name in (header, *names):
        if os.path.lexists(folder / name):
            raise CorpusError(
                f"{folder / name} is in the way: Quintet did not write it and does not replace it; "
                "move it, or choose another folder"
            )


def begin_folder(folder: Path, header: str, format: str, names: Sequence[str]) -> None:
    """Mark a folder as unfinished, after `check_folder`; then `names` are written, and the final header last."""
    check_folder(folder, header, format, names)
    write_json(folder / header, {"format": format + UNFINISHED})


def read_header(path: Path, format: str, version: int, missing: str) -> dict[str, Any]:
    """The header of a finished folder. `missing`: the error where there is none, or an unfinished one."""
    found = header_format(path)
    if not path.is_file() or found == format + UNFINISHED:
        raise CorpusError(missing)
    header: dict[str, Any] = read_json(path)
    made_by = header.get("version", 0) if found == format else 0
    if found != format or not isinstance(made_by, int) or made_by > version:
        what = f"{found!r} of version {made_by}" if found == format else repr(found)
        raise CorpusError(f"{path}: the format is {what}; this Quintet reads {format} up to version {version}")
    return header
