from __future__ import annotations

import fnmatch
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintet.search import WhereError
from quintet.search.stores.where import COMPARE, MOST_CLAUSES, Clause, Where, glob, parse_where

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
clauses = st.builds(
    Clause, st.sampled_from(["a", "b_2"]), st.sampled_from(sorted(COMPARE)), texts | st.floats().map(str), st.booleans()
)


@pytest.mark.parametrize(
    ("text", "value", "matches"),
    [
        ("a=1", 1, True),
        ("a=1", 1.0, True),
        ("a=1", "1", True),  # a bare number is also a text
        ("a=1", True, False),
        ('a="1"', 1, False),
        ('a="1"', "1", True),
        ("a=true", True, True),
        ("a=true", "true", True),
        ("a=true", 1, False),
        ("a!=true", False, True),
        ("a!=true", 1, False),
        ("a!=1", 2, True),
        ("a!=1", "x", True),
        ("a!=x", 2, False),  # a number has no reading to differ from
        ("a>=2024", "2024-03-01", True),
        ("a>=2024", "2023-12-31", False),
        ("a<10", 9, True),
        ("a<10", "9", False),  # texts are compared as texts
        ("a>true", True, False),
        ("a~1*", 12, False),
        ("a~1*", "12", True),
        ("a=1e3", 1000, True),
        ("a=-.5", -0.5, True),
        ("a=1e999", "1e999", True),
        ("a = 'it\\'s'", "it's", True),
        ('a="say \\"hi\\" \\\\"', 'say "hi" \\', True),
        ("a=holiday/2024", "holiday/2024", True),
    ],
)
def test_a_clause_means(text: str, value: str, matches: bool) -> None:
    assert parse_where(text).matches({"a": value}) is matches


def test_all_conditions_have_to_hold_and_a_missing_field_fulfils_none() -> None:
    where = parse_where("kind=image and year>=2020 AND year<2024")
    assert where.matches({"kind": "image", "year": 2021})
    assert not where.matches({"kind": "image", "year": 2024})
    for operator in COMPARE:
        assert not Where((Clause("a", operator, "x"),)).matches({"b": "x"})
    assert parse_where("a=1") & parse_where("b=2") == parse_where("a=1 and b=2")


def test_one_alternative_is_enough_and_binds_less() -> None:
    where = parse_where("a=1 and b=1 OR a=2 or b=3")
    for a in range(4):
        for b in range(4):
            assert where.matches({"a": a, "b": b}) == ((a == 1 and b == 1) or a == 2 or b == 3)
    assert where.fields == ["a", "b"]
    assert parse_where(str(where)) == where
    both = where & parse_where("c=1 or c=2")
    assert both.matches({"a": 2, "c": 2})
    assert not both.matches({"a": 2, "c": 3})
    assert not both.matches({"a": 1, "b": 2, "c": 1})


@pytest.mark.parametrize("join", ["and", "or"])
def test_a_filter_of_very_many_conditions_is_refused_quickly(join: str) -> None:
    assert parse_where(f" {join} ".join(["a=1"] * MOST_CLAUSES)).matches({"a": 1})
    with pytest.raises(WhereError, match="at most 200 conditions"):
        parse_where(f" {join} ".join(["a=1"] * 10_000))


@pytest.mark.parametrize(
    ("text", "place", "expected"),
    [
        ("", 1, "the name of a field"),
        ("year 2023", 6, "one of the operators"),
        ("year==2023", 5, "one of the operators"),
        ("year=", 6, "a value"),
        ("year>=2023 xor kind=image", 12, "`or` or the end"),
        ("a=1 android=2", 5, "`and`, `or`"),
        ("a=1 or", 7, "the name of a field"),
        ("(a=1 or b=2) and c=3", 1, "the name of a field"),
        ("year=2023 and", 14, "the name of a field"),
        ('path="open', 6, "a value"),
        ("a=1; drop table", 6, "`and`, `or`"),
        ("x" * 500 + " ! ", 502, "one of the operators"),
    ],
)
def test_an_error_points_at_its_place(text: str, place: int, expected: str) -> None:
    with pytest.raises(WhereError, match=re.escape(expected)) as caught:
        parse_where(text)
    first, shown, arrow = str(caught.value).splitlines()
    assert first.endswith(f"at character {place}")
    assert text[place - 1 : place] == shown[len(arrow) - 1 : len(arrow)]
    assert len(shown) < 130


@pytest.mark.parametrize("parts", [("a b", "=", "1"), ("a", "is", "1"), ("a", "=", "x\0"), ("a", "=", "\udc80")])
def test_a_clause_that_no_engine_could_hold_is_refused(parts: tuple[str, str, str]) -> None:
    with pytest.raises(WhereError):
        Clause(*parts)


@given(st.lists(clauses, min_size=1, max_size=4).map(tuple).map(Where), texts | st.integers() | st.floats())
def test_a_filter_is_read_as_it_is_written(where: Where, value: str) -> None:
    again = parse_where(str(where))
    assert [clause.readings for clause in again.clauses] == [clause.readings for clause in where.clauses]
    assert again.matches({"a": value, "b_2": value}) == where.matches({"a": value, "b_2": value})


@given(st.text("ab*?[.\n", max_size=8), st.text("ab[.\n", max_size=8))
def test_patterns_match_as_the_shells_do(pattern: str, text: str) -> None:
    shell = pattern.replace("[", "[[]")
    assert bool(glob(pattern).match(text)) == fnmatch.fnmatchcase(text, shell)


def test_no_pattern_takes_long() -> None:
    began = time.perf_counter()
    assert not glob("*a" * 30 + "b").match("a" * 5000)
    assert time.perf_counter() - began < 1
