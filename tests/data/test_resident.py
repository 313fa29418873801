"""Features in a device's memory give the batches that the store gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Images
from torch import Tensor

from quintet.backbones.preprocess import Preprocess
from quintet.data import resident as image_memory
from quintet.data.corpus import Corpus, Image, Text
from quintet.data.feature_store import FeatureStore, Part, write_manifest
from quintet.data.loading import PixelImages
from quintet.data.resident import ImageMemory, ResidentFeatures, check_fits, fits_on
from quintet.errors import RecipeError

IDS = [f"image{number}" for number in range(300)]  # more than are read at a time


@pytest.fixture(params=["float16", "float32"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> FeatureStore:
    rng = np.random.default_rng(0)
    np.save(tmp_path / "features.npy", rng.normal(size=(300, 4, 6)).astype(request.param))
    np.save(tmp_path / "boxes.npy", rng.random(size=(300, 4, 4)).astype(np.float32))
    np.save(tmp_path / "lengths.npy", rng.integers(1, 5, size=300))
    rows = np.stack([np.zeros(300, dtype=np.int64), rng.permutation(300)], axis=1)
    part = Part("features.npy", "boxes.npy", "lengths.npy")
    write_manifest(tmp_path, IDS, rows, [part], fragments=4, dim=6, tower={})
    return FeatureStore(tmp_path)


def test_batches_equal_the_stores_bit_for_bit(store: FeatureStore) -> None:
    resident = ResidentFeatures(store, [*IDS, IDS[3]], torch.device("cpu"))
    wanted = [IDS[row] for row in (299, 3, 3, 0, 257)]
    found, expected = resident.batch([Image(id_, "g") for id_ in wanted]), store.batch(wanted)
    for name in ("fragments", "mask", "boxes"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert found.fragments is not None
    assert found.fragments.dtype == torch.float32


def test_whole_images_need_no_mask(tmp_path: Path) -> None:
    np.save(tmp_path / "features.npy", np.ones((2, 3, 5), dtype=np.float32))
    write_manifest(tmp_path, IDS[:2], np.array([[0, 0], [0, 1]]), [Part("features.npy")], fragments=3, dim=5, tower={})
    batch = ResidentFeatures(FeatureStore(tmp_path), IDS[:2], torch.device("cpu")).batch([Image(IDS[1], "g")])
    assert batch.mask is None
    assert batch.boxes is None


def test_only_an_accelerator_keeps_features_by_itself(store: FeatureStore) -> None:
    assert not fits_on(torch.device("cpu"), store, 1)


SIZES = ((40, 30), (30, 40), (33, 33), (90, 24))  # width, height
CPU = torch.device("cpu")
PREPROCESS = Preprocess((16, 12), short_side=20)
SEEDS = [(7, number) for number in range(len(SIZES))]


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    rng = np.random.default_rng(0)
    images, texts = [], []
    for number, (width, height) in enumerate(SIZES):
        pixels = rng.integers(0, 256, size=(height, width, 3), dtype=np.uint8)
        Images.fromarray(pixels).save(tmp_path / f"{number}.png")
        images.append(Image(f"{number}", f"g{number}", f"{number}.png"))
        texts.append(Text(f"{number}#0", f"g{number}", "a thing"))
    made = Corpus("pictures", images, texts, {"train": [image.group for image in images]}, root=tmp_path)
    made.save(tmp_path)
    return made


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_views_cut_on_a_gpu_are_those_cut_on_a_cpu(corpus: Corpus) -> None:
    here, there = (
        pixels_of(ImageMemory(corpus, device).random(PREPROCESS, "shift", 0.5).batch(corpus.images, SEEDS))
        for device in (CPU, torch.device("cuda"))
    )
    assert there.is_cuda
    torch.testing.assert_close(there.cpu(), here)


def pixels_of(batch: Any) -> Tensor:
    assert batch.pixels is not None
    return batch.pixels


@pytest.mark.parametrize("channels", ["RGB", "BGR"])
@pytest.mark.parametrize("crop", ["center", "squeeze"])
def test_plain_views_are_those_from_disk(corpus: Corpus, crop: Any, channels: Any) -> None:
    preprocess = Preprocess((16, 12), crop=crop, channels=channels)
    kept = ImageMemory(corpus, CPU).plain(preprocess).batch(corpus.images)
    plain = PixelImages(corpus, preprocess).batch(corpus.images)
    torch.testing.assert_close(pixels_of(kept), pixels_of(plain), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("crop", "flip"), [("shift", 0.5), ("squeeze", 1.0), ("none", 0.0)])
def test_random_views_are_places_of_the_shrunk_image(corpus: Corpus, crop: Any, flip: float) -> None:
    found = pixels_of(ImageMemory(corpus, CPU).random(PREPROCESS, crop, flip).batch(corpus.images, SEEDS))
    for number, (width, height) in enumerate(SIZES):
        opened = Images.open(corpus.root / f"{number}.png")
        zoom = 20 / min(width, height)
        shrunk = {"shift": (round(width * zoom), round(height * zoom)), "squeeze": (20, 20), "none": (12, 16)}[crop]
        whole = PREPROCESS.normalise(opened.resize(shrunk, Images.Resampling.BILINEAR))  # (3, h, w)
        crops = [
            whole[:, top : top + 16, left : left + 12]
            for top in range(whole.shape[1] - 15)
            for left in range(whole.shape[2] - 11)
        ]
        mirrored = [crop.flip(2) for crop in crops]
        allowed = (crops if flip < 1 else []) + (mirrored if flip else [])
        assert any(torch.allclose(found[number], view, atol=1e-6) for view in allowed), (number, crop)


def test_a_view_depends_on_its_seed_alone(corpus: Corpus) -> None:
    memory = ImageMemory(corpus, CPU)
    views = memory.random(PREPROCESS, "shift", 0.5)
    together = pixels_of(views.batch(corpus.images, SEEDS))
    for number, image in reversed(list(enumerate(corpus.images))):
        assert torch.equal(pixels_of(views.batch([image], [SEEDS[number]]))[0], together[number])
    others = pixels_of(views.batch(corpus.images, [(8, number) for number in range(len(SIZES))]))
    assert not torch.equal(others, together)
    assert torch.equal(
        pixels_of(views.batch(corpus.images)), pixels_of(memory.plain(PREPROCESS).batch(corpus.images))
    ), "without seeds nothing is random"


def test_every_image_is_decoded_once(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    real = image_memory.open_image
    monkeypatch.setattr(image_memory, "open_image", lambda path: opened.append(path) or real(path))
    views = ImageMemory(corpus, CPU).random(PREPROCESS, "shift", 0.5)
    for epoch in range(3):
        views.batch([*corpus.images, corpus.images[0]], [*SEEDS, (epoch,)])
    assert len(opened) == len(SIZES)


def test_crops_that_zoom_are_refused(corpus: Corpus) -> None:
    with pytest.raises(RecipeError, match=r"data\.keep: disk"):
        ImageMemory(corpus, CPU).random(PREPROCESS, "resized", 0.5)


def test_a_gpu_is_not_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**30, 2**30))
    check_fits(torch.device("cuda"), 900)
    with pytest.raises(RecipeError, match="1000 images"):
        check_fits(torch.device("cuda"), 1000)
    check_fits(CPU, 10**9)
