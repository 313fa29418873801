"""Draw a scene: place its things without touching, then paint them anti-aliased (16 samples a pixel).

Drawn with numpy rather than a graphics library, whose rounding changes between versions; PIL only writes the file.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quintet.data.scenes.chance import between, generator, whole
from quintet.data.scenes.scene import Scene
from quintet.data.scenes.shapes import OUTLINES, light

SAMPLES = 4  # along each side of a pixel
RADIUS = {"small": (0.072, 0.082), "large": (0.125, 0.14)}  # parts of the picture's width
OUTER = (0.25, 0.29)  # the outer thing of an "inside" scene
GAP = 0.015  # least distance between things, and to the edge
MARGIN = 0.02

PAINT: dict[str, tuple[int, int, int]] = {
    "red": (214, 32, 36),
    "orange": (247, 132, 20),
    "yellow": (250, 212, 20),
    "green": (30, 142, 62),
    "blue": (28, 84, 212),
    "purple": (128, 44, 168),
    "pink": (244, 130, 178),
    "brown": (122, 74, 38),
    "black": (24, 24, 26),
}
WHITE = (252, 250, 244)
TINT = 0.28  # how much of its own colour is left in the light parts of a pattern: enough to see the outline on white

Region = tuple[float, float, float, float]  # left, top, right, bottom
PLACES: dict[str, Region] = {
    "middle": (0.15, 0.15, 0.85, 0.85),
    "left": (0.0, 0.0, 0.43, 1.0),
    "right": (0.57, 0.0, 1.0, 1.0),
    "top": (0.0, 0.0, 1.0, 0.43),
    "bottom": (0.0, 0.57, 1.0, 1.0),
}


@dataclass(frozen=True, slots=True)
class Thing:
    """One thing of a group, where it stands."""

    group: int
    x: float  # centre
    y: float
    radius: float
    tilt: float  # tangent of half the angle


@dataclass(frozen=True)
class Drawing:
    pixels: np.ndarray  # (size, size, 3) uint8
    things: list[Thing]
    boxes: list[Region]  # of the things, measured on what was painted, 0..1


def regions(scene: Scene) -> list[Region]:
    """Where each group may stand."""
    count = len(scene.groups)
    if scene.layout == "middle" and scene.groups[0].count == 1:
        return [(0.28, 0.28, 0.72, 0.72)]  # one thing stands nearer to the middle than several can
    if scene.layout in PLACES:
        return [PLACES[scene.layout]]
    if scene.layout == "inside":
        return [(0.0, 0.0, 1.0, 1.0)] * 2
    if scene.layout == "grid":
        return [(0.0, 0.0, 0.5, 0.5), (0.5, 0.0, 1.0, 0.5), (0.0, 0.5, 0.5, 1.0), (0.5, 0.5, 1.0, 1.0)]
    ends = [step / count for step in range(count + 1)]
    if scene.layout == "row":
        return [(ends[step], 0.0, ends[step + 1], 1.0) for step in range(count)]
    return [(0.0, ends[step], 1.0, ends[step + 1]) for step in range(count)]


def place(scene: Scene, rng: np.random.Generator) -> list[Thing]:
    """Positions for all things of a scene."""
    if scene.layout == "inside":
        outer = between(rng, *OUTER)
        x, y = (between(rng, outer + MARGIN, 1 - outer - MARGIN) for _ in range(2))
        return [_thing(1, x, y, outer, rng), _thing(0, x, y, between(rng, *RADIUS["small"]), rng)]
    while True:  # a crowded group now and then finds no room for its last thing: begin again
        things = _try_to_place(scene, rng)
        if things is not None:
            return things


def _try_to_place(scene: Scene, rng: np.random.Generator) -> list[Thing] | None:
    things: list[Thing] = []
    for index, (group, region) in enumerate(zip(scene.groups, regions(scene), strict=True)):
        radius = between(rng, *RADIUS[group.size])
        left, top, right, bottom = region
        inset = radius + MARGIN
        for _ in range(group.count):
            for _ in range(60):
                x, y = between(rng, left + inset, right - inset), between(rng, top + inset, bottom - inset)
                if all(max(abs(x - other.x), abs(y - other.y)) > radius + other.radius + GAP for other in things):
                    things.append(_thing(index, x, y, radius, rng))
                    break
            else:
                return None
    return things


def _thing(group: int, x: float, y: float, radius: float, rng: np.random.Generator) -> Thing:
    return Thing(group, x, y, radius, tilt=between(rng, -0.08, 0.08))


def draw(scene: Scene, rng: np.random.Generator, size: int) -> Drawing:
    """Place and paint a scene on a square picture."""
    things = place(scene, rng)
    canvas = _background(scene.background, rng, size)
    boxes = [_paint(canvas, scene, thing, size) for thing in things]
    # Halves are rounded up; nothing is left to the machine's rounding mode.
    return Drawing(np.floor(canvas + 0.5).astype(np.uint8), things, boxes)


def _paint(canvas: np.ndarray, scene: Scene, thing: Thing, size: int) -> Region:
    group = scene.groups[thing.group]
    reach = thing.radius * 1.25  # a tilted square needs more than its radius
    x0, x1 = _pixels(thing.x - reach, size), _pixels(thing.x + reach, size) + 1
    y0, y1 = _pixels(thing.y - reach, size), _pixels(thing.y + reach, size) + 1
    fine_x = (np.arange(x0 * SAMPLES, x1 * SAMPLES) + 0.5) / (SAMPLES * size)  # (w * samples,)
    fine_y = (np.arange(y0 * SAMPLES, y1 * SAMPLES) + 0.5) / (SAMPLES * size)  # (h * samples,)
    x, y = _turned(fine_x[None, :] - thing.x, fine_y[:, None] - thing.y, thing.tilt)
    covered = OUTLINES[group.shape](x / thing.radius, y / thing.radius)  # (h * samples, w * samples)
    pattern = covered & light(group.texture, x, y)
    share, pale = _share(covered), _share(pattern)  # (h, w, 1)
    patch = canvas[y0:y1, x0:x1]
    patch *= 1 - share
    paint = np.array(PAINT[group.colour])
    patch += (share - pale) * paint + pale * (TINT * paint + (1 - TINT) * np.array(WHITE))
    rows, columns = np.flatnonzero(covered.any(axis=1)), np.flatnonzero(covered.any(axis=0))
    grid = SAMPLES * size
    left, top = x0 * SAMPLES + int(columns[0]), y0 * SAMPLES + int(rows[0])
    right, bottom = x0 * SAMPLES + int(columns[-1]) + 1, y0 * SAMPLES + int(rows[-1]) + 1
    return left / grid, top / grid, right / grid, bottom / grid


def _pixels(position: float, size: int) -> int:
    return min(max(int(position * size), 0), size - 1)


def _turned(x: np.ndarray, y: np.ndarray, tilt: float) -> tuple[np.ndarray, np.ndarray]:
    """Rotate by the angle whose half has this tangent: sine and cosine without a library's rounding."""
    cosine, sine = (1 - tilt * tilt) / (1 + tilt * tilt), 2 * tilt / (1 + tilt * tilt)
    return cosine * x + sine * y, cosine * y - sine * x


def _share(samples: np.ndarray) -> np.ndarray:
    """(h * samples, w * samples) bool -> (h, w, 1): which part of each pixel is covered, in sixteenths."""
    height, width = samples.shape[0] // SAMPLES, samples.shape[1] // SAMPLES
    counts = samples.reshape(height, SAMPLES, width, SAMPLES).sum(axis=(1, 3))
    return counts[..., None] / SAMPLES**2


def _fade(top: tuple[int, int, int], bottom: tuple[int, int, int], size: int) -> np.ndarray:
    """(size, size, 3) from one colour at the top to another at the bottom."""
    step = ((np.arange(size) + 0.5) / size)[:, None, None]  # (size, 1, 1)
    return np.broadcast_to(np.array(top) * (1 - step) + np.array(bottom) * step, (size, size, 3)).copy()


def _background(name: str, rng: np.random.Generator, size: int) -> np.ndarray:
    level = between(rng, 0.4, 0.6)  # of the horizon
    if name in ("white", "grey", "light blue"):
        colour = {"white": (252, 252, 252), "grey": (196, 197, 199), "light blue": (184, 214, 240)}[name]
        return _fade(colour, colour, size)
    if name == "sunset":
        return _fade((246, 196, 204), (255, 226, 176), size)
    if name == "night":
        return _night(size)
    sky, ground = {
        "meadow": (((196, 224, 246), (232, 243, 250)), ((158, 205, 122), (126, 184, 96))),
        "beach": (((190, 222, 246), (226, 240, 248)), ((240, 222, 178), (226, 202, 148))),
        "sea": (((224, 236, 244), (240, 245, 248)), ((112, 170, 206), (84, 146, 190))),
    }[name]
    canvas = _fade(*sky, size)
    horizon = int(level * size)
    canvas[horizon:] = _fade(*ground, size)[horizon:]
    return canvas


def _night(size: int) -> np.ndarray:
    """A dark sky with the same few faint stars every night."""
    canvas = _fade((16, 20, 52), (44, 48, 92), size)
    rng = generator(7)
    for _ in range(26):
        row, column = whole(rng, 0, size - 1), whole(rng, 0, size - 1)
        canvas[row, column] = between(rng, 120, 210)
    return canvas
