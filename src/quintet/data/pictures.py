"""Pictures from anywhere, read safely: always RGB, upright, 8 bits a channel, or an error that names the file."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from pathlib import Path
from typing import IO

import numpy as np
from PIL import ExifTags, Image, ImageOps

from quintet.errors import PictureError

MAX_PIXELS = 80_000_000  # 240 MB once decoded; photographs of today's cameras have 12 to 60 million
PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".avif")

# Formats that are only decoded. Pillow can open more, some of which (EPS) start another program.
_FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")

# What Pillow's decoders raise on damaged files besides OSError.
_DAMAGE = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    struct.error,
    zlib.error,
    LookupError,
    TypeError,
    RuntimeError,
    ArithmeticError,
    MemoryError,
)

# Oversized pictures are refused below, with a message; Pillow's warning about the same would only be noise.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


def open_picture(source: Path | str | bytes, *, max_pixels: int = MAX_PIXELS, name: str | None = None) -> Image.Image:
    """A picture file, or its bytes, as an upright RGB image.

    EXIF orientation is applied; grey, palette, CMYK and 16-bit pictures are converted; transparent parts become white;
    of an animation the first frame is taken. `name` is what errors call it (the path by default). A picture with more
    than `max_pixels` is refused from its header, before anything is decoded.

    >>> buffer = io.BytesIO()
    >>> Image.new("L", (3, 2), 128).save(buffer, "PNG")
    >>> picture = open_picture(buffer.getvalue())
    >>> picture.mode, picture.size, picture.getpixel((0, 0))
    ('RGB', (3, 2), (128, 128, 128))
    """
    if isinstance(source, bytes):
        return _read(io.BytesIO(source), len(source), name or "the picture", max_pixels)
    path = Path(source)
    name = name or str(path)
    if not path.exists():
        raise PictureError(f"{name} does not exist; was it moved or deleted since the import?")
    if not path.is_file():
        raise PictureError(f"{name} is not a file; give the path of a picture")
    try:
        with path.open("rb") as file:
            return _read(file, path.stat().st_size, name, max_pixels)
    except PermissionError:
        raise PictureError(f"{name} may not be read; change its permissions") from None


def thumbnail(
    source: Path | str | bytes, size: int, *, max_pixels: int = MAX_PIXELS, name: str | None = None
) -> Image.Image:
    """A picture shrunk to fit into size x size; a smaller one stays as it is."""
    picture = open_picture(source, max_pixels=max_pixels, name=name)
    picture.thumbnail((size, size))
    return picture


def picture_header(data: bytes, *, name: str = "the picture") -> tuple[tuple[int, int], Image.Exif]:
    """Width and height as `open_picture` would give them, and the EXIF data, without decoding any pixel.

    >>> buffer = io.BytesIO()
    >>> Image.new("L", (3, 2)).save(buffer, "PNG")
    >>> picture_header(buffer.getvalue())[0]
    (3, 2)
    """
    with _open(io.BytesIO(data), len(data), name, MAX_PIXELS) as picture:
        try:
            exif = picture.getexif()
            turned = exif.get(ExifTags.Base.Orientation) in (5, 6, 7, 8)
        except _DAMAGE:  # damaged EXIF is no EXIF; whether the pixels are damaged is another question
            exif, turned = Image.Exif(), False
        width, height = picture.size
        return ((height, width) if turned else (width, height)), exif


def _read(file: IO[bytes], size: int, name: str, max_pixels: int) -> Image.Image:
    with _open(file, size, name, max_pixels) as picture:
        width, height = picture.size
        if width * height > max_pixels:
            raise PictureError(_too_large(name, f"{width} x {height}", max_pixels))
        try:
            picture.load()
            return _to_rgb(ImageOps.exif_transpose(picture), name)
        except _DAMAGE as error:
            raise PictureError(f"{name} is damaged or cut short ({_why(error)}); fetch or export it again") from None


def _open(file: IO[bytes], size: int, name: str, max_pixels: int) -> Image.Image:
    """The header read, nothing decoded."""
    if size == 0:
        raise PictureError(f"{name} is empty (0 bytes); fetch or export it again")
    try:
        return Image.open(file, formats=_formats())
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise PictureError(_too_large(name, "far more", max_pixels)) from None
    except _DAMAGE as error:
        raise PictureError(
            f"{name} is not a picture Quintet can read ({_why(error)}); it reads {', '.join(_formats())}"
        ) from None


def _formats() -> list[str]:
    Image.init()  # some builds of Pillow lack some decoders
    return [name for name in _FORMATS if name in Image.OPEN]


def _too_large(name: str, size: str, max_pixels: int) -> str:
    return (
        f"{name} has {size} pixels, above the limit of {max_pixels:,} that guards against decompression bombs; "
        "make a smaller copy of it"
    )


def _why(error: BaseException) -> str:
    if isinstance(error, Image.UnidentifiedImageError):
        return "unknown format"
    return f"{type(error).__name__}: {error}"


def _to_rgb(picture: Image.Image, name: str) -> Image.Image:
    if picture.mode == "RGB" and "transparency" not in picture.info:
        return picture.copy()  # the copy outlives the open file
    if picture.mode == "F":
        raise PictureError(
            f"{name} holds floating-point values, whose white is anyone's guess; save it with 8 or 16 bits"
        )
    if picture.mode.startswith("I"):  # 16 bits, in Pillow's I;16, I;16B or I: convert() would clip instead of scaling
        values = np.asarray(picture).clip(0, 65_535) // 257
        return Image.fromarray(values.astype(np.uint8)).convert("RGB")
    if picture.has_transparency_data:
        on_top = picture.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        return Image.alpha_composite(white, on_top).convert("RGB")
    return picture.convert("RGB")
