"""Files that are complete or absent: written beside their place, synced, then renamed."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

from quintet.errors import QuintetError

# It can only be read by setting it, which is for the whole process: once, before there are threads.
_UMASK = os.umask(0o077)
os.umask(_UMASK)


@contextmanager
def atomic_write(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path in the same folder; on success it replaces `path`, on any failure it is removed.

    A crash, a kill or a full disk while writing leaves an earlier file at `path` untouched.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    except OSError as error:
        raise QuintetError(f"could not write {path}: {error.strerror or error}") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_UMASK)
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise QuintetError(
            f"could not write {path}: {error.strerror or error}; what stood there before is unchanged"
        ) from error
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
    """Append to an unbuffered file, so that nothing of a failed write comes later; on disk when it returns."""
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
