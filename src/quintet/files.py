"""Files that are complete or absent, JSON, and folders that say in a header file what they are.

A folder that Quintet writes has a header, such as corpus.json, whose "format" names its kind. `begin_folder` refuses to
overwrite files of others and marks the folder as unfinished; the final header is written last.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

from quintet.errors import CorpusError, QuintetError

UNFINISHED = "-unfinished"  # added to the format in a header while its folder is written

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
    cover a power failure: for many small files, followed by one `os.sync()`.
    """
    path = user_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    except OSError as error:
        raise QuintetError(f"could not write {path}: {error.strerror or error}") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        if sync:
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_UMASK)
        temporary.replace(path)
        if sync:
            _sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        kept = "; the previous file was kept" if path.exists() else ""
        raise QuintetError(f"could not write {path}: {error.strerror or error}{kept}") from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def read_json(path: Path | str) -> Any:
    path = Path(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise QuintetError(f"{path} does not exist") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise QuintetError(f"{path} is not valid JSON: {error}") from None


def write_jsonl(path: Path | str, rows: Iterable[dict[str, Any]]) -> None:
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def read_jsonl(path: Path | str) -> Iterator[dict[str, Any]]:
    """The rows of a JSONL file; an error names the line."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line.decode("utf-8"))
                except (json.JSONDecodeError, UnicodeDecodeError) as error:
                    raise QuintetError(f"{path}, line {number}: not a JSON row in UTF-8: {error}") from None
                if not isinstance(row, dict):
                    raise QuintetError(f"{path}, line {number}: expected an object, found {type(row).__name__}")
                yield row
    except FileNotFoundError:
        raise QuintetError(f"{path} does not exist") from None


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
    if found != format or header.get("version", 0) > version:
        what = f"{found!r} of version {header.get('version')}" if found == format else repr(found)
        raise CorpusError(f"{path}: the format is {what}; this Quintet reads {format} up to version {version}")
    return header
