"""One generation of an index, opened: its items, codes and vectors. A rebuild makes the next one."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from quintet.search import StaleIndex, UnknownItem
from quintet.search.index_folder import Manifest
from quintet.search.items import KINDS, Entry, ItemDatabase, Kind
from quintet.search.queries import SAMPLE, near_distance
from quintet.search.stores import Store, Where, open_store
from quintet.search.stores.choice import is_own, store_address
from quintet.search.vector_search import VectorSearch, read_index
from quintet.search.vectors import CodeFiles, read_file_sets

if TYPE_CHECKING:
    from quintet.codes import Codes
    from quintet.protocols import Matcher


class Generation:
    """What one generation of an index keeps on disk, opened for searching."""

    def __init__(self, index: Path, database: ItemDatabase, manifest: Manifest) -> None:
        self.items, self.manifest = database, manifest
        sets, folder = read_file_sets(database), index / "vectors"
        self.codes: dict[Kind, CodeFiles] = {}
        self._searches: dict[Kind, VectorSearch] = {}
        self._stores: dict[Kind, Store] = {}
        self._samples: dict[Kind, np.ndarray] = {}
        self._newest: dict[Kind, np.ndarray] = {}
        self._distances: dict[Kind, float] = {}
        self._lock = threading.Lock()
        for kind in KINDS:
            if not manifest.counts[kind]:
                continue
            if manifest.files[kind] not in sets:
                raise StaleIndex(f"{database.path} is damaged: it names files that it does not know; build it again")
            self.codes[kind] = CodeFiles(folder, sets[manifest.files[kind]])
            if manifest.first and is_own(manifest.store):
                vectors, notes = self.codes[kind].vectors(manifest.first), manifest.faiss.get(kind)
                faiss = read_index(folder, notes) if notes else None
                self._searches[kind] = VectorSearch(database, kind, vectors, faiss)
            elif manifest.first:
                self._stores[kind] = open_store(store_address(manifest.store, kind), manifest.dim)

    def close(self) -> None:
        for store in self._stores.values():
            store.close()
        self.items.close()

    def check(self) -> None:
        """Raise unless the database answers and, where there is one, the engine that holds the vectors."""
        for kind in KINDS:
            found = self.items.query("SELECT id FROM items WHERE kind = ? LIMIT 1", [kind])
            if found and kind in self._stores:
                with suppress(UnknownItem):  # another build is under way; the engine answered
                    self._stores[kind].metadata([found[0][0]])

    def nearest(self, vectors: np.ndarray, k: int, kind: Kind, where: Where | None) -> list[list[tuple[Entry, float]]]:
        """The first stage: for each vector the k items of largest inner product, best first."""
        if kind in self._searches:
            return self._searches[kind].search(vectors, k, where)
        if kind not in self._stores:
            return [[] for _ in vectors]
        wanted = k
        while True:
            answers = self._stores[kind].search(vectors, wanted, where)
            entries = self.items.entries(list({hit.id for hits in answers for hit in hits}))
            # An engine that is being brought up to date may know items that this generation does not: ask for more.
            found = [[(entries[hit.id], hit.score) for hit in hits if hit.id in entries] for hits in answers]
            if all(len(known) >= k or len(hits) < wanted for known, hits in zip(found, answers, strict=True)):
                return [known[:k] for known in found]
            wanted *= 2

    def sample(self, kind: Kind) -> np.ndarray:
        """(m, dim): vectors of some items of a kind, spread evenly over its rows."""
        with self._lock:
            if kind not in self._samples:
                rows = self.items.rows(kind)
                chosen = rows[np.linspace(0, len(rows) - 1, min(SAMPLE, len(rows))).astype(int)]
                self._samples[kind] = self.vectors(kind, chosen)
            return self._samples[kind]

    def newest(self, kind: Kind) -> np.ndarray:
        """(n,): the rows of a kind, those of the latest date first."""
        with self._lock:
            if kind not in self._newest:
                self._newest[kind] = self.items.newest(kind)
            return self._newest[kind]

    def near_distance(self, kind: Kind) -> float:
        if kind not in self._distances:
            self._distances[kind] = near_distance(self.sample(kind))
        return self._distances[kind]

    def vectors(self, kind: Kind, rows: np.ndarray) -> np.ndarray:
        """(n, dim): the vectors of these rows, as queries are compared with them."""
        search = self._searches.get(kind)  # its vectors may be in memory
        return (search.vectors if search else self.codes[kind].vectors(self.manifest.first)).pick(rows)

    def rerank(
        self, matchers: Mapping[int, Matcher], queries: Mapping[int, Codes], entries: Sequence[Entry], kind: Kind
    ) -> list[tuple[Entry, float]]:
        """The second stage: items by the mean score of `matchers`, best first, ties by id.

        `queries`: the codes of one query by each of them.
        """
        from quintet.search.encoder import score_rows  # with torch

        if not entries:
            return []
        # By their row: a disk is read in order, and the order of the first stage cannot matter.
        entries = sorted(entries, key=lambda entry: (entry.row, entry.item.id))
        rows = np.array([entry.row for entry in entries])
        scores = score_rows(matchers, self.codes[kind], rows, queries, kind)
        hits = list(zip(entries, scores.tolist(), strict=True))
        return sorted(hits, key=lambda hit: (-hit[1], hit[0].item.id))
