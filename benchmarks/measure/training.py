"""Training throughput of every matcher, with one process and with two.

    python -m benchmarks.measure.training --out benchmarks/results/training_cpu.json

Each matcher trains for two epochs with `quintet train` on a corpus of random features in a temporary folder. The second
epoch is timed; the first warms up caches. Each process has one thread, so that two processes on two cores show the
speed-up of the second.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from quintet.data.corpus import Corpus, Image, Text
from quintet.data.feature_store import Part, write_manifest
from quintet.evaluation.result import provenance
from quintet.files import read_json, read_jsonl, write_json
from quintet.models import list_models

WORDS = [f"word{number}" for number in range(500)]


def make_corpus(folder: Path, images: int, fragments: int, dim: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = [str(number) for number in range(images)]
    texts = [
        Text(f"{name}#{k}", name, " ".join(rng.choice(WORDS, int(rng.integers(8, 15)))))
        for name in names
        for k in range(5)
    ]
    splits = {"train": names[20:], "dev": names[:10], "test": names[10:20]}
    Corpus("random", [Image(name, name) for name in names], texts, splits, root=folder).save(folder)
    store = folder / "features" / "random"
    store.mkdir(parents=True)
    np.save(store / "features.npy", rng.normal(size=(images, fragments, dim)).astype(np.float16))
    rows = np.stack([np.zeros(images, np.int64), np.arange(images)], axis=1)
    write_manifest(store, names, rows, [Part("features.npy")], fragments=fragments, dim=dim, tower={"name": "random"})


def samples_per_second(matcher: str, corpus: Path, folder: Path, processes: int, options: argparse.Namespace) -> float:
    recipe = {
        "name": "throughput",
        "data": {"corpus": str(corpus), "features": "random", "tokenizer": {"min_count": 1}},
        "matcher": {"name": matcher, "embed_dim": options.embed_dim},
        "stages": [
            {
                "name": "s",
                "loss": {"triplet": {"margin": 0.2}},
                "batches": {"size": options.batch, "per": "images"},
                "epochs": 2,
                "checkpoint_every": 10_000,
            }
        ],
    }
    write_json(folder / "recipe.yaml", recipe)  # JSON is YAML
    run = folder / f"run-{matcher.replace('+', 'p')}-{processes}"
    launch = [sys.executable]
    if processes > 1:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        launch += ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--master-port", port]
    command = [
        *launch,
        "-m",
        "quintet",
        "train",
        str(folder / "recipe.yaml"),
        "-o",
        str(run),
        "--device",
        options.device,
    ]
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads)}
    subprocess.run(command, check=True, env=environment, capture_output=True)
    rows = [row for row in read_jsonl(run / "stages" / "s" / "log.jsonl") if row["kind"] == "validation"]
    trained = len(read_json(corpus / "splits.json")["train"])
    return trained / rows[1]["seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--matchers", nargs="*", default=list_models())
    parser.add_argument("--processes", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--images", type=int, default=532)
    parser.add_argument("--fragments", type=int, default=36)
    parser.add_argument("--dim", type=int, default=1280)
    parser.add_argument("--embed-dim", type=int, default=512)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_corpus(folder / "corpus", options.images, options.fragments, options.dim, options.seed)
        for matcher in options.matchers:
            rates = {
                count: samples_per_second(matcher, folder / "corpus", folder, count, options)
                for count in options.processes
            }
            row = {
                "matcher": matcher,
                "pairs_per_second": {str(count): round(rate, 1) for count, rate in rates.items()},
            }
            if 1 in rates:
                row["speedup"] = {str(count): round(rate / rates[1], 2) for count, rate in rates.items() if count > 1}
            rows.append(row)
            print(json.dumps(row), flush=True)
    settings = {key: value for key, value in vars(options).items() if key != "out"}
    if options.out:
        write_json(
            options.out, {"benchmark": "training", "settings": settings, "rows": rows, "provenance": provenance()}
        )


if __name__ == "__main__":
    main()
