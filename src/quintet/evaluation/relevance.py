"""Relevant pairs beside those of the groups: of other images' captions that fit as well, with or without grades.

A corpus states them in `relevance.jsonl`, a row a pair: {"image": image id, "text": text id, "grade": 2}. The grade is
a number from 0 (not relevant; 1 by default). A row is for both directions, or with "direction": "i2t" or "t2i" for one.
The file is complete: what it does not name is not relevant, also the pairs of one group. TREC's qrels are read as well:
QUERY 0 DOCUMENT GRADE, where a query is an image and its documents are texts, or the reverse.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from quintet.data.corpus import Corpus, Split
from quintet.data.formats.assembly import read_lines
from quintet.errors import CorpusError, QuintetError
from quintet.evaluation.metrics import DIRECTIONS, Metrics, average_precision_at_r
from quintet.evaluation.ranks import Judged, JudgedRanks, Queries
from quintet.evaluation.significance import Interval, QueryValues, grouped_intervals
from quintet.files import read_jsonl, user_path

FILE = "relevance.jsonl"  # in the folder of a corpus
MEASURES = ("r1", "r5", "r10", "map_at_r", "rprecision", "ndcg10", "ndcg")
LARGEST_GRADE = 1_000


@dataclass(frozen=True)
class Relevance:
    """A named set of relevant pairs of a split, and what is measured with it."""

    name: str
    title: str
    sides: tuple[Judged, Judged]  # images as queries, texts as queries
    measures: tuple[str, ...] = MEASURES
    notes: tuple[str, ...] = ()
    # Queries of each direction with a relevant candidate that is not in the split, once for each: never found.
    absent: tuple[np.ndarray, np.ndarray] = (np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True)
class JudgedResult:
    """The measures of one run with one `Relevance`; those of a direction without queries are absent."""

    title: str
    metrics: Metrics  # i2t_map_at_r and so on, in per cent
    intervals: dict[str, Interval]
    counts: dict[str, int]  # queries and relevant pairs of each direction
    notes: tuple[str, ...] = field(default=())
    queries: QueryValues = field(default_factory=QueryValues, repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "metrics": self.metrics,
            "intervals": {name: list(interval) for name, interval in self.intervals.items()},
            "counts": self.counts,
            "notes": list(self.notes),
        }


def judged_values(ranks: JudgedRanks, measures: Sequence[str] = MEASURES) -> dict[str, np.ndarray]:
    """(q,) per cent of each query. mAP@R and R-Precision look at the first R positions, R being the number of relevant
    candidates. nDCG has linear gains, as trec_eval: the sum of grade / log2(1 + position), over that of the best order;
    of a tie the lower grade goes first.
    """
    queries = ranks.queries
    query = np.repeat(np.arange(len(queries)), queries.positives)  # (P,)
    order = np.lexsort((ranks.grade, -ranks.scores, query))
    position = queries.pair_ranks[order] + np.arange(len(query)) - queries.starts[query] + 1
    ideal = ranks.grade[np.lexsort((-ranks.grade, query))]
    first = np.arange(len(query)) - queries.starts[query] + 1

    def total(values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values, queries.starts) if len(query) else np.zeros(0)

    def ndcg(cut: float) -> np.ndarray:
        gained = np.where(position <= cut, ranks.grade[order] / np.log2(1.0 + position), 0.0)
        best = np.where(first <= cut, ideal / np.log2(1.0 + first), 0.0)
        return total(gained) / total(best)

    made = {
        "map_at_r": lambda: average_precision_at_r(queries),
        "rprecision": lambda: total((position <= queries.positives[query]).astype(float)) / queries.positives,
        "ndcg10": lambda: ndcg(10),
        "ndcg": lambda: ndcg(np.inf),
        **{f"r{cut}": lambda cut=cut: (queries.best < cut).astype(float) for cut in (1, 5, 10)},  # type: ignore[misc]
    }
    return {name: 100.0 * made[name]() for name in measures}


def judged_result(
    relevance: Relevance, found: Sequence[JudgedRanks], resamples: int = 1_000, seed: int = 0
) -> JudgedResult:
    """Means over the queries that have a relevant candidate, with intervals over their groups."""
    metrics: Metrics = {}
    intervals: dict[str, Interval] = {}
    counts: dict[str, int] = {}
    each = QueryValues()
    for direction, counted, absent in zip(DIRECTIONS, found, relevance.absent, strict=True):
        ranks = _with_absent(counted, absent)
        counts |= {f"{direction}_queries": len(ranks.queries), f"{direction}_pairs": len(ranks.grade)}
        if len(ranks.queries):
            values = judged_values(ranks, relevance.measures)
            named = {f"{direction}_{name}": value for name, value in values.items()}
            metrics |= {name: float(value.mean()) for name, value in named.items()}
            each.values.update(named)
            each.groups[direction] = ranks.queries.groups
            if resamples:
                intervals |= grouped_intervals(named, ranks.queries.groups, resamples, seed)
    return JudgedResult(relevance.title, metrics, intervals, counts, relevance.notes, each)


def _with_absent(ranks: JudgedRanks, rows: np.ndarray) -> JudgedRanks:
    """With candidates that are never found: after all others. Queries that have no other one are left out."""
    queries = ranks.queries
    rows = rows[np.isin(rows, queries.rows)]
    if not len(rows):
        return ranks
    query = np.append(np.repeat(queries.rows, queries.positives), rows)
    order = np.argsort(query, kind="stable")
    found, positives = np.unique(query, return_counts=True)
    lost = len(rows)
    pair_ranks = np.append(queries.pair_ranks, np.full(lost, queries.candidates))[order]
    scores = np.append(ranks.scores, np.full(lost, -np.inf, np.float32))[order]
    grade = np.append(ranks.grade, np.ones(lost))[order]
    later = Queries(found, queries.groups, positives, pair_ranks, queries.candidates, queries.excluded)
    return JudgedRanks(later, scores, grade)


def make_judged(
    i2t: bool, query: Sequence[int], candidate: Sequence[int], grade: Sequence[float] | None = None
) -> Judged:
    """Ordered by query, then candidate; pairs of grade 0 are left out."""
    queries, candidates = np.asarray(query, np.int64), np.asarray(candidate, np.int64)
    grades = np.ones(len(queries)) if grade is None else np.asarray(grade, np.float64)
    order = np.lexsort((candidates, queries))
    order = order[grades[order] > 0]
    return Judged(i2t, queries[order], candidates[order], grades[order])


def read_relevance(path: Path | str, corpus: Corpus, split: Split) -> Relevance:
    """The relevant pairs of a split, from a JSONL file or from qrels. Pairs of other splits of the corpus are passed
    over; an id that the corpus does not have is an error.
    """
    path = user_path(path)
    rows_of = ({image.id: row for row, image in enumerate(split.images)}, _rows(split))
    known = {image.id for image in corpus.images}, {text.id for text in corpus.texts}
    sides = [(array("q"), array("q"), array("d")) for _ in DIRECTIONS]
    unknown: dict[str, None] = {}
    for image, text, grade, direction in _jsonl(path) if path.suffix == ".jsonl" else _qrels(path, known):
        unknown |= {id_: None for id_, ids in zip((image, text), known, strict=True) if id_ not in ids}
        row, column = rows_of[0].get(image), rows_of[1].get(text)
        if row is None or column is None:
            continue
        for number, (queries, candidates, grades) in enumerate(sides):
            if direction in (None, DIRECTIONS[number]):
                queries.append(column if number else row)
                candidates.append(row if number else column)
                grades.append(grade)
    if unknown:
        raise CorpusError(
            f"{path}: {len(unknown):,} ids are not of corpus {corpus.name!r}, first {next(iter(unknown))!r:.80}; "
            "its ids are those of images.jsonl and texts.jsonl"
        )
    for queries, candidates, _ in sides:
        keys = np.asarray(queries) * len(split.texts) * len(split.images) + np.asarray(candidates)
        values, times = np.unique(keys, return_counts=True)
        if len(values) < len(keys):
            raise CorpusError(f"{path} has {int((times > 1).sum()):,} pairs more than once; a pair has one grade")
    judged = tuple(make_judged(way == "i2t", *side) for way, side in zip(DIRECTIONS, sides, strict=True))
    if not any(len(side.query) for side in judged):
        raise CorpusError(f"{path} has no relevant pair of split {split.name!r}")
    return Relevance("relevance", path.name, judged)  # type: ignore[arg-type]


def _rows(split: Split) -> dict[str, int]:
    return {text.id: row for row, text in enumerate(split.texts)}


def _jsonl(path: Path) -> Iterator[tuple[str, str, float, str | None]]:
    for number, row in enumerate(read_jsonl(path), 1):
        where = f"{path}, row {number}"
        image, text, direction = row.get("image"), row.get("text"), row.get("direction")
        if not isinstance(image, str) or not isinstance(text, str):
            raise CorpusError(f'{where}: expected {{"image": id, "text": id, "grade": number}}, found {row!r:.120}')
        if direction is not None and direction not in DIRECTIONS:
            raise CorpusError(f"{where}: direction is i2t, t2i or absent, got {direction!r:.40}")
        yield image, text, _grade(row.get("grade", 1), where), direction


def _qrels(path: Path, known: tuple[set[str], set[str]]) -> Iterator[tuple[str, str, float, str | None]]:
    for number, line in enumerate(read_lines(path), 1):
        cells = line.split()
        if not cells:
            continue
        where = f"{path}, line {number}"
        if len(cells) != 4:
            raise CorpusError(f"{where}: expected QUERY 0 DOCUMENT GRADE, found {line[:80]!r}")
        try:
            grade = float(cells[3])
        except ValueError:
            grade = float("nan")
        query, document = (plain_id(cell, known) for cell in (cells[0], cells[2]))
        image_query = query in known[0] and (query not in known[1] or document in known[1])
        image, text = (query, document) if image_query else (document, query)
        yield image, text, _grade(grade, where), "i2t" if image_query else "t2i"


def plain_id(token: str, known: tuple[set[str], set[str]]) -> str:
    """An id as TREC files hold it: white space and % are written %20 and %25, as in an address."""
    from urllib.parse import unquote

    return token if token in known[0] or token in known[1] else unquote(token)


def _grade(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST_GRADE:
        raise CorpusError(f"{where}: a grade is a number from 0 to {LARGEST_GRADE:,}, found {value!r:.40}")
    return float(value)


def require_one_fold(relevance: Sequence[Relevance], folds: int) -> None:
    if relevance and folds > 1:
        names = ", ".join(each.title for each in relevance)
        raise QuintetError(f"{names}: all images and texts of a split are ranked; use the protocol full or 5k")
