from __future__ import annotations

from collections import Counter
from dataclasses import fields

from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.data.scenes.scene import BACKGROUNDS, FAMILY_SIZES, Group, Scene, family, generator, possible, random_scene


@given(st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_random_scenes_are_possible(key: int) -> None:
    scene = random_scene(generator(key))
    assert possible(scene)
    assert 1 <= len(scene.groups) <= 4
    assert all(1 <= group.count <= 4 for group in scene.groups)
    assert all(group.colour not in BACKGROUNDS[scene.background] for group in scene.groups)


@given(st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_a_family_shares_shapes_and_background_and_no_two_are_alike(key: int) -> None:
    members = family(generator(key))
    assert FAMILY_SIZES[0] <= len(members) <= FAMILY_SIZES[1]
    assert len(set(members)) == len(members)
    assert len({scene.background for scene in members}) == 1
    assert len({tuple(sorted(group.shape for group in scene.groups)) for scene in members}) == 1
    assert all(possible(scene) for scene in members)


def single_difference(a: Scene, b: Scene) -> str | None:
    """The one thing in which two scenes differ, or None where they differ in several."""
    if a.layout != b.layout:
        return "layout" if a.groups == b.groups else None
    if Counter(a.groups) == Counter(b.groups):
        return "order"
    names = [
        field.name
        for one, other in zip(a.groups, b.groups, strict=True)
        for field in fields(Group)
        if getattr(one, field.name) != getattr(other, field.name)
    ]
    return names[0] if len(names) == 1 else None


def test_near_duplicates_differ_in_colour_number_texture_or_relation() -> None:
    found: Counter[str | None] = Counter()
    for key in range(200):
        members = family(generator(key))
        for number, scene in enumerate(members):
            differences = [single_difference(scene, other) for other in members[:number] + members[number + 1 :]]
            found.update(set(differences) - {None})
    assert set(found) == {"colour", "count", "texture", "layout", "order"}
    assert min(found.values()) > 20


def test_relations_follow_the_layout() -> None:
    a, b, c, d = (Group("star", colour, "small", "plain", 1) for colour in ("red", "green", "blue", "black"))
    assert Scene("white", "row", (a, b, c)).relations() == [(0, "left", 1), (0, "left", 2), (1, "left", 2)]
    assert Scene("white", "column", (a, b)).relations() == [(0, "above", 1)]
    assert Scene("white", "inside", (a, b)).relations() == [(0, "inside", 1)]
    assert (0, "above", 2) in Scene("white", "grid", (a, b, c, d)).relations()
    assert Scene("white", "top", (a,)).relations() == []


def test_confusing_scenes_are_impossible() -> None:
    red = Group("star", "red", "small", "plain", 1)
    assert not possible(Scene("white", "row", (red, Group("star", "red", "large", "dotted", 1))))
    assert not possible(Scene("night", "middle", (Group("star", "black", "small", "plain", 1),)))
    assert not possible(Scene("white", "inside", (red, Group("ring", "blue", "large", "plain", 1))))
    assert not possible(Scene("white", "middle", (Group("star", "red", "large", "plain", 4),)))
