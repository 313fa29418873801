from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from quintet.backbones import Preprocess
from quintet.data.augment import (
    pixel_augmentation,
    random_flip,
    random_view,
    resized_crop_box,
    shifted_crop_box,
    squeezed_crop_box,
)

sides = st.integers(1, 2000)


def noise(width: int = 60, height: int = 40) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


@given(width=sides, height=sides, seed=st.integers(0, 100))
def test_resized_crops_lie_inside_and_have_the_area_and_aspect_asked_for(width: int, height: int, seed: int) -> None:
    left, top, right, bottom = resized_crop_box(width, height, np.random.default_rng(seed), (0.2, 0.5), (0.8, 1.25))
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    assert 0.8 <= (right - left) / (bottom - top) * (1 + 1e-9) <= 1.26
    if 0.5 <= width / height <= 2:  # a fitting box exists for every draw
        assert 0.19 <= (right - left) * (bottom - top) / (width * height) <= 0.51


def test_resized_crops_are_spread_over_the_range() -> None:
    rng = np.random.default_rng(0)
    boxes = np.array([resized_crop_box(300, 300, rng, (0.1, 0.6)) for _ in range(2000)])
    wide, high = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    assert (wide * high / 300**2).mean() == pytest.approx(0.35, abs=0.02)
    assert np.log(wide / high).mean() == pytest.approx(0, abs=0.02)
    assert ((boxes[:, 0] + boxes[:, 2]) / 2).mean() == pytest.approx(150, abs=4)


@given(width=sides, height=sides, seed=st.integers(0, 100), margin=st.integers(0, 40))
def test_shifted_crops_have_the_size_asked_for(width: int, height: int, seed: int, margin: int) -> None:
    left, top, right, bottom = shifted_crop_box(width, height, np.random.default_rng(seed), (30, 20), 30 + margin)
    zoom = (30 + margin) / min(width, height)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    assert (right - left) * zoom == pytest.approx(20)
    assert (bottom - top) * zoom == pytest.approx(30)


def test_a_shifted_crop_must_fit() -> None:
    with pytest.raises(ValueError, match="smaller than the crop"):
        shifted_crop_box(100, 100, np.random.default_rng(0), (30, 20), 29)


def test_squeezed_crops_take_the_same_share_of_both_sides_anywhere() -> None:
    """224 of 256: seven eighths of a pedestrian's height, where `shift` would see a third of it."""
    boxes = np.array([squeezed_crop_box(100, 300, np.random.default_rng(seed)) for seed in range(400)])
    assert np.allclose(boxes[:, 2] - boxes[:, 0], 100 * 7 / 8)
    assert np.allclose(boxes[:, 3] - boxes[:, 1], 300 * 7 / 8)
    for side, room in ((0, 12.5), (1, 37.5)):
        assert boxes[:, side].min() >= 0
        assert boxes[:, side].max() <= room
        assert boxes[:, side].mean() == pytest.approx(room / 2, rel=0.1)
    with pytest.raises(ValueError, match="smaller than the crop"):
        squeezed_crop_box(10, 10, np.random.default_rng(0), side=200)


def test_flips_happen_as_often_as_asked() -> None:
    image, rng = noise(4, 4), np.random.default_rng(0)
    mirrored = np.asarray(image)[:, ::-1]
    flipped = [np.array_equal(np.asarray(random_flip(image, rng, 0.3)), mirrored) for _ in range(500)]
    assert np.mean(flipped) == pytest.approx(0.3, abs=0.06)
    assert not any(random_flip(image, rng, 0) is not image for _ in range(50))


@pytest.mark.parametrize("crop", ["none", "resized", "shift", "squeeze"])
def test_views_have_the_size_and_repeat_with_their_generator(crop: str) -> None:
    first, again, other = (
        np.asarray(random_view(noise(), np.random.default_rng(epoch), (24, 32), crop=crop, flip=0))  # type: ignore[arg-type]
        for epoch in (0, 0, 1)
    )
    assert first.shape == (24, 32, 3)
    assert np.array_equal(first, again)
    assert np.array_equal(first, other) == (crop == "none")


def test_long_and_tiny_images() -> None:
    for width, height in ((30_000, 8), (8, 30_000), (1, 1)):
        for crop in ("none", "resized", "shift", "squeeze"):
            view = random_view(Image.new("L", (width, height)), np.random.default_rng(0), (24, 24), crop=crop)  # type: ignore[arg-type]
            assert (view.size, view.mode) == ((24, 24), "RGB")


def test_an_unknown_crop_is_refused() -> None:
    with pytest.raises(ValueError, match="'none', 'resized', 'shift' or 'squeeze'"):
        random_view(noise(), np.random.default_rng(0), (8, 8), crop="middle")  # type: ignore[arg-type]


def test_pixel_augmentation_ends_in_the_towers_tensor_and_can_be_pickled() -> None:
    preprocess = Preprocess((24, 24), short_side=28, mean=(1, 2, 3), std=(1, 1, 1), scale=1.0, channels="BGR")
    change = pickle.loads(pickle.dumps(pixel_augmentation(preprocess, crop="shift", flip=True)))
    found = change(noise(), np.random.default_rng(0))
    view = random_view(noise(), np.random.default_rng(0), (24, 24), crop="shift", flip=0.5, short_side=28)
    assert torch.equal(found, preprocess.normalise(view))
    still = pixel_augmentation(preprocess.squeezed(), crop="none", flip=False)
    assert torch.equal(still(noise(), np.random.default_rng(0)), preprocess.squeezed()(noise()))
