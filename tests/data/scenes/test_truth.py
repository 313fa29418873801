"""Which texts are true of which scenes, against the generator itself."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.data.scenes.captions import captions
from quintet.data.scenes.scene import Scene, family, generator
from quintet.data.scenes.truth import Truth, claim, claims


def drawn(count: int) -> list[Scene]:
    return list(itertools.chain.from_iterable(family(generator(5, key)) for key in range(count)))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000))
def test_whatever_is_written_of_a_scene_is_true_of_it(key: int) -> None:
    for scene in family(generator(key)):
        known = claims(scene)
        for draw in range(3):
            assert {claim(text) for text in captions(scene, generator(key, draw))} <= known


def test_nothing_is_true_that_is_never_written() -> None:
    for scene in drawn(3)[::2]:
        written = {claim(text) for draw in range(400) for text in captions(scene, generator(draw))}
        assert claims(scene) == written


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("a star left of two rings", "two rings left of a star"),
        ("a star left of two rings", "a star above two rings"),
        ("a star left of two rings", "a star and two rings"),
        ("a red star on a beach", "a star on a beach"),
        ("a striped star on a beach", "a star on a beach"),
        ("from left to right: a star, a ring and a bar", "from right to left: a star, a ring and a bar"),
        ("a star between a ring and a bar", "a ring between a star and a bar"),
        ("three shapes on white", "two shapes on white"),
        ("three shapes on white", "three shapes at night"),
        ("a star at the top", "a star near the bottom"),
        ("a star and a ring above a bar and a disc", "a bar and a disc above a star and a ring"),
    ],
)
def test_texts_that_say_other_things_differ(text: str, other: str) -> None:
    assert claim(text) != claim(other)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("A disc left of two hoops.", "two rings to the right of a circle"),
        ("two hoops with a ball to their left", "there is a single circle on the left of a pair of rings"),
        ("a tiny star inside a large ring", "around a little star is one big hoop"),
        ("left to right: a star, a ring and a bar", "a rectangle, then a ring, then a star, from right to left"),
        ("a star between a ring and a bar", "a star between a bar and a hoop"),
        ("at the top a star and a ring, at the bottom a bar and a disc",
         "a bar and a ball beneath a star and a ring"),
        ("there are three figures at sunset", "three things in the evening light"),
        ("An image of a star", "there is a star"),
    ],
)  # fmt: skip
def test_the_wording_does_not_matter(text: str, other: str) -> None:
    assert claim(text) == claim(other)


def test_a_word_of_another_corpus_is_refused() -> None:
    with pytest.raises(ValueError, match="dog"):
        claim("A dog on the beach.")


def test_pairs_are_looked_up_by_row() -> None:
    scenes = drawn(4)
    texts = [text for row, scene in enumerate(scenes) for text in captions(scene, generator(row))]
    truth = Truth(scenes, texts)
    for row, scene in enumerate(scenes):
        for number, text in enumerate(texts):
            assert truth.is_true(row, number) == (claim(text) in claims(scene))
