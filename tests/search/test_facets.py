"""Facets and the newest items, against loops over all items."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from quintet.search.facets import CITIES, facets
from quintet.search.items import Entry, Item, ItemDatabase
from quintet.search.stores import parse_where

FOLDERS = [".", "2023", "2024/sea", "2024/sea/boats", "2024/snow", "odd*name", "other"]
CAMERAS = ["Canon EOS R5", 'A "quoted" one', "Pixel 9"]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ItemDatabase]:
    rng = random.Random(0)
    entries = []
    for number in range(300):
        folder = rng.choice(FOLDERS)
        facts: dict[str, str | int | float] = {"folder": folder, "orientation": rng.choice(["portrait", "landscape"])}
        if number % 3:
            facts |= {"year": (year := rng.randint(2019, 2024)), "date": f"{year}-0{rng.randint(1, 9)}-11"}
            facts["time"] = f"1{rng.randint(0, 9)}:00:00"
        if number % 4:
            facts["camera"] = rng.choice(CAMERAS)
        if number % 5 == 0:
            north, east = rng.choice([(52.5, 13.4), (51.5, -0.1), (-10.0, -30.0), (0.0, 0.0)])
            facts |= {"latitude": round(north + rng.uniform(-0.4, 0.4), 6), "longitude": round(east + rng.random(), 6)}
        path = f"{number}.jpg" if folder == "." else f"{folder}/{number}.jpg"
        item = Item(f"i{number}", "image", path, 0, metadata=facts)
        entries.append(Entry(item, number // 2 if number < 20 else number, "c", ""))  # some are equal
    entries.append(Entry(Item("t", "text", text="a dog", metadata={"year": 2024, "camera": "none"}), 0, "c", ""))
    path = tmp_path_factory.mktemp("facets") / "items.sqlite"
    writer = ItemDatabase.open_writer(path)
    with writer.transaction():
        writer.put(entries)
    writer.close()
    reader = ItemDatabase.open_snapshot(path)
    yield reader
    reader.close()


FILTERS = [
    None,
    "year=2024",
    'path~"2024/*"',
    'folder="2024/snow" and year>=2020',
    'path~"2024/sea/*" and camera="Pixel 9"',
    'year=2024 and camera="A \\"quoted\\" one" and orientation=portrait',
    "year=2023 or orientation=portrait",
    "latitude>=52.2 and latitude<=52.8 and longitude>=12.91 and longitude<=13.89",
    "year=1900",
]


@pytest.mark.parametrize("text", FILTERS)
def test_the_filter_of_a_choice_has_as_many_items_as_it_says(database: ItemDatabase, text: str | None) -> None:
    found = facets(database, parse_where(text) if text else None)
    images = [entry.item.facts() for entry in database.all("image")]
    seen = 0
    for facet in found:
        for choice in facet.choices:
            where = parse_where(text or "") if choice.chosen else parse_where(choice.where)
            assert choice.count == sum(map(where.matches, images)), (facet.name, choice)
            seen += 1
            if choice.chosen:  # to leave it again: no filter, or one with fewer conditions
                assert len(choice.where) < len(text or "")
                assert not choice.where or parse_where(choice.where)
    assert seen > 5


def test_every_value_is_offered_once_and_folders_one_inside_of_another(database: ItemDatabase) -> None:
    found = {facet.name: facet.choices for facet in facets(database, None)}
    assert list(found) == ["year", "folder", "camera", "orientation", "place"]
    assert [choice.label for choice in found["year"]] == ["2024", "2023", "2022", "2021", "2020", "2019"]
    assert {choice.label for choice in found["camera"]} == set(CAMERAS)  # not that of the text
    assert {choice.label for choice in found["folder"]} == {"top folder", "2023", "2024", "odd*name", "other"}
    assert {"Berlin", "London", "0° N, 0° E"} <= {choice.label for choice in found["place"]}
    inside = {facet.name: facet.choices for facet in facets(database, parse_where('path~"2024/*"'))}["folder"]
    assert {(choice.label, choice.chosen) for choice in inside} == {("2024", True), ("sea", False), ("snow", False)}
    deeper = {facet.name: facet.choices for facet in facets(database, parse_where('path~"2024/sea/*"'))}["folder"]
    assert {choice.label for choice in deeper} == {"2024/sea", "boats", "directly in 2024/sea"}


def test_one_value_is_no_choice(tmp_path: Path) -> None:
    writer = ItemDatabase.open_writer(tmp_path / "items.sqlite")
    with writer.transaction():
        writer.put([Entry(Item("a", "image", "a.jpg", 0, metadata={"year": 2024, "folder": "."}), 0, "c", "")])
    assert facets(writer, None) == []
    ((year),) = facets(writer, parse_where("year=2024"))
    assert [(choice.label, choice.count, choice.where, choice.chosen) for choice in year.choices] == [
        ("2024", 1, "", True)
    ]


def test_the_newest_come_first_and_equal_ones_once(database: ItemDatabase) -> None:
    rows = database.newest("image")
    entries = database.all("image")
    assert sorted(rows) == sorted({entry.row for entry in entries})

    def when(row: int) -> tuple[str, str]:
        dates = [entry.item.metadata for entry in entries if entry.row == row]
        return max((str(facts.get("date", "")), str(facts.get("time", ""))) for facts in dates)

    order = [when(row) for row in rows.tolist()]
    assert order == sorted(order, reverse=True)
    assert database.newest("text").tolist() == [0]


def test_cities_lie_on_the_earth_and_apart() -> None:
    positions = np.array([city[1:] for city in CITIES])
    assert len({name for name, *_ in CITIES}) == len(CITIES) > 100
    assert (np.abs(positions) <= [66, 180]).all()
    apart = np.abs(positions[:, None] - positions[None]).max(axis=2) + 9 * np.eye(len(positions))
    assert apart.min() >= 0.3
