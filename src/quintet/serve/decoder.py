"""Images are decoded in processes of their own, which have a limit of memory and of time.

An image of a few kilobytes can take gigabytes to decode, and decoders are where bugs of image libraries are. Such a
process has no more than `MEMORY` for an image, it ends when it takes too long or crashes, and the server goes on. It
gets an open file, never a path, and gives back pixels.
"""

from __future__ import annotations

import io
import json
import math
import os
import queue
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from PIL import Image

from quintet.data.images import MAX_PIXELS, image_format, open_image
from quintet.data.photo_formats import is_raw, load_decoders
from quintet.errors import ImageError

MEMORY = 640 * 2**20  # bytes for an image, above what a process without one takes
KEPT = 256 * 2**20  # a process that has taken more ends after its answer, so that memory returns
QUERY_PIXELS = 4_000_000  # a larger image is shrunk to this or more: matchers see a few hundred pixels a side
JPEG: dict[str, Any] = {"format": "JPEG", "quality": 85, "progressive": True}
MEDIA_TYPES = {
    "JPEG": "image/jpeg",
    "MPO": "image/jpeg",
    "PNG": "image/png",
    "WEBP": "image/webp",
    "GIF": "image/gif",
    "BMP": "image/bmp",
    "TIFF": "image/tiff",
    "PPM": "image/x-portable-anymap",
    "AVIF": "image/avif",
    "HEIF": "image/heif",
    "JXL": "image/jxl",
    "RAW": "application/octet-stream",
}


class Decoders:
    """At most `count` images are decoded at a time; further ones wait. Processes begin when they are needed."""

    def __init__(self, count: int, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._idle: queue.LifoQueue[_Process | None] = queue.LifoQueue()
        for _ in range(count):
            self._idle.put(None)

    def pixels(self, file: IO[bytes], name: str, max_pixels: int) -> Image.Image:
        """An RGB image, upright; a large one shrunk."""
        answer, data = self._ask(file, task="pixels", name=name, max_pixels=max_pixels)
        return Image.frombytes("RGB", tuple(answer["size"]), data)

    def thumbnail(self, file: IO[bytes], name: str, size: int) -> tuple[bytes, str]:
        """A JPEG or PNG file that fits into size x size, and its suffix."""
        answer, data = self._ask(file, task="thumbnail", name=name, size=size)
        return data, answer["suffix"]

    def media_type(self, file: IO[bytes], name: str) -> str:
        """Raises `ImageError` for what is no image from its first pixel to its last."""
        answer, _ = self._ask(file, task="check", name=name)
        return MEDIA_TYPES[answer["format"]]

    def _ask(self, file: IO[bytes], **request: Any) -> tuple[dict[str, Any], bytes]:
        name = request["name"]
        try:
            process = self._idle.get(timeout=self._timeout_s)
        except queue.Empty:
            raise ImageError(f"{name} was not decoded: too many images are waiting; try again later") from None
        try:
            process = process or _Process(self._timeout_s)
            answer, data = process.ask(file, request)
        except OSError:  # it crashed, was killed for its memory, or took too long
            if process:
                process.end()
            process = None
            raise ImageError(f"{name} cannot be decoded in the memory and time that the server has for it") from None
        else:
            if answer["last"]:
                process.end()
                process = None
        finally:
            self._idle.put(process)
        if "error" in answer:
            raise ImageError(answer["error"])
        return answer, data

    def close(self) -> None:
        """When none is in use."""
        with suppress(queue.Empty):
            while True:
                if process := self._idle.get_nowait():
                    process.end()


def anonymous_file() -> IO[bytes]:
    """A file without a name, in memory where the system can."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("quintet-upload", os.MFD_CLOEXEC), "w+b")
    return tempfile.TemporaryFile()


class _Process:
    """This module, run by another Python."""

    def __init__(self, timeout_s: float) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(timeout_s + 1)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "quintet.serve.decoder", str(theirs.fileno()), str(math.ceil(timeout_s))],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C in a terminal is for the server, which still answers
            )

    def ask(self, file: IO[bytes], request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        file.flush()
        _send(self._socket, request, file.fileno())
        answer = _receive(self._socket)
        return answer, _exactly(self._socket, answer.get("bytes", 0))

    def end(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()


# Messages: a length, JSON of that length and, with an answer, as many bytes as the JSON says.


def _send(to: socket.socket, message: dict[str, Any], *handles: int, data: bytes = b"") -> None:
    text = json.dumps(message).encode()
    socket.send_fds(to, [struct.pack("!I", len(text))], handles)
    to.sendall(text)
    to.sendall(data)


def _receive(source: socket.socket) -> dict[str, Any]:
    (length,) = struct.unpack("!I", _exactly(source, 4))
    message: dict[str, Any] = json.loads(_exactly(source, length))
    return message


def _exactly(source: socket.socket, count: int) -> bytes:
    data = bytearray(count)
    left = memoryview(data)
    while left:
        received = source.recv_into(left)
        if not received:
            raise ConnectionAbortedError("the other process ended")
        left = left[received:]
    return bytes(data)


# In the process.


def main(handle: int, seconds: int) -> None:
    """Answer requests until the server closes its end, or is gone."""
    Image.init()
    with suppress(ImportError):  # this build of Pillow has no AVIF
        from PIL import AvifImagePlugin

        AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # each would take memory
    load_decoders()
    _limit_memory()
    with socket.socket(fileno=handle) as server:
        while True:
            try:
                head, (file, *_), _, _ = socket.recv_fds(server, 4, 1)
                request = json.loads(_exactly(server, struct.unpack("!I", head)[0]))
            except (OSError, ValueError):
                return
            signal.alarm(seconds)  # ends the process, whatever it is doing
            try:
                answer, data = _answer(Path(f"/dev/fd/{file}"), request)
            except (ImageError, MemoryError) as error:
                answer, data = {"error": _told(error, request["name"])}, b""
            finally:
                os.close(file)
            signal.alarm(0)
            answer |= {"bytes": len(data), "last": _most_memory() > KEPT}
            _send(server, answer, data=data)
            del data


def _most_memory() -> int:
    """Bytes that this process had at most. (`ru_maxrss` may be of the process that started it.)"""
    with suppress(OSError):  # there is no /proc
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ValueError):  # there is no /proc, or no such limit
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))


def _told(error: BaseException, name: str) -> str:
    if isinstance(error, MemoryError) or "MemoryError" in str(error):
        return f"{name} takes more memory than the server has for one image; make a smaller copy of it"
    return str(error)


def _answer(path: Path, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    name, task = request["name"], request["task"]
    if task == "pixels":
        image, _ = _shrunk(path, QUERY_PIXELS, request["max_pixels"], name)
        return {"size": image.size}, image.tobytes()
    if task == "thumbnail":
        size = request["size"]
        image, longest = _shrunk(path, size**2, MAX_PIXELS, name)
        suffix = ".png" if longest <= min(size, 320) else ".jpg"  # PNG keeps small drawings sharp
        image.thumbnail((size, size))
        buffer = io.BytesIO()
        image.save(buffer, **({"format": "PNG"} if suffix == ".png" else JPEG))
        return {"suffix": suffix}, buffer.getvalue()
    _shrunk(path, 1, MAX_PIXELS, name)
    with path.open("rb") as file:
        return {"format": image_format(file, name)}, b""


def _shrunk(path: Path, pixels: int, max_pixels: int, name: str) -> tuple[Image.Image, int]:
    """An image of at least so many pixels, and at most some four times as many; and its longer side before.

    `max_pixels` is for formats that are decoded whole; a JPEG is decoded at a fraction of its size.
    """
    jpeg = None if is_raw(name) else _open_jpeg(path)
    if jpeg is None or jpeg.width * jpeg.height > MAX_PIXELS:
        image = open_image(path, max_pixels=max_pixels, name=name)
        factor = _factor(image, pixels)
        return (image.reduce(factor) if factor > 1 else image), max(image.size)
    with jpeg:
        factor, longest = _factor(jpeg, pixels), max(jpeg.size)
        if factor > 1:
            jpeg.draft(None, (max(1, jpeg.width // factor), max(1, jpeg.height // factor)))
        return open_image(jpeg, name=name), longest


def _open_jpeg(path: Path) -> Image.Image | None:
    try:
        return Image.open(path, formats=["JPEG"])
    except Exception:  # noqa: BLE001  # whatever it is, `open_image` says so
        return None


def _factor(image: Image.Image, pixels: int) -> int:
    return min(int(math.sqrt(image.width * image.height / pixels)), *image.size)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
