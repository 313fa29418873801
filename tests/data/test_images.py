from __future__ import annotations

import contextlib
import io
import struct
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from quintet.data import images
from quintet.data.images import MAX_PIXELS, image_format, image_header, open_image, thumbnail
from quintet.errors import ImageError


def photograph(width: int = 40, height: int = 30) -> Image.Image:
    values = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def encoded(image: Image.Image, format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds next to nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF", "PPM"])
def test_lossless_images_come_back_as_they_were(tmp_path: Path, format: str) -> None:
    path = tmp_path / f"p.{format.lower()}"
    photograph().save(path, format)
    assert np.array_equal(np.asarray(open_image(path)), np.asarray(photograph()))


@pytest.mark.parametrize("format", ["JPEG", "WEBP", "GIF"])
def test_lossy_formats_open_as_rgb(format: str) -> None:
    image = open_image(encoded(photograph(), format))
    assert (image.mode, image.size) == ("RGB", (40, 30))


def test_the_result_outlives_the_file(tmp_path: Path) -> None:
    path = tmp_path / "p.png"
    photograph().save(path)
    image = open_image(str(path))
    path.unlink()
    assert image.getpixel((0, 0)) == photograph().getpixel((0, 0))


def test_grey_becomes_equal_channels() -> None:
    grey = photograph().convert("L")
    values = np.asarray(open_image(encoded(grey, "PNG")))
    assert np.array_equal(values, np.repeat(np.asarray(grey)[..., None], 3, axis=2))


def test_black_and_white_one_bit() -> None:
    image = open_image(encoded(Image.new("1", (5, 5), 1), "PNG"))
    assert image.getpixel((2, 2)) == (255, 255, 255)


def test_palette_takes_the_palette_colours() -> None:
    palette = photograph().convert("P", palette=Image.Palette.ADAPTIVE)
    opened = open_image(encoded(palette, "PNG"))
    assert np.array_equal(np.asarray(opened), np.asarray(palette.convert("RGB")))


def test_palette_transparency_becomes_white() -> None:
    palette = Image.new("P", (4, 4), 0)
    palette.putpalette([255, 0, 0, 0, 255, 0])
    palette.putpixel((1, 1), 1)
    image = open_image(encoded(palette, "PNG", transparency=0))
    assert image.getpixel((0, 0)) == (255, 255, 255)
    assert image.getpixel((1, 1)) == (0, 255, 0)


def test_cmyk_keeps_its_colours() -> None:
    image = open_image(encoded(Image.new("RGB", (16, 16), (200, 40, 40)).convert("CMYK"), "JPEG", quality=95))
    assert image.mode == "RGB"
    assert np.abs(np.array(image.getpixel((8, 8))) - [200, 40, 40]).max() < 12


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparent_parts_become_white(mode: str) -> None:
    image = Image.new("RGBA", (2, 1), (0, 0, 0, 255))
    image.putpixel((1, 0), (0, 0, 0, 0))
    opened = open_image(encoded(image.convert(mode), "PNG"))
    assert opened.mode == "RGB"
    assert opened.getpixel((0, 0)) == (0, 0, 0)
    assert opened.getpixel((1, 0)) == (255, 255, 255)


def test_half_transparent_black_is_grey() -> None:
    opened = open_image(encoded(Image.new("RGBA", (1, 1), (0, 0, 0, 128)), "PNG"))
    assert opened.getpixel((0, 0)) == (127, 127, 127)


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_not_clipped(format: str) -> None:
    values = np.array([[0, 257, 32_896, 65_535]], dtype=np.uint16)
    image = open_image(encoded(Image.fromarray(values), format))
    assert [image.getpixel((x, 0)) for x in range(4)] == [(v, v, v) for v in (0, 1, 128, 255)]


def test_floating_point_is_refused() -> None:
    with pytest.raises(ImageError, match="floating-point"):
        open_image(encoded(Image.new("F", (2, 2)), "TIFF"))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int) -> None:
    # An image stored so that its red top-left corner ends up elsewhere, and the tag that puts it back.
    upright = Image.new("RGB", (64, 32), "blue")
    upright.paste("red", (0, 0, 16, 16))
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = upright.transpose(undo[orientation]) if orientation in undo else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = open_image(encoded(stored, "JPEG", exif=exif, quality=95))
    assert image.size == (64, 32)
    red, _, blue = image.getpixel((4, 4))
    assert (red > 200, blue < 60) == (True, True)
    red, _, blue = image.getpixel((60, 28))
    assert (red < 60, blue > 200) == (True, True)


def test_animation_gives_its_first_frame() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert open_image(data).getpixel((0, 0))[0] > 200


def test_one_pixel() -> None:
    assert open_image(encoded(Image.new("RGB", (1, 1), "red"), "PNG")).size == (1, 1)


def test_a_very_wide_strip_is_fine() -> None:
    assert open_image(encoded(Image.new("RGB", (30_000, 8)), "PNG")).size == (30_000, 8)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [9_500, 30_000, 2**31 - 1])
def test_a_bomb_is_refused_from_its_header(side: int) -> None:
    # 9,500 squared lies between this limit and Pillow's own; the file has no pixels, so decoding would fail otherwise.
    assert side * side > MAX_PIXELS
    with pytest.raises(ImageError, match="decompression bombs"):
        open_image(png_header(side, side))


def test_a_header_tells_the_size_upright_and_the_date() -> None:
    exif = Image.Exif()
    exif[0x0112], exif[0x0132] = 6, "2024:05:01 10:11:12"
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30)).save(buffer, "JPEG", exif=exif)
    size, found, kind = image_header(buffer.getvalue())
    assert kind == "JPEG"
    assert size == open_image(buffer.getvalue()).size == (30, 40)
    assert found[0x0132] == "2024:05:01 10:11:12"
    with pytest.raises(ImageError, match="not an image"):
        image_header(b"nothing")
    with pytest.raises(ImageError, match="empty"):
        image_header(b"")


def test_the_format_is_known_without_decoding_a_pixel(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30)).save(buffer, "PNG")
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("decoded"))
    assert image_format(buffer, "a.png") == "PNG"
    jxl = io.BytesIO(bytes([0xFF, 0x0A, 0b11000001, 0b1]))  # a header and nothing behind it
    assert image_format(jxl, "a.jxl") == "JXL"
    for damaged in (b"nothing", b"\0\0\0\x0cJXL \r\n\x87\n"):
        with pytest.raises(ImageError, match="not an image"):
            image_format(io.BytesIO(damaged), "damaged")
    with pytest.raises(ImageError, match="empty"):
        image_format(io.BytesIO(), "empty")


def test_the_limit_can_be_changed() -> None:
    data = encoded(photograph(), "PNG")
    assert open_image(data, max_pixels=1200).size == (40, 30)
    with pytest.raises(ImageError, match="40 x 30 pixels"):
        open_image(data, max_pixels=1199)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"gone\.jpg does not exist"):
        open_image(tmp_path / "gone.jpg")


def test_a_folder_is_not_a_image(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="not a file"):
        open_image(tmp_path)


def test_zero_bytes(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    with pytest.raises(ImageError, match=r"empty\.jpg is empty"):
        open_image(tmp_path / "empty.jpg")
    with pytest.raises(ImageError, match="upload is empty"):
        open_image(b"", name="upload")


@pytest.mark.parametrize("data", [b"hello, I am text", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"\0" * 500])
def test_not_a_image(data: bytes) -> None:
    with pytest.raises(ImageError, match="not an image"):
        open_image(data)


def test_postscript_is_never_run() -> None:
    with pytest.raises(ImageError, match="not an image"):
        open_image(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n")


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF"])
@pytest.mark.parametrize("share", [0.3, 0.7, 0.95])
def test_truncated(tmp_path: Path, format: str, share: float) -> None:
    data = encoded(photograph(80, 60), format)
    path = tmp_path / "cut"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ImageError, match="cut"):
        open_image(path)


@settings(max_examples=150, deadline=None)
@given(
    format=st.sampled_from(["JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM"]),
    changes=st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), max_size=12),
    cut=st.floats(0.05, 1),
)
def test_damage_gives_an_image_or_an_image_error(format: str, changes: list[tuple[float, int]], cut: float) -> None:
    data = bytearray(encoded(photograph(20, 10), format))
    for place, value in changes:
        data[int(place * len(data))] = value
    with contextlib.suppress(ImageError):
        assert open_image(bytes(data[: int(cut * len(data))])).mode == "RGB"


def test_thumbnail_fits_and_never_grows() -> None:
    data = encoded(photograph(40, 30), "PNG")
    assert thumbnail(data, 20).size == (20, 15)
    assert thumbnail(data, 200).size == (40, 30)


# Memory


def test_what_is_decoded_at_once_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in eight threads; one image larger than the budget still gets its turn."""
    monkeypatch.setattr(images, "_decoding", images._Budget(5_000))
    original, lock = images._upright, threading.Lock()
    now, most = 0, 0

    def watched(image: Image.Image, *arguments: Any) -> Image.Image:
        nonlocal now, most
        with lock:
            now += image.width * image.height
            most = max(most, now)
        try:
            time.sleep(0.01)
            return original(image, *arguments)
        finally:
            with lock:
                now -= image.width * image.height

    monkeypatch.setattr(images, "_upright", watched)
    data = [encoded(photograph(40, 50), "PNG")] * 12 + [encoded(photograph(100, 80), "PNG")]
    with ThreadPoolExecutor(8) as pool:
        sizes = [image.size for image in pool.map(open_image, data)]
    assert sizes == [(40, 50)] * 12 + [(100, 80)]
    assert most == 8_000  # the large one alone; of the small ones two


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "I;16", "I", "L", "1", "CMYK"])
def test_conversion_in_strips_is_conversion(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(1).integers(0, 256, (31, 17, 4), dtype=np.uint8)
    image = Image.fromarray(values, "RGBA")
    if mode == "P":
        image = image.convert("RGB").quantize(16)
        image.info["transparency"] = 3
    elif mode.startswith("I"):
        image = Image.fromarray(values[..., 0].astype(np.uint16) * 200).convert(mode)
    else:
        image = image.convert("RGB").convert(mode) if mode == "CMYK" else image.convert(mode)
    whole = np.asarray(open_image(image))
    monkeypatch.setattr(images, "STRIP", 40)
    assert np.array_equal(np.asarray(open_image(image)), whole)


def test_an_image_given_is_not_changed() -> None:
    image = photograph()
    opened = open_image(image)
    opened.putpixel((0, 0), (1, 2, 3))
    assert image.getpixel((0, 0)) != (1, 2, 3)


def test_an_image_is_turned_upright_once() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    once = open_image(encoded(photograph(), "PNG", exif=exif))
    assert (once.size, open_image(once).size) == ((30, 40), (30, 40))


def test_a_side_has_a_limit() -> None:
    with pytest.raises(ImageError, match="one side"):
        open_image(encoded(Image.new("1", (1, images.MAX_SIDE + 1)), "PNG"))


@pytest.mark.slow
def test_the_largest_images_take_a_gigabyte_at_most_and_give_it_back() -> None:
    program = """
import io, resource, threading
from PIL import Image
from quintet.data.images import open_image
buffer = io.BytesIO()
Image.new("1", (8900, 8900)).save(buffer, "PNG")
megabytes = lambda: int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() >> 20
before = megabytes()
threads = [threading.Thread(target=open_image, args=(buffer.getvalue(),)) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10) - before, megabytes() - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    most, after = map(int, done.stdout.split())
    assert most < 1_000
    assert after < 200
