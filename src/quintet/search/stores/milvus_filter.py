"""Filters in Milvus's words, as far as it has them in every version: comparisons, no patterns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from quintet.search.stores.where import Clause, Scalar, Where, kind_of

# Milvus Lite takes true for 1. Booleans therefore have a place of their own, under a name that no field can have.
BOOLEANS = "?"
SIGNS = {"=": "==", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}  # the backslash first
LAST = "\U0010ffff"


def packed(metadata: Mapping[str, Scalar]) -> dict[str, object]:
    """Metadata as they are kept in a JSON field."""
    booleans = {name: value for name, value in metadata.items() if isinstance(value, bool)}
    return {name: value for name, value in metadata.items() if name not in booleans} | {BOOLEANS: booleans}


def unpacked(stored: Mapping[str, Any]) -> dict[str, Scalar]:
    return {name: value for name, value in stored.items() if name != BOOLEANS} | stored[BOOLEANS]


def expression(where: Where | None) -> tuple[str, Where | None]:
    """What Milvus can decide, and what is left to decide on the items it returns.

    >>> from quintet.search.stores.where import parse_where
    >>> expression(parse_where('year<2024'))
    ('(metadata["year"] < 2024 or metadata["year"] < "2024")', None)
    >>> expression(parse_where('path~holiday/*'))
    ('(metadata["path"] >= "holiday/" and metadata["path"] < "holiday0")', None)
    """
    clauses = () if where is None else where.clauses
    left = tuple(clause for clause in clauses if clause.operator == "~" and not _is_prefix(clause.literal))
    return " and ".join(map(_clause, clauses)), Where(left) if left else None


def id_in(ids: list[str]) -> str:
    return f"id in [{', '.join(map(_literal, ids))}]"


def _literal(value: Scalar) -> str:
    """As JSON writes it, but for control characters: Lite knows few escapes, and takes the rest as it is."""
    if not isinstance(value, str):
        return json.dumps(value)
    for letter, escaped in ESCAPES.items():
        value = value.replace(letter, escaped)
    return f'"{value}"'


def _clause(clause: Clause) -> str:
    if clause.operator == "~":
        return _pattern(clause.field, clause.literal)
    return "(" + " or ".join(_comparison(clause, reading) for reading in clause.readings) + ")"


def _comparison(clause: Clause, reading: Scalar) -> str:
    value = _literal(reading)
    if kind_of(reading) is bool:
        wanted = _literal(reading == (clause.operator == "="))
        return f'metadata["{BOOLEANS}"]["{clause.field}"] == {wanted}'
    name = f'metadata["{clause.field}"]'
    if clause.operator == "!=":  # Milvus's own != also holds of items without the field, and of other kinds
        return f"{name} < {value} or {name} > {value}"
    return f"{name} {SIGNS[clause.operator]} {value}"


def _literal_start(pattern: str) -> str:
    return pattern.split("*")[0].split("?")[0]


def _is_prefix(pattern: str) -> bool:
    """Whether a pattern is a text, or a text and one star: what comparisons can say whole."""
    return pattern in (_literal_start(pattern), _literal_start(pattern) + "*")


def _pattern(field: str, pattern: str) -> str:
    """All texts with the beginning that the pattern asks for; more than the pattern where that goes on."""
    name, start = f'metadata["{field}"]', _literal_start(pattern)
    if pattern == start:
        return f"({name} == {_literal(start)})"
    after = _after_all_with(start)
    upper = f" and {name} < {_literal(after)}" if after else ""
    return f"({name} >= {_literal(start)}{upper})"


def _after_all_with(start: str) -> str:
    """The first text after all those that begin so; empty where none is."""
    start = start.rstrip(LAST)
    if not start:
        return ""
    code = ord(start[-1]) + 1
    return start[:-1] + chr(0xE000 if code == 0xD800 else code)
