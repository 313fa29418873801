"""A study: variants of a recipe, the tables that compare them, and further measurements."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintet.data.corpus import Split
from quintet.evaluation.metrics import RECALLS
from quintet.evaluation.scoring import Member
from quintet.studies.published import Published
from quintet.training.recipe import parse_recipe
from quintet.training.recipe_models import Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARK = "@"


@dataclass(frozen=True)
class Variant:
    """One way of training: the content of a recipe, seed aside.

    A value such as "@online" stands for the run folder of the variant `online` of the same seed, so that a run can
    mine with another one, or start from it.

    >>> Variant("second", "Second", {"stages": [{"init": "@first", "negatives": {"from": "@first"}}]}).needs
    ('first',)
    """

    key: str  # names its folders
    label: str  # names it in tables
    recipe: Mapping[str, Any]
    members: tuple[str, ...] = ()  # an ensemble: the variants whose scores are averaged; one: runs of two seeds

    @property
    def needs(self) -> tuple[str, ...]:
        """The variants that must be trained before this one."""
        if self.members:
            return self.members
        return tuple(dict.fromkeys(text[1:] for text in _texts(self.recipe) if text.startswith(MARK)))

    def content(self, seed: int) -> dict[str, Any]:
        """The whole recipe with its defaults, as JSON values. Values such as "@online" are kept."""
        recipe = parse_recipe(copy.deepcopy(dict(self.recipe)) | {"seed": seed}, where=f"variant {self.key!r}")
        content = recipe.model_dump(mode="json", by_alias=True)
        if recipe.data.corpus is not None:
            content["data"]["corpus"] = str(recipe.data.corpus.resolve())
        return content

    def recipe_for(self, seed: int, folders: Mapping[str, Path]) -> Recipe:
        """The recipe to train; `folders` are the run folders of the variants it needs."""
        return parse_recipe(_replaced(self.content(seed), folders), where=f"variant {self.key!r}")


@dataclass(frozen=True)
class Row:
    """One line of a table: a variant, its label there, `marks`, the cells of further columns, and what papers print."""

    variant: str
    label: str
    marks: tuple[str, ...] = ()
    published: tuple[Published, ...] = ()


@dataclass(frozen=True)
class Layout:
    """A table of metrics. `compare`: each number is followed by its difference to this variant's. `marks`: the
    headings of the rows' marks. `validation`: the validation split is measured, too, and comes first."""

    title: str
    rows: tuple[Row, ...]
    columns: tuple[str, ...] = (*RECALLS, "rsum")
    compare: str | None = None
    marks: tuple[str, ...] = ()
    validation: bool = False


@dataclass(frozen=True)
class Measure:
    """A further number of every run, which tables can show like a metric."""

    name: str
    of: Callable[[Sequence[Member], Split], float]  # of a run, or of an ensemble
    digits: int = 1  # behind the point, in tables


@dataclass(frozen=True)
class Column:
    """One column of an extra table: a key of its rows, its heading and how a number is written."""

    key: str
    heading: str
    form: str = "{}"


@dataclass(frozen=True)
class Trained:
    """What an extra measurement may look at: the runs and recipes of one seed, and their labels, by variant."""

    folders: Mapping[str, Path]
    recipes: Mapping[str, Recipe]
    labels: Mapping[str, str]
    device: str
    ranks: Mapping[str, Path] = field(default_factory=dict)  # the ranks on the test split
    every_seed: Mapping[int, Mapping[str, Path]] = field(default_factory=dict)  # the folders of all seeds
    figures: dict[str, Callable[[], Figure]] = field(default_factory=dict)  # to be drawn, by file name


@dataclass(frozen=True)
class Extra:
    """A measurement beside the retrieval metrics, such as seconds per batch: rows of a table of its own."""

    key: str
    title: str
    columns: tuple[Column, ...]
    labels: Mapping[str, str]  # of the variants that it looks at
    measure: Callable[[Trained], list[dict[str, Any]]]
    row: str = "{label}"  # names a row among the published ones
    published: tuple[str, ...] = ()  # tables of the papers

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(self.labels)


@dataclass(frozen=True)
class Study:
    """Variants in an order in which they can be trained, and the tables of their results."""

    name: str
    base: str  # the recipe that all variants change
    reference: str  # the variant that all are compared with
    variants: tuple[Variant, ...]
    tables: tuple[Layout, ...]
    extras: tuple[Extra, ...] = ()
    measures: tuple[Measure, ...] = ()
    notes: tuple[str, ...] = ()  # for readers of the tables

    def __post_init__(self) -> None:
        known: set[str] = set()
        for variant in self.variants:
            if variant.key in known:
                raise ValueError(f"two variants are called {variant.key!r}")
            late = [key for key in variant.needs if key not in known]
            if late:
                raise ValueError(f"variant {variant.key!r} needs {late[0]!r}, which must come before it")
            known.add(variant.key)
        wanted = {self.reference} | {row.variant for table in self.tables for row in table.rows}
        wanted |= {table.compare for table in self.tables if table.compare} | {k for e in self.extras for k in e.needs}
        if wanted - known:
            raise ValueError(f"there is no variant {sorted(wanted - known)[0]!r} in study {self.name!r}")

    def variant(self, key: str) -> Variant:
        return next(variant for variant in self.variants if variant.key == key)


def differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Where two recipes (or other JSON values) differ, one string for each difference.

    >>> list(differences({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 2}))
    ['a.b is 1, not 3']
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys((*old, *new)):
            yield from differences(old.get(key), new.get(key), f"{path}.{key}" if path else str(key))
    elif _is_list(old) and _is_list(new) and len(old) == len(new):
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, f"{path}.{number}")
    elif old != new:
        yield f"{path} is {old!r}, not {new!r}"


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif _is_list(value):
        for inner in value:
            yield from _texts(inner)


def _replaced(value: Any, folders: Mapping[str, Path]) -> Any:
    if isinstance(value, str) and value.startswith(MARK):
        return str(folders[value[1:]].resolve())
    if isinstance(value, Mapping):
        return {key: _replaced(inner, folders) for key, inner in value.items()}
    if _is_list(value):
        return [_replaced(inner, folders) for inner in value]
    return value


def renamed(value: Any, prefix: str) -> Any:
    """Recipe content whose "@online" is "@PREFIXonline".

    >>> renamed({"stages": [{"init": "@online"}]}, "second-")
    {'stages': [{'init': '@second-online'}]}
    """
    if isinstance(value, str) and value.startswith(MARK):
        return f"{MARK}{prefix}{value[1:]}"
    if isinstance(value, Mapping):
        return {key: renamed(inner, prefix) for key, inner in value.items()}
    return [renamed(inner, prefix) for inner in value] if _is_list(value) else value
