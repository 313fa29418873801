from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from quintet.search import MissingImage
from quintet.serve.decoder import Decoders
from quintet.serve.thumbnails import Thumbnails


def noise(path: Path, side: int, seed: int = 0) -> Path:
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)
    Image.fromarray(pixels).save(path)
    return path


DECODERS = Decoders(1, timeout_s=30)


@pytest.fixture(scope="module", autouse=True)
def end() -> Iterator[None]:
    yield
    DECODERS.close()


@pytest.fixture
def cache(tmp_path: Path) -> Thumbnails:
    return Thumbnails(tmp_path / "cache", 10**6, DECODERS)


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def test_a_image_is_shrunk_once_and_then_read_from_disk(cache: Thumbnails, tmp_path: Path) -> None:
    image = noise(tmp_path / "a.png", 400)
    first = cache.get(image, 160)
    assert opened(first.data).size == (160, 160)
    assert first.media_type == "image/jpeg"
    assert cache.get(image, 160) == first
    assert (cache.made, cache.found) == (1, 1)
    again = Thumbnails(tmp_path / "cache", 10**6, DECODERS)  # another process
    assert again.get(image, 160) == first
    assert (again.made, again.found) == (0, 1)


def test_small_drawings_stay_as_crisp_as_they_are(cache: Thumbnails, tmp_path: Path) -> None:
    image = noise(tmp_path / "a.png", 96)
    small = cache.get(image, 320)
    assert small.media_type == "image/png"
    assert np.array_equal(np.asarray(opened(small.data)), np.asarray(Image.open(image)))


def test_a_changed_file_gets_a_new_copy(cache: Thumbnails, tmp_path: Path) -> None:
    image = noise(tmp_path / "a.png", 96)
    before = cache.get(image, 320)
    noise(image, 97, seed=1)
    after = cache.get(image, 320)
    assert before.tag != after.tag
    assert opened(after.data).size == (97, 97)


def test_the_cache_never_exceeds_its_limit_and_drops_what_was_asked_for_longest_ago(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    images = [noise(tmp_path / f"{number}.png", 60, number) for number in range(6)]
    one = len(Thumbnails(tmp_path / "other", 10**6, DECODERS).get(images[0], 320).data)
    cache = Thumbnails(folder, int(3.5 * one), DECODERS)
    for image in images[:3]:
        cache.get(image, 320)
    cache.get(images[0], 320)  # now 1 is the oldest
    cache.get(images[3], 320)
    assert cache.kept_bytes == sum(path.stat().st_size for path in folder.iterdir()) <= 3.5 * one
    made = cache.made
    cache.get(images[0], 320)
    assert cache.made == made
    cache.get(images[1], 320)
    assert cache.made == made + 1
    shrunk = Thumbnails(folder, one // 2, DECODERS)  # a smaller limit is kept at once
    assert shrunk.kept_bytes == 0
    assert not list(folder.iterdir())


def test_a_tidied_folder_or_one_that_cannot_be_written_costs_speed_only(tmp_path: Path) -> None:
    image = noise(tmp_path / "a.png", 96)
    cache = Thumbnails(tmp_path / "cache", 10**6, DECODERS)
    cache.get(image, 320)
    for path in (tmp_path / "cache").iterdir():
        path.unlink()
    assert cache.get(image, 320).data
    assert cache.made == 2
    (tmp_path / "file").write_text("not a folder")
    blocked = Thumbnails(tmp_path / "file" / "cache", 10**6, DECODERS)
    assert blocked.get(image, 320).data
    assert blocked.kept_bytes == 0


def test_thumbnails_are_for_their_owner_only(tmp_path: Path) -> None:
    image = noise(tmp_path / "a.png", 96)
    folder = tmp_path / "new" / "cache"
    before = os.umask(0o022)
    Thumbnails(folder, 10**6, DECODERS).get(image, 320)
    (kept,) = folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    kept.chmod(0o644)  # made by an earlier version
    Thumbnails(folder, 10**6, DECODERS)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    os.umask(before)


def test_a_link_in_the_cache_is_not_followed(cache: Thumbnails, tmp_path: Path) -> None:
    image = noise(tmp_path / "a.png", 96)
    data = cache.get(image, 320).data
    (kept,) = (tmp_path / "cache").iterdir()
    kept.unlink()
    (tmp_path / "secret").write_text("secret")
    kept.symlink_to(tmp_path / "secret")
    assert cache.get(image, 320).data == data
    assert (tmp_path / "secret").read_text() == "secret"


def test_a_file_that_is_gone_is_told(cache: Thumbnails, tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    os.mkfifo(tmp_path / "fifo.png")
    (tmp_path / "loop.png").symlink_to("loop.png")
    for name in ("absent.png", "folder.png", "fifo.png", "loop.png"):
        with pytest.raises(MissingImage, match="gone"):
            cache.get(tmp_path / name, 320)
