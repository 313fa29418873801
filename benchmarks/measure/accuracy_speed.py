"""Accuracy and inference speed of every matcher (Figure 5 of HREM), with the sizes of its recipe.

    python -m benchmarks.measure.accuracy_speed --device cuda --out benchmarks/results/accuracy_speed_h200.json
    ... --accuracy scan-t2i-lse-f30k=scan.json hrem-fusion-f30k=hrem.json --figure accuracy_speed
    ... --flickr8k --out benchmarks/results/accuracy_speed_flickr8k_h200.json
    ... --flickr8k --from benchmarks/results/accuracy_speed_flickr8k_h200.json --figure accuracy_speed

Weights and features are random, which costs the same as trained ones. Measured: encoding all images from features,
encoding all texts, and scoring every pair in float32 (half precision of a matcher is an override, as in
"mmca-f30k matcher.precision=bfloat16"). The networks that make the features are not included. Accuracies are read
from the result files of `quintet evaluate`, by recipe; of several files the mean. --flickr8k takes the methods of the
grid `flickr8k` that read one tower, with the result files of that grid, or those of the grid `small` for a method that
it has not measured. --from takes the speeds of an earlier file and writes the accuracies into it. The figure
needs the extra `report`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from benchmarks.grids.catalogue import METHODS
from benchmarks.grids.rows import FIRST
from quintet.codes import Codes
from quintet.data.batches import ImageBatch, TextBatch
from quintet.evaluation.result import provenance
from quintet.files import read_json, write_json
from quintet.models import MODELS
from quintet.runs.devices import full_precision
from quintet.training.recipe import load_recipe

RECIPES = (
    *("vse-f30k", "vse-infinity-f30k", "vsrn-f30k", "hrem-fusion-f30k", "hrem-fusion-bert-f30k", "dual-path-f30k"),
    *("scan-t2i-lse-f30k", "scan-i2t-avg-f30k", "bfan-equal-f30k"),
    *("mmca-f30k", "mmca-f30k matcher.precision=bfloat16"),
)
WORDS, PIECES = 8_481, 30_522  # in SCAN's vocabulary of Flickr30K, and in BERT's
BERT_BASE = {
    "model_type": "bert",
    "vocab_size": PIECES,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}
MINILM = BERT_BASE | {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}
BATCH = 256
RESULTS = Path(__file__).parents[1] / "results"
GRIDS = ("flickr8k", "small")  # where accuracies are looked for, the first that has any
OF_TRAINING = ("data.augment", "matcher.image_dropout", "stages.online.loss.triplet", "stages.offline.")  # overrides
VARIANT = {"aoq": "-online", "dual-path": "-full", None: ""}  # of a study, the row whose accuracy is shown


def build(recipe: str, region_dim: int) -> Any:
    """The matcher of a recipe with random weights, reading features; overrides may follow the recipe's name."""
    name, *overrides = recipe.split()
    matcher = load_recipe(name, overrides).matcher
    arguments: dict[str, Any] = {"vocabulary_size": WORDS, "image_dim": region_dim}
    arguments |= {key: value for key, value in matcher.arguments.items() if not key.startswith("tower")}
    if str(arguments.get("text", "")).startswith("hf:"):
        config = MINILM if "MiniLM" in arguments["text"] else BERT_BASE
        arguments |= {"vocabulary_size": PIECES, "text_config": config, "text_pretrained": False}
    return MODELS.create(matcher.name, **arguments).eval()


class Inputs:
    """Images and texts in batches."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(options.seed)
        regions = torch.randn(options.images, options.regions, options.region_dim, generator=generator)
        tokens = torch.randint(4, WORDS, (options.texts, options.words), generator=generator)
        lengths = torch.randint(min(8, options.words), options.words + 1, (options.texts,), generator=generator)
        self.images = [ImageBatch(fragments=part).to(device) for part in regions.split(BATCH)]
        parts = zip(tokens.split(BATCH), lengths.split(BATCH), strict=True)
        self.texts = [TextBatch(part[:, : int(n.max())], n).to(device) for part, n in parts]


def seconds(work: Callable[[], Any], device: torch.device, repeats: int) -> tuple[Any, float]:
    """What the work gives, and its median time; the first time warms up."""
    times = []
    for number in range(repeats + 1):
        began = time.perf_counter()
        found = work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if number:
            times.append(time.perf_counter() - began)
    return found, statistics.median(times)


@torch.no_grad()
def measure(recipe: str, inputs: Inputs, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    torch.manual_seed(options.seed)
    matcher = build(recipe, options.region_dim).to(device)
    with full_precision(device):
        images, of_images = seconds(lambda: Codes.cat([matcher.encode_images(b) for b in inputs.images]), device, 1)
        texts, of_texts = seconds(lambda: Codes.cat([matcher.encode_texts(b) for b in inputs.texts]), device, 1)
        _, of_pairs = seconds(lambda: matcher.score(images, texts), device, options.repeats)
    total = of_images + of_texts + of_pairs
    return {
        "recipe": recipe,
        "matcher": type(matcher).__name__,
        "parameters": sum(parameter.numel() for parameter in matcher.parameters()),
        "encode_images_seconds": of_images,
        "encode_texts_seconds": of_texts,
        "score_seconds": of_pairs,
        "seconds": total,
        "pairs_per_second": options.images * options.texts / total,
    }


def grid_recipes() -> dict[str, str]:
    """Recipe with overrides -> the rows of the Flickr8k grid it makes, without their seeds.

    Of methods that only training tells apart the first.
    """
    found: dict[str, str] = {}
    for method in METHODS:
        if method.series and FIRST not in method.series:
            continue
        more = ("matcher.text=hf:sentence-transformers/all-MiniLM-L6-v2",) if method.name == "heads" else ()
        overrides = (one for one in method.overrides if not one.startswith(OF_TRAINING))
        found.setdefault(" ".join((method.recipe, *overrides, *more)), method.name + VARIANT[method.study])
    return found


def accuracies(given: Iterable[tuple[str, Path]]) -> dict[str, dict[str, Any]]:
    """Recipe -> its result files, their rsums and the mean of them."""
    found: dict[str, dict[str, Any]] = {}
    splits: dict[str, Path] = {}
    for recipe, path in given:
        result = read_json(path)
        splits.setdefault(result["split_checksum"], path)
        if len(splits) > 1:
            raise SystemExit(f"{' and '.join(map(str, splits.values()))} are of different test sets; take one for all")
        row = found.setdefault(recipe, {"files": [], "rsums": []})
        row["files"].append(path.name)
        row["rsums"].append(result["metrics"]["rsum"])
    for row in found.values():
        row["rsum"] = statistics.mean(row["rsums"])
    return found


def result_files(options: argparse.Namespace) -> list[tuple[str, Path]]:
    """Recipes and their result files, as the command line has them."""
    found = []
    for pair in options.accuracy:
        recipe, equals, path = pair.rpartition("=")
        if not equals:
            raise SystemExit(f"--accuracy takes RECIPE=FILE, got {pair!r}")
        found.append((recipe, Path(path)))
    if options.flickr8k:
        for recipe, row in grid_recipes().items():
            files = (sorted((RESULTS / grid).glob(f"{row}-seed*.json")) for grid in GRIDS)
            found += [(recipe, path) for path in next(filter(None, files), [])]
    return found


def draw(rows: list[dict[str, Any]], labels: dict[str, str], path: Path) -> None:
    from quintet.report.analysis.speed import draw_accuracy_against_speed
    from quintet.report.figures import save_figure

    shown = [row for row in rows if row.get("accuracy") and "pairs_per_second" in row]
    if not shown:
        raise SystemExit("--figure needs accuracies of recipes that were measured: --accuracy RECIPE=FILE ...")
    names = [labels.get(row["recipe"], row["recipe"]) for row in shown]
    accuracy = [row["accuracy"]["rsum"] for row in shown]
    speed = [row["pairs_per_second"] for row in shown]
    save_figure(draw_accuracy_against_speed(names, speed, accuracy), path)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--recipes", nargs="*")
    parser.add_argument("--flickr8k", action="store_true", help="the recipes and results of the Flickr8k grid")
    parser.add_argument("--accuracy", nargs="*", default=[], metavar="RECIPE=FILE")
    parser.add_argument("--from", dest="measured", type=Path, metavar="FILE", help="speeds measured before")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--texts", type=int, default=5000)
    parser.add_argument("--regions", type=int, default=36)
    parser.add_argument("--region-dim", type=int, help="2048, or with --flickr8k 1280")
    parser.add_argument("--words", type=int, default=24, help="tokens of the longest text; the shortest has 8")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--limit", type=float, default=240.0, help="seconds after which no further matcher is begun")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--figure", type=Path, metavar="NAME", help="writes NAME.svg")
    options = parser.parse_args()
    options.recipes = options.recipes or list(grid_recipes() if options.flickr8k else RECIPES)
    options.region_dim = options.region_dim or (1280 if options.flickr8k else 2048)
    return options


def measure_all(options: argparse.Namespace, known: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    device = torch.device(options.device)
    inputs, began = Inputs(options, device), time.perf_counter()
    kept = {key: value for key, value in vars(options).items() if key not in ("out", "figure", "accuracy", "measured")}
    rows: list[dict[str, Any]] = []
    for recipe in options.recipes:
        late = time.perf_counter() - began > options.limit
        row = {"recipe": recipe, "skipped": "the limit"} if late else measure(recipe, inputs, options, device)
        rows.append(row | {"accuracy": known.get(recipe)})
        print(", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
        if options.out:
            content = {"benchmark": "accuracy_speed", "settings": kept, "rows": rows}
            write_json(options.out, content | {"provenance": provenance()})
    return rows


def main() -> None:
    options = parse()
    known = accuracies(result_files(options))
    if options.measured is None:
        rows = measure_all(options, known)
    else:
        content = read_json(options.measured)
        rows = [row | {"accuracy": known.get(row["recipe"])} for row in content["rows"]]
        write_json(options.out or options.measured, content | {"rows": rows})
    if options.figure:
        draw(rows, grid_recipes(), options.figure)


if __name__ == "__main__":
    main()
