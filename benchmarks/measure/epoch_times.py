"""Time of an epoch of each Flickr8k recipe, alone on its device, with recorded steps (CUDA graphs) and without.

    python -m benchmarks.measure.epoch_times --corpus corpora/flickr8k --out benchmarks/results/epoch_times_h200.json

The first stage of each recipe trains for two epochs without the warm-up of its loss, so that the loss of the paper is
timed. The second epoch counts: kernels are compiled and steps recorded in the first. Validation is not included.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from quintet.evaluation.result import provenance
from quintet.files import read_jsonl, write_json
from quintet.report.analysis.loss_timing import past_warmup
from quintet.runs.devices import pick_device
from quintet.training import stages
from quintet.training.logs import Silent
from quintet.training.recipe import load_recipe
from quintet.training.recipe_models import Recipe

RECIPES = (
    "aoq-vse-flickr8k",
    "aoq-scan-flickr8k",
    "aoq-bfan-flickr8k",
    "aoq-vsrn-flickr8k",
    "hrem-fusion-flickr8k",
    "hrem-standalone-flickr8k",
)
EPOCHS = 2


def timed_recipe(name: str, corpus: Path, graphs: bool, overrides: list[str]) -> Recipe:
    """The first stage of a recipe, two epochs of it, with the loss that comes after the warm-up."""
    recipe = load_recipe(name, [f"data.corpus={corpus}", *overrides])
    changes = {"epochs": EPOCHS, "validate_every": 1, "select_after": 0, "graphs": graphs}
    return recipe.model_copy(update={"stages": (past_warmup(recipe.stages[0]).model_copy(update=changes),)})


def epoch_time(recipe: Recipe, folder: Path, device: str) -> dict[str, Any]:
    """Seconds and milliseconds a step of the second epoch, and the most memory that tensors took on a GPU."""
    on_gpu = torch.device(device).type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    stages.train_recipe(recipe, folder, device=device, display=Silent())
    rows = list(read_jsonl(folder / "stages" / recipe.stages[0].name / "log.jsonl"))
    first, second = (row for row in rows if row["kind"] == "validation")
    steps = second["step"] - first["step"]
    return {
        "steps": steps,
        "seconds": second["seconds"],
        "ms_a_step": round(1000 * second["seconds"] / steps, 2),
        "first_epoch_seconds": first["seconds"],
        "peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=Path("corpora/flickr8k"))
    parser.add_argument("--recipes", nargs="*", default=list(RECIPES))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for every recipe")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = str(pick_device(options.device))
    on_gpu = torch.device(device).type == "cuda"
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.recipes:
            for graphs in (True, False) if on_gpu else (False,):
                recipe = timed_recipe(name, options.corpus, graphs, options.set)
                found = epoch_time(recipe, Path(folder) / f"{name}-{graphs}", device)
                rows.append({"recipe": name, "graphs": graphs, "batch": recipe.stages[0].batches.size, **found})
                print(json.dumps(rows[-1]), flush=True)
    if options.out:
        settings = {"corpus": "corpora/flickr8k", "set": options.set}
        named = torch.cuda.get_device_name() if on_gpu else "CPU"
        content = {"benchmark": "epoch_times", "device": named, "settings": settings, "rows": rows}
        write_json(options.out, content | {"provenance": provenance()})


if __name__ == "__main__":
    main()
