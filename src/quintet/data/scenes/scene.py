"""What is in a scene: groups of things with shape, colour, size, texture and number, a layout and a background.

Scenes come in *families*: four to eight scenes of the same shapes on the same background, of which each differs from
the first in one or two colours, numbers, textures or relations. Who cannot see those cannot tell them apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def generator(*keys: int) -> np.random.Generator:
    """A generator of its own for each tuple of keys.

    >>> float(generator(0, 1, 2).random()) == float(generator(0, 1, 2).random())
    True
    """
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(keys)))


def whole(rng: np.random.Generator, low: int, high: int) -> int:
    """A whole number from low to high, both included."""
    return low + int(rng.random() * (high - low + 1))


def between(rng: np.random.Generator, low: float, high: float) -> float:
    return low + float(rng.random()) * (high - low)


def pick(rng: np.random.Generator, options: Sequence[T]) -> T:
    return options[whole(rng, 0, len(options) - 1)]


def shuffled(rng: np.random.Generator, options: Sequence[T]) -> list[T]:
    """All of the options in random order (Fisher and Yates)."""
    items = list(options)
    for last in range(len(items) - 1, 0, -1):
        other = whole(rng, 0, last)
        items[last], items[other] = items[other], items[last]
    return items


SHAPES = ("circle", "square", "triangle", "star", "heart", "cross", "ring", "diamond", "crescent", "bar")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black")
SIZES = ("small", "large")
TEXTURES = ("plain", "striped", "dotted", "checked")
# Each background with the colours that would be lost on it.
BACKGROUNDS: dict[str, tuple[str, ...]] = {
    "white": (),
    "grey": (),
    "light blue": (),
    "sunset": ("orange", "pink", "yellow"),
    "meadow": ("green",),
    "beach": ("yellow", "orange"),
    "sea": ("blue",),
    "night": ("black", "blue", "brown"),
}
# How many groups stand how. The order of a scene's groups is the order of the layout: left to right, top to bottom,
# inner before outer; in "grid" the upper two, then the lower two.
LAYOUTS: dict[int, tuple[str, ...]] = {
    1: ("middle", "left", "right", "top", "bottom"),
    2: ("row", "column", "row", "column", "inside"),
    3: ("row", "column"),
    4: ("grid",),
}
HOLLOWS = ("circle", "square", "diamond", "heart")  # shapes with room for another in their middle
FAMILY_SIZES = (4, 8)


@dataclass(frozen=True, slots=True)
class Group:
    """One to four things that look the same."""

    shape: str
    colour: str
    size: str
    texture: str
    count: int


@dataclass(frozen=True, slots=True)
class Scene:
    background: str
    layout: str
    groups: tuple[Group, ...]

    def relations(self) -> list[tuple[int, str, int]]:
        """What is true between groups: (this, "left" | "above" | "inside", that). Converses are left to the reader."""
        last = len(self.groups)
        if self.layout in ("row", "column"):
            word = "left" if self.layout == "row" else "above"
            return [(this, word, that) for this in range(last) for that in range(this + 1, last)]
        if self.layout == "inside":
            return [(0, "inside", 1)]
        if self.layout == "grid":
            return [(0, "left", 1), (2, "left", 3), (0, "above", 2), (1, "above", 3)]
        return []


def most(layout: str, groups: int, size: str) -> int:
    """How many things of a size a group may have, so that they fit without touching.

    >>> most("row", 2, "small"), most("grid", 4, "large")
    (4, 1)
    """
    if layout == "inside" or (layout == "grid" and size == "large"):
        return 1
    if size == "small":
        return 4
    return 3 if groups == 2 else 2


def possible(scene: Scene) -> bool:
    """Whether a scene can be drawn and talked about without confusion."""
    looks = Counter((group.shape, group.colour) for group in scene.groups)
    if max(looks.values()) > 1:
        return False
    for group in scene.groups:
        if group.colour in BACKGROUNDS[scene.background]:
            return False
        if not 1 <= group.count <= most(scene.layout, len(scene.groups), group.size):
            return False
    if scene.layout == "inside":
        inner, outer = scene.groups
        fits = inner.size == "small" and outer.size == "large" and outer.shape in HOLLOWS
        return fits and outer.texture == "plain" and inner.colour != outer.colour
    return True


def random_scene(rng: np.random.Generator) -> Scene:
    """A scene of one to four groups; two are the commonest."""
    while True:
        count = pick(rng, (1, 2, 2, 2, 2, 2, 3, 3, 3, 4))
        layout = pick(rng, LAYOUTS[count])
        background = pick(rng, tuple(BACKGROUNDS))
        colours = [colour for colour in COLOURS if colour not in BACKGROUNDS[background]]
        scene = Scene(background, layout, tuple(_random_group(rng, colours) for _ in range(count)))
        if layout == "inside":
            inner, outer = scene.groups
            outer = replace(outer, shape=pick(rng, HOLLOWS), size="large", texture="plain", count=1)
            scene = replace(scene, groups=(replace(inner, size="small", count=1), outer))
        if possible(scene):
            return scene


def _random_group(rng: np.random.Generator, colours: list[str]) -> Group:
    return Group(
        shape=pick(rng, SHAPES),
        colour=pick(rng, colours),
        size=pick(rng, SIZES),
        texture=pick(rng, ("plain", "plain", *TEXTURES)),
        count=pick(rng, (1, 1, 1, 2, 2, 3, 4)),
    )


def family(rng: np.random.Generator) -> list[Scene]:
    """Four to eight different scenes of the same shapes on the same background: near-duplicates."""
    wanted = whole(rng, *FAMILY_SIZES)
    first = random_scene(rng)
    members = [first]
    while len(members) < wanted:
        kind = pick(rng, ("colour", "colour", "count", "texture", "relation", "relation"))
        # Most differ from the first in one thing; some from another member, so from the first in two.
        start = first if rng.random() < 0.7 else pick(rng, members)
        fresh = [scene for scene in _variants(start, kind) if possible(scene) and scene not in members]
        if fresh:
            members.append(pick(rng, fresh))
    return shuffled(rng, members)


def _variants(scene: Scene, kind: str) -> Iterator[Scene]:
    """Every scene that differs from this one in one thing of a kind."""
    if kind == "relation":
        yield from _other_relations(scene)
        return
    for index, group in enumerate(scene.groups):
        if kind == "colour":
            changed = [replace(group, colour=colour) for colour in COLOURS]
        elif kind == "texture":
            changed = [replace(group, texture=texture) for texture in TEXTURES]
        else:
            changed = [replace(group, count=count) for count in (1, 2, 3, 4)]
        for other in changed:
            yield replace(scene, groups=_put(scene.groups, {index: other}))


def _other_relations(scene: Scene) -> Iterator[Scene]:
    for layout in dict.fromkeys(LAYOUTS[len(scene.groups)]):
        yield replace(scene, layout=layout)
    for this in range(len(scene.groups)):
        for that in range(this + 1, len(scene.groups)):
            a, b = scene.groups[this], scene.groups[that]
            # The things change places ("a left of b" becomes "b left of a"), or only their colours do.
            yield replace(scene, groups=_put(scene.groups, {this: b, that: a}))
            recoloured = {this: replace(a, colour=b.colour), that: replace(b, colour=a.colour)}
            yield replace(scene, groups=_put(scene.groups, recoloured))


def _put(groups: tuple[Group, ...], changes: dict[int, Group]) -> tuple[Group, ...]:
    return tuple(changes.get(index, group) for index, group in enumerate(groups))
