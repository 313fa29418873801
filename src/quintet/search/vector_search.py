"""The nearest vectors: all of them compared, or found by FAISS's index where there are many; filters; exact scores."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from math import isqrt, sqrt
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from quintet.errors import first_line
from quintet.files import atomic_write
from quintet.search import StaleIndex, StoreError
from quintet.search.items import Entry, ItemDatabase, Kind
from quintet.search.stores.store import required
from quintet.search.stores.where import Where
from quintet.search.vectors import FileSet, Vectors, adopt, announce, crc32_of, open_file, products

FaissKind = Literal["flat", "hnsw", "ivf"]
FAISS_KINDS: tuple[FaissKind, ...] = get_args(FaissKind)
# Vectors: below the first, comparing all takes some 25 ms; above the second, a graph takes long to make.
HNSW_FROM, IVF_FROM = 200_000, 500_000
LINKS, BUILD_WIDTH, SEARCH_WIDTH = 32, 100, 128  # HNSW's M, efConstruction, efSearch
PROBES, ONE_IN = 32, 16  # lists looked through: at least so many, and one in so many of them
TRAINING = 50  # vectors for each list that IVF's centres are learnt from
BLOCK = 16_384  # vectors added at a time
TAIL, TAIL_SHARE = 10_000, 0.05  # rows behind the index that are compared one by one before it is extended
RETRAIN = 4  # lists learnt from so many times fewer rows are learnt anew
FEW = 0.02  # below this share of selected rows, comparing each of them is quicker than a search by the index, and exact

BLOCK_BYTES = 64 << 20  # of scores at a time
GATHER = 0.25  # below this share of selected rows, they are copied together rather than compared with all others
FAISS_FROM = 4096  # vectors; importing FAISS takes a quarter of a second, and of fewer numpy is as quick
LISTS_AT_ONCE = 1  # FAISS's number for a search whose lists are shared out among threads, not its queries
SPARE = 8  # candidates fetched beyond k, so that ties and rounding at the boundary are seen
QUERIES = 1024  # at a time
FILTERS = 16  # selections that are remembered, and settings of FAISS: the same come with every query of a visitor


# Every vector is compared


def scan(
    vectors: Vectors, queries: np.ndarray, m: int, allowed: np.ndarray | None = None, first: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """The m best rows of `vectors` for each query: scores (n, m) descending and rows (n, m), -inf and -1 at the end
    where there are fewer. `allowed` (rows,) bool leaves out rows; the scan starts at row `first`.
    """
    step = max(1024, BLOCK_BYTES // (4 * max(1, len(queries), vectors.dim)))
    starts = range(first, len(vectors), step)
    blocks = ((start, min(start + step, len(vectors))) for start in starts)
    return _best_of(queries, m, ((np.arange(*ends), vectors.block(*ends)) for ends in blocks), allowed)


def compare(vectors: Vectors, queries: np.ndarray, m: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As `scan`, of some rows only, of which nothing else is read."""
    parts = (rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK))
    return _best_of(queries, m, ((some, vectors.pick(some)) for some in parts), None)


def _best_of(
    queries: np.ndarray, m: int, blocks: Iterable[tuple[np.ndarray, np.ndarray]], allowed: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """`blocks`: rows (b,) with their vectors (b, dim)."""
    best = np.full((len(queries), m), -np.inf, np.float32), np.full((len(queries), m), -1)
    for rows, vectors in blocks:
        scores = products(queries, vectors)  # (n, b)
        if allowed is not None:
            scores[:, ~allowed[rows]] = -np.inf
        best = _merge(best, (scores, np.broadcast_to(rows, scores.shape)), m)
    return best


def _merge(
    one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray], m: int
) -> tuple[np.ndarray, np.ndarray]:
    """The m best of two lists of scores and rows, each (n, any), best first. Row -1 where a score is -inf."""
    scores, rows = np.concatenate([one[0], other[0]], axis=1), np.concatenate([one[1], other[1]], axis=1)
    best = np.argpartition(-scores, m - 1, axis=1)[:, :m]  # (n, m), in any order
    order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1)
    best = np.take_along_axis(best, order, axis=1)
    scores = np.take_along_axis(scores, best, axis=1)
    return scores, np.where(np.isneginf(scores), -1, np.take_along_axis(rows, best, axis=1))


# FAISS


def kind_for(rows: int) -> FaissKind:
    """
    >>> kind_for(100_000), kind_for(300_000), kind_for(1_000_000)
    ('flat', 'hnsw', 'ivf')
    """
    return "flat" if rows < HNSW_FROM else "hnsw" if rows < IVF_FROM else "ivf"


def make_index(kind: FaissKind, vectors: Vectors) -> Any:
    """FAISS's index of all vectors, in memory; not for "flat", which needs none."""
    faiss = required("faiss", "index")
    if kind == "hnsw":
        index = faiss.IndexHNSWFlat(vectors.dim, LINKS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = BUILD_WIDTH
    else:
        lists = max(1, min(4 * isqrt(len(vectors)), len(vectors) // 40))
        # Half precision halves its memory; what it finds is scored again from the vectors themselves.
        index = faiss.index_factory(vectors.dim, f"IVF{lists},SQfp16", faiss.METRIC_INNER_PRODUCT)
        index.cp.min_points_per_centroid = 1  # the number of lists is ours to choose, also for a small store
        chosen = np.random.default_rng(0).permutation(len(vectors))[: TRAINING * lists]
        index.train(vectors.pick(np.sort(chosen)))
    extend_index(index, vectors)
    return index


def extend_index(index: Any, vectors: Vectors) -> None:
    """Add the rows that it does not have yet."""
    for start in range(index.ntotal, len(vectors), BLOCK):
        index.add(vectors.block(start, min(start + BLOCK, len(vectors))))


def write_index(index: Any, path: Path) -> None:
    faiss = required("faiss", "index")
    with atomic_write(path) as temporary:
        try:
            faiss.write_index(index, str(temporary))
        except RuntimeError as error:  # FAISS says so when the disk is full
            raise StoreError(f"could not write {path}: {first_line(error)}; what was committed is unchanged") from None


def read_index(folder: Path, notes: Mapping[str, Any]) -> Any:
    """Into memory: an index that is mapped ends the process when its file is cut short, and FAISS trusts what it reads.

    FileNotFoundError where it is gone: a writer may have replaced it meanwhile.
    """
    path = folder / notes["file"]
    with open_file(path) as file:
        if crc32_of(file) != notes["checksum"]:
            raise StaleIndex(f"{path} is damaged; build the index again")
    try:
        index = required("faiss", "index").read_index(str(path))
    except RuntimeError as error:
        raise StaleIndex(f"{path} cannot be read ({first_line(error)}); build the index again") from None
    if hasattr(index, "nlist"):
        index.parallel_mode = LISTS_AT_ONCE  # which no file keeps
    return index


def search_parameters(index: Any, m: int, share: float, selector: Any) -> Any:
    """How thoroughly to look: the fewer rows are allowed, the more of the others are passed on the way."""
    faiss = required("faiss", "index")
    if isinstance(index, faiss.IndexHNSW):
        return faiss.SearchParametersHNSW(sel=selector, efSearch=int(max(SEARCH_WIDTH, 2 * m) / share))
    probes = max(PROBES, index.nlist // ONE_IN)
    return faiss.SearchParametersIVF(sel=selector, nprobe=min(index.nlist, int(probes / share)))


def prepare_index(
    database: ItemDatabase, folder: Path, files: FileSet, vectors: Vectors, kind: FaissKind, notes: Mapping[str, Any]
) -> dict[str, Any]:
    """The notes of an index that is good enough for these vectors: the one of `notes`, or a new one in a new file.

    No notes: every vector is compared. The commit that needs the notes must adopt their file.
    """
    if kind == "flat" or not len(vectors):
        return {}
    index, learnt_from = None, len(vectors)
    if notes.get("kind") == kind and notes.get("of") == files.name:
        with suppress(StaleIndex, OSError):  # a damaged one is made anew
            if len(vectors) < RETRAIN * notes["learnt_from"]:
                index, learnt_from = read_index(folder, notes), notes["learnt_from"]
    if index is not None and len(vectors) - index.ntotal <= max(TAIL, TAIL_SHARE * len(vectors)):
        return dict(notes)
    if index is None:
        index = make_index(kind, vectors)
    else:
        extend_index(index, vectors)
    number = 1
    while (folder / f"{files.name}-{number}.faiss").exists():
        number += 1
    file = f"{files.name}-{number}.faiss"
    with database.transaction():
        announce(database, [file])
    write_index(index, folder / file)
    with open_file(folder / file) as written:
        checksum = crc32_of(written)
    found = {"kind": kind, "of": files.name, "file": file, "rows": len(vectors), "learnt_from": learnt_from}
    return found | {"checksum": checksum}


def exchange_index(database: ItemDatabase, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Inside of the transaction that needs the notes `now` and no longer those from before."""
    if before.get("file") != now.get("file"):
        announce(database, [notes["file"] for notes in (before,) if notes])
        adopt(database, [notes["file"] for notes in (now,) if notes])


# Search


@dataclass(frozen=True)
class Selection:
    """The rows that a filter leaves."""

    count: int
    allowed: np.ndarray | None = None  # (rows,) bool; None: every row
    share: float = 1.0
    few: np.ndarray | None = None  # where they are few: (count,) int64, and only these are compared
    _parameters: dict[int, Any] = field(default_factory=dict)

    @cached_property
    def selector(self) -> Any:
        """FAISS's. It keeps a pointer to the bits, which live as long as it does."""
        if self.allowed is None:
            return None
        return required("faiss", "index").IDSelectorBitmap(np.packbits(self.allowed, bitorder="little"))

    def parameters(self, index: Any, m: int) -> Any:
        """Those of FAISS for m results. They are kept: making them takes as long as reading some items."""
        found = self._parameters.get(m)
        if found is None:
            if len(self._parameters) == FILTERS:
                self._parameters.clear()
            found = self._parameters[m] = search_parameters(index, m, self.share, self.selector)
        return found


class VectorSearch:
    """The nearest items of one kind, for any number of threads at once."""

    def __init__(self, database: ItemDatabase, kind: Kind, vectors: Vectors, index: Any = None) -> None:
        """`index`: FAISS's, of the first rows, as `read_index` gives it; None: every vector is compared."""
        self._database, self._kind, self.vectors, self._index = database, kind, vectors, index
        self._indexed = 0 if index is None else int(index.ntotal)
        # A float32 product of two vectors of d numbers is wrong by at most d * 2^-24 of the product of their lengths.
        self._noise = (vectors.dim + 2) * 2.0**-24 * vectors.norm
        self._selections: OrderedDict[Where | None, Selection] = OrderedDict()
        self._lock = threading.Lock()
        self._searching = 0  # threads that are in FAISS
        self._faiss: Any = None  # numpy compares, too, only slower
        if index is not None or len(vectors) >= FAISS_FROM:
            with suppress(StoreError):
                self._faiss = required("faiss", "index")

    def search(self, queries: np.ndarray, k: int, where: Where | None = None) -> list[list[tuple[Entry, float]]]:
        """For each of `queries` (n, dim) the k best items with their scores; equal ones by id."""
        if queries.shape[1] != self.vectors.dim:
            raise StaleIndex(f"the index holds vectors of {self.vectors.dim} numbers, not of {queries.shape[1]}")
        selection = self._selection(where)
        count = selection.count
        if not count:
            return [[] for _ in queries]
        found = []
        fetched = min(k + SPARE, count)
        for start in range(0, len(queries), QUERIES):
            some = queries[start : start + QUERIES]
            scores, rows = self._nearest(some, fetched, selection)
            for query, near, at in zip(some, scores, rows, strict=True):
                best_rows, best = self._settle(query, near, at, min(k, count), selection)
                score_of = dict(zip(best_rows.tolist(), best.tolist(), strict=True))
                entries = self._database.at_rows(self._kind, list(score_of), where)
                hits = [(entry, score_of[entry.row]) for entry in entries]
                found.append(sorted(hits, key=lambda hit: (-hit[1], hit[0].item.id))[:k])
        return found

    def _settle(
        self, query: np.ndarray, scores: np.ndarray, rows: np.ndarray, k: int, selection: Selection
    ) -> tuple[np.ndarray, np.ndarray]:
        """The rows that can be among the k best, and their scores: float64 products rounded to float32. Engines rank by
        products that depend in their last bits on where a vector lies; more are fetched until this cannot matter.
        """
        doubt = 2 * self._noise * sqrt(query @ query)
        while len(rows) < selection.count and scores[k - 1] - scores[-1] <= doubt:
            (scores,), (rows,) = self._nearest(query[None], min(4 * len(rows), selection.count), selection)
        exact = np.einsum("nd,d->n", self.vectors.pick(rows), query, dtype=np.float64).astype(np.float32)
        among = exact >= np.partition(exact, len(exact) - k)[len(exact) - k]  # all that equal the k-th, too
        return rows[among], exact[among]

    def _nearest(self, queries: np.ndarray, m: int, selection: Selection) -> tuple[np.ndarray, np.ndarray]:
        """Scores (n, m) descending and rows (n, m); the caller asks for no more rows than are selected."""
        if selection.few is not None:
            return compare(self.vectors, queries, m, selection.few)
        allowed = selection.allowed
        if self._index is None:
            whole = self.vectors.whole()
            if whole is None or self._faiss is None:
                return scan(self.vectors, queries, m, allowed)
            return self._compare_all(whole, queries, m, selection.selector)
        with self._threads(len(queries), by_lists=hasattr(self._index, "nlist")):
            scores, rows = self._index.search(queries, m, params=selection.parameters(self._index, m))
        if self._indexed < len(self.vectors):
            scores, rows = self._with_tail(queries, m, allowed, scores, rows)
        short = rows[:, -1] < 0  # the index did not come across enough of the selected rows
        if short.any():
            scores[short], rows[short] = scan(self.vectors, queries[short], m, allowed)
        return scores, rows

    def _compare_all(
        self, vectors: np.ndarray, queries: np.ndarray, m: int, selector: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """What IndexFlatIP does, without a copy."""
        point, queries = self._faiss.swig_ptr, np.ascontiguousarray(queries)
        scores = np.empty((len(queries), m), dtype=np.float32)
        rows = np.empty((len(queries), m), dtype=np.int64)
        sizes = (vectors.shape[1], len(queries), len(vectors), m)
        with self._threads(len(queries)):
            self._faiss.knn_inner_product(point(queries), point(vectors), *sizes, point(scores), point(rows), selector)
        return scores, rows

    @contextmanager
    def _threads(self, queries: int, by_lists: bool = False) -> Iterator[None]:
        """FAISS shares a search out among threads by queries, and one of lists by these, too. More threads only wait
        and slow the others; so do several threads for each of several searches at once.
        """
        with self._lock:
            self._searching += 1
            alone = self._searching == 1
        before = self._faiss.omp_get_max_threads()  # of this thread
        self._faiss.omp_set_num_threads(before if by_lists and alone else min(before, queries))
        try:
            yield
        finally:
            self._faiss.omp_set_num_threads(before)
            with self._lock:
                self._searching -= 1

    def _with_tail(
        self, queries: np.ndarray, m: int, allowed: np.ndarray | None, scores: np.ndarray, rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        # FAISS marks what it did not find by -1 and the lowest finite number.
        scores = np.where(rows < 0, np.float32(-np.inf), scores)
        return _merge((scores, rows), scan(self.vectors, queries, m, allowed, first=self._indexed), m)

    def _selection(self, where: Where | None) -> Selection:
        with self._lock:
            if where in self._selections:
                self._selections.move_to_end(where)
                return self._selections[where]
        rows, total = self._database.rows(self._kind, where), len(self.vectors)
        if len(rows) and not 0 <= rows[0] <= rows[-1] < total:
            raise StaleIndex(f"{self._database.path} is damaged: it names a row that no file has; build it again")
        found = Selection(len(rows))
        if len(rows) < total:
            allowed = np.zeros(total, dtype=bool)
            allowed[rows] = True
            share = len(rows) / total
            few = rows if share < (GATHER if self._index is None else FEW) else None
            found = Selection(len(rows), allowed if few is None else None, share, few)
        with self._lock:
            self._selections[where] = found
            while len(self._selections) > FILTERS:
                self._selections.popitem(last=False)
        return found
