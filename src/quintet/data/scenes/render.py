"""Draw a scene: place its things without touching, then paint them anti-aliased (16 samples a pixel).

Drawn with numpy rather than a graphics library, whose rounding changes between versions; PIL only writes the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from quintet.data.scenes.scene import Scene, between, generator, whole

Points = np.ndarray  # float64 coordinates of any shape; x and y broadcast
Inside = np.ndarray  # bool, the shape of x and y together

# Corners of a regular five-pointed star, outer and inner by turns, first one up.
_STAR = np.array(
    [
        (0.0, -1.0), (0.259, -0.357), (0.951, -0.309), (0.419, 0.136), (0.588, 0.809),
        (0.0, 0.44), (-0.588, 0.809), (-0.419, 0.136), (-0.951, -0.309), (-0.259, -0.357),
    ]
)  # fmt: skip
_TRIANGLE = np.array([(0.0, -0.95), (0.95, 0.8), (-0.95, 0.8)])


def _polygon(corners: np.ndarray, x: Points, y: Points) -> Inside:
    """Whether a ray to the right crosses the outline an odd number of times."""
    inside = np.zeros(np.broadcast_shapes(x.shape, y.shape), dtype=bool)
    for (x0, y0), (x1, y1) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        if y0 != y1:
            crosses = (y0 > y) != (y1 > y)
            inside ^= crosses & (x < (x1 - x0) * (y - y0) / (y1 - y0) + x0)
    return inside


def _circle(x: Points, y: Points) -> Inside:
    return x * x + y * y < 1


def _square(x: Points, y: Points) -> Inside:
    return (abs(x) < 0.86) & (abs(y) < 0.86)


def _heart(x: Points, y: Points) -> Inside:
    x, y = x * 1.2, 0.1 - y * 1.15
    body = x * x + y * y - 1
    return body * body * body < x * x * y * y * y


def _cross(x: Points, y: Points) -> Inside:
    return ((abs(x) < 0.32) & (abs(y) < 0.95)) | ((abs(y) < 0.32) & (abs(x) < 0.95))


def _ring(x: Points, y: Points) -> Inside:
    square = x * x + y * y
    return (square < 1) & (square > 0.3)


def _diamond(x: Points, y: Points) -> Inside:
    return abs(x) * 1.35 + abs(y) < 1


def _crescent(x: Points, y: Points) -> Inside:
    x = x - 0.17
    return (x * x + y * y < 0.98) & ((x - 0.5) * (x - 0.5) + y * y > 0.56)


def _bar(x: Points, y: Points) -> Inside:
    return (abs(x) < 1) & (abs(y) < 0.42)


OUTLINES: dict[str, Callable[[Points, Points], Inside]] = {
    "circle": _circle,
    "square": _square,
    "triangle": lambda x, y: _polygon(_TRIANGLE, x, y),
    "star": lambda x, y: _polygon(_STAR, x, y),
    "heart": _heart,
    "cross": _cross,
    "ring": _ring,
    "diamond": _diamond,
    "crescent": _crescent,
    "bar": _bar,
}


def _fraction(value: np.ndarray) -> np.ndarray:
    return value - np.floor(value)


def light(texture: str, x: Points, y: Points) -> Inside:
    """Where the pattern shows its light colour. x and y are parts of the image's width, so that the pattern of a
    small thing is as coarse as that of a large one, and as easy to see."""
    if texture == "striped":
        return _fraction((x + y) / 0.09) < 0.45
    if texture == "dotted":
        across, down = _fraction(x / 0.066 + 0.5) - 0.5, _fraction(y / 0.066 + 0.5) - 0.5
        return across * across + down * down < 0.085
    if texture == "checked":
        return (_fraction(x / 0.09) < 0.5) != (_fraction(y / 0.09) < 0.5)
    return np.zeros(np.broadcast_shapes(x.shape, y.shape), dtype=bool)


SAMPLES = 4  # along each side of a pixel
RADIUS = {"small": (0.072, 0.082), "large": (0.125, 0.14)}  # parts of the image's width
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
    """Place and paint a scene on a square image."""
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
