"""The words of the scenes' sentences. Every entry of a tuple says the same thing."""

from __future__ import annotations

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
