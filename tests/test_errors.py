from __future__ import annotations

import pytest

from quintet import errors


def test_every_error_is_one_that_people_can_mend() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) > 3
    assert all(issubclass(kind, errors.QuintetError) and kind.__doc__ for kind in kinds)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("scna", "did you mean 'scan'?"),
        ("SCAN", "choose one of: bfan, scan, vse++"),
        ("vse", "did you mean 'vse++'?"),
        ("zebra", "choose one of: bfan, scan, vse++"),
    ],
)
def test_suggest(name: str, expected: str) -> None:
    assert errors.suggest(name, ["vse++", "scan", "bfan"]) == expected


def test_suggest_takes_any_iterable() -> None:
    assert errors.suggest("lerning_rate", iter({"learning_rate": 1})) == "did you mean 'learning_rate'?"
