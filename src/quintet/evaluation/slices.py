"""Recalls by kind of query: by the length of captions, by the size of images, by any field of the tables.

A slice restricts the queries, never the candidates: every query is ranked against the whole split.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quintet.data.corpus import Corpus, Image, Split
from quintet.data.images import image_header
from quintet.data.vocabulary import split_words
from quintet.errors import CorpusError, QuintetError, suggest
from quintet.evaluation.metrics import DIRECTIONS, Metrics, query_values
from quintet.evaluation.ranks import Ranks
from quintet.evaluation.significance import Interval, QueryValues, grouped_intervals
from quintet.files import open_regular

KINDS = ("length", "size")
FIELD = "field:"
MOST = 20  # values of a field that get a row each; numbers with more are cut into quarters
OTHERS, NONE = "(others)", "(none)"
Label = str | None  # None: a query that is in no slice


@dataclass(frozen=True)
class Slicing:
    """Which slice every image and every text of a split is in, as a query."""

    name: str
    images: list[Label]
    texts: list[Label]
    order: list[str]  # of the labels


@dataclass(frozen=True)
class SliceResult:
    slicing: str
    label: str
    metrics: Metrics
    intervals: dict[str, Interval]
    counts: dict[str, int]  # queries of each direction
    queries: QueryValues = field(default_factory=QueryValues, repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        return {
            "slicing": self.slicing,
            "label": self.label,
            "metrics": self.metrics,
            "intervals": {name: list(interval) for name, interval in self.intervals.items()},
            "counts": self.counts,
        }


def slicings(names: str | Sequence[str], corpus: Corpus, split: Split) -> list[Slicing]:
    """`names`: "length" (words of a caption), "size" (pixels of an image), "field:NAME"; with commas or in a list."""
    chosen = [part.strip() for part in names.split(",")] if isinstance(names, str) else list(names)
    made = []
    for name in dict.fromkeys(part for part in chosen if part):
        if name == "length":
            labels, order = _quarters([len(split_words(text.text)) for text in split.texts], "{} words")
            made.append(Slicing("caption length", [None] * len(split.images), labels, order))
        elif name == "size":
            sides = [_size(corpus, image) for image in split.images]
            labels, order = _quarters([width * height / 1e6 for width, height in sides], "{} megapixels")
            made.append(Slicing("image size", labels, _of_images(labels, split), order))
        elif name.startswith(FIELD):
            made.append(_by_field(name.removeprefix(FIELD), split))
        else:
            raise QuintetError(f"there is no slice {name!r}; {suggest(name, (*KINDS, f'{FIELD}NAME'))}")
    if not made:
        raise QuintetError(f"name the slices: {', '.join(KINDS)}, {FIELD}NAME")
    return made


def slice_results(ranks: Ranks, chosen: Sequence[Slicing], resamples: int = 1_000, seed: int = 0) -> list[SliceResult]:
    """Every metric whose mean is over queries, of the queries of each slice, with bootstrap intervals over groups."""
    directions = [(name, getattr(ranks, name)) for name in DIRECTIONS]
    values = {name: query_values(queries) for name, queries in directions}
    found = []
    for slicing in chosen:
        for label in slicing.order:
            metrics: Metrics = {}
            intervals: dict[str, Interval] = {}
            counts: dict[str, int] = {}
            each = QueryValues()
            for name, queries in directions:
                labels = slicing.images if name == "i2t" else slicing.texts
                inside = np.flatnonzero([labels[row] == label for row in queries.rows])
                counts[f"{name}_queries"] = len(inside)
                if len(inside):
                    named = {f"{name}_{metric}": value[inside] for metric, value in values[name].items()}
                    metrics |= {metric: float(value.mean()) for metric, value in named.items()}
                    each.values.update(named)
                    each.groups[name] = queries.groups[inside]
                    if resamples:
                        intervals |= grouped_intervals(named, queries.groups[inside], resamples, seed)
            found.append(SliceResult(slicing.name, label, metrics, intervals, counts, each))
    return found


def _size(corpus: Corpus, image: Image) -> tuple[int, int]:
    """Width and height by the fields of the image, else by the header of its file."""
    width, height = image.extra.get("width"), image.extra.get("height")
    if isinstance(width, int) and isinstance(height, int):
        return width, height
    if image.path is None:
        raise CorpusError(
            f"image {image.id!r} has neither a file nor the fields width and height, so images cannot be sliced by size"
        )
    path = corpus.image_path(image)
    with open_regular(path) as file:
        return image_header(file, name=str(path)).size


def _by_field(name: str, split: Split) -> Slicing:
    """By the field of a row; where a text has none, that of its first image; where no image has it, only texts."""
    images = [image.extra.get(name) for image in split.images]
    own = [text.extra.get(name) for text in split.texts]
    from_image = _of_images(images, split)
    texts = [value if value is not None else other for value, other in zip(own, from_image, strict=True)]
    if all(value is None for value in (*images, *texts)):
        fields = {key for image in split.images for key in image.extra} | {
            key for text in split.texts for key in text.extra
        }
        told = suggest(name, fields) if fields else "its rows have no further fields"
        raise QuintetError(f"split {split.name!r} has no field {name!r}; {told}")
    rows = texts if all(value is None for value in images) else [*images, *texts]
    of = _labels(rows)
    sides: list[Label] = [None] * len(images) if rows is texts else [of(value) for value in images]
    labels: list[Label] = [of(value) for value in texts]
    present = {label for label in (*sides, *labels) if label is not None}
    return Slicing(name, sides, labels, [label for label in of.order if label in present])


class _Labeller:
    def __init__(self, label: Callable[[Any], str], order: list[str]) -> None:
        self.label, self.order = label, order

    def __call__(self, value: Any) -> str:
        return NONE if value is None else self.label(value)


def _labels(values: Sequence[Any]) -> _Labeller:
    present = [value for value in values if value is not None]
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in present)
    if numbers and len(set(present)) > MOST:
        labels, order = _quarters([float(value) for value in present], "{}")
        of_value = dict(zip(present, labels, strict=True))
        return _Labeller(lambda value: of_value[value], [*order, NONE])
    shown = Counter(_shown(value) for value in present)
    often = [label for label, _ in shown.most_common(MOST)]
    kept = set(often)
    order = sorted(often) if len(shown) <= MOST else often
    return _Labeller(lambda value: label if (label := _shown(value)) in kept else OTHERS, [*order, OTHERS, NONE])


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)


def _of_images(values: Sequence[Any], split: Split) -> list[Any]:
    """The value of the first image of every text."""
    return [values[rows[0]] for rows in split.images_of_text]


def _quarters(values: Iterable[float], unit: str) -> tuple[list[Label], list[str]]:
    """Four parts with about as many values each; equal values are in one part. The labels, and their order."""
    array = np.asarray(list(values), np.float64)
    edges = np.unique(np.quantile(array, (0.25, 0.5, 0.75, 1.0), method="lower"))
    part = np.searchsorted(edges, array)
    names = {}
    for number in np.unique(part):
        inside = array[part == number]
        low, high = (f"{edge:.3g}" if edge < 1_000 else f"{edge:.0f}" for edge in (inside.min(), inside.max()))
        names[int(number)] = unit.format(low if low == high else f"{low} to {high}")
    order = list(dict.fromkeys(names.values()))
    return [names[int(number)] for number in part], order
