"""How accurate and how quick every matcher is at inference (Figure 5 of HREM), at the sizes of its published recipe.

    PYTHONPATH=src python benchmarks/accuracy_speed.py --device cuda --out benchmarks/results/accuracy_speed_h200.json
    ... --accuracy scan-t2i-lse-f30k=scan.json hrem-fusion-f30k=hrem.json --figure accuracy_speed

Measured with random weights on random features, which costs the same as trained ones: encoding all pictures from their
features, encoding all sentences, and scoring every pair in float32 (a matcher's own half precision is an override, as
in "mmca-f30k matcher.precision=bfloat16"). The networks that make the features are not part of it. Accuracies are read
from the result files of `quintet evaluate`, by recipe; the figure needs the extra `report`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from quintet.codes import Codes
from quintet.data.batches import ImageBatch, TextBatch
from quintet.evaluation.result import provenance
from quintet.evaluation.scoring import full_precision
from quintet.files import read_json, write_json
from quintet.models import MODELS
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
BATCH = 256


def build(recipe: str, region_dim: int) -> Any:
    """The matcher of a recipe with random weights, reading features; overrides may follow the recipe's name."""
    name, *overrides = recipe.split()
    matcher = load_recipe(name, overrides).matcher
    arguments: dict[str, Any] = {"vocabulary_size": WORDS, "image_dim": region_dim}
    arguments |= {key: value for key, value in matcher.arguments.items() if not key.startswith("tower")}
    if str(arguments.get("text", "")).startswith("hf:"):
        arguments |= {"vocabulary_size": PIECES, "text_config": BERT_BASE, "text_pretrained": False}
    return MODELS.create(matcher.name, **arguments).eval()


class Inputs:
    """Pictures and sentences in batches."""

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


def accuracies(given: list[str]) -> dict[str, dict[str, Any]]:
    """`RECIPE=FILE` -> what the result file says."""
    found = {}
    for pair in given:
        recipe, equals, path = pair.rpartition("=")
        if not equals:
            raise SystemExit(f"--accuracy takes RECIPE=FILE, got {pair!r}")
        result = read_json(path)
        keys = ("kind", "split", "split_checksum", "metrics", "intervals")
        found[recipe] = {"file": Path(path).name, **{key: result[key] for key in keys}}
    return found


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    from quintet.report.figures import draw_accuracy_against_speed, save_figure

    shown = [row for row in rows if row.get("accuracy") and "pairs_per_second" in row]
    if not shown:
        raise SystemExit("--figure needs accuracies of recipes that were measured: --accuracy RECIPE=FILE ...")
    accuracy = [row["accuracy"]["metrics"]["rsum"] for row in shown]
    speed = [row["pairs_per_second"] for row in shown]
    save_figure(draw_accuracy_against_speed([row["recipe"] for row in shown], speed, accuracy), path)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--recipes", nargs="*", default=list(RECIPES))
    parser.add_argument("--accuracy", nargs="*", default=[], metavar="RECIPE=FILE")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--texts", type=int, default=5000)
    parser.add_argument("--regions", type=int, default=36)
    parser.add_argument("--region-dim", type=int, default=2048)
    parser.add_argument("--words", type=int, default=24, help="tokens of the longest sentence; the shortest has 8")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--limit", type=float, default=240.0, help="seconds after which no further matcher is begun")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--figure", type=Path, metavar="NAME", help="writes NAME.svg")
    return parser.parse_args()


def main() -> None:
    options = parse()
    device = torch.device(options.device)
    known = accuracies(options.accuracy)
    inputs, began = Inputs(options, device), time.perf_counter()
    kept = {key: value for key, value in vars(options).items() if key not in ("out", "figure", "accuracy")}
    content: dict[str, Any] = {"benchmark": "accuracy_speed", "settings": kept, "rows": []}
    for recipe in options.recipes:
        late = time.perf_counter() - began > options.limit
        row = {"recipe": recipe, "skipped": "the limit"} if late else measure(recipe, inputs, options, device)
        content["rows"].append(row | {"accuracy": known.get(recipe)})
        print(", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
        if options.out:
            write_json(options.out, content | {"provenance": provenance()})
    if options.figure:
        draw(content["rows"], options.figure)


if __name__ == "__main__":
    main()
