"""The second round of AOQ against the first: a two-round recipe, several seeds, both rounds on the test split.

    python -m benchmarks.measure.aoq_rounds --recipe aoq-vsrn-flickr8k --corpus corpora/flickr8k --seeds 0 1 2 \\
        --work runs/aoq-vsrn-flickr8k --out benchmarks/results/aoq_vsrn_flickr8k.json

Each seed is an ordinary `quintet train`, `--parallel` of them at a time. A finished run is not trained again, an
unfinished one is resumed. The selected weights of every stage are measured on the test split, which is not used for
selection.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from quintet.data.corpus import Corpus
from quintet.evaluation.evaluator import evaluate
from quintet.evaluation.result import provenance
from quintet.files import read_json, read_jsonl, write_json
from quintet.runs.devices import pick_device
from quintet.runs.run import load
from quintet.training.recipe import load_recipe


def train(options: argparse.Namespace, seed: int) -> Path:
    run = options.work / f"seed{seed}"
    quintet = [sys.executable, "-m", "quintet", "train"]
    if (run / "run.json").is_file():
        command = [*quintet, "--resume", str(run)]
    else:
        chosen = [*options.overrides, f"seed={seed}"]
        command = [*quintet, options.recipe, *chosen, "--corpus", str(options.corpus), "-o", str(run)]
    subprocess.run([*command, "--device", options.device], check=True, capture_output=True)
    print(f"seed {seed} trained", flush=True)
    return run


def measure(run_folder: Path, stage: str, corpus: Corpus, split_name: str, device: torch.device) -> dict[str, Any]:
    run = load(run_folder, stage=stage, device=device)
    result = evaluate(run, corpus, split=split_name)
    log = list(read_jsonl(run_folder / "stages" / stage / "log.jsonl"))
    seconds = sum(row["seconds"] for row in log if row["kind"] == "validation")
    return {
        "metrics": result.metrics,
        "intervals": {name: list(interval) for name, interval in result.intervals.items()},
        "selected_epoch": read_json(run_folder / "stages" / stage / "done.json")["epoch"],
        "training_seconds": round(seconds, 1),
        "weights": run.weights_checksum,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--overrides", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--work", type=Path, required=True, help="where the runs go")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    recipe = load_recipe(options.recipe, options.overrides)
    first, *_, last = (stage.name for stage in recipe.stages)
    with ThreadPoolExecutor(options.parallel) as pool:
        runs = list(pool.map(lambda seed: train(options, seed), options.seeds))
    corpus, device = Corpus.open(options.corpus), pick_device(options.device)
    seeds = {
        str(seed): {stage.name: measure(run, stage.name, corpus, recipe.data.test, device) for stage in recipe.stages}
        for seed, run in zip(options.seeds, runs, strict=True)
    }
    gains = [found[last]["metrics"]["rsum"] - found[first]["metrics"]["rsum"] for found in seeds.values()]
    report = {
        "benchmark": "aoq_rounds",
        "recipe": options.recipe,
        "overrides": options.overrides,
        "corpus": corpus.name,
        "kind": "single model",
        "warmup_epochs": {
            stage.name: max(float(loss.get("warmup_epochs", 0)) for loss in stage.loss.values())
            for stage in recipe.stages
        },
        "seeds": seeds,
        "gain_rsum": {
            "per_seed": gains,
            "mean": statistics.mean(gains),
            "spread": statistics.stdev(gains) if len(gains) > 1 else None,
        },
        "provenance": provenance(),
    }
    write_json(options.out, report)
    for stage in recipe.stages:
        values = [found[stage.name]["metrics"]["rsum"] for found in seeds.values()]
        print(f"{stage.name:10} rsum {statistics.mean(values):6.1f}  {[round(value, 1) for value in values]}")
    print(f"gain {report['gain_rsum']}")


if __name__ == "__main__":
    main()
