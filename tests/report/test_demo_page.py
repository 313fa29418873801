"""Why a search of the demo fails, told from what the scenes hold."""

from __future__ import annotations

from typing import Any

from quintet.data.corpus import Image, Text
from quintet.report.demo_page import why_wrong


def scene(*things: tuple[str, str, str, str], background: str = "white", family: str = "a") -> Image:
    names = ("label", "colour", "size", "texture")
    objects: list[dict[str, Any]] = [dict(zip(names, thing, strict=True)) for thing in things]
    return Image("id", "group", extra={"objects": objects, "background": background, "family": family})


HEART = ("heart", "red", "small", "striped")


def why(text: str, found: Image) -> str:
    return why_wrong(Text("id", "group", text), scene(HEART), found)


def test_a_difference_that_the_text_names() -> None:
    said = why("A little red heart on white.", scene(("heart", "pink", "small", "striped")))
    assert "same family" in said
    assert "colour: red wanted, pink found" in said
    assert "texture" not in said


def test_a_synonym_names_a_difference_too() -> None:
    assert "size: small wanted, large found" in why("A tiny heart", scene(("heart", "red", "large", "striped")))


def test_a_difference_that_the_text_does_not_name() -> None:
    said = why("One heart on white", scene(("heart", "pink", "small", "dotted"), family="b"))
    assert "colour and texture, of which the text says nothing" in said
    assert "family" not in said


def test_backgrounds_are_named_by_their_wordings() -> None:
    assert "background: white wanted, sea found" in why("a heart against plain white", scene(HEART, background="sea"))


def test_scenes_of_the_same_things() -> None:
    assert "number or arrangement" in why("a red heart", scene(HEART))
    assert "number or arrangement" in why("a red heart", scene(HEART, HEART))
