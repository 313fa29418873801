"""Images from anywhere, read safely: always RGB, upright, 8 bits a channel, or an error that names the file."""

from __future__ import annotations

import io
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Condition, Lock
from typing import IO, NamedTuple, TypeAlias

import numpy as np
from PIL import ExifTags, Image

from quintet.data.photo_formats import (
    HEIF_SUFFIXES,
    JXL_SUFFIXES,
    RAW_SUFFIXES,
    is_jxl,
    is_raw,
    jxl_size,
    raw_preview,
    register_heif,
    register_jxl,
)
from quintet.errors import ImageError, QuintetError
from quintet.files import open_regular

MAX_PIXELS = 80_000_000  # 320 MB once decoded; photographs of today's cameras have 12 to 60 million
MAX_SIDE = 200_000  # of width and height: what resizing needs grows with the longer one
DECODED_AT_ONCE = 120_000_000  # pixels, by all threads of a process: 1 GB, of WebP 1.8; further images wait
STRIP = 2_000_000  # pixels converted at a time
_PLAIN_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".avif")
IMAGE_SUFFIXES = (*_PLAIN_SUFFIXES, *HEIF_SUFFIXES, *JXL_SUFFIXES, *RAW_SUFFIXES)

# Formats that are only decoded. Pillow can open more, some of which (EPS) start another program.
_FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "HEIF")
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # by EXIF orientation

# Pixels lie in blocks; of those above 32 MB the allocator keeps nothing for later.
Image.core.set_block_size(64 << 20)

# Oversized images are refused below, with a message; Pillow's warning about the same would only be noise.
# Damage is recognised by what becomes of it.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
warnings.filterwarnings("ignore", module=r"PIL\.")
logging.getLogger("PIL").addHandler(logging.NullHandler())


# From the width and height of an image to the smallest that its reader needs.
Least: TypeAlias = Callable[[int, int], tuple[int, int]]


class Header(NamedTuple):
    """Width and height of an image as `open_image` gives it when decoded in full, its EXIF data, and its format."""

    size: tuple[int, int]
    exif: Image.Exif
    format: str


def open_image(
    source: Path | str | bytes | Image.Image,
    *,
    max_pixels: int = MAX_PIXELS,
    name: str | None = None,
    least: Least | None = None,
) -> Image.Image:
    """An image file, its bytes, or a PIL image, as an upright RGB image.

    EXIF orientation is applied; grey, palette, CMYK and 16-bit images are converted; transparent parts become white;
    of an animation the first frame is taken. `name` is what errors call it (the path by default). An image with more
    than `max_pixels` is refused from its header, before anything is decoded. Of a HEIC file with several images the
    main one is taken, of a camera's RAW file the preview inside.

    `least`: a JPEG is decoded at 1/2, 1/4 or 1/8 of its size, where the result is not smaller than this says.

    >>> buffer = io.BytesIO()
    >>> Image.new("L", (3, 2), 128).save(buffer, "PNG")
    >>> image = open_image(buffer.getvalue())
    >>> image.mode, image.size, image.getpixel((0, 0))
    ('RGB', (3, 2), (128, 128, 128))
    """
    if isinstance(source, Image.Image):
        return _upright(source, read_exif(source), name or "the image", max_pixels)
    with _file(source, name) as (file, name), decoded(file, max_pixels=max_pixels, name=name, least=least) as found:
        return found[0]


@contextmanager
def decoded(
    file: IO[bytes], *, max_pixels: int = MAX_PIXELS, name: str = "the image", least: Least | None = None
) -> Iterator[tuple[Image.Image, Header]]:
    """An image as `open_image` gives it, and its header. Until it is let go, it counts as decoded."""
    with _open(file, name, max_pixels) as image:
        header = _header(image, name)
        if least is not None and image.format in ("JPEG", "MPO"):
            width, height = least(*header.size)
            image.draft(None, (height, width) if _is_turned(header.exif) else (width, height))
        with _decoding.take(image.width * image.height):
            yield _upright(image, header.exif, name, max_pixels), header


class _Budget:
    """Pixels that may be decoded at once: memory depends neither on the number of threads nor on what is decoded."""

    def __init__(self, total: int) -> None:
        self.total = self.left = total
        self._turn, self._freed = Lock(), Condition()

    @contextmanager
    def take(self, pixels: int) -> Iterator[None]:
        pixels = min(pixels, self.total)
        with self._turn, self._freed:  # in turn: a large image is not kept waiting by small ones
            self._freed.wait_for(lambda: self.left >= pixels)
            self.left -= pixels
        try:
            yield
        finally:
            with self._freed:
                self.left += pixels
                self._freed.notify_all()


_decoding = _Budget(DECODED_AT_ONCE)


def thumbnail(
    source: Path | str | bytes, size: int, *, max_pixels: int = MAX_PIXELS, name: str | None = None
) -> Image.Image:
    """An image shrunk to fit into size x size; a smaller one stays as it is."""
    image = open_image(source, max_pixels=max_pixels, name=name, least=twice(size))
    image.thumbnail((size, size))
    return image


def twice(size: int) -> Least:
    """For an image that is shrunk to fit into size x size afterwards."""

    def least(width: int, height: int) -> tuple[int, int]:
        factor = min(1, 2 * size / max(width, height))
        return math.ceil(width * factor), math.ceil(height * factor)

    return least


def image_header(source: IO[bytes] | bytes, *, name: str = "the image") -> Header:
    """What is known of an image without decoding any pixel (of JPEG XL, and of PNG without EXIF data, all are).

    >>> buffer = io.BytesIO()
    >>> Image.new("L", (3, 2)).save(buffer, "PNG")
    >>> image_header(buffer.getvalue()).size
    (3, 2)
    """
    with _open(io.BytesIO(source) if isinstance(source, bytes) else source, name) as image:
        return _header(image, name)


def image_format(file: IO[bytes], name: str) -> str:
    """The format of what begins as an image of a size that can be decoded. No pixel is decoded."""
    if is_jxl(file):
        try:
            _check_size(jxl_size(file), name, MAX_PIXELS)
        except (ValueError, IndexError) as error:
            raise _unreadable(name, error) from None
        return "JXL"
    with _open(file, name) as image:
        return _format(image, name)


def _format(image: Image.Image, name: str) -> str:
    return "RAW" if is_raw(name) else str(image.format)


def _header(image: Image.Image, name: str) -> Header:
    exif = read_exif(image)
    width, height = image.size
    size = (height, width) if _is_turned(exif) else (width, height)
    return Header(size, exif, _format(image, name))


def read_exif(image: Image.Image) -> Image.Exif:
    """Damaged EXIF is no EXIF; whether the pixels are damaged is another question."""
    try:
        return image.getexif()
    except Exception:  # noqa: BLE001  # whatever a parser raises
        return Image.Exif()


@contextmanager
def _file(source: Path | str | bytes, name: str | None) -> Iterator[tuple[IO[bytes], str]]:
    """A file to read from, and what errors call it."""
    if isinstance(source, bytes):
        yield io.BytesIO(source), name or "the image"
        return
    try:
        file = open_regular(source)
    except QuintetError as error:
        said = str(error) if name is None else str(error).replace(str(source), name)
        raise ImageError(f"{said}; was it moved or deleted?" if said.endswith("not exist") else said) from None
    with file:
        yield file, name or str(source)


def _upright(image: Image.Image, exif: Image.Exif, name: str, max_pixels: int) -> Image.Image:
    _check_size(image.size, name, max_pixels)
    try:
        image.load()
        turn = _turn(exif)
        upright = _to_rgb(image if turn is None else image.transpose(turn), name)
        if turn is not None:
            upright.info.clear()  # of the orientation, which would turn it once more
        return upright if upright is not image else image.copy()  # the copy outlives the open file
    except ImageError:
        raise
    except Exception as error:  # noqa: BLE001  # whatever a decoder raises
        raise ImageError(f"{name} is damaged or cut short ({_why(error)}); fetch or export it again") from None


def _turn(exif: Image.Exif) -> Image.Transpose | None:
    orientation = exif.get(ExifTags.Base.Orientation)
    return _TURNS.get(orientation) if isinstance(orientation, int) else None


def _is_turned(exif: Image.Exif) -> bool:
    """Whether width and height are exchanged."""
    turn = _turn(exif)
    return turn is not None and turn.name not in ("FLIP_LEFT_RIGHT", "FLIP_TOP_BOTTOM", "ROTATE_180")


def _open(file: IO[bytes], name: str, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The header read and the size checked, nothing decoded."""
    try:
        if file.seek(0, io.SEEK_END) == 0:
            raise ImageError(f"{name} is empty (0 bytes); fetch or export it again")
        if is_jxl(file):
            return _open_jxl(file, name, max_pixels)
        file.seek(0)
        image = Image.open(raw_preview(file, name) if is_raw(name) else file, formats=_formats())
        _check_size(image.size, name, max_pixels)
        return image
    except ImageError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ImageError(_too_large(name, "far more", MAX_PIXELS)) from None
    except Exception as error:  # noqa: BLE001  # whatever a parser raises
        raise _unreadable(name, error) from None


def _unreadable(name: str, error: Exception) -> ImageError:
    return ImageError(f"{name} is not an image Quintet can read ({_why(error)}); it reads {', '.join(_formats())}")


def _open_jxl(file: IO[bytes], name: str, max_pixels: int) -> Image.Image:
    """This decoder decodes while it opens, so the size is read from the header before, and room is taken."""
    try:
        register_jxl()
    except ImportError:
        raise ImageError(f"{name} is JPEG XL; reading it needs: pip install 'quintet-retrieval[photos]'") from None
    width, height = jxl_size(file)
    _check_size((width, height), name, max_pixels)
    file.seek(0)
    with _decoding.take(width * height):
        image = Image.open(file, formats=["JXL"])
    _check_size(image.size, name, max_pixels)
    return image


def _check_size(size: tuple[int, int], name: str, max_pixels: int) -> None:
    if size[0] * size[1] > max_pixels:
        raise ImageError(_too_large(name, f"{size[0]} x {size[1]}", max_pixels))
    if max(size) > MAX_SIDE:
        raise ImageError(f"{name} is {size[0]} x {size[1]} pixels; {MAX_SIDE:,} are the most of one side")


def _formats() -> list[str]:
    Image.init()  # some builds of Pillow lack some decoders
    register_heif()
    return [name for name in _FORMATS if name in Image.OPEN]


def _too_large(name: str, size: str, max_pixels: int) -> str:
    return (
        f"{name} has {size} pixels, above the limit of {max_pixels:,} that guards against decompression bombs; "
        "make a smaller copy of it"
    )


def _why(error: BaseException) -> str:
    r"""
    >>> _why(ValueError("Unexpected end of file\n"))  # libheif's messages end so
    'ValueError: Unexpected end of file'
    """
    if isinstance(error, Image.UnidentifiedImageError):
        return "unknown format"
    return f"{type(error).__name__}: {str(error).strip()}"


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode == "F":
        raise ImageError(
            f"{name} holds floating-point values, whose white is anyone's guess; save it with 8 or 16 bits"
        )
    if image.mode.startswith("I"):
        return _in_strips(image, _from_16_bits)
    if image.has_transparency_data:
        return _in_strips(image, _on_white)
    return image.convert("RGB")


def _in_strips(image: Image.Image, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """Strip by strip, so that what a conversion needs on its way is small."""
    result = Image.new("RGB", image.size)
    rows = max(1, STRIP // image.width)
    for top in range(0, image.height, rows):
        strip = image.crop((0, top, image.width, min(image.height, top + rows)))
        result.paste(convert(strip), (0, top))
    return result


def _from_16_bits(image: Image.Image) -> Image.Image:
    """Of Pillow's I;16, I;16B or I: `convert` would clip instead of scaling."""
    values = np.asarray(image).clip(0, 65_535) // 257
    return Image.fromarray(values.astype(np.uint8)).convert("RGB")


def _on_white(image: Image.Image) -> Image.Image:
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
