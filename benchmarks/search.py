"""Searching the FAISS store against bare FAISS on the same index: latency of single queries, memory, recall.

    python benchmarks/search.py --sizes 10000 100000 1000000 --out benchmarks/results/search.json

Every size is built in one process and searched in another, which serves as a server would; its resident memory is read
after its own queries, before bare FAISS is brought in. Queries to the one and the other take turns. Vectors are unit
vectors around random centres. The file is written after every size.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from quintet.evaluation.result import provenance
from quintet.files import read_json, write_json
from quintet.search.stores import file_address, open_store, parse_where

BLOCK = 10_000
CENTRES, SPREAD = 2000, 0.9
RATIO, GIBIBYTES = 1.3, 3.0  # what is asked: times bare FAISS, and for a million of 512 numbers


def make_vectors(n: int, dim: int, seed: int, block: int) -> np.ndarray:
    centres = np.random.default_rng(seed).normal(size=(CENTRES, dim)).astype(np.float32)
    rng = np.random.default_rng([seed, block])
    vectors = centres[rng.integers(CENTRES, size=n)] + SPREAD * rng.normal(size=(n, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def make_metadata(number: int) -> dict[str, str | int | float | bool]:
    return {
        "kind": "text" if number % 5 == 0 else "image",
        "path": f"pictures/{number // 1000}/{number}.jpg",
        "date": f"20{number % 25:02}-{1 + number % 12:02}-15",
        "width": 640 + number % 1000,
        "height": 480 + number % 700,
        "bytes": 100_000 + number,
    }


def build(folder: Path, size: int, dim: int, kind: str | None, seed: int) -> dict[str, Any]:
    options = {"kind": kind} if kind else {}
    store, began = open_store(file_address("faiss", folder), dim, create=True, **options), time.perf_counter()
    for block, start in enumerate(range(0, size, BLOCK)):
        numbers = range(start, min(start + BLOCK, size))
        vectors = make_vectors(len(numbers), dim, seed, block)
        store.add([f"{number:032x}" for number in numbers], vectors, [make_metadata(number) for number in numbers])
    store.close()
    return {
        "kind": read_json(folder / "store.json")["engine"].get("kind", "flat"),
        "build_seconds": round(time.perf_counter() - began, 1),
        "build_peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "disk_gib": round(sum(path.stat().st_size for path in folder.iterdir()) / 2**30, 2),
    }


def resident_gib() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return round(int(line.split()[1]) / 2**20, 2)
    raise RuntimeError("this system does not tell the resident set")


def milliseconds(action: Callable[[np.ndarray], object], query: np.ndarray) -> float:
    began = time.perf_counter()
    action(query)
    return 1000 * (time.perf_counter() - began)


def percentiles(times: list[float]) -> dict[str, float]:
    return {"p50_ms": round(float(np.percentile(times, 50)), 3), "p99_ms": round(float(np.percentile(times, 99)), 3)}


def bare_faiss(folder: Path, dim: int, k: int) -> Callable[[np.ndarray], np.ndarray]:
    """A search by FAISS alone: its index as it lies in the folder, asked as thoroughly as the store asks it."""
    import faiss

    from quintet.search.stores.faiss_index import read_index, search_parameters

    notes = read_json(folder / "store.json")
    if "file" not in notes["engine"]:
        flat = faiss.IndexFlatIP(dim)
        flat.add(np.memmap(folder / notes["vectors"], np.float32, "r", shape=(notes["rows"], dim)))
        return lambda query: flat.search(query, k)[1]
    index = read_index(folder / notes["engine"]["file"], mapped=True)
    parameters = search_parameters(index, k, 1.0, None)
    return lambda query: index.search(query, k, params=parameters)[1]


def measure(folder: Path, dim: int, queries: int, k: int, seed: int) -> dict[str, Any]:
    began = time.perf_counter()
    store = open_store(file_address("faiss", folder))
    opened = time.perf_counter() - began
    asked = make_vectors(queries, dim, seed, 10**6)[:, None]  # (queries, 1, dim)
    found = [{hit.id for hit in store.search(query, k)[0]} for query in asked]
    where = parse_where("kind=image and date>=2010")
    filtered = [milliseconds(lambda query: store.search(query, k, where), query) for query in asked]
    resident = resident_gib()
    bare = bare_faiss(folder, dim, k)
    for query in asked[:20]:
        bare(query)
    pairs = [(milliseconds(lambda q: store.search(q, k), query), milliseconds(bare, query)) for query in asked]
    ours, theirs = [one for one, _ in pairs], [other for _, other in pairs]
    truth = open_store(file_address("exact", folder)).search(asked[:100, 0], k)
    recall = np.mean([len(hits & {hit.id for hit in best}) / k for hits, best in zip(found[:100], truth, strict=True)])
    return {
        "open_seconds": round(opened, 2),
        "store": percentiles(ours),
        "store_filtered": percentiles(filtered),
        "bare_faiss": percentiles(theirs),
        "ratio_p50": round(float(np.percentile(ours, 50) / np.percentile(theirs, 50)), 3),
        "ratio_p99": round(float(np.percentile(ours, 99) / np.percentile(theirs, 99)), 3),
        "recall": round(float(recall), 4),
        "resident_gib": resident,
    }


def apart(function: Callable[..., dict[str, Any]], *arguments: object) -> dict[str, Any]:
    """In a process of its own, so that memory is that of this step."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--kind", choices=["flat", "hnsw", "ivf"], help="without it the size decides")
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--k", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--folder", type=Path, help="where the stores are made, with room for them; else a temporary one"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {
        "benchmark": "search",
        "dim": options.dim,
        "k": options.k,
        "queries": options.queries,
        "seed": options.seed,
        "targets": {"ratio_p50": RATIO, "resident_gib": GIBIBYTES},
        "provenance": provenance(),
        "sizes": [],
    }
    for size in options.sizes:
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="search-") as name:
            row = {"vectors": size, **apart(build, Path(name), size, options.dim, options.kind, options.seed)}
            row |= apart(measure, Path(name), options.dim, options.queries, options.k, options.seed)
        print(json.dumps(row, indent=2), flush=True)
        result["sizes"].append(row)
        if options.out:
            write_json(options.out, result)


if __name__ == "__main__":
    main()
