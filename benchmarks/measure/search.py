"""Searching an index kept in FAISS against bare FAISS on the same index: latency of single queries, memory, recall.

    python -m benchmarks.measure.search --sizes 10000 100000 1000000 --out benchmarks/results/search.json

Every size is built in one process and searched in another, which serves as a server would; its resident memory is read
after its own queries, before bare FAISS is brought in. Queries to the one and the other take turns. Vectors are unit
vectors around random centres. At last the whole way is timed, from a text to the items of the index, with an
untrained VSE++, in turns with its encoding of the text and bare FAISS. The file is written after every size.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from quintet.search.manifest import Manifest, describe_run, keep_run

from quintet.data.vocabulary import WordVocabulary
from quintet.evaluation.result import provenance
from quintet.files import read_json, write_json
from quintet.models import create_model
from quintet.runs.run import load
from quintet.runs.writing import write_run
from quintet.search.items import Entry, Item, Place, write_items
from quintet.search.searcher import Searcher
from quintet.search.stores import file_address, open_store, parse_where

BLOCK = 10_000
CENTRES, SPREAD = 2000, 0.9
WORDS = [f"word{number}" for number in range(5000)]
TEXT = 12  # words
STORE = Path("generation-1") / "store-image"  # below the index
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


def item_id(number: int) -> str:
    return f"{number:032x}"


def build(index: Path, size: int, dim: int, kind: str | None, seed: int) -> dict[str, Any]:
    folder = index / STORE
    options = {"kind": kind} if kind else {}
    store, began = open_store(file_address("faiss", folder), dim, create=True, **options), time.perf_counter()
    for block, start in enumerate(range(0, size, BLOCK)):
        numbers = range(start, min(start + BLOCK, size))
        vectors = make_vectors(len(numbers), dim, seed, block)
        store.add(list(map(item_id, numbers)), vectors, list(map(make_metadata, numbers)))
    store.close()
    made = {
        "kind": read_json(folder / "store.json")["engine"].get("kind", "flat"),
        "build_seconds": round(time.perf_counter() - began, 1),
        "build_peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "disk_gib": round(sum(path.stat().st_size for path in folder.iterdir()) / 2**30, 2),
    }
    make_index_around(index, size, dim, made["kind"])
    return made


def make_index_around(index: Path, size: int, dim: int, kind: str) -> None:
    """What a search needs besides the store: the items, and a matcher that reads texts."""
    entries = (
        Entry(Item(item_id(n), "image", f"{n}.jpg", 0, metadata=make_metadata(n)), Place(0, n), item_id(n), "")
        for n in range(size)
    )
    write_items(index / "generation-1" / "items.sqlite", entries)
    words = WordVocabulary.build(WORDS, min_count=1)
    sizes: dict[str, Any] = {"vocabulary_size": len(words), "embed_dim": dim, "tower": "small-cnn"}
    torch.manual_seed(0)
    write_run(
        index / "run",
        name="untrained",
        model={"name": "vse++", "arguments": sizes},
        state_dict=create_model("vse++", **sizes).state_dict(),
        tokenizer=words,
        image_input={"kind": "pixels"},
    )
    run = load(index / "run", device="cpu")
    keep_run(index, run, index / "run")
    Manifest(
        generation=1,
        encoder="",
        precision="float32",
        runs=(describe_run(run),),
        first=(0,),
        rerank=(),
        dim=dim,
        store=f"faiss?kind={kind}",
        segments={"image": (), "text": ()},
        counts={"image": size, "text": 0},
        roots=(),
    ).write(index)


def resident_gib() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return round(int(line.split()[1]) / 2**20, 2)
    raise RuntimeError("this system does not tell the resident set")


def milliseconds(action: Callable[[Any], object], query: Any) -> float:
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


def end_to_end(index: Path, dim: int, queries: int, k: int) -> dict[str, Any]:
    """From a text to the items found, in turns with the least it could cost: the text's encoding and FAISS."""
    chance = random.Random(0)
    texts = [" ".join(chance.choices(WORDS, k=TEXT)) for _ in range(queries)]
    bare = bare_faiss(index / STORE, dim, k)
    with Searcher.open(index, device="cpu") as searcher:

        def ours(text: str) -> object:
            return searcher.search_text([text], k=k)

        def least(text: str) -> object:
            (codes,) = searcher.encoder.encode_texts([text])
            assert codes.embedding is not None
            return bare(codes.embedding.numpy())

        for sentence in texts[:20]:
            ours(sentence)
            least(sentence)
        pairs = [(milliseconds(ours, sentence), milliseconds(least, sentence)) for sentence in texts]
    whole, floor = [one for one, _ in pairs], [other for _, other in pairs]
    return {
        "end_to_end": percentiles(whole),
        "encode_and_faiss": percentiles(floor),
        "end_to_end_ratio_p50": ratio(whole, floor, 50),
        "end_to_end_ratio_p99": ratio(whole, floor, 99),
    }


def ratio(ours: list[float], theirs: list[float], percent: float) -> float:
    return round(float(np.percentile(ours, percent) / np.percentile(theirs, percent)), 3)


def measure(index: Path, dim: int, queries: int, k: int, seed: int) -> dict[str, Any]:
    folder = index / STORE
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
        "ratio_p50": ratio(ours, theirs, 50),
        "ratio_p99": ratio(ours, theirs, 99),
        "recall": round(float(recall), 4),
        "resident_gib": resident,
        **end_to_end(index, dim, queries, k),
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
