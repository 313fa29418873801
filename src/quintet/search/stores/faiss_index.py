"""Which FAISS index a store has, and how it is made, extended, written and mapped."""

from __future__ import annotations

from math import isqrt
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from quintet.files import atomic_write
from quintet.search.errors import StoreError
from quintet.search.stores.extras import required
from quintet.search.stores.patience import first_line
from quintet.search.stores.vectors import Vectors

Kind = Literal["flat", "hnsw", "ivf"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# Vectors: below the first, comparing all takes some 50 ms; above the second, a graph takes long to make.
HNSW_FROM, IVF_FROM = 200_000, 500_000
LINKS, BUILD_WIDTH, SEARCH_WIDTH = 32, 100, 128  # HNSW's M, efConstruction, efSearch
PROBES, ONE_IN = 32, 16  # lists looked through: at least so many, and one in so many of them
TRAINING = 50  # vectors for each list that IVF's centres are learnt from
BLOCK = 16_384  # vectors added at a time


def kind_for(rows: int) -> Kind:
    """
    >>> kind_for(100_000), kind_for(300_000), kind_for(1_000_000)
    ('flat', 'hnsw', 'ivf')
    """
    return "flat" if rows < HNSW_FROM else "hnsw" if rows < IVF_FROM else "ivf"


def make_index(kind: Kind, vectors: Vectors) -> Any:
    """An index of all vectors, in memory; not for "flat", which needs none."""
    faiss = required("faiss", "index")
    dim = vectors.array.shape[1]
    if kind == "hnsw":
        index = faiss.IndexHNSWFlat(dim, LINKS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = BUILD_WIDTH
    else:
        lists = max(1, min(4 * isqrt(len(vectors)), len(vectors) // 40))
        # Half precision halves its memory; what it finds is scored again from the store's own vectors.
        index = faiss.index_factory(dim, f"IVF{lists},SQfp16", faiss.METRIC_INNER_PRODUCT)
        index.cp.min_points_per_centroid = 1  # the number of lists is ours to choose, also for a small store
        chosen = np.random.default_rng(0).permutation(len(vectors))[: TRAINING * lists]
        index.train(vectors.pick(np.sort(chosen)))
    extend_index(index, vectors)
    return index


def extend_index(index: Any, vectors: Vectors) -> None:
    """Add the rows that it does not have yet."""
    for start in range(index.ntotal, len(vectors), BLOCK):
        index.add(vectors.array[start : start + BLOCK])
        vectors.release()


def write_index(index: Any, path: Path) -> None:
    faiss = required("faiss", "index")
    with atomic_write(path) as temporary:
        try:
            faiss.write_index(index, str(temporary))
        except RuntimeError as error:  # FAISS says so when the disk is full
            raise StoreError(f"could not write {path}: {first_line(error)}") from None


def read_index(path: Path, *, mapped: bool) -> Any:
    """`mapped`: left on disk and paged in as it is searched; such an index cannot be added to."""
    faiss = required("faiss", "index")
    if not path.exists():
        raise FileNotFoundError(path)
    try:
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC if mapped else 0)
    except RuntimeError as error:
        raise StoreError(f"{path} is damaged ({first_line(error)}); make the store again") from None


def search_parameters(index: Any, m: int, share: float, selector: Any) -> Any:
    """How thoroughly to look: the fewer rows are allowed, the more of the others are passed on the way."""
    faiss = required("faiss", "index")
    if isinstance(index, faiss.IndexHNSW):
        return faiss.SearchParametersHNSW(sel=selector, efSearch=int(max(SEARCH_WIDTH, 2 * m) / share))
    probes = max(PROBES, index.nlist // ONE_IN)
    return faiss.SearchParametersIVF(sel=selector, nprobe=min(index.nlist, int(probes / share)))
