"""Files behind URLs (`s3://`, `gs://`, `https://`) as local ones: fetched ahead, resumed, in a bounded space on disk.

A file is fetched in blocks. A block that does not come whole is asked for again, after a pause that doubles, and the
file goes on behind the last block: a connection that drops costs one block, and a killed command goes on with the
beginning that lies on disk, while the file on the server is the same one. fsspec speaks to the servers.
"""

from __future__ import annotations

import fnmatch
import hashlib
import itertools
import json
import re
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from quintet.errors import QuintetError, first_line
from quintet.files import write_json

BLOCK = 8 * 2**20  # bytes that are asked for at once
AHEAD = 4  # files that are fetched at once, and that wait to be read
SPACE = 8 * 2**30  # bytes of files that wait to be read; one file may be larger
ATTEMPTS, FIRST_PAUSE = 6, 0.5  # of each block: about 15 s without an answer
TIMEOUT = 60  # seconds for a block
MOST_FILES = 10_000_000  # of a folder, and of a list in braces


class RemoteError(QuintetError):
    """A server does not answer, or what it gives is not whole. The same command goes on later."""


@dataclass(frozen=True)
class RemoteFile:
    url: str
    name: str  # below the URL that was given
    size: int | None
    stamp: str  # the same stamp, the same content: the ETag, or size and time of change

    def __str__(self) -> str:
        return shown_url(self.url)


def is_url(source: object) -> bool:
    """
    >>> [is_url(text) for text in ("s3://bucket/a.tar", "https://example.org/{0..9}.tar", "a/b.tar", "hf:a/b")]
    [True, True, False, False]
    """
    return isinstance(source, str) and re.match(r"[a-z][a-z0-9+.-]*://", source) is not None


def shown_url(url: str) -> str:
    """A URL for messages and tables: without a password, and without the query, in which signatures are.

    >>> shown_url("https://me:secret@example.org/a.tar?X-Signature=abc")
    'https://example.org/a.tar'
    """
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def expand_braces(url: str) -> list[str]:
    """The URLs that a list in braces stands for.

    >>> expand_braces("s3://b/{08..10}.tar")
    ['s3://b/08.tar', 's3://b/09.tar', 's3://b/10.tar']
    >>> expand_braces("s3://b/{train,val}-{0..1}.tar")
    ['s3://b/train-0.tar', 's3://b/train-1.tar', 's3://b/val-0.tar', 's3://b/val-1.tar']
    """
    choices: list[list[str]] = []
    for text, braces in re.findall(r"([^{]+)|\{([^{}]*)\}", url):
        if not braces:
            choices.append([text])
            continue
        numbers = re.fullmatch(r"(\d+)\.\.(\d+)", braces)
        if numbers is None:
            choices.append(braces.split(","))
            continue
        first, last = int(numbers[1]), int(numbers[2])
        if not first <= last <= first + MOST_FILES:
            raise QuintetError(f"{shown_url(url)}: {{{braces}}} is no range from a number to a larger one")
        choices.append([str(number).zfill(len(numbers[1])) for number in range(first, last + 1)])
    return ["".join(parts) for parts in itertools.product(*choices)]


def list_files(url: str, patterns: Sequence[str]) -> list[RemoteFile]:
    """The files that a URL names: a list in braces, one file, or those of a folder whose names match a pattern."""
    urls = expand_braces(url)
    found: list[RemoteFile] = []
    for each in urls:
        filesystem, path = _filesystem(each)
        name = unquote(urlsplit(each).path.rstrip("/").rpartition("/")[2])
        if len(urls) > 1 or _matches(name, patterns):
            info = _ask(each, lambda fs=filesystem, at=path: fs.info(at))
            found.append(_remote_file(each, name, info))
            continue
        rows = _ask(each, lambda fs=filesystem, at=path: fs.find(at, detail=True))
        for at, info in sorted(rows.items()):
            if info.get("type") != "directory" and _matches(at.rpartition("/")[2].partition("?")[0], patterns):
                below = at[len(path) :] if at.startswith(path) else at.rpartition("/")[2]
                found.append(_remote_file(filesystem.unstrip_protocol(at), below.lstrip("/"), info))
    if not found:
        raise QuintetError(f"{shown_url(url)} holds no files named {', '.join(patterns)}")
    return found


@contextmanager
def fetched(files: Iterable[RemoteFile], folder: Path) -> Iterator[Iterator[tuple[RemoteFile, Path]]]:
    """The files with local copies, in their order. A copy is removed when the next file is asked for.

    `folder` holds the copies. It is removed at the end, and kept with what is half fetched where a server went away.
    """
    stop = threading.Event()
    pool = ThreadPoolExecutor(AHEAD, thread_name_prefix="fetch")
    folder.mkdir(parents=True, exist_ok=True)
    keep = False
    try:
        yield _read_ahead(list(files), folder, pool, stop)
    except (RemoteError, KeyboardInterrupt):
        keep = True
        raise
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _read_ahead(
    files: Sequence[RemoteFile], folder: Path, pool: ThreadPoolExecutor, stop: threading.Event
) -> Iterator[tuple[RemoteFile, Path]]:
    waiting: list[tuple[RemoteFile, Future[Path]]] = []
    rest = iter(files)
    upcoming = next(rest, None)
    while waiting or upcoming is not None:
        while upcoming is not None and len(waiting) < AHEAD:
            space = sum(file.size or 0 for file, _ in waiting) + (upcoming.size or 0)
            if waiting and space > SPACE:
                break
            waiting.append((upcoming, pool.submit(_fetch, upcoming, folder, stop)))
            upcoming = next(rest, None)
        file, future = waiting.pop(0)
        path = future.result()
        yield file, path
        path.unlink(missing_ok=True)


def read_small(file: RemoteFile, limit: int) -> bytes:
    """A whole small file, in memory."""
    filesystem, path = _filesystem(file.url)
    if (file.size or 0) > limit:
        raise QuintetError(f"{file} is too large: {limit:,} bytes are the most that is read")
    content: bytes = _ask(file.url, lambda: _whole(filesystem.cat_file(path), file.size))
    return content


def _fetch(file: RemoteFile, folder: Path, stop: threading.Event) -> Path:
    filesystem, path = _filesystem(file.url)
    key = hashlib.sha256(file.url.encode()).hexdigest()[:32]
    target, note = folder / key, folder / f"{key}.json"
    if not (note.is_file() and note.read_text(encoding="utf-8") == json.dumps(file.stamp, indent=2) + "\n"):
        target.unlink(missing_ok=True)  # of another version of the file
    write_json(note, file.stamp)
    with target.open("ab") as out:
        at = out.tell()
        if file.size is None:
            out.truncate(0)
            out.write(_ask(file.url, lambda: filesystem.cat_file(path)))
            return target
        while at < file.size:
            if stop.is_set():
                raise RemoteError(f"{file}: stopped")
            end = min(at + BLOCK, file.size)
            block = _ask(file.url, lambda start=at, stop_at=end: _block(filesystem, path, start, stop_at, file.size))
            if at and len(block) == file.size:  # a server that cannot begin in the middle
                out.truncate(0)
                at = 0
            out.write(block)
            at += len(block)
    now = _stamp(_ask(file.url, lambda: filesystem.info(path)))
    if now != file.stamp:
        target.unlink()
        raise RemoteError(f"{file} was changed on the server while it was read; give the command again")
    return target


def _block(filesystem: Any, path: str, start: int, end: int, size: int | None) -> bytes:
    block: bytes = filesystem.cat_file(path, start=start, end=end)
    if len(block) not in (end - start, size):
        raise OSError(f"{len(block):,} bytes came instead of {end - start:,}")
    return block


def _whole(content: bytes, size: int | None) -> bytes:
    if size is not None and len(content) != size:
        raise OSError(f"{len(content):,} bytes came instead of {size:,}")
    return content


def _ask(url: str, action: Any) -> Any:
    """An answer of the server. What may pass is tried again, with pauses; what will not is an error at once."""
    for attempt in range(ATTEMPTS):
        try:
            return action()
        except FileNotFoundError as error:
            # Of http, any failure of the first question; the cause says which.
            cause = error.__cause__
            if cause is None or getattr(cause, "status", None) in (404, 410):
                raise QuintetError(f"{shown_url(url)} does not exist") from None
            _refuse(url, cause)
            last: BaseException = cause
        except PermissionError as error:
            raise QuintetError(f"{shown_url(url)} may not be read: {first_line(error)}") from None
        except QuintetError:
            raise
        except Exception as error:  # noqa: BLE001  # each file system has its own
            _refuse(url, error)
            last = error
        if attempt + 1 < ATTEMPTS:
            time.sleep(FIRST_PAUSE * 2**attempt)
    raise RemoteError(
        f"{shown_url(url)} could not be read in {ATTEMPTS} attempts: {first_line(last)}; give the command again when "
        "the server answers, it goes on where it stopped"
    )


def _refuse(url: str, error: BaseException) -> None:
    """Raise where another attempt would end as this one did."""
    status = getattr(error, "status", None)
    if status is not None and 400 <= status < 500 and status not in (408, 429):
        raise QuintetError(f"{shown_url(url)}: the server refused: {status}") from None
    if type(error).__name__ == "NoCredentialsError":
        raise QuintetError(
            f"{shown_url(url)}: there are no credentials; set those of the command line of the storage, such as "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from None


def _filesystem(url: str) -> tuple[Any, str]:
    options: dict[str, Any] = {}
    try:
        import fsspec

        if urlsplit(url).scheme in ("http", "https"):
            import aiohttp

            timeout = aiohttp.ClientTimeout(total=None, sock_connect=20, sock_read=TIMEOUT)
            options = {"client_kwargs": {"timeout": timeout}}
        filesystem, path = fsspec.core.url_to_fs(url, use_listings_cache=False, **options)
    except ImportError as error:
        raise QuintetError(
            f"{shown_url(url)}: {first_line(error)}; URLs need the extra `remote`: "
            "pip install 'quintet-retrieval[remote]'"
        ) from None
    except ValueError as error:
        raise QuintetError(f"{shown_url(url)}: {first_line(error)}") from None
    return filesystem, path


def _remote_file(url: str, name: str, info: dict[str, Any]) -> RemoteFile:
    size = info.get("size")
    return RemoteFile(url, name, size if isinstance(size, int) else None, _stamp(info))


def _stamp(info: dict[str, Any]) -> str:
    """What tells one version of a file from another."""
    tag = info.get("ETag") or info.get("etag") or info.get("md5Hash")
    if tag:
        return str(tag).strip('"')
    changed = info.get("LastModified") or info.get("mtime") or info.get("updated") or info.get("last_modified") or ""
    return f"{info.get('size')}:{changed}"


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(name.lower(), pattern) for pattern in patterns)
