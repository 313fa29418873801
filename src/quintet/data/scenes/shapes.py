"""The outlines of the shapes and the patterns on them, as tests of points.

A shape lives in the square from -1 to 1, x to the right and y downwards. Only sums, products, square roots and
comparisons are used: these are exact to the last bit on every machine, so the pictures are too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

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
    """Where the pattern shows its light colour. x and y are parts of the picture's width, so that the pattern of a
    small thing is as coarse as that of a large one, and as easy to see."""
    if texture == "striped":
        return _fraction((x + y) / 0.09) < 0.45
    if texture == "dotted":
        across, down = _fraction(x / 0.066 + 0.5) - 0.5, _fraction(y / 0.066 + 0.5) - 0.5
        return across * across + down * down < 0.085
    if texture == "checked":
        return (_fraction(x / 0.09) < 0.5) != (_fraction(y / 0.09) < 0.5)
    return np.zeros(np.broadcast_shapes(x.shape, y.shape), dtype=bool)
