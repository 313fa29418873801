"""Images from anywhere, read safely: always RGB, upright, 8 bits a channel, or an error that names the file."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Condition, Lock
from typing import IO

import numpy as np
from PIL import ExifTags, Image

from quintet.errors import ImageError, QuintetError
from quintet.files import open_regular

MAX_PIXELS = 80_000_000  # 320 MB once decoded; photographs of today's cameras have 12 to 60 million
MAX_SIDE = 200_000  # of width and height: what resizing needs grows with the longer one
DECODED_AT_ONCE = 120_000_000  # pixels, by all threads of a process: 1 GB, of WebP 1.8; further images wait
STRIP = 2_000_000  # pixels converted at a time
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".avif")

# Formats that are only decoded. Pillow can open more, some of which (EPS) start another program.
_FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
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
# And damage is told by what becomes of it.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
warnings.filterwarnings("ignore", module=r"PIL\.")
logging.getLogger("PIL").addHandler(logging.NullHandler())


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
        return _upright(source, read_exif(source), name or "the image", max_pixels)
    with _file(source, name) as (file, name), decoded(file, max_pixels=max_pixels, name=name) as (image, _):
        return image


@contextmanager
def decoded(
    file: IO[bytes], *, max_pixels: int = MAX_PIXELS, name: str = "the image"
) -> Iterator[tuple[Image.Image, Image.Exif]]:
    """An image as `open_image` gives it, and its EXIF data. Until it is let go, it counts as decoded."""
    with _open(file, name) as image:
        _check_size(image, name, max_pixels)
        with _decoding.take(image.width * image.height):
            exif = read_exif(image)
            yield _upright(image, exif, name, max_pixels), exif


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
    with _file(source, name) as (file, name), decoded(file, max_pixels=max_pixels, name=name) as (image, _):
        image.thumbnail((size, size))
        return image


def image_header(source: IO[bytes] | bytes, *, name: str = "the image") -> tuple[tuple[int, int], Image.Exif]:
    """Width and height as `open_image` would give them, and the EXIF data, without decoding any pixel.

    >>> buffer = io.BytesIO()
    >>> Image.new("L", (3, 2)).save(buffer, "PNG")
    >>> image_header(buffer.getvalue())[0]
    (3, 2)
    """
    with _open(io.BytesIO(source) if isinstance(source, bytes) else source, name) as image:
        exif = read_exif(image)
        turn = _turn(exif)
        width, height = image.size
        is_turned = turn is not None and turn.name not in ("FLIP_LEFT_RIGHT", "FLIP_TOP_BOTTOM", "ROTATE_180")
        return ((height, width) if is_turned else (width, height)), exif


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
    _check_size(image, name, max_pixels)
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


def _open(file: IO[bytes], name: str) -> Image.Image:
    """The header read, nothing decoded."""
    try:
        if file.seek(0, io.SEEK_END) == 0:
            raise ImageError(f"{name} is empty (0 bytes); fetch or export it again")
        file.seek(0)
        return Image.open(file, formats=_formats())
    except ImageError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ImageError(_too_large(name, "far more", MAX_PIXELS)) from None
    except Exception as error:  # noqa: BLE001  # whatever a parser raises
        raise ImageError(
            f"{name} is not an image Quintet can read ({_why(error)}); it reads {', '.join(_formats())}"
        ) from None


def _check_size(image: Image.Image, name: str, max_pixels: int) -> None:
    if image.width * image.height > max_pixels:
        raise ImageError(_too_large(name, f"{image.width} x {image.height}", max_pixels))
    if max(image.size) > MAX_SIDE:
        raise ImageError(f"{name} is {image.width} x {image.height} pixels; {MAX_SIDE:,} are the most of one side")


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
