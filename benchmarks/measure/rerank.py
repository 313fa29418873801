"""The cascade: how many candidates K are worth re-ranking, and what it costs.

    python -m benchmarks.measure.rerank latency    # SCAN of the published size, 100 candidates, no training
    python -m benchmarks.measure.rerank quality --first runs/vse --rerank runs/scan --corpus corpora/flickr8k

`latency` times the whole second stage of one query: regions of the candidates read from the index's files (bfloat16),
scored, sorted; the limit is 150 ms on two cores. `quality` indexes a split, asks with every caption (or
--queries of them) and writes for each K the recalls of text to image and the time of a query, end to end, with a
plot (needs matplotlib). Results go to benchmarks/results/rerank_latency.json and rerank_quality.json.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from quintet.codes import Codes
from quintet.data.batches import TextBatch
from quintet.data.corpus import Corpus
from quintet.evaluation.result import provenance
from quintet.files import write_json
from quintet.models import create_model
from quintet.search.encoder import score_rows
from quintet.search.indexing import build_index
from quintet.search.items import ItemDatabase
from quintet.search.searcher import Searcher
from quintet.search.vectors import CodeFiles, CodeWriter, FileSet

RESULTS = Path(__file__).parents[1] / "results"
LIMIT_MS = 150.0
SHOWN = 10  # results of a query; at least so many are re-ranked
ITEMS, REGIONS, DIM, WORDS = 2000, 36, 1024, 14  # the published SCAN on a small gallery; Flickr30K's mean length


def milliseconds(work: Callable[[], Any], repeats: int) -> dict[str, float]:
    work()  # warm up: pages of the files, threads
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        taken.append(1e3 * (time.perf_counter() - began))
    return {"p50_ms": float(np.percentile(taken, 50)), "p99_ms": float(np.percentile(taken, 99))}


def latency(matcher_name: str, depths: Sequence[int], items: int, repeats: int) -> dict[str, Any]:
    """The second stage alone, on random unit regions and an untrained matcher: time does not depend on training."""
    torch.manual_seed(0)
    matcher = create_model(matcher_name, image_dim=2048, vocabulary_size=1000, embed_dim=DIM).eval()
    query = matcher.encode_texts(TextBatch.from_ids([[7] * WORDS]))
    with tempfile.TemporaryDirectory() as folder:
        files, chance = write_codes(Path(folder), items), random.Random(0)
        found = []
        for depth in depths:
            rows = np.array(sorted(chance.sample(range(items), depth)))

            def stage(rows: np.ndarray = rows) -> list[int]:
                return score_rows({0: matcher}, files, rows, {0: query}, "image").argsort(descending=True).tolist()

            found.append({"candidates": depth, **milliseconds(stage, repeats)})
            print(f"{matcher_name}, {depth} candidates: {found[-1]['p50_ms']:.1f} ms (p99 {found[-1]['p99_ms']:.1f})")
    return {"matcher": matcher_name, "depths": found}


def write_codes(folder: Path, items: int) -> CodeFiles:
    database = ItemDatabase.open_writer(folder / "items.sqlite")
    writer = CodeWriter(database, folder, FileSet("image-1", "image", "benchmark", {}, 0, 0.0), "bfloat16")
    for start in range(0, items, 256):
        regions = F.normalize(torch.randn(min(256, items - start), REGIONS, DIM), dim=-1)
        writer.append([Codes(fragments=regions)])
    writer.close()
    database.close()
    return CodeFiles(folder, writer.files)


def quality(arguments: argparse.Namespace) -> dict[str, Any]:
    corpus = Corpus.open(arguments.corpus)
    split = corpus.split(arguments.split)
    texts = split.texts
    if arguments.queries:
        texts = random.Random(0).sample(texts, min(arguments.queries, len(texts)))
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"split": arguments.split, "device": arguments.device}
        build_index(arguments.first, [arguments.corpus], Path(folder), rerank_with=arguments.rerank, **options)
        with Searcher.open(folder, device=arguments.device) as searcher:
            everything = searcher.manifest.counts["image"]
            depths = [None, *(depth for depth in arguments.depths if depth < everything), everything]
            rows = [measure_depth(searcher, texts, depth) for depth in depths]
            facts = searcher.describe()
    return {"corpus": corpus.name, "split": split.name, "checksum": split.checksum, "index": facts, "depths": rows}


def measure_depth(searcher: Searcher, texts: Sequence[Any], depth: int | None) -> dict[str, Any]:
    ranks, taken = [], []
    for text in texts:
        began = time.perf_counter()
        (hits,) = searcher.search_text([text.text], k=SHOWN, rerank=depth)
        taken.append(1e3 * (time.perf_counter() - began))
        right = [rank for rank, hit in enumerate(hits) if hit.item.metadata["group"] == text.group]
        ranks.append(right[0] if right else SHOWN)
    recalls = {f"r{k}": 100 * float(np.mean(np.array(ranks) < k)) for k in (1, 5, 10)}
    times = {"p50_ms": float(np.percentile(taken, 50)), "p99_ms": float(np.percentile(taken, 99))}
    row = {"candidates": depth, "queries": len(texts), **recalls, **times}
    print(f"K = {depth}: R@1 {row['r1']:.1f}, R@10 {row['r10']:.1f}, {row['p50_ms']:.1f} ms")
    return row


def plot(found: dict[str, Any], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    rows = [row for row in found["depths"] if row["candidates"] is not None]
    first = found["depths"][0]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for name in ("r1", "r5", "r10"):
        line = left.plot(
            [row["candidates"] for row in rows], [row[name] for row in rows], marker="o", label=f"R@{name[1:]}"
        )
        left.axhline(first[name], color=line[0].get_color(), linestyle=":", linewidth=1)
    left.set(xscale="log", xlabel="candidates K", ylabel="recall, %", title="quality (dotted: first stage alone)")
    left.legend()
    right.plot([row["candidates"] for row in rows], [row["p50_ms"] for row in rows], marker="o", label="median")
    right.plot(
        [row["candidates"] for row in rows], [row["p99_ms"] for row in rows], marker="o", label="99th percentile"
    )
    right.set(xscale="log", yscale="log", xlabel="candidates K", ylabel="ms a query", title="latency, end to end")
    right.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    fast = commands.add_parser("latency")
    fast.add_argument("--matchers", nargs="+", default=["scan", "bfan"])
    fast.add_argument("--depths", type=int, nargs="+", default=[10, 100, 1000])
    fast.add_argument("--items", type=int, default=ITEMS)
    fast.add_argument("--repeats", type=int, default=50)
    fast.add_argument("--out", type=Path, default=RESULTS / "rerank_latency.json")
    good = commands.add_parser("quality")
    good.add_argument("--first", type=Path, required=True)
    good.add_argument("--rerank", type=Path, nargs="+", required=True)
    good.add_argument("--corpus", type=Path, required=True)
    good.add_argument("--split", default="test")
    good.add_argument("--queries", type=int, default=0, help="a sample of the captions; 0: all")
    good.add_argument("--depths", type=int, nargs="+", default=[10, 20, 50, 100, 200, 500])
    good.add_argument("--device", default="cpu")
    good.add_argument("--out", type=Path, default=RESULTS / "rerank_quality.json")
    good.add_argument("--plot", type=Path, default=Path(__file__).parents[2] / "docs" / "images" / "rerank.svg")
    arguments = parser.parse_args()
    if arguments.command == "quality" and min(arguments.depths) < SHOWN:
        parser.error(f"K is at least {SHOWN}: so many results are asked for, and none of them is left unordered")
    if arguments.command == "latency":
        rows = [latency(name, arguments.depths, arguments.items, arguments.repeats) for name in arguments.matchers]
        sizes = {"items": arguments.items, "regions": REGIONS, "dim": DIM, "words": WORDS, "precision": "bfloat16"}
        found: dict[str, Any] = {"sizes": sizes, "limit_ms_of_100": LIMIT_MS, "matchers": rows}
    else:
        found = quality(arguments)
        plot(found, arguments.plot)
    found = {"benchmark": f"rerank {arguments.command}", **found, "provenance": provenance()}
    write_json(arguments.out, found)


if __name__ == "__main__":
    main()
