"""HEIC, JPEG XL and RAW: read as they show, refused by their headers, and never with a traceback."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from quintet.data.images import MAX_PIXELS, image_header, open_image
from quintet.data.photo_formats import jxl_size
from quintet.errors import ImageError
from quintet.search.fields import image_facts

SIZES = [(8, 8), (16, 8), (64, 48), (100, 75), (257, 256), (31, 700), (1000, 10)]


def smooth(width: int, height: int, seed: int = 0) -> Image.Image:
    small = np.random.default_rng(seed).integers(0, 256, (3, 4, 3), np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def written(image: Image.Image, kind: str, **options: Any) -> bytes:
    if kind == "HEIF":
        pytest.importorskip("pillow_heif").register_heif_opener()
    if kind == "JXL":
        pytest.importorskip("pillow_jxl")
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def difference(one: Image.Image, other: Image.Image) -> float:
    return float(np.abs(np.asarray(one, float) - np.asarray(other, float)).mean())


def facts_of(make: str = "Canon", model: str = "Canon EOS R5") -> Image.Exif:
    exif = Image.Exif()
    exif[0x010F], exif[0x0110], exif[0x0132] = make, model, "2024:05:01 10:11:12"
    exif.get_ifd(0x8825).update(
        {1: "S", 2: (33.0, 51.0, 25.2), 3: "E", 4: (151.0, 12.0, 54.0), 5: b"\0", 6: 12.5}  # Sydney
    )
    return exif


def dng(preview: bytes | None, *, orientation: int = 1, raw: tuple[int, int] = (64, 48)) -> bytes:
    """A camera's RAW file as DNG writes it: a mosaic of 16 bits, and a JPEG in a second directory."""
    width, height = raw
    mosaic = bytes(2 * width * height)
    size = (1, 1) if preview is None else Image.open(io.BytesIO(preview)).size
    preview = preview or b""
    unit = struct.pack("<18i", *(number for place in range(9) for number in (int(place % 4 == 0), 1)))

    def directory(offset: int, entries: list[tuple[int, int, int, int | bytes]]) -> bytes:
        head, behind = struct.pack("<H", len(entries)), b""
        start = offset + 2 + 12 * len(entries) + 4
        for tag, kind, count, value in entries:
            head += struct.pack("<HHI", tag, kind, count)
            if isinstance(value, int):
                head += struct.pack("<HH", value, 0) if kind == 3 else struct.pack("<I", value)
            elif len(value) <= 4:
                head += value.ljust(4, b"\0")
            else:
                head += struct.pack("<I", start + len(behind))
                behind += value + b"\0" * (len(value) % 2)
        return head + bytes(4) + behind

    def parts(raw_at: int, preview_at: int, second_at: int) -> tuple[bytes, bytes]:
        first: list[tuple[int, int, int, int | bytes]] = [
            *((254, 4, 1, 0), (256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 16), (259, 3, 1, 1)),
            *((262, 3, 1, 32803), (271, 2, 6, b"Canon\0"), (272, 2, 13, b"Canon EOS R5\0"), (273, 4, 1, raw_at)),
            *((274, 3, 1, orientation), (277, 3, 1, 1), (278, 4, 1, height), (279, 4, 1, len(mosaic))),
            *((306, 2, 20, b"2024:05:01 10:11:12\0"), (330, 4, 1, second_at)),
            *((33421, 3, 2, struct.pack("<HH", 2, 2)), (33422, 1, 4, bytes([0, 1, 1, 2]))),
            *((50706, 1, 4, bytes([1, 4, 0, 0])), (50721, 10, 9, unit), (50778, 3, 1, 21)),
        ]
        second: list[tuple[int, int, int, int | bytes]] = [
            *((254, 4, 1, 1), (256, 4, 1, size[0]), (257, 4, 1, size[1]), (258, 3, 3, struct.pack("<3H", 8, 8, 8))),
            *((259, 3, 1, 7), (262, 3, 1, 6), (273, 4, 1, preview_at), (277, 3, 1, 3)),
            *((278, 4, 1, size[1]), (279, 4, 1, len(preview))),
        ]
        if not preview:
            first = [entry for entry in first if entry[0] != 330]
        return directory(8, first), directory(second_at, second) if preview else b""

    one, two = parts(0, 0, 0)
    second_at = 8 + len(one)
    preview_at = second_at + len(two)
    raw_at = preview_at + len(preview) + len(preview) % 2
    one, two = parts(raw_at, preview_at, second_at)
    return b"II*\0" + struct.pack("<I", 8) + one + two + preview + b"\0" * (len(preview) % 2) + mosaic


def test_heic_opens_as_it_shows_upright_and_with_its_facts() -> None:
    exif = facts_of("Apple", "iPhone 15")
    exif[0x0112] = 6
    data = written(smooth(80, 60), "HEIF", quality=95, exif=exif.tobytes())
    image = open_image(data)
    assert (image.mode, image.size) == ("RGB", (60, 80))
    assert difference(image, smooth(80, 60).transpose(Image.Transpose.ROTATE_270)) < 4
    header = image_header(data)
    assert (header.size, header.format) == ((60, 80), "HEIF")
    assert image_facts(header.size, header.exif) == {
        "width": 60,
        "height": 80,
        "orientation": "portrait",
        "date": "2024-05-01",
        "time": "10:11:12",
        "year": 2024,
        "date_from": "camera",
        "camera": "Apple iPhone 15",
        "latitude": -33.857,
        "longitude": 151.215,
        "altitude": 12.5,
    }


def test_of_a_heic_with_several_images_the_main_one_is_taken() -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    several, buffer = pillow_heif.HeifFile(), io.BytesIO()
    for seed in range(3):
        several.add_from_pillow(smooth(80, 60, seed))
    several.save(buffer, quality=95, primary_index=1)
    assert difference(open_image(buffer.getvalue()), smooth(80, 60, 1)) < 4


def test_heic_with_transparency_and_ten_bits() -> None:
    pytest.importorskip("pillow_heif")
    clear = smooth(80, 60).convert("RGBA")
    clear.putalpha(0)
    assert difference(open_image(written(clear, "HEIF", quality=90)), Image.new("RGB", (80, 60), "white")) < 2
    deep = Image.fromarray(np.full((60, 80), 40_000, np.uint16))
    assert difference(open_image(written(deep, "HEIF", quality=90)), Image.new("RGB", (80, 60), (155, 155, 155))) < 3


@pytest.mark.parametrize("kind", ["HEIF", "JXL"])
def test_pixels_are_counted_before_they_are_decoded(kind: str) -> None:
    data = written(smooth(200, 100), kind)
    assert open_image(data, max_pixels=20_000).size == (200, 100)
    with pytest.raises(ImageError, match="pixels"):
        open_image(data, max_pixels=19_999)


@pytest.mark.parametrize("kind", ["HEIF", "JXL"])
def test_every_cut_is_an_error_for_people(kind: str) -> None:
    data = written(smooth(64, 48), kind)
    refused = 0
    for cut in range(1, len(data) - 1, max(1, len(data) // 60)):
        try:
            assert open_image(data[:cut]).size == (64, 48)  # a decoder may be content with less than all
        except ImageError:
            refused += 1
    assert refused > 20


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("container", [False, True])
def test_the_size_of_jpeg_xl_is_read_from_its_header(size: tuple[int, int], container: bool) -> None:
    data = written(smooth(*size), "JXL", use_container=container, exif=facts_of().tobytes() if container else b"")
    assert jxl_size(io.BytesIO(data)) == size
    assert open_image(data).size == size


def test_a_jpeg_kept_as_jpeg_xl_opens() -> None:
    jpeg = written(smooth(64, 48), "JPEG", quality=90)
    data = written(Image.open(io.BytesIO(jpeg)), "JXL", lossless_jpeg=True)
    assert difference(open_image(data), open_image(jpeg)) < 4


def test_a_jpeg_xl_that_claims_too_much_is_never_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pillow_jxl")
    monkeypatch.setattr("pillow_jxl.JpegXLImagePlugin.Decoder", None)  # to call it is an error of another text

    bits, at = 0, 0
    for value, count in ((0, 1), (3, 2), (99_999, 30), (1, 3)):
        bits, at = bits | value << at, at + count

    data = b"\xff\x0a" + bits.to_bytes(12, "little")
    assert jxl_size(io.BytesIO(data)) == (100_000, 100_000)
    with pytest.raises(ImageError, match="decompression bombs"):
        open_image(data)


@pytest.mark.parametrize("orientation", [1, 6, 8, 3])
def test_a_raw_file_shows_its_preview(tmp_path: Path, orientation: int) -> None:
    pytest.importorskip("rawpy")
    preview = written(smooth(320, 240), "JPEG", quality=95)
    path = tmp_path / "IMG_1.DNG"
    path.write_bytes(dng(preview, orientation=orientation))
    turned = {1: None, 6: Image.Transpose.ROTATE_270, 8: Image.Transpose.ROTATE_90, 3: Image.Transpose.ROTATE_180}
    turn = turned[orientation]
    shown = smooth(320, 240) if turn is None else smooth(320, 240).transpose(turn)
    assert open_image(path).size == shown.size
    assert difference(open_image(path), shown) < 3
    with path.open("rb") as file:
        header = image_header(file, name=path.name)
    facts = image_facts(header.size, header.exif)
    assert header.format == "RAW"
    assert (facts["camera"], facts["date"]) == ("Canon EOS R5", "2024-05-01")


def test_a_raw_file_that_is_cut_short_or_has_no_preview(tmp_path: Path) -> None:
    pytest.importorskip("rawpy")
    whole = dng(written(smooth(320, 240), "JPEG"))
    path = tmp_path / "cut.dng"
    for data in (whole[:20], whole[:300], whole[:2000], b"II*\0", b"no RAW at all", dng(None)):
        path.write_bytes(data)
        with pytest.raises(ImageError, match=r"cut\.dng"):
            open_image(path)
    for _ in range(100):  # LibRaw fills up a preview with whatever its memory holds, also with the rest of the image
        path.write_bytes(whole)
        assert open_image(path).size == (320, 240)
        path.write_bytes(whole[:2000])
        with pytest.raises(ImageError, match="not complete"):
            open_image(path)
    path.write_bytes(whole[:-100])  # the preview is whole
    assert open_image(path).size == (320, 240)


def test_the_preview_obeys_the_limit_of_pixels(tmp_path: Path) -> None:
    pytest.importorskip("rawpy")
    path = tmp_path / "a.dng"
    path.write_bytes(dng(written(smooth(320, 240), "JPEG")))
    with pytest.raises(ImageError, match="320 x 240 pixels"):
        open_image(path, max_pixels=1000)
    assert MAX_PIXELS > 320 * 240


@pytest.mark.parametrize(("package", "suffix"), [("pillow_jxl", ".jxl"), ("rawpy", ".nef")])
def test_without_the_extra_the_reason_names_it(
    package: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    monkeypatch.setattr("quintet.data.images.register_jxl", lambda: __import__("pillow_jxl"))
    path = tmp_path / f"photo{suffix}"
    path.write_bytes(b"\xff\x0a" + bytes(100) if suffix == ".jxl" else b"II*\0")
    with pytest.raises(ImageError, match="photos"):
        open_image(path)


def test_a_photo_that_moves_is_a_photo() -> None:
    """Google's motion photos are a JPEG with a video behind it."""
    data = written(smooth(80, 60), "JPEG", quality=95)
    assert difference(open_image(data + b"\0\0\0\x18ftypmp42" + bytes(5000)), smooth(80, 60)) < 4


# JPEGs at a part of their size


def test_a_large_jpeg_is_decoded_at_no_less_than_asked() -> None:
    data = written(smooth(1600, 1200), "JPEG", quality=90)
    sizes = {open_image(data, least=lambda w, h, n=n: (n, n)).size for n in (100, 150, 160)}  # type: ignore[misc]
    assert sizes == {(200, 150), (400, 300)}
    assert open_image(data, least=lambda w, h: (900, 1)).size == (1600, 1200)
    assert open_image(data).size == (1600, 1200)


def test_a_turned_jpeg_is_measured_as_it_shows() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = written(smooth(1600, 800), "JPEG", exif=exif.tobytes())
    seen: list[tuple[int, int]] = []

    def least(width: int, height: int) -> tuple[int, int]:
        seen.append((width, height))
        return 1, 400  # half of a quarter of the height

    assert open_image(data, least=least).size == (200, 400)
    assert seen == [(800, 1600)]


def test_other_formats_are_decoded_whole() -> None:
    assert open_image(written(smooth(800, 600), "PNG"), least=lambda w, h: (1, 1)).size == (800, 600)
