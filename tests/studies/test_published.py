"""The papers' numbers lie where they can, agree with each other, and are found by the rows that they belong to."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, product
from pathlib import Path
from zlib import crc32

import pytest

from quintet.evaluation.metrics import RECALLS
from quintet.evaluation.special_samples import PERCENTS
from quintet.studies.expand import build_study
from quintet.studies.published import counterparts, published_tables, same_setting
from quintet.studies.study_file import list_studies, load_study
from quintet.studies.variants import Study
from quintet.training.recipe import load_recipe

ALPHA = "\N{GREEK SMALL LETTER ALPHA}"
TABLES = published_tables()
ROWS = [(key, row) for key, table in TABLES.items() for row in table.rows]

# CRC-32 of the rows of every table, each compared with the paper number by number: whoever changes one compares again.
COMPARED = {
    "aoq-1-1k": 2283105190,
    "aoq-1-5k": 266792683,
    "aoq-2": 1356482081,
    "aoq-3": 121949494,
    "aoq-4": 1391272312,
    "aoq-5": 685614030,
    "aoq-6": 214393952,
    "dual-path-1": 1637314980,
    "dual-path-2": 615537404,
    "dual-path-fig5": 1833091734,
    "dual-path-3-f30k": 3799834086,
    "dual-path-3-coco": 2642694202,
    "dual-path-4": 2225715069,
    "dual-path-5": 1598670859,
    "dual-path-6": 835486653,
    "dual-path-7": 1463623333,
    "dual-path-8-1k": 3854392037,
    "dual-path-8-5k": 3986983829,
    "hrem-1": 267447581,
    "hrem-2-f30k": 669679994,
    "hrem-2-coco": 644795060,
    "hrem-3a": 3117687814,
    "hrem-3b": 687738324,
    "hrem-4-f30k": 252617900,
    "hrem-4-coco": 1361260185,
    "mmca-1": 1001251151,
    "mmca-1-others": 2516362391,
    "mmca-2": 2008712805,
    "mmca-3": 541096394,
    "mmca-4": 517725818,
    "mmca-5": 1984964319,
    "mmca-6": 1816500325,
}


@pytest.fixture
def studies(tmp_path: Path, tiny_corpus: Path) -> list[Study]:
    """Every shipped study with all of its options, on the recipes of the papers."""
    found = [build_study("mmca", load_recipe("mmca-f30k"), ablations=True)]
    sweeps = {"top": [200, 500, 1000], "alpha": [0.2, 0.5], "beta": [1.0, 2.0], "batch_size": [192]}
    for name in ("scan", "bfan", "vsrn"):
        recipe = load_recipe(f"aoq-{name}-coco")
        found.append(build_study("aoq", recipe, ablations=True, timing=True, **sweeps))
    for name in ("", "-bert"):
        recipe, gpo = load_recipe(f"hrem-fusion{name}-f30k"), load_recipe(f"vse-infinity{name}-f30k")
        found.append(build_study("hrem", recipe, ablations=True, hard_samples=True, mechanisms=True, gpo=gpo))
    (tmp_path / "vectors.txt").touch()
    for tower in ("resnet50", "resnet152"):
        changes = {"data.corpus": tiny_corpus, "data.tokenizer.word_vectors": tmp_path / "vectors.txt"}
        recipe = load_recipe("dual-path-f30k", [f"matcher.tower={tower}", *(f"{k}={v}" for k, v in changes.items())])
        found.append(build_study("dual-path", recipe, categories=[3000, 10000, 3]))
    weights = dict.fromkeys(("vgg16", "vgg19", "resnet152"), tmp_path / "vectors.txt")
    found.append(build_study("dual-path", load_recipe("dual-path-f30k"), tables=[1, 7, 8], **weights))
    return found


def beside_ours(studies: list[Study]) -> set[str]:
    """The places of all published rows that stand in a table of ours."""
    tables = [table for study in studies for table in study.tables]
    found = {published.place for table in tables for row in table.rows for published in row.published}
    for extra in (extra for study in studies for extra in study.extras):
        for kind, percent, label in product(("hard", "infrequent"), PERCENTS, extra.labels.values()):
            name = extra.row.format(samples=kind, percent=percent, label=label)
            found |= {published.place for published in counterparts(extra.published, name)}
    return found


def test_every_published_row_stands_beside_a_row_of_ours(studies: list[Study]) -> None:
    named = {key for name in list_studies() for table in load_study(name).tables for key in table.published}
    named |= {key for name in list_studies() for extra in load_study(name).extras.values() for key in extra.published}
    assert named == set(TABLES) - {"mmca-1-others"}, "which the results pages read"
    found = beside_ours(studies)
    places = {counterparts([key], row.names[0])[0].place: row for key, row in ROWS if key in named}
    assert set(places) - found == set()


@pytest.mark.parametrize(
    ("study", "variant", "expected"),
    [
        (1, "adap-off-quin", {"Table 1": 511.2, "Table 2": 473.2}),
        (3, "online", {"Table 1": 516.8, "Table 2": 482.6}),
        (4, "gpo", {"Table 1": 421.9, "Table 2": 498.1}),
        (5, "standalone", {"Table 1": 443.1}),
        (5, "full", {"Table 1": 450.9, "Table 2": 524.2}),
        (5, "hrem", {"Table 1": 444.1, "Table 2": 520.4, "Table 3a": 83.3, "Table 3b": 83.3}),
    ],
)
def test_a_row_has_its_own_numbers(studies: list[Study], study: int, variant: str, expected: dict[str, float]) -> None:
    rows = [row for table in studies[study].tables for row in table.rows if row.variant == variant]
    printed = [published for row in rows for published in row.published]
    for place, number in expected.items():
        values = [one.values for one in printed if one.place.startswith(f"{place},")]
        assert number in {given.get("rsum", given["i2t_r1"]) for given in values}, place


def test_a_row_that_no_paper_has_stays_alone(studies: list[Study]) -> None:
    rows = [row for table in studies[1].tables for row in table.rows if row.label == "SCAN (squared)"]
    assert [row.published for row in rows] == [()]


@pytest.mark.parametrize(("key", "row"), ROWS, ids=[f"{key}-{row.row}" for key, row in ROWS])
def test_numbers_lie_in_range_and_agree(key: str, row) -> None:  # type: ignore[no-untyped-def]
    values = dict(zip(TABLES[key].columns, row.values, strict=True))
    for name, value in values.items():
        if "_r" in name:
            assert 0 < value < 100, name
        elif name.endswith("_medr"):
            assert 1 <= value <= 20, name
        elif name == "S":
            assert 0 < value < 1
    for direction in ("i2t", "t2i"):
        recalls = [values[f"{direction}_r{cut}"] for cut in (1, 5, 10) if f"{direction}_r{cut}" in values]
        assert all(fewer < more for fewer, more in pairwise(recalls))
    if "rsum" in values:  # printed sums are of numbers before rounding
        assert values["rsum"] == pytest.approx(sum(values[name] for name in RECALLS), abs=0.31)


def test_every_number_was_compared_with_the_paper() -> None:
    rows = {
        key: [(row.row, [float(value) for value in row.values]) for row in table.rows] for key, table in TABLES.items()
    }
    assert {key: crc32(repr(found).encode()) for key, found in rows.items()} == COMPARED


def test_names_are_unambiguous() -> None:
    for key, table in TABLES.items():
        names = Counter(name for row in table.rows for name in row.names)
        assert names.most_common(1)[0][1] == 1, key


def test_repeated_rows_are_typed_alike() -> None:
    """The papers print the full model again in their ablations."""
    for one, other in (
        ("VSRN + AdapOffQuin", ("aoq-1-1k", "aoq-5", f"VSRN (β = 1.5, {ALPHA} = 0.3)")),
        ("MMCA", ("mmca-1", "mmca-4", "256d")),
        ("MMCA", ("mmca-1", "mmca-6", f"{ALPHA} = 0.2")),
        ("MMCA", ("mmca-2", "mmca-5", "256d")),
        ("wordpiece, fusion", ("hrem-2-f30k", "hrem-3a", "HREM")),
        ("wordpiece, fusion", ("hrem-2-f30k", "hrem-3b", "HREM")),
        ("Only Instance Loss, stage I", ("dual-path-2", "dual-path-5", "Word vector initialization")),
        ("Only Instance Loss, stage I", ("dual-path-2", "dual-path-6", "Position shift")),
    ):
        first, second, name = other
        (full,), (again,) = counterparts([first], one), counterparts([second], name)
        assert again.values.items() <= full.values.items()


def test_what_counts_as_the_same_setting() -> None:
    published = {"corpus": "coco", "protocol": "5k"}
    assert same_setting("coco", "full", 5000, published)
    assert not same_setting("coco", "full", 1000, published)
    assert not same_setting("f30k", "5k", 5000, published)
