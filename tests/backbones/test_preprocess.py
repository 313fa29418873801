from __future__ import annotations

import json
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from quintet.backbones.preprocess import Preprocess
from quintet.errors import QuintetError


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def test_values_are_normalised_as_written_out_by_hand() -> None:
    image = noise(8, 8)
    preprocess = Preprocess((8, 8), crop="squeeze", mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    bytes_ = np.asarray(image)
    for channel in range(3):
        expected = (bytes_[..., channel] / 255 - preprocess.mean[channel]) / preprocess.std[channel]
        assert torch.allclose(preprocess(image)[channel], torch.from_numpy(expected).float(), atol=1e-6)
    assert preprocess(image).dtype == torch.float32


def test_bgr_in_bytes_minus_means() -> None:
    image = Image.new("RGB", (4, 4), (10, 20, 30))
    preprocess = Preprocess((2, 2), mean=(1, 2, 3), std=(1, 1, 1), scale=1.0, channels="BGR")
    assert preprocess(image)[:, 0, 0].tolist() == [29, 18, 7]  # blue first


def test_squeeze_keeps_all_four_corners_and_center_cuts_them_away() -> None:
    image = Image.new("RGB", (60, 20), (0, 0, 0))
    for x in (0, 56):
        image.paste((255, 255, 255), (x, 0, x + 4, 20))
    squeeze, center = (Preprocess((20, 20), crop=crop, mean=(0, 0, 0), std=(1, 1, 1)) for crop in ("squeeze", "center"))
    assert squeeze(image)[0, :, 0].min() > 0.9
    assert squeeze(image)[0, :, -1].min() > 0.9
    assert center(image).max() == 0


def test_center_crop_equals_resizing_first_where_the_numbers_come_out_even() -> None:
    image = noise(48, 32)
    wanted = image.resize((24, 16), Image.Resampling.BILINEAR).crop((6, 2, 18, 14))  # short side 16, then 12 x 12
    found = Preprocess((12, 12), short_side=16)(image)
    inner = (slice(None), slice(1, -1), slice(1, -1))  # at the crop's edge the filter has nothing beyond the box
    assert torch.allclose(found[inner], Preprocess((12, 12), crop="squeeze")(wanted)[inner], atol=0.02)


@given(
    width=st.integers(1, 3000),
    height=st.integers(1, 3000),
    size=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    margin=st.one_of(st.none(), st.integers(0, 100)),
)
def test_the_source_box_lies_in_the_image_and_in_its_middle(
    width: int, height: int, size: tuple[int, int], margin: int | None
) -> None:
    short_side = None if margin is None else max(size) + margin
    left, top, right, bottom = Preprocess(size, short_side=short_side).source_box(width, height)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    assert left + right == pytest.approx(width)
    assert top + bottom == pytest.approx(height)
    if short_side is None:  # as much as fits, in the tower's aspect
        assert (right - left) / (bottom - top) == pytest.approx(size[1] / size[0])
        assert right - left == pytest.approx(width) or bottom - top == pytest.approx(height)
    else:
        zoom = short_side / min(width, height)
        assert (right - left) * zoom == pytest.approx(size[1])
        assert (bottom - top) * zoom == pytest.approx(size[0])


def test_one_pixel_and_thirty_thousand_in_a_row_are_images_too() -> None:
    began = time.perf_counter()
    for crop in ("squeeze", "center"):
        preprocess = Preprocess((224, 224), crop=crop, short_side=256)
        assert preprocess(Image.new("RGB", (1, 1), (255, 0, 0))).shape == (3, 224, 224)
        assert preprocess(Image.new("RGB", (30_000, 8))).shape == (3, 224, 224)
        assert preprocess(Image.new("RGB", (8, 30_000))).shape == (3, 224, 224)
    assert time.perf_counter() - began < 2  # a resize of the whole to short side 256 would make 960,000 columns


def test_other_modes_become_colours() -> None:
    for mode in ("L", "P", "CMYK", "RGBA", "1"):
        assert Preprocess((8, 8))(Image.new(mode, (9, 7))).shape == (3, 8, 8)


@pytest.mark.parametrize(
    "preprocess",
    [
        Preprocess((224, 224), short_side=256),
        Preprocess(
            (96, 80), crop="squeeze", mean=(1, 2, 3), std=(4, 5, 6), scale=1.0, channels="BGR", resample="bicubic"
        ),
    ],
)
def test_it_survives_json(preprocess: Preprocess) -> None:
    assert Preprocess.from_state(json.loads(json.dumps(preprocess.state()))) == preprocess


def test_bad_descriptions_are_refused() -> None:
    for wrong in ({"crop": "left"}, {"channels": "GBR"}, {"resample": "magic"}, {"short_side": 7}, {"size": (0, 8)}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Preprocess(**({"size": (8, 8)} | wrong))
    with pytest.raises(QuintetError, match="colour"):
        Preprocess.from_state({"size": [8, 8], "colour": "RGB"})
    with pytest.raises(QuintetError, match="size"):
        Preprocess.from_state({"crop": "center"})
