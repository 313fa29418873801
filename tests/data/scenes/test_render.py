from __future__ import annotations

from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.data.scenes.render import OUTLINES, PAINT, Drawing, draw
from quintet.data.scenes.scene import SHAPES, TEXTURES, Group, Scene, generator, random_scene

SIZE = 96
keys = st.integers(0, 10**6)


def inside(drawing: Drawing, index: int) -> np.ndarray:
    """The pixels that a box touches, (h, w, 3)."""
    left, top, right, bottom = np.array(drawing.boxes[index]) * SIZE
    return drawing.pixels[int(top) : int(np.ceil(bottom)), int(left) : int(np.ceil(right))].astype(int)


@given(keys)
@settings(max_examples=60, deadline=None)
def test_boxes_lie_in_the_image_and_hold_the_colour(key: int) -> None:
    rng = generator(key)
    scene = random_scene(rng)
    drawing = draw(scene, rng, SIZE)
    assert drawing.pixels.shape == (SIZE, SIZE, 3)
    assert len(drawing.boxes) == len(drawing.things) == sum(group.count for group in scene.groups)
    for index, (thing, (left, top, right, bottom)) in enumerate(zip(drawing.things, drawing.boxes, strict=True)):
        assert 0 <= left < right <= 1
        assert 0 <= top < bottom <= 1
        paint = np.array(PAINT[scene.groups[thing.group].colour])
        assert abs(inside(drawing, index) - paint).max(axis=2).min() <= 12


@given(keys)
@settings(max_examples=60, deadline=None)
def test_boxes_do_not_overlap_except_inside(key: int) -> None:
    rng = generator(key)
    scene = random_scene(rng)
    boxes = draw(scene, rng, 48).boxes
    for number, a in enumerate(boxes):
        for b in boxes[:number]:
            apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
            assert apart or scene.layout == "inside"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("texture", TEXTURES)
def test_boxes_are_tight(shape: str, texture: str) -> None:
    scene = Scene("white", "row", (Group(shape, "red", "large", texture, 2), Group(shape, "blue", "small", texture, 3)))
    drawing = draw(scene, generator(3), SIZE)
    painted = (drawing.pixels != drawing.pixels[0, 0]).any(axis=2)
    outside = painted.copy()
    for left, top, right, bottom in (np.array(box) * SIZE for box in drawing.boxes):
        rows, columns = slice(int(top), int(np.ceil(bottom))), slice(int(left), int(np.ceil(right)))
        outside[rows, columns] = False
        patch = painted[rows, columns]
        assert patch[0].any()
        assert patch[-1].any()
        assert patch[:, 0].any()
        assert patch[:, -1].any()
    assert not outside.any()


def test_edges_are_anti_aliased() -> None:
    scene = Scene("white", "middle", (Group("circle", "black", "large", "plain", 1),))
    levels = set(np.unique(draw(scene, generator(0), SIZE).pixels[..., 0]).tolist())
    assert len(levels) > 8  # not only black and white


def test_textures_and_sizes_can_be_distinguished() -> None:
    def look(size: str, texture: str) -> np.ndarray:
        scene = Scene("white", "middle", (Group("square", "red", size, texture, 1),))
        return draw(scene, generator(1), SIZE).pixels.astype(int)

    looks = [look("large", texture) for texture in TEXTURES]
    for number, one in enumerate(looks):
        for other in looks[:number]:
            assert (abs(one - other).max(axis=2) > 60).sum() > 80
    large, small = (int((look(size, "plain")[..., 1] < 100).sum()) for size in ("large", "small"))
    assert large > 2.2 * small


@pytest.mark.parametrize("shape", SHAPES)
def test_outlines_fill_their_square_and_differ(shape: str) -> None:
    line = (np.arange(200) + 0.5) / 100 - 1
    mask = OUTLINES[shape](line[None, :], line[:, None])
    assert mask.shape == (200, 200)
    assert 0.2 < mask.mean() < 0.8
    for other in SHAPES:
        if other != shape:
            assert (mask != OUTLINES[other](line[None, :], line[:, None])).mean() > 0.08


def test_pixels_are_the_same_on_every_machine() -> None:
    digest = sha256()
    for key in range(12):
        rng = generator(0, key)
        digest.update(draw(random_scene(rng), rng, 64).pixels.tobytes())
    assert digest.hexdigest()[:16] == "224523ba68a119eb"
