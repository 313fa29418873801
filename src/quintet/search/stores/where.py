"""A small filter language, with one meaning in every store: `kind=image and date>=2024 and path~"holiday/*"`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import isfinite
from typing import Any

from quintet.search import WhereError

Scalar = str | int | float | bool
FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
BARE = re.compile(r"[^\s\"'=<>!~]+")
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
LARGEST_INTEGER = 2**53  # up to here every integer is a double, so that all engines compare alike

COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "~": lambda value, pattern: _fits(value, pattern),
}


def kind_of(value: Scalar) -> type:
    """Booleans, numbers and strings are never equal to one another, nor ordered.

    >>> kind_of(True), kind_of(2), kind_of(2.5), kind_of("2")
    (<class 'bool'>, <class 'float'>, <class 'float'>, <class 'str'>)
    """
    return bool if isinstance(value, bool) else str if isinstance(value, str) else float


@lru_cache(maxsize=256)
def glob(pattern: str) -> re.Pattern[str]:
    """`*` is any text, slashes too, `?` is one character, everything else is itself.

    >>> bool(glob("holiday/*.jpg").match("holiday/2024/a.jpg")), bool(glob("a?c").match("ac"))
    (True, False)
    """
    first, *more = [".".join(map(re.escape, part.split("?"))) for part in pattern.split("*")]
    if not more:
        return re.compile(rf"{first}\Z", re.DOTALL)
    *middle, last = more
    # Atomic groups: each part is looked for once, so that no pattern takes long.
    between = "".join(f"(?>.*?{part})" for part in middle if part)
    return re.compile(rf"{first}{between}.*{last}\Z", re.DOTALL)


def _fits(text: str, pattern: str) -> bool:
    return glob(pattern).match(text) is not None


@dataclass(frozen=True)
class Clause:
    """One condition. A literal in quotes is a string; a bare number is also a number, bare `true` also a boolean."""

    field: str
    operator: str
    literal: str
    quoted: bool = False

    def __post_init__(self) -> None:
        if not FIELD.fullmatch(self.field):
            raise WhereError(f"a filter names a field by letters, digits and underscores, not {self.field!r:.80}")
        if self.operator not in COMPARE:
            raise WhereError(f"a filter has no operator {self.operator!r:.80}; choose one of: {' '.join(COMPARE)}")
        if "\0" in self.literal or any("\ud800" <= letter <= "\udfff" for letter in self.literal):
            raise WhereError(f"the value of {self.field!r} in the filter holds a character that is no text")

    @cached_property
    def readings(self) -> tuple[Scalar, ...]:
        """What a value is compared with: the reading of its own kind, and none where there is no such reading."""
        if self.quoted or self.operator == "~":
            return (self.literal,)
        if self.literal in ("true", "false") and self.operator in ("=", "!="):
            return (self.literal == "true", self.literal)
        number = float(self.literal) if NUMBER.fullmatch(self.literal) else float("nan")
        if not isfinite(number):
            return (self.literal,)
        return (int(number) if number.is_integer() and abs(number) <= LARGEST_INTEGER else number, self.literal)

    @property
    def is_of_text(self) -> bool:
        """Whether it can hold for a text only: it has quotes, wildcards or a word."""
        return self.quoted or self.operator == "~" or not (NUMBER.fullmatch(self.literal) or len(self.readings) > 1)

    def holds(self, value: Scalar) -> bool:
        for reading in self.readings:
            if kind_of(reading) is kind_of(value):
                return COMPARE[self.operator](value, reading)
        return False

    def __str__(self) -> str:
        if not self.quoted and BARE.fullmatch(self.literal):
            return f"{self.field}{self.operator}{self.literal}"
        escaped = self.literal.replace("\\", "\\\\").replace('"', '\\"')
        return f'{self.field}{self.operator}"{escaped}"'


@dataclass(frozen=True)
class Where:
    """Conditions that all have to hold, or all of one of the alternatives. An item without a field fulfils no condition
    on it.
    """

    clauses: tuple[Clause, ...]
    others: tuple[tuple[Clause, ...], ...] = ()  # joined to the first by `or`

    @property
    def alternatives(self) -> tuple[tuple[Clause, ...], ...]:
        return (self.clauses, *self.others)

    @property
    def fields(self) -> list[str]:
        """The fields it names, each once."""
        return list(dict.fromkeys(clause.field for clauses in self.alternatives for clause in clauses))

    def matches(self, metadata: Mapping[str, Scalar]) -> bool:
        return any(
            all(clause.field in metadata and clause.holds(metadata[clause.field]) for clause in clauses)
            for clauses in self.alternatives
        )

    def __and__(self, other: Where) -> Where:
        first, *others = (one + two for one in self.alternatives for two in other.alternatives)
        return Where(first, tuple(others))

    def __str__(self) -> str:
        """As `parse_where` reads it."""
        return " or ".join(" and ".join(map(str, clauses)) for clauses in self.alternatives)


TOKENS = {
    "the name of a field": FIELD,
    "one of the operators = != < <= > >= ~": re.compile(r"<=|>=|!=|=(?!=)|<|>|~"),
    "a value": re.compile(
        rf""""(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^'\\]|\\.)*)'|(?P<bare>{BARE.pattern})""", re.DOTALL
    ),
    "`and`, `or` or the end": re.compile(r"(and|or)(?!\S)", re.IGNORECASE),
}
NAME, OPERATOR, VALUE, JOIN = TOKENS
MOST_CLAUSES = 200  # of a filter


def parse_where(text: str) -> Where:
    """Read a filter; an error points at the position. `and` binds closer than `or`.

    >>> where = parse_where('kind=image and year>=2023')
    >>> where.matches({"kind": "image", "year": 2024}), where.matches({"kind": "image"})
    (True, False)
    >>> parse_where("year=2023 or year=2024 and kind=text").matches({"kind": "image", "year": 2023})
    True
    >>> parse_where("year => 2023")
    Traceback (most recent call last):
    ...
    quintet.search.WhereError: filter: expected a value at character 7
      year => 2023
            ^
    """
    position, alternatives = 0, [list[Clause]()]
    for _ in range(MOST_CLAUSES):
        name, position = _token(text, position, NAME)
        sign, position = _token(text, position, OPERATOR)
        value, position = _token(text, position, VALUE)
        bare = value["bare"]
        quoted = value["double"] if value["double"] is not None else value["single"]
        literal = bare if bare is not None else re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)
        alternatives[-1].append(Clause(name[0], sign[0], literal, quoted=bare is None))
        if not text[position:].strip():
            first, *others = map(tuple, alternatives)
            return Where(first, tuple(others))
        join, position = _token(text, position, JOIN)
        if join[0].lower() == "or":
            alternatives.append([])
    raise WhereError(
        f"a filter has at most {MOST_CLAUSES} conditions; write a field into a JSON file beside each image instead "
        "(photo.jpg.json), and filter by it"
    )


def _token(text: str, position: int, expected: str) -> tuple[re.Match[str], int]:
    while position < len(text) and text[position].isspace():
        position += 1
    found = TOKENS[expected].match(text, position)
    if found is None:
        raise WhereError(_message(text, position, expected))
    return found, found.end()


def _message(text: str, position: int, expected: str) -> str:
    start = max(0, position - 60)  # a filter may be very long; its neighbourhood tells enough
    shown = re.sub(r"\s", " ", text[start : position + 60])
    return f"filter: expected {expected} at character {position + 1}\n  {shown}\n  {' ' * (position - start)}^"
