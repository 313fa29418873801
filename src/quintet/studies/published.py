"""The numbers that the papers print (`published.yaml`), and which of them are the counterpart of a row of ours."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, model_validator

from quintet.training.recipe import load_yaml

FILE = "published.yaml"
VALIDATION = "validation"  # beside the protocols: all of the validation split
# What a corpus is called in a paper, and the words that name it in the name of a corpus.
CORPORA = {
    "f30k": ("Flickr30k", ("f30k", "flickr30k")),
    "coco": ("MSCOCO", ("coco",)),
    "cuhk": ("CUHK-PEDES", ("cuhk",)),
}
PROTOCOLS = {"full": "", "identity": "", "5fold": " 1K", "5k": " 5K", VALIDATION: " validation"}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PublishedRow(_Strict):
    row: str  # as in the paper
    values: tuple[int | float, ...]
    ours: str | tuple[str, ...] | None = None  # what our tables call it; None: the same
    note: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        if self.ours is None:
            return (self.row,)
        return (self.ours,) if isinstance(self.ours, str) else self.ours


class PublishedTable(_Strict):
    paper: str
    place: str
    corpus: str
    protocol: str
    columns: tuple[str, ...]
    rows: tuple[PublishedRow, ...]
    note: str = ""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.corpus not in CORPORA or self.protocol not in PROTOCOLS:
            raise ValueError(f"{self.place}: no corpus {self.corpus!r} or no protocol {self.protocol!r}")
        for row in self.rows:
            if len(row.values) != len(self.columns):
                raise ValueError(f"{self.place}, {row.row}: {len(row.values)} numbers in {len(self.columns)} columns")
        return self


@dataclass(frozen=True)
class Published:
    """The numbers of one row of a paper, and what they were measured on."""

    place: str
    corpus: str
    protocol: str
    values: dict[str, float]  # by metric

    def __hash__(self) -> int:
        return hash((self.place, self.corpus, self.protocol))


@cache
def published_tables() -> dict[str, PublishedTable]:
    """By the names that studies give them.

    >>> published_tables()["aoq-1-1k"].place
    'Table 1'
    """
    text = (resources.files("quintet") / "studies" / FILE).read_text(encoding="utf-8")
    content: Any = load_yaml(text, FILE)
    return {key: PublishedTable.model_validate(table) for key, table in content.items()}


def counterparts(tables: Iterable[str], *names: str) -> tuple[Published, ...]:
    """The published rows that have one of these names with us, in the order of the tables.

    >>> [(found.place, found.values["rsum"]) for found in counterparts(["aoq-1-5k", "aoq-2"], "SCAN + AdapOffQuin")]
    ... # doctest: +NORMALIZE_WHITESPACE
    [('Table 1, SCAN + AdapOffQuin, MSCOCO 5K, ensembles of two models', 413.3),
     ('Table 2, SCAN + AdapOffQuin, Flickr30k, ensembles of two models', 473.2)]
    """
    found = []
    for key in tables:
        table = published_tables()[key]
        for row in table.rows:
            if not set(names).isdisjoint(row.names):
                note = table.note if row.note is None else row.note
                measured = CORPORA[table.corpus][0] + PROTOCOLS[table.protocol]
                place = ", ".join(part for part in (table.place, row.row, measured, note) if part)
                values = dict(zip(table.columns, row.values, strict=True))
                found.append(Published(place, table.corpus, table.protocol, values))
    return tuple(found)


def same_setting(corpus: str, protocol: str, images: int, published: dict[str, Any]) -> bool:
    """Whether a result of ours on a corpus of this name was measured on what the published one was.

    >>> same_setting("f30k_precomp", "full", 1000, {"corpus": "f30k", "protocol": "full"})
    True
    >>> same_setting("coco", "full", 5000, {"corpus": "coco", "protocol": "5fold"})
    False
    """
    words = CORPORA[published["corpus"]][1]
    if not any(word in corpus.lower() for word in words):
        return False
    all_of_coco = (published["corpus"], protocol, images) == ("coco", "full", 5000)
    return published["protocol"] == ("5k" if all_of_coco else protocol)
