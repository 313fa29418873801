from __future__ import annotations

import io
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.test_photo_formats import dng

from quintet.data.images import open_image
from quintet.errors import ImageError
from quintet.serve.decoder import QUERY_PIXELS, Decoders, anonymous_file

LIMIT = 40_000_000


@pytest.fixture(scope="module")
def decoders() -> Iterator[Decoders]:
    made = Decoders(1, timeout_s=10)
    yield made
    made.close()


def smooth(width: int, height: int) -> Image.Image:
    small = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def file_of(image: Image.Image, kind: str, path: Path, **options: object) -> Path:
    image.save(path, kind, **options)
    return path


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP"])
def test_pixels_are_those_that_the_index_was_made_of(decoders: Decoders, tmp_path: Path, kind: str) -> None:
    path = file_of(smooth(70, 50), kind, tmp_path / "a")
    with path.open("rb") as file:
        image = decoders.pixels(file, "a", LIMIT)
        assert decoders.media_type(file, "a") == f"image/{kind.lower()}"
    assert np.array_equal(np.asarray(image), np.asarray(open_image(path)))


@pytest.mark.parametrize(("kind", "package"), [("HEIF", "pillow_heif"), ("JXL", "pillow_jxl")])
def test_photos_of_phones_are_decoded_in_the_limits(
    decoders: Decoders, tmp_path: Path, kind: str, package: str
) -> None:
    found = pytest.importorskip(package)
    if kind == "HEIF":
        found.register_heif_opener()
    path = file_of(smooth(1200, 900), kind, tmp_path / "a", quality=50, effort=1)
    with path.open("rb") as file:
        image = decoders.pixels(file, "the uploaded photo", LIMIT)
        small, suffix = decoders.thumbnail(file, "a", 320)
        assert decoders.media_type(file, "a") == f"image/{kind.lower()}"
        with pytest.raises(ImageError, match="pixels"):
            decoders.pixels(file, "a", 1_000_000)
    assert image.width * 3 == image.height * 4
    assert (Image.open(io.BytesIO(small)).size, suffix) == ((320, 240), ".jpg")


def test_a_raw_file_is_decoded_by_its_name(decoders: Decoders, tmp_path: Path) -> None:
    pytest.importorskip("rawpy")
    buffer = io.BytesIO()
    smooth(320, 240).save(buffer, "JPEG")
    (tmp_path / "a.dng").write_bytes(dng(buffer.getvalue()))
    with (tmp_path / "a.dng").open("rb") as file:
        assert decoders.pixels(file, "a.dng", LIMIT).size == (320, 240)
        assert decoders.media_type(file, "a.dng") == "application/octet-stream"


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_large_image_is_shrunk_and_stays_upright(decoders: Decoders, tmp_path: Path, kind: str) -> None:
    exif = Image.Exif()
    exif[274] = 6  # turned by a quarter
    path = file_of(smooth(6000, 3000), kind, tmp_path / "a", exif=exif, compress_level=1)
    with path.open("rb") as file:
        image = decoders.pixels(file, "a", LIMIT)
        small, suffix = decoders.thumbnail(file, "a", 320)
    assert image.height == 2 * image.width
    assert QUERY_PIXELS <= image.width * image.height <= 4 * QUERY_PIXELS
    whole = open_image(path).resize((100, 200), Image.Resampling.BOX)
    shown = image.resize((100, 200), Image.Resampling.BOX)
    assert np.abs(np.asarray(whole, int) - np.asarray(shown, int)).mean() < 1
    assert (Image.open(io.BytesIO(small)).size, suffix) == ((160, 320), ".jpg")


def test_an_upload_is_refused_by_its_pixels(decoders: Decoders, tmp_path: Path) -> None:
    for size, kind, taken in (((1000, 1001), "PNG", False), ((1000, 1000), "PNG", True), ((1000, 1001), "JPEG", True)):
        with file_of(Image.new("L", size), kind, tmp_path / "a").open("rb") as file:
            if taken:
                assert decoders.pixels(file, "a", 1_000_000).size == size
            else:
                with pytest.raises(ImageError, match="pixels"):
                    decoders.pixels(file, "a", 1_000_000)


def test_what_is_no_image_has_no_media_type(decoders: Decoders, tmp_path: Path) -> None:
    good = file_of(smooth(70, 50), "PNG", tmp_path / "a.png").read_bytes()
    for data in (b"", b"root:x:0:0:root:/root:/bin/bash\n", good[:200], b"<svg/>"):
        (tmp_path / "a.png").write_bytes(data)
        with (tmp_path / "a.png").open("rb") as file, pytest.raises(ImageError, match=r"a\.png"):
            decoders.media_type(file, "a.png")


def test_a_process_that_crashes_or_hangs_costs_one_image() -> None:
    decoders = Decoders(1, timeout_s=1)
    with anonymous_file() as file:
        smooth(70, 50).save(file, "PNG")
        for number in (signal.SIGKILL, signal.SIGSTOP):
            assert decoders.pixels(file, "a", LIMIT).size == (70, 50)
            process = decoders._idle.queue[0]
            assert process
            os.kill(process._process.pid, number)
            with pytest.raises(ImageError, match="memory and time"):
                decoders.pixels(file, "a", LIMIT)
        assert decoders.pixels(file, "a", LIMIT).size == (70, 50)
    decoders.close()


def test_so_many_are_decoded_at_a_time_and_the_others_wait(tmp_path: Path) -> None:
    decoders = Decoders(2, timeout_s=30)
    path = file_of(smooth(2000, 2000), "PNG", tmp_path / "a")
    most, stop = [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            most.append(len(_children()))
            time.sleep(0.01)

    def decode(_: int) -> tuple[int, int]:
        with path.open("rb") as file:
            return decoders.pixels(file, "a", LIMIT).size

    before = len(_children())
    watch = threading.Thread(target=count)
    watch.start()
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(decode, range(8))) == [(2000, 2000)] * 8
    stop.set()
    watch.join()
    assert 1 <= max(most) - before <= 2
    decoders.close()
    assert len(_children()) == before


def _children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split() + [
        child
        for task in Path("/proc/self/task").iterdir()
        if task.name != str(os.getpid())
        for child in _read(task / "children")
    ]


def _read(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:  # the thread ended
        return []


@pytest.mark.slow
def test_the_memory_of_an_image_is_limited(tmp_path: Path) -> None:
    decoders = Decoders(1, timeout_s=30)
    path = file_of(Image.new("RGBA", (14_000, 14_000)), "TIFF", tmp_path / "a", compression="tiff_deflate")
    with path.open("rb") as file, pytest.raises(ImageError):  # 784 MB
        decoders.pixels(file, "a", 200_000_000)
    decoders.close()
