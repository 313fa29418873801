"""Images from anywhere, read safely: always RGB, upright, 8 bits a channel, or an error that names the file."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from pathlib import Path
from typing import IO

import numpy as np
from PIL import ExifTags, Image, ImageOps

from quintet.errors import ImageError

MAX_PIXELS = 80_000_000  # 240 MB once decoded; photographs of today's cameras have 12 to 60 million
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".avif")

# Formats that are only decoded. Pillow can open more, some of which (EPS) start another program.
_FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")

# What Pillow's decoders raise on damaged files besides OSError.
_DAMAGE = (
    OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error, LookupError, TypeError, RuntimeError,
    ArithmeticError, MemoryError,
)  # fmt: skip

# Oversized images are refused below, with a message; Pillow's warning about the same would only be noise.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


def open_image(
    source: Path | str | bytes | Image.Image, *, max_pixels: int = MAX_PIXELS, name: str | None = None
) -> Image.Image:
    """An image file, its bytes, or a PIL image, as an upright RGB image.

    EXIF orientation is applied; grey, palette, CMYK and 16-bit images are converted; transparent parts become white;
    of an animation the first frame is taken. `name` is what errors call it (the path by default). An image with more
    than `max_pixels` is refused from its header, before anything is decoded.

    >>> buffer = io.BytesIO()
    >>> Image.new("L", (3, 2), 128).save(buffer, "PNG")
    >>> image = open_image(buffer.getvalue())
    >>> image.mode, image.size, image.getpixel((0, 0))
    ('RGB', (3, 2), (128, 128, 128))
    """
    if isinstance(source, Image.Image):
        return _upright(source, name or "the image", max_pixels)
    if isinstance(source, bytes):
        return _read(io.BytesIO(source), len(source), name or "the image", max_pixels)
    path = Path(source)
    name = name or str(path)
    if not path.exists():
        raise ImageError(f"{name} does not exist; was it moved or deleted?")
    if not path.is_file():
        raise ImageError(f"{name} is not a file; give the path of an image")
    try:
        with path.open("rb") as file:
            return _read(file, path.stat().st_size, name, max_pixels)
    except PermissionError:
        raise ImageError(f"{name} may not be read; change its permissions") from None


def thumbnail(
    source: Path | str | bytes, size: int, *, max_pixels: int = MAX_PIXELS, name: str | None = None
) -> Image.Image:
    """An image shrunk to fit into size x size; a smaller one stays as it is."""
    image = open_image(source, max_pixels=max_pixels, name=name)
    image.thumbnail((size, size))
    return image


def image_header(data: bytes, *, name: str = "the image") -> tuple[tuple[int, int], Image.Exif]:
    """Width and height as `open_image` would give them, and the EXIF data, without decoding any pixel.

    >>> buffer = io.BytesIO()
    >>> Image.new("L", (3, 2)).save(buffer, "PNG")
    >>> image_header(buffer.getvalue())[0]
    (3, 2)
    """
    with _open(io.BytesIO(data), len(data), name, MAX_PIXELS) as image:
        try:
            exif = image.getexif()
            turned = exif.get(ExifTags.Base.Orientation) in (5, 6, 7, 8)
        except _DAMAGE:  # damaged EXIF is no EXIF; whether the pixels are damaged is another question
            exif, turned = Image.Exif(), False
        width, height = image.size
        return ((height, width) if turned else (width, height)), exif


def _read(file: IO[bytes], size: int, name: str, max_pixels: int) -> Image.Image:
    with _open(file, size, name, max_pixels) as image:
        return _upright(image, name, max_pixels)


def _upright(image: Image.Image, name: str, max_pixels: int) -> Image.Image:
    width, height = image.size
    if width * height > max_pixels:
        raise ImageError(_too_large(name, f"{width} x {height}", max_pixels))
    try:
        image.load()
        return _to_rgb(ImageOps.exif_transpose(image), name)
    except _DAMAGE as error:
        raise ImageError(f"{name} is damaged or cut short ({_why(error)}); fetch or export it again") from None


def _open(file: IO[bytes], size: int, name: str, max_pixels: int) -> Image.Image:
    """The header read, nothing decoded."""
    if size == 0:
        raise ImageError(f"{name} is empty (0 bytes); fetch or export it again")
    try:
        return Image.open(file, formats=_formats())
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ImageError(_too_large(name, "far more", max_pixels)) from None
    except _DAMAGE as error:
        raise ImageError(
            f"{name} is not an image Quintet can read ({_why(error)}); it reads {', '.join(_formats())}"
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


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image.copy()  # the copy outlives the open file
    if image.mode == "F":
        raise ImageError(
            f"{name} holds floating-point values, whose white is anyone's guess; save it with 8 or 16 bits"
        )
    if image.mode.startswith("I"):  # 16 bits, in Pillow's I;16, I;16B or I: convert() would clip instead of scaling
        values = np.asarray(image).clip(0, 65_535) // 257
        return Image.fromarray(values.astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        on_top = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, on_top).convert("RGB")
    return image.convert("RGB")
