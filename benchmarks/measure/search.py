"""Searching an index against bare FAISS, on the same vectors and in the same run: latency, memory, recall.

    python -m benchmarks.measure.search --sizes 10000 100000 1000000 --out benchmarks/results/search.json

Every size is built in one process and searched in another, which serves as a server would; its peak memory is read
after its own queries, before bare FAISS is brought in. Single queries to the one and the other take turns, and the
one that begins changes with every query. The index is measured twice: from a vector to the items found, with their
metadata, against FAISS's search alone; and end to end, from a text to the items, against the encoding of the text and
FAISS's search, which runs with its own number of threads. Vectors are unit vectors around random centres, the matcher
is an untrained VSE++. The file is written after every size.
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
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from quintet.codes import Codes
from quintet.data.vocabulary import WordVocabulary
from quintet.evaluation.result import provenance
from quintet.files import read_json, write_json
from quintet.models import create_model
from quintet.runs.checkpoint import write_run
from quintet.runs.run import load
from quintet.search.encoder import describe_run, keep_run
from quintet.search.index_folder import Manifest, write_marker
from quintet.search.items import Entry, Item, ItemDatabase
from quintet.search.searcher import Searcher
from quintet.search.stores import parse_where
from quintet.search.vector_search import (
    FaissKind,
    VectorSearch,
    exchange_index,
    kind_for,
    prepare_index,
    search_parameters,
)
from quintet.search.vectors import CodeFiles, CodeWriter, FileSet

BLOCK = 10_000
CENTRES, SPREAD = 2000, 0.9
WORDS = [
    "word" + "".join(chr(97 + int(digit)) for digit in f"{number:04}") for number in range(5000)
]  # of letters alone
TEXT = 12  # words
UNTIMED, WARM = 20, 120  # queries before those that are timed
RATIO, GIBIBYTES = 1.2, 3.0  # what is asked: times bare FAISS, and for a million of 512 numbers


def make_vectors(n: int, dim: int, seed: int, block: int) -> np.ndarray:
    centres = np.random.default_rng(seed).normal(size=(CENTRES, dim)).astype(np.float32)
    rng = np.random.default_rng([seed, block])
    vectors = centres[rng.integers(CENTRES, size=n)] + SPREAD * rng.normal(size=(n, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def make_metadata(number: int) -> dict[str, str | int | float | bool]:
    return {
        "kind": "text" if number % 5 == 0 else "image",
        "path": f"photos/{number // 1000}/{number}.jpg",
        "date": f"20{number % 25:02}-{1 + number % 12:02}-15",
        "width": 640 + number % 1000,
        "height": 480 + number % 700,
        "bytes": 100_000 + number,
    }


def item_id(number: int) -> str:
    return f"{number:032x}"


def build(index: Path, size: int, dim: int, kind: FaissKind | None, seed: int) -> dict[str, Any]:
    """An index as `build_index` leaves it, without the images."""
    began = time.perf_counter()
    index.mkdir(exist_ok=True)
    folder = index / "vectors"
    files = FileSet("image-1", "image", "benchmark", {"run0-embedding": {"width": dim, "dtype": "float32"}}, 0, 0.0)
    wanted = kind or kind_for(size)
    with closing(ItemDatabase.open_writer(index / "items.sqlite")) as database:
        CodeWriter.create(database, folder, files)
        with closing(CodeWriter(database, folder, files, "float32")) as writer:
            for block, start in enumerate(range(0, size, BLOCK)):
                numbers = range(start, min(start + BLOCK, size))
                vectors = torch.from_numpy(make_vectors(len(numbers), dim, seed, block))

                def put(_: int, numbers: range = numbers) -> None:
                    database.put(map(make_entry, numbers))

                writer.append([Codes(embedding=vectors)], put)
            files = writer.files
        vectors_on_disk = CodeFiles(folder, files).vectors([0])
        notes = prepare_index(database, folder, files, vectors_on_disk, wanted, {})
        run = make_run(index, dim)
        manifest = Manifest(
            generation=1,
            encoder=files.encoder,
            precision="float32",
            runs=(describe_run(run),),
            first=(0,),
            rerank=(),
            dim=dim,
            store="exact" if wanted == "flat" else f"faiss?kind={wanted}",
            files={"image": files.name},
            faiss={"image": notes} if notes else {},
            counts={"image": size, "text": 0},
            roots=(),
        )
        with database.transaction():
            exchange_index(database, {}, notes)
            manifest.put(database)
    write_marker(index)
    return {
        "kind": wanted,
        "build_seconds": round(time.perf_counter() - began, 1),
        "build_peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "disk_gib": round(sum(path.stat().st_size for path in (*folder.iterdir(), index / "items.sqlite")) / 2**30, 2),
    }


def make_entry(number: int) -> Entry:
    item = Item(item_id(number), "image", f"{number}.jpg", None, metadata=make_metadata(number))
    return Entry(item, number, item_id(number), "")


def make_run(index: Path, dim: int) -> Any:
    """A matcher that reads texts."""
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
    keep_run(index, run, {})
    return run


def peak_gib() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)


def milliseconds(action: Callable[[Any], object], query: Any) -> float:
    began = time.perf_counter()
    action(query)
    return 1000 * (time.perf_counter() - began)


def percentiles(times: list[float]) -> dict[str, float]:
    return {"p50_ms": round(float(np.percentile(times, 50)), 3), "p99_ms": round(float(np.percentile(times, 99)), 3)}


def bare_faiss(searcher: Searcher, k: int) -> Callable[[np.ndarray], np.ndarray]:
    """A search by FAISS alone: on the index's own file, asked as thoroughly; without one, IndexFlatIP in memory."""
    import faiss

    folder, notes = searcher.index / "vectors", searcher.manifest.faiss.get("image")
    if notes is None:
        flat = faiss.IndexFlatIP(searcher.manifest.dim)
        whole = vectors_of(searcher).whole()
        assert whole is not None
        flat.add(whole)
        return lambda query: flat.search(query, k)[1]
    index = faiss.read_index(str(folder / notes["file"]))
    parameters = search_parameters(index, k, 1.0, None)
    return lambda query: index.search(query, k, params=parameters)[1]


def vectors_of(searcher: Searcher) -> Any:
    return searcher._opened.codes["image"].vectors([0])


def ratio(ours: list[float], theirs: list[float], percent: float) -> float:
    return round(float(np.percentile(ours, percent) / np.percentile(theirs, percent)), 3)


def in_turns(
    ours: Callable[[Any], object], theirs: Callable[[Any], object], queries: Any, warm: Any
) -> tuple[list[float], list[float]]:
    for query in warm:
        ours(query)
        theirs(query)
    times: dict[Any, list[float]] = {ours: [], theirs: []}
    for number, query in enumerate(queries):  # who comes second finds the lists of the index in the processor's cache
        for each in (ours, theirs) if number % 2 else (theirs, ours):
            times[each].append(milliseconds(each, query))
    return times[ours], times[theirs]


def measure(index: Path, dim: int, queries: int, k: int, seed: int) -> dict[str, Any]:
    began = time.perf_counter()
    with Searcher.open(index, device="cpu") as searcher:
        opened = time.perf_counter() - began
        asked = make_vectors(queries, dim, seed, 10**6)[:, None]  # (queries, 1, dim)
        chance = random.Random(0)
        texts = [" ".join(chance.choices(WORDS, k=TEXT)) for _ in range(queries)]
        others = [" ".join(chance.choices(WORDS, k=TEXT)) for _ in range(WARM)]  # a text is encoded once: it is kept
        where = parse_where("kind=image and date>=2010")

        def to_items(query: np.ndarray) -> Any:
            return searcher._opened.nearest(query, k, "image", None)[0]

        found = [{entry.item.id for entry, _ in to_items(query)} for query in asked]
        first = milliseconds(lambda query: searcher._opened.nearest(query, k, "image", where), asked[0])
        filtered = [milliseconds(lambda query: searcher._opened.nearest(query, k, "image", where), q) for q in asked]
        for text in others[UNTIMED:]:
            searcher.search(text, k=k)
        peak = peak_gib()

        bare = bare_faiss(searcher, k)

        def encode_and_search(text: str) -> object:
            (codes,) = searcher.encoder.encode_texts([text])
            assert codes.embedding is not None
            return bare(codes.embedding.numpy())

        ours, theirs = in_turns(to_items, bare, asked, asked[:UNTIMED])
        whole, floor = in_turns(lambda text: searcher.search(text, k=k), encode_and_search, texts, others[:UNTIMED])
        exact = VectorSearch(searcher._opened.items, "image", vectors_of(searcher))
        truth = [{entry.item.id for entry, _ in hits} for hits in exact.search(asked[:100, 0], k)]
    recall = np.mean([len(hits & best) / k for hits, best in zip(found[:100], truth, strict=True)])
    return {
        "open_seconds": round(opened, 2),
        "index": percentiles(ours),
        "index_filtered": percentiles(filtered),
        "first_use_of_a_filter_ms": round(first, 1),
        "bare_faiss": percentiles(theirs),
        "ratio_p50": ratio(ours, theirs, 50),
        "ratio_p99": ratio(ours, theirs, 99),
        "end_to_end": percentiles(whole),
        "encode_and_faiss": percentiles(floor),
        "end_to_end_ratio_p50": ratio(whole, floor, 50),
        "end_to_end_ratio_p99": ratio(whole, floor, 99),
        "recall": round(float(recall), 4),
        "peak_gib": peak,
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
        "--folder", type=Path, help="where the indexes are made, with room for them; else a temporary one"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {
        "benchmark": "search",
        "dim": options.dim,
        "k": options.k,
        "queries": options.queries,
        "seed": options.seed,
        "targets": {"ratio_p50": RATIO, "peak_gib": GIBIBYTES},
        "provenance": provenance(),
        "sizes": [],
    }
    if options.out and options.out.exists():  # sizes that are not measured now stay
        known = read_json(options.out)
        if all(known.get(name) == result[name] for name in ("dim", "k", "queries", "seed", "targets")):
            result["sizes"] = [row for row in known["sizes"] if row["vectors"] not in options.sizes]
    for size in options.sizes:
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="search-") as name:
            row = {"vectors": size, **apart(build, Path(name), size, options.dim, options.kind, options.seed)}
            row |= apart(measure, Path(name), options.dim, options.queries, options.k, options.seed)
        print(json.dumps(row, indent=2), flush=True)
        result["sizes"] = sorted([*result["sizes"], row], key=lambda each: each["vectors"])
        if options.out:
            write_json(options.out, result)


if __name__ == "__main__":
    main()
