"""Which texts are true of which scenes: a text is true of a scene if `captions` could write it of that scene.

A text is read back into a *claim*: what it says, whatever its wording. `claims` lists every claim that `captions` makes
of a scene. So the truth is exact, and looking up a pair is one look into a set.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np

from quintet.data.scenes.captions import (
    ABOUT,
    BACKGROUNDS,
    COLOURS,
    CONVERSE,
    NOUNS,
    NUMBERS,
    OPENINGS,
    ORDERS,
    PLACES,
    RELATIONS,
    SIDES,
    SIZES,
    TEXTURES,
)
from quintet.data.scenes.scene import Group, Scene

Said: TypeAlias = tuple[int, str | None, str | None, str | None, str]  # count, size, texture, colour, shape
Claim: TypeAlias = tuple[object, ...]

# What the words of a text mean: (kind, meaning). The longest wording that fits is the one that is meant.
_WORDS: dict[str, tuple[str, str]] = {
    **{word.strip(): ("silent", "") for word in (*OPENINGS, *ABOUT, "there is", "you can see", "is", "are", "and")},
    **{word: ("number", str(count)) for count, words in NUMBERS.items() for word in words},
    **dict.fromkeys(("an", "just one"), ("number", "1")),
    **dict.fromkeys(("many",), ("number", "many")),
    **{word: ("size", size) for size, words in SIZES.items() for word in words},
    **{word: ("texture", texture) for texture, words in TEXTURES.items() for word in words if word},
    **{word: ("colour", colour) for colour, words in COLOURS.items() for word in words},
    **{word: ("shape", shape) for shape, words in NOUNS.items() for pair in words for word in pair},
    **dict.fromkeys(("shape", "thing", "shapes", "things", "figures"), ("things", "")),
    **{word: ("relation", relation) for relation, words in RELATIONS.items() for word in words},
    **{word: ("side", relation) for relation, words in SIDES.items() for word in words},
    **{word: ("place", place) for place, words in PLACES.items() for word in words},
    **{word: ("background", name) for name, words in BACKGROUNDS.items() for word in words},
    **{word: ("order", layout) for layout, (words, _) in ORDERS.items() for word in words},
    **{word: ("backward", layout) for layout, (_, words) in ORDERS.items() for word in words},
    **dict.fromkeys(("with", "then", ":", ","), ("silent", "")),
    "between": ("between", ""),
}
_PATTERN = re.compile(
    r"|".join(rf"{re.escape(word)}(?!\w)" for word in sorted(_WORDS, key=len, reverse=True) if word) + r"|\S+"
)


def claim(text: str) -> Claim:
    """What a text says. `ValueError` where a word is not one of `captions`.

    >>> claim("A ball above two little red stars.") == claim("two small red stars are below a circle")
    True
    """
    said: list[Said] = []
    phrase: dict[str, str] = {}
    found: dict[str, str] = {}
    places: list[str] = []
    total: str | None = None
    relation_at = 0  # how many phrases stand before the relation
    for word in _PATTERN.findall(text.lower().rstrip(".")):
        if word not in _WORDS:
            raise ValueError(f"{word!r} in {text!r} is not a word of the generated texts")
        kind, meaning = _WORDS[word]
        if kind in ("number", "size", "texture", "colour"):
            phrase[kind] = meaning
        elif kind == "shape":
            described = (phrase.get("size"), phrase.get("texture"), phrase.get("colour"))
            said.append((int(phrase["number"]), *described, meaning))
            phrase = {}
        elif kind == "things":
            total, phrase = phrase["number"], {}
        elif kind == "place":
            places.append(meaning)
        elif kind != "silent":
            found[kind] = meaning
            relation_at = len(said) if kind == "relation" else relation_at
    return _claim(said, found, places, total, relation_at)


def _claim(said: list[Said], found: dict[str, str], places: list[str], total: str | None, relation_at: int) -> Claim:
    behind = found.get("background")
    if total is not None:
        return "total", total, behind
    if "between" in found:
        return "between", said[0], frozenset(said[1:])
    if "order" in found or "backward" in found:
        layout = found.get("order") or found["backward"]
        return "order", layout, tuple(said if "order" in found else said[::-1]), behind
    if len(said) == 4:
        relation = found.get("relation")
        if relation is not None or places:
            upper, lower = tuple(said[:2]), tuple(said[2:])
            return ("grid", *((lower, upper) if relation == "below" else (upper, lower)), behind)
    if "relation" in found or "side" in found:
        relation = found.get("relation") or found["side"]
        # "THIS left of THAT", "left of THAT is THIS", "THAT with THIS to its left"
        this, that = said if relation_at == 1 else said[::-1]
        return _related(this, relation, that, behind)
    if places:
        return "placed", said[0], places[0], behind
    if len(said) == 1:
        return "one", said[0], behind
    return "list", frozenset(said)


def _related(this: Said, relation: str, that: Said, behind: str | None) -> Claim:
    if relation in ("right", "below", "around"):
        this, relation, that = that, CONVERSE[relation], this
    return "related", this, relation, that, behind


def claims(scene: Scene) -> set[Claim]:
    """Everything that `captions` may say of a scene."""
    return set(_claims(scene))


def _claims(scene: Scene) -> Iterator[Claim]:
    groups, behind = scene.groups, scene.background
    full = [_said(group) for group in groups]
    coloured = [_said(group, size=False, texture=False) for group in groups]
    bare = [
        _said(group, size=False, texture=False, colour=sum(other.shape == group.shape for other in groups) > 1)
        for group in groups
    ]
    if len(groups) == 1:
        yield "placed", coloured[0], scene.layout, None
        yield "placed", full[0], scene.layout, behind
    elif len(groups) == 2:
        ((this, relation, that),) = scene.relations()
        yield _related(full[this], relation, full[that], behind)
    elif len(groups) == 3:
        for background in (behind, None):
            yield "order", scene.layout, tuple(full), background
        yield "between", bare[1], frozenset((bare[0], bare[2]))
    else:
        for background in (behind, None):
            yield "grid", tuple(coloured[:2]), tuple(coloured[2:]), background
    if len(groups) > 1:
        for this, relation, that in scene.relations():
            yield _related(coloured[this], relation, coloured[that], None)
        yield "list", frozenset(coloured)
        yield "list", frozenset(bare)
    else:
        yield "one", bare[0], None
    for one in full:
        yield "one", one, None
        yield "one", one, behind
    for one in bare:
        yield "one", one, behind
    total = sum(group.count for group in groups)
    yield "total", str(total) if total in NUMBERS else "many", behind


def _said(group: Group, *, size: bool = True, texture: bool = True, colour: bool = True) -> Said:
    """A noun phrase; nobody says that something is plain."""
    striped = group.texture if texture and group.texture != "plain" else None
    return group.count, group.size if size else None, striped, group.colour if colour else None, group.shape


class Truth:
    """The true pairs of a list of scenes and a list of texts.

    >>> from quintet.data.scenes.scene import family, generator
    >>> from quintet.data.scenes.captions import captions
    >>> kin = family(generator(1))
    >>> truth = Truth(kin, captions(kin[0], generator(2)))
    >>> [truth.is_true(0, text) for text in range(5)]
    [True, True, True, True, True]
    """

    def __init__(self, scenes: Iterable[Scene], texts: Iterable[str]) -> None:
        self._number: dict[Claim, int] = {}
        self._said = [self._number.setdefault(claim(text), len(self._number)) for text in texts]
        self._true: list[set[int]] = []
        for scene in scenes:
            numbers = (self._number.get(one) for one in claims(scene))
            self._true.append({number for number in numbers if number is not None})

    def is_true(self, scene: int, text: int) -> bool:
        return self._said[text] in self._true[scene]

    def table(self) -> np.ndarray:
        """(scenes, texts) bool."""
        said = np.array(self._said)
        return np.stack([np.isin(said, list(true)) for true in self._true])

    def images_of_text(self) -> np.ndarray:
        """(texts,) of how many scenes each text is true."""
        counts = np.zeros(len(self._number), np.int64)
        for true in self._true:
            counts[list(true)] += 1
        return counts[np.array(self._said)]
