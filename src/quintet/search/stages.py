"""The two stages of a search: embeddings choose candidates, whole scores put them in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quintet.codes import Codes
from quintet.protocols import Matcher
from quintet.search.generation import open_tables, place_vectors
from quintet.search.items import KINDS, Entry, Hit, ItemTable, Kind, Place
from quintet.search.manifest import Manifest
from quintet.search.segments import CodeTable
from quintet.search.store_choice import store_address
from quintet.search.stores import Store, Where, open_store

AT_ONCE = 512  # items whose fragments are in memory at a time


class Stages:
    """What one generation of an index keeps, opened for searching."""

    def __init__(self, index: Path, manifest: Manifest) -> None:
        self.manifest = manifest
        self.items = ItemTable(manifest.folder(index) / "items.sqlite")
        self.tables = open_tables(index, manifest)
        self._stores: dict[Kind, Store] = {
            kind: open_store(store_address(manifest.store, manifest.folder(index), kind), manifest.dim)
            for kind in KINDS
            if manifest.first and manifest.counts[kind]
        }

    def close(self) -> None:
        for store in self._stores.values():
            store.close()
        self.items.close()

    def vector(self, entry: Entry) -> np.ndarray:
        """(1, dim): what the first stage knows of an item."""
        return place_vectors(self.tables[entry.item.kind], self.manifest, [entry])

    def nearest(self, vectors: np.ndarray, k: int, kind: Kind, where: Where | None) -> list[list[Hit]]:
        """The first stage: for each vector the k items of largest inner product, best first."""
        if kind not in self._stores:
            return [[] for _ in vectors]
        wanted = k
        while True:
            answers = self._stores[kind].search(vectors, wanted, where)
            entries = self.items.entries(list({hit.id for hits in answers for hit in hits}))
            # An engine that is being brought up to date may know items that this generation does not: ask for more.
            found = [[Hit(entries[hit.id].item, hit.score) for hit in hits if hit.id in entries] for hits in answers]
            if all(len(known) >= k or len(hits) < wanted for known, hits in zip(found, answers, strict=True)):
                return [known[:k] for known in found]
            wanted *= 2

    def in_order(
        self, matchers: dict[int, Matcher], queries: dict[int, Codes], entries: Sequence[Entry], kind: Kind
    ) -> list[Hit]:
        """The second stage: items by the mean score of `matchers`, best first, ties by id.

        `queries`: the codes of one query by each of them.
        """
        if not entries:
            return []
        # By their place: a disk is read in order, and the order of the first stage cannot matter.
        entries = sorted(entries, key=lambda entry: entry.place)
        places = [entry.place for entry in entries]
        scores = score_places(matchers, self.tables[kind], places, queries, kind)
        hits = [Hit(entry.item, score) for entry, score in zip(entries, scores.tolist(), strict=True)]
        return sorted(hits, key=lambda hit: (-hit.score, hit.item.id))


@torch.no_grad()
def score_places(
    matchers: dict[int, Matcher], table: CodeTable, places: Sequence[Place], queries: dict[int, Codes], kind: Kind
) -> Tensor:
    """(n,): the mean score of an ensemble for one query and these items of a kind, as `quintet evaluate` takes it.

    Items are scored in blocks of one size: all items of an index give, bit for bit, what scoring everything gives.
    """
    parts = []
    for start in range(0, len(places), AT_ONCE):
        some = places[start : start + AT_ONCE]
        scores = [
            _block(matcher, table.codes(member, some), queries[member], kind) for member, matcher in matchers.items()
        ]
        parts.append(torch.stack(scores).mean(dim=0))  # (members, n) -> (n,)
    return torch.cat(parts)


def _block(matcher: Matcher, items: Codes, query: Codes, kind: Kind) -> Tensor:
    device = next(matcher.parameters()).device
    items, query = items.to(device), query.to(device)
    scores = matcher.score(items, query)[:, 0] if kind == "image" else matcher.score(query, items)[0]  # (n,)
    return scores.float().cpu()
