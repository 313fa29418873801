"""Filters in SQL. Every value, field names too, is a parameter; nothing of a filter becomes part of the statement."""

from __future__ import annotations

import json
from typing import Any

from quintet.search.stores.where import Clause, Scalar, Where, kind_of

SIGNS = {"=": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "~": "LIKE"}
# How jsonb calls a kind, and how its text is compared: strings by code point, as Python does.
KINDS = {
    str: ("string", '(metadata->>%s) COLLATE "C" {} %s'),
    float: ("number", "(metadata->>%s)::numeric {} %s::numeric"),
    bool: ("boolean", "(metadata->>%s)::boolean {} %s"),
}


def condition(where: Where | None) -> tuple[str, list[Any]]:
    """For a WHERE, and its parameters.

    >>> from quintet.search.stores.where import parse_where
    >>> condition(parse_where('kind=image'))
    ('(metadata @> %s::jsonb)', ['{"kind": "image"}'])
    """
    parts: list[str] = []
    values: list[Any] = []
    for clause in () if where is None else where.clauses:
        readings = [_comparison(clause, reading) for reading in clause.readings]
        parts.append("(" + " OR ".join(text for text, _ in readings) + ")")
        values += [value for _, some in readings for value in some]
    return " AND ".join(parts) or "true", values


def _comparison(clause: Clause, reading: Scalar) -> tuple[str, list[Any]]:
    if clause.operator == "=":  # an index on the whole of the metadata serves it
        return "metadata @> %s::jsonb", [json.dumps({clause.field: reading})]
    kind, comparison = KINDS[kind_of(reading)]
    value: Any = reading
    if clause.operator == "~":
        value = _like(clause.literal)
    elif kind == "number":
        value = repr(reading)
    # CASE, because the parts of an AND may be computed in any order, and a cast of a text to a number fails.
    text = f"CASE WHEN jsonb_typeof(metadata->%s) = '{kind}' THEN {comparison.format(SIGNS[clause.operator])} "
    return text + "ELSE false END", [clause.field, clause.field, value]


def _like(pattern: str) -> str:
    r"""
    >>> _like("100%*")
    '100\\%%'
    """
    for letter in "\\%_":
        pattern = pattern.replace(letter, "\\" + letter)
    return pattern.replace("*", "%").replace("?", "_")
