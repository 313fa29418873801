"""Whatever the filter and whatever the metadata, every engine decides as `Where.matches` does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.search.stores.conftest import ENGINES

from quintet.search.stores import Clause, Scalar, Store, Where, open_store
from quintet.search.stores.where import COMPARE

TEXTS = [
    "", "a", "A", "ab", "a/b.jpg", "a/b/c.jpg", "b", "ä", "z", "é", "😀", "😀b", "\U0010ffff", "a\U0010ffff", "\ud7ff",
    "\ue000", "1", "01", "1.0", "2024", "2024-01-01", "true", "false", "100%", "100_", "a_b", "a%b", "a\\b", "\\",
    "\\%", '"', "'", "a\"b'c", "\n", "a\nb", "\t", "\x01", "*", "?", "a*", "'; DROP TABLE t0; --", '" or id != "', "$1",
    "%s", "{}", "null", " a",
]  # fmt: skip
NUMBERS: list[Scalar] = [
    0,
    1,
    -1,
    2,
    2024,
    2**53,
    -(2**53),
    0.5,
    -0.5,
    1.5,
    2024.0,
    1e16,
    1e-7,
    1e300,
    0.1,
    5e-324,
    True,
    False,
]
VALUES: list[Scalar] = [*TEXTS, *NUMBERS]
METADATA: list[dict[str, Scalar]] = [
    *({"x": value, "y": VALUES[(7 * number) % len(VALUES)]} for number, value in enumerate(VALUES)),
    {},
    {"y": 1},
    {"x": "a"},
]

literals = (
    st.sampled_from(TEXTS)
    | st.sampled_from(NUMBERS).map(lambda number: str(number).lower())
    | st.integers(-3, 3).map(str)
    | st.floats().map(str)
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=4)
)
patterns = st.lists(st.sampled_from([*TEXTS, "*", "*", "?"]), max_size=3).map("".join)
clauses = st.builds(
    lambda field, sign, literal, pattern, quoted: Clause(field, sign, pattern if sign == "~" else literal, quoted),
    st.sampled_from(["x", "y", "z"]),
    st.sampled_from(sorted(COMPARE)),
    literals,
    patterns,
    st.booleans(),
)
conjunctions = st.lists(clauses, min_size=1, max_size=3).map(tuple)
wheres = st.builds(Where, conjunctions, st.lists(conjunctions, max_size=2).map(tuple))


@pytest.fixture(scope="module", params=ENGINES)
def filled(request: pytest.FixtureRequest, new_address: Callable[[str], str]) -> Iterator[Store]:
    store = open_store(new_address(request.param), 4, create=True)
    store.add([f"i{n}" for n in range(len(METADATA))], np.ones((len(METADATA), 4)), METADATA)
    yield store
    store.close()


@given(where=wheres)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(where=Where((Clause("x", "!=", "true"),)))
@example(where=Where((Clause("x", "=", "1"), Clause("x", "!=", "true"))))
@example(where=Where((Clause("x", "~", "a_b*"),)))
@example(where=Where((Clause("x", "~", "*%*"),)))
@example(where=Where((Clause("x", "~", "\ud7ff*"),)))
@example(where=Where((Clause("x", "~", "\U0010ffff*"),)))
@example(where=Where((Clause("x", "~", "*"),)))
@example(where=Where((Clause("x", ">", "'; DROP TABLE t0; --", True),)))
@example(where=Where((Clause("x", "<", "5e-324"),)))
@example(where=Where(()))
@example(where=Where((Clause("x", "~", "*%"),), ((Clause("y", ">", "1"),), (Clause("z", "!=", "x"),))))
@example(where=Where(tuple([Clause("x", "~", "*")] * 200)))
@example(where=Where((), tuple([(Clause("x", "=", "1"),)] * 199)))
def test_every_engine_decides_as_matches_does(filled: Store, where: Where) -> None:
    found = filled.search(np.ones((1, 4)), len(METADATA), where)[0]
    expected = [f"i{number}" for number, item in enumerate(METADATA) if where.matches(item)]
    assert sorted(hit.id for hit in found) == sorted(expected)
