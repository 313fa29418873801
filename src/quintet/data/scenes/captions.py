"""Put a scene into words: five texts, of which some tell everything and some only a part.

Every text is true, and whatever it counts is all there is: a group is called "two stars", without a colour, only
where no other group has stars.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from quintet.data.scenes.scene import Group, Scene, pick, shuffled

NOUNS: dict[str, tuple[tuple[str, str], ...]] = {  # one, several
    "circle": (("circle", "circles"), ("disc", "discs"), ("ball", "balls")),
    "square": (("square", "squares"), ("box", "boxes")),
    "triangle": (("triangle", "triangles"),),
    "star": (("star", "stars"),),
    "heart": (("heart", "hearts"),),
    "cross": (("cross", "crosses"), ("plus sign", "plus signs")),
    "ring": (("ring", "rings"), ("hoop", "hoops")),
    "diamond": (("diamond", "diamonds"), ("rhombus", "rhombuses")),
    "crescent": (("crescent", "crescents"), ("half moon", "half moons")),
    "bar": (("bar", "bars"), ("rectangle", "rectangles")),
}
COLOURS: dict[str, tuple[str, ...]] = {
    "red": ("red",),
    "orange": ("orange",),
    "yellow": ("yellow",),
    "green": ("green",),
    "blue": ("blue",),
    "purple": ("purple", "violet"),
    "pink": ("pink",),
    "brown": ("brown",),
    "black": ("black",),
}
SIZES = {"small": ("small", "little", "tiny"), "large": ("large", "big")}
TEXTURES = {
    "plain": ("",),  # as people do, nobody says so
    "striped": ("striped", "stripy"),
    "dotted": ("dotted", "spotted"),
    "checked": ("checked", "chequered"),
}
NUMBERS: dict[int, tuple[str, ...]] = {
    1: ("a", "a", "a", "one", "a single"),
    2: ("two", "two", "a pair of"),
    3: ("three",),
    4: ("four",),
    5: ("five",),
    6: ("six",),
    7: ("seven",),
    8: ("eight",),
    9: ("nine",),
    10: ("ten",),
}
RELATIONS = {
    "left": ("left of", "to the left of", "on the left of"),
    "right": ("right of", "to the right of", "on the right of"),
    "above": ("above", "over"),
    "below": ("below", "under", "beneath"),
    "inside": ("inside", "within", "in the middle of"),
    "around": ("around", "surrounding"),
}
CONVERSE = {
    "left": "right",
    "right": "left",
    "above": "below",
    "below": "above",
    "inside": "around",
    "around": "inside",
}
SIDES = {  # after "THAT with THIS", where THAT is one thing or several
    "left": ("to its left", "to their left"),
    "right": ("to its right", "to their right"),
    "above": ("above it", "above them"),
    "below": ("below it", "below them"),
    "inside": ("inside it", "inside them"),
    "around": ("around it", "around them"),
}
ORDERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # in the order of the groups, and against it
    "row": (("from left to right", "left to right"), ("from right to left", "right to left")),
    "column": (("from top to bottom", "top to bottom"), ("from bottom to top", "from the bottom up")),
}
PLACES = {
    "middle": ("in the middle", "in the centre"),
    "left": ("on the left", "on the left side", "at the left"),
    "right": ("on the right", "on the right side", "at the right"),
    "top": ("at the top", "near the top", "in the upper half"),
    "bottom": ("at the bottom", "near the bottom", "in the lower half"),
}
BACKGROUNDS = {
    "white": ("on a white background", "on white", "against plain white"),
    "grey": ("on a grey background", "on grey", "against plain grey"),
    "light blue": ("on a light blue background", "on pale blue", "against light blue"),
    "sunset": ("at sunset", "in a sunset sky", "in the evening light"),
    "meadow": ("on a meadow", "in a green field", "on the grass"),
    "beach": ("on a beach", "on the sand", "at the beach"),
    "sea": ("at sea", "on the open sea", "by the sea"),
    "night": ("at night", "in the night sky", "in the dark of night"),
}
OPENINGS = ("a picture of ", "an image of ", "this shows ", "here we see ", "")
ABOUT = ("", "there are ", "a picture with ", "this shows ")


SHORTEST, LONGEST = 4, 25  # words


@dataclass(frozen=True, slots=True)
class Phrase:
    text: str
    plural: bool

    @property
    def be(self) -> str:
        return "are" if self.plural else "is"


def captions(scene: Scene, rng: np.random.Generator) -> list[str]:
    """Five different texts about a scene, in random order."""
    found: list[str] = []
    for kind in (_full, _full, _colours, _part, _vague):
        found.append(_fresh(kind, scene, rng, found))
    return shuffled(rng, found)


Writer = Callable[[Scene, np.random.Generator], str]


def _fresh(kind: Writer, scene: Scene, rng: np.random.Generator, taken: list[str]) -> str:
    while True:  # every kind has many wordings, most of them of a fitting length
        text = _finished(kind(scene, rng), rng)
        if text not in taken and SHORTEST <= len(text.split()) <= LONGEST:
            return text


def _finished(text: str, rng: np.random.Generator) -> str:
    text = text[0].upper() + text[1:]
    return text if rng.random() < 0.2 else text + "."


def phrase(
    group: Group, rng: np.random.Generator, *, colour: bool = True, size: bool = True, texture: bool = True
) -> Phrase:
    """A noun phrase such as "a large striped orange ring" or "three stars"."""
    plural = group.count > 1
    parts = [
        pick(rng, SIZES[group.size]) if size else "",
        pick(rng, TEXTURES[group.texture]) if texture else "",
        pick(rng, COLOURS[group.colour]) if colour else "",
        pick(rng, NOUNS[group.shape])[plural],
    ]
    return Phrase(with_number(group.count, " ".join(part for part in parts if part), rng), plural)


def with_number(count: int, noun: str, rng: np.random.Generator) -> str:
    """Put a number or an article before a noun.

    >>> from quintet.data.scenes.scene import generator
    >>> {with_number(1, "orange ring", generator(key)) for key in range(40)} == {
    ...     "an orange ring", "one orange ring", "a single orange ring"}
    True
    """
    word = pick(rng, NUMBERS[count])
    if word == "a" and noun[0] in "aeiou":
        word = "an"
    return f"{word} {noun}"


def _behind(scene: Scene, rng: np.random.Generator) -> str:
    return pick(rng, BACKGROUNDS[scene.background])


def _full(scene: Scene, rng: np.random.Generator) -> str:
    """Everything: number, size, texture, colour, shape, relation and background (four groups: without the details)."""
    details = len(scene.groups) < 4
    phrases = [phrase(group, rng, size=details, texture=details) for group in scene.groups]
    # Three groups in full leave little room below the longest text.
    behind = "" if len(scene.groups) > 2 and rng.random() < 0.5 else " " + _behind(scene, rng)
    if len(scene.groups) == 1:
        return _placed(phrases[0], scene.layout, rng) + behind
    if len(scene.groups) == 2:
        ((this, relation, that),) = scene.relations()
        return _related(phrases[this], relation, phrases[that], rng) + behind
    if len(scene.groups) == 3:
        return _ordered(phrases, scene.layout, rng) + behind
    a, b, c, d = (one.text for one in phrases)
    return (
        pick(
            rng,
            (
                f"{a} and {b} {pick(rng, RELATIONS['above'])} {c} and {d}",
                f"at the top {a} and {b}, at the bottom {c} and {d}",
                f"{c} and {d} {pick(rng, RELATIONS['below'])} {a} and {b}",
            ),
        )
        + behind
    )


def _colours(scene: Scene, rng: np.random.Generator) -> str:
    """Numbers, colours and shapes with a relation or in a list; no sizes, textures or background."""
    phrases = [phrase(group, rng, size=False, texture=False) for group in scene.groups]
    if len(phrases) == 1:
        return _placed(phrases[0], scene.layout, rng)
    if rng.random() < 0.6:
        this, relation, that = pick(rng, scene.relations())
        return _related(phrases[this], relation, phrases[that], rng)
    return pick(rng, OPENINGS) + _listed([one.text for one in shuffled(rng, phrases)])


def _part(scene: Scene, rng: np.random.Generator) -> str:
    """One group in full, or who stands between whom, or which shapes there are."""
    group = pick(rng, scene.groups)
    if len(scene.groups) == 3 and rng.random() < 0.4:
        first, middle, last = (_shortest(one, scene, rng) for one in scene.groups)
        ends = shuffled(rng, (first.text, last.text))
        return f"{middle.text} between {ends[0]} and {ends[1]}"
    if rng.random() < 0.5:
        one = phrase(group, rng)
        return pick(rng, (f"there {one.be} {one.text}", f"you can see {one.text}", f"{one.text} {_behind(scene, rng)}"))
    bare = [_shortest(one, scene, rng).text for one in shuffled(rng, scene.groups)]
    return pick(rng, OPENINGS) + _listed(bare)


def _vague(scene: Scene, rng: np.random.Generator) -> str:
    """How many things, or one of them, before which background."""
    behind = _behind(scene, rng)
    if rng.random() < 0.5:
        return f"{_shortest(pick(rng, scene.groups), scene, rng).text} {behind}"
    total = sum(group.count for group in scene.groups)
    if total == 1:
        return f"{pick(rng, ('a single shape', 'one shape', 'just one thing'))} {behind}"
    number = pick(rng, NUMBERS[total]) if total in NUMBERS else "many"
    return f"{pick(rng, ABOUT)}{number} {pick(rng, ('shapes', 'things', 'figures'))} {behind}"


def _shortest(group: Group, scene: Scene, rng: np.random.Generator) -> Phrase:
    """Number and shape; with the colour where another group has the same shape."""
    shared = sum(other.shape == group.shape for other in scene.groups) > 1
    return phrase(group, rng, colour=shared, size=False, texture=False)


def _placed(one: Phrase, place: str, rng: np.random.Generator) -> str:
    where = pick(rng, PLACES[place])
    wordings = (
        f"{one.text} {where}",
        f"{where} {one.be} {one.text}",
        f"there {one.be} {one.text} {where}",
        f"{pick(rng, OPENINGS)}{one.text} {where}",
    )
    return pick(rng, wordings)


def _related(this: Phrase, relation: str, that: Phrase, rng: np.random.Generator) -> str:
    if rng.random() < 0.5:
        this, relation, that = that, CONVERSE[relation], this
    word = pick(rng, RELATIONS[relation])
    wordings = [
        f"{this.text} {word} {that.text}",
        f"{this.text} {this.be} {word} {that.text}",
        f"there {this.be} {this.text} {word} {that.text}",
        f"{pick(rng, OPENINGS)}{this.text} {word} {that.text}",
        f"{word} {that.text} {this.be} {this.text}",
        f"{that.text} with {this.text} {SIDES[relation][that.plural]}",
    ]
    return pick(rng, wordings)


def _ordered(phrases: list[Phrase], layout: str, rng: np.random.Generator) -> str:
    forward, backward = ORDERS[layout]
    words = forward
    if rng.random() < 0.5:
        words, phrases = backward, phrases[::-1]
    order, texts = pick(rng, words), [one.text for one in phrases]
    return pick(
        rng,
        (
            f"{order}: {_listed(texts)}",
            f"{order} there are {_listed(texts)}",
            f"{texts[0]}, then {texts[1]}, then {texts[2]}, {order},",
        ),
    ).rstrip(",")


def _listed(texts: list[str]) -> str:
    """
    >>> _listed(["a star"]), _listed(["a star", "a ring", "two hearts"])
    ('a star', 'a star, a ring and two hearts')
    """
    return texts[0] if len(texts) == 1 else ", ".join(texts[:-1]) + " and " + texts[-1]
