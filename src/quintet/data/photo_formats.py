"""What phones and cameras write besides JPEG: HEIC, JPEG XL, and RAW files, of which the preview inside is read."""

from __future__ import annotations

import io
from contextlib import suppress
from functools import cache
from pathlib import PurePath
from typing import IO

from PIL import Image

from quintet.errors import ImageError

HEIF_SUFFIXES = (".heic", ".heif", ".hif")
JXL_SUFFIXES = (".jxl",)
RAW_SUFFIXES = (".dng", ".cr2", ".cr3", ".nef", ".nrw", ".arw", ".raf", ".orf", ".rw2", ".pef", ".srw")
_JXL = (b"\xff\x0a", b"\0\0\0\x0cJXL \r\n\x87\n")  # a bare codestream, and a container of boxes
_RATIOS = ((1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))  # width : height, by JPEG XL's number for it
_HEADER = 2**16  # bytes of a container in which its codestream begins


@cache
def register_heif() -> None:
    """Let Pillow open HEIC: its main image, decoded in the thread that asks."""
    import pi_heif

    pi_heif.register_heif_opener(decode_threads=1, thumbnails=False, depth_images=False, aux_images=False)


@cache
def register_jxl() -> None:
    """Let Pillow open JPEG XL, where the extra is installed."""
    from pillow_jxl import JpegXLImagePlugin

    JpegXLImagePlugin.DECODE_THREADS = 0  # images are decoded side by side already


def is_raw(name: str) -> bool:
    """By its suffix: most RAW files begin as a TIFF does."""
    return PurePath(name).suffix.lower() in RAW_SUFFIXES


def is_jxl(file: IO[bytes]) -> bool:
    file.seek(0)
    return file.read(12).startswith(_JXL)


def jxl_size(file: IO[bytes]) -> tuple[int, int]:
    """Width and height of a JPEG XL file from its header. Its decoder decodes all of an image to tell them.

    >>> jxl_size(io.BytesIO(bytes([0xFF, 0x0A, 0b11000001, 0b1])))  # 8 * (0b00000 + 1) high, ratio 7 to it
    (16, 8)
    """
    file.seek(0)
    data = file.read(_HEADER)
    if data.startswith(_JXL[1]):
        data = _codestream(data)
    if not data.startswith(_JXL[0]):
        raise ValueError("no codestream")
    bits, at = int.from_bytes(data[2:18], "little"), 0

    def take(count: int) -> int:
        nonlocal at
        value = bits >> at & (1 << count) - 1
        at += count
        return value

    small = take(1)

    def side() -> int:
        return 8 * (take(5) + 1) if small else take((9, 13, 18, 30)[take(2)]) + 1

    height = side()
    ratio = take(3)
    if not ratio:
        return side(), height
    across, down = _RATIOS[ratio - 1]
    return height * across // down, height


def _codestream(data: bytes) -> bytes:
    """The beginning of the codestream in a container: of its box `jxlc`, or of the first `jxlp`."""
    at = 0
    while at + 16 <= len(data):
        size, kind, head = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8], 8
        if size == 1:
            size, head = int.from_bytes(data[at + 8 : at + 16], "big"), 16
        if kind in (b"jxlc", b"jxlp"):
            return data[at + head + (4 if kind == b"jxlp" else 0) :]
        if size < head:
            break
        at += size
    return b""


def raw_preview(file: IO[bytes], name: str) -> IO[bytes]:
    """The largest preview inside of a camera's RAW file, as a file: a JPEG with the EXIF data of the photo."""
    try:
        import rawpy
    except ImportError:
        raise ImageError(f"{name} is a RAW file; reading them needs: pip install 'quintet-retrieval[photos]'") from None
    file.seek(0)
    content = file.read()
    try:
        with rawpy.RawPy() as raw:
            raw.open_buffer(io.BytesIO(content))
            preview = raw.extract_thumb()
    except (rawpy.LibRawNoThumbnailError, rawpy.LibRawUnsupportedThumbnailError):
        raise ImageError(f"{name} has no preview inside that can be read; export it as JPEG") from None
    except Exception as error:  # noqa: BLE001  # whatever LibRaw raises
        said = error.args[0] if error.args else error
        said = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
        raise ImageError(f"{name} is damaged, cut short or no RAW file that can be read ({said})") from None
    if isinstance(preview.data, bytes):  # a JPEG
        # Of a file that is cut short, LibRaw fills up the preview with whatever its memory holds.
        if preview.data[len(preview.data) // 2 :] not in content:
            raise ImageError(f"{name} is cut short: its preview is not complete; fetch or export it again")
        return io.BytesIO(preview.data)
    buffer = io.BytesIO()
    Image.fromarray(preview.data).save(buffer, "PPM")
    return buffer


def load_decoders() -> None:
    """Import what is installed, before a process limits its memory."""
    register_heif()
    with suppress(ImportError):
        register_jxl()
    with suppress(ImportError):
        import rawpy  # noqa: F401
