"""MMCA's second score, i1 . c1 of every pair: the split form against stacked batches and the loop over pairs.

    python -m benchmarks.measure.mmca --device cuda --out benchmarks/results/mmca_h200.json
    python -m benchmarks.measure.mmca --device cpu --out benchmarks/results/mmca_cpu.json

The most important rows come first, and the file is rewritten after every row, so that an interrupted run keeps its
results; no row starts after --limit seconds. In order: the size of a block is tuned on a part of the texts; all
pairs in bfloat16, with mixed lengths and with the greatest; all pairs in float32, with TF32 products and without; a
training step (scores of the batch, hinge loss of the hardest negatives, backward) with its peak memory; the naive forms
on a sample of pairs, extrapolated: each pair as its own joint sequence, alone or many at once, including queries, keys
and values. The floor is the arithmetic that no exact form can avoid, at the rate of a large matrix product.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintet.codes import Codes
from quintet.evaluation.result import provenance
from quintet.files import write_json
from quintet.layers.normalize import l2norm
from quintet.layers.text_cnn import TextCNN
from quintet.layers.transformer_unit import TransformerUnit
from quintet.scores.joint_attention import JointScorer, joint_tokens

BUDGETS = {"cuda": (512 << 20, 2 << 30, 8 << 30), "cpu": (16 << 20, 64 << 20)}
WAYS = ("bfloat16", "tf32", "float32")  # of the work of a pair; tf32: float32 with products on tensor cores


def flops_of_pair(regions: float, words: float, dim: int, ffn: int, filters: int) -> dict[str, float]:
    """Operations that belong to a pair, a multiplication and an addition counted as two."""
    tokens = regions + words
    return {
        "attention across": 8 * regions * words * dim,  # two directions, logits and values
        "output projection": 2 * tokens * dim * dim,
        "feed-forward": 4 * tokens * dim * ffn,
        "text CNN": 2 * words * dim * filters * (1 + 2 + 3) + 2 * 3 * filters * dim,
    }


class Record:
    """Rows as they come, each written at once."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.began = time.perf_counter()
        self.content: dict[str, Any] = {
            "benchmark": "mmca",
            "settings": {key: value for key, value in vars(options).items() if key != "out"},
            "rows": [],
            "provenance": provenance(),
        }

    def add(self, what: str, measure: Callable[[], dict[str, Any]], **facts: Any) -> dict[str, Any]:
        spent = time.perf_counter() - self.began
        row = {"what": what, **facts} | (
            measure() if spent < self.options.limit else {"skipped": f"after {spent:.0f} s"}
        )
        self.content["rows"].append(row)
        shown = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()}
        print(", ".join(f"{key} {value}" for key, value in shown.items() if not isinstance(value, dict)), flush=True)
        if self.options.out:
            write_json(self.options.out, self.content)
        return row


def timed(work: Callable[[], Any], device: str, repeats: int, warm: bool = True) -> dict[str, float]:
    """Median and least seconds; on a GPU also the peak bytes allocated, and how far above what was there before."""
    if warm:
        work()
    before = 0
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    found = {"seconds": statistics.median(seconds), "least_seconds": min(seconds), "repeats": float(repeats)}
    if device == "cuda":
        found["peak_bytes"] = float(torch.cuda.max_memory_allocated())
        found["peak_bytes_above_start"] = found["peak_bytes"] - before
    return found


def set_way(way: str) -> None:
    torch.set_float32_matmul_precision("high" if way == "tf32" else "highest")


def precision_of(way: str) -> Any:
    return "bfloat16" if way == "bfloat16" else "float32"


def matmul_rate(way: str, device: str) -> float:
    """Operations a second of a large matrix product."""
    set_way(way)
    size, dtype = 8192 if device == "cuda" else 1024, getattr(torch, precision_of(way))
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / timed(lambda: a @ b, device, 3)["least_seconds"]


class Data:
    """Items of the benchmark and their codes; `ragged`: texts of eight words up to the greatest number."""

    def __init__(self, options: argparse.Namespace, images: int, texts: int, ragged: bool) -> None:
        torch.manual_seed(options.seed)
        make: dict[str, Any] = {"device": options.device}
        self.unit = TransformerUnit(options.dim, options.heads).to(options.device)
        self.cnn = TextCNN(options.dim, options.dim, filters=options.filters).to(options.device)
        self.regions = torch.randn(images, options.regions, options.dim, **make)
        self.words = torch.randn(texts, options.words, options.dim, **make)
        lengths = torch.randint(8, options.words + 1, (texts,), **make) if ragged else None
        self.mask = None if lengths is None else torch.arange(options.words, **make) < lengths[:, None]
        self.mean_words = float(options.words if lengths is None else lengths.float().mean())

    def encode(self, texts: int | None = None) -> tuple[Codes, Codes]:
        """What is done once per item: projections, and attention within it."""
        mask = None if self.mask is None else self.mask[:texts]
        images, words = ((self.regions, None), (self.words[:texts], mask))
        of_images, of_texts = (
            Codes(fragments=joint_tokens(self.unit, *x).packed(), mask=x[1]) for x in (images, words)
        )
        return of_images, of_texts

    def scorer(self, way: str, **settings: Any) -> JointScorer:
        set_way(way)
        return JointScorer(self.unit, self.cnn, precision=precision_of(way), **settings)


@torch.no_grad()
def tune(record: Record, options: argparse.Namespace) -> int:
    """The quickest of some block sizes, on a tenth of the texts."""
    data = Data(options, options.images, options.texts, ragged=True)
    codes = data.encode(max(1, options.texts // 10))
    found: dict[int, float] = {}
    for budget in (options.budget,) if options.budget else BUDGETS[options.device]:
        scorer = data.scorer("bfloat16", budget=budget)
        row = record.add("tuning", lambda s=scorer: timed(lambda: s(*codes), options.device, 1), budget=budget)
        found[budget] = row.get("seconds", float("inf"))
    return min(found, key=lambda budget: found[budget])


@torch.no_grad()
def all_pairs(
    record: Record, options: argparse.Namespace, way: str, ragged: bool, rate: float, budget: int, repeats: int
) -> None:
    data = Data(options, options.images, options.texts, ragged)
    parts = flops_of_pair(options.regions, data.mean_words, options.dim, options.dim, options.filters)
    total = sum(parts.values()) * options.images * options.texts

    def measure() -> dict[str, Any]:
        encoding = timed(data.encode, options.device, 1)["seconds"]
        codes, scorer = data.encode(), data.scorer(way, budget=budget)
        few = data.encode(max(1, options.texts // 50))
        work = lambda: scorer(*codes)  # noqa: E731
        scorer(*few)  # warms up
        found = timed(work, options.device, repeats, warm=False)
        rough, exact = scorer(*few), data.scorer("float32", budget=budget)(*few)
        return {
            **found,
            "encoding_seconds": encoding,
            "flops": total,
            "floor_seconds": total / rate,
            "share_of_matmul_rate": total / found["seconds"] / rate,
            "greatest_difference_to_float32": (rough - exact).abs().max().item(),
            "flops_of_a_pair": parts,
        }

    record.add("all pairs", measure, way=way, words="mixed" if ragged else options.words, mean_words=data.mean_words)


def training_step(record: Record, options: argparse.Namespace, way: str, recompute: bool) -> None:
    data = Data(options, options.batch, options.batch, ragged=False)
    scorer = data.scorer(way, budget=options.budget, recompute=recompute)
    inputs = [data.regions.requires_grad_(), data.words.requires_grad_()]
    inputs += [*data.unit.parameters(), *data.cnn.parameters()]

    def step() -> None:
        torch.autograd.grad(hinge(scorer(*data.encode())), inputs)

    facts = {"way": way, "blocks": "recomputed" if recompute else "kept", "batch": options.batch}
    record.add("training step", lambda: timed(step, options.device, 3), **facts)


def hinge(scores: Tensor, margin: float = 0.2) -> Tensor:
    """Hinge on the hardest negative of each row and column, summed."""
    positive = scores.diag()
    own = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    texts = (margin + scores - positive[:, None]).clamp(min=0).masked_fill(own, 0)
    images = (margin + scores - positive[None, :]).clamp(min=0).masked_fill(own, 0)
    return texts.amax(dim=1).sum() + images.amax(dim=0).sum()


@torch.no_grad()
def naive(record: Record, options: argparse.Namespace, what: str, pairs: int, at_once: int) -> None:
    """Joint sequences of pairs drawn at random, `at_once` of them at a time, and what all pairs would take."""
    data = Data(options, options.images, options.texts, ragged=False)
    generator = torch.Generator().manual_seed(options.seed)
    image, text = (torch.randint(n, (pairs,), generator=generator) for n in (options.images, options.texts))
    rows = list(zip(image.to(options.device).split(at_once), text.to(options.device).split(at_once), strict=True))

    def work() -> Tensor:
        return torch.cat([stacked(data.unit, data.cnn, data.regions[i], data.words[t]) for i, t in rows])

    def measure() -> dict[str, Any]:
        set_way("float32")
        found = timed(work, options.device, 1)
        images, texts = data.encode()
        ours = data.scorer("float32")(images[image.to(options.device)], texts[text.to(options.device)], paired=True)
        seconds = found["seconds"] * options.images * options.texts / pairs
        return {**found, "seconds_for_all": seconds, "greatest_difference": (work() - ours).abs().max().item()}

    record.add(what, measure, pairs=pairs)


def stacked(unit: TransformerUnit, cnn: TextCNN, regions: Tensor, words: Tensor) -> Tensor:
    """(n,): i1 . c1 of n pairs of one length, each as a joint sequence of its own."""
    out = unit(torch.cat([regions, words], dim=1))  # (n, k + m, d)
    image, text = out[:, : regions.shape[1]].mean(dim=1), cnn(out[:, regions.shape[1] :])
    return (l2norm(image, eps=0) * l2norm(text, eps=0)).sum(dim=1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--limit", type=float, default=50.0, help="seconds after which nothing more is begun")
    parser.add_argument("--images", type=int, help="1000 on a GPU, 20 on a CPU")
    parser.add_argument("--texts", type=int, help="5000 on a GPU, 100 on a CPU")
    parser.add_argument("--batch", type=int, help="of the training step: 64 on a GPU, 8 on a CPU")
    parser.add_argument("--regions", type=int, default=36)
    parser.add_argument("--words", type=int, default=32, help="the greatest number")
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--filters", type=int, default=256)
    parser.add_argument("--budget", type=int, help="bytes of a block, instead of the quickest")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    large = options.device == "cuda"
    options.images = options.images or (1000 if large else 20)
    options.texts = options.texts or (5000 if large else 100)
    options.batch = options.batch or (64 if large else 8)
    return options


def main() -> None:
    options = parse()
    record = Record(options)
    rates = {way: matmul_rate(way, options.device) for way in WAYS}
    record.content["matmul_flops_a_second"] = rates
    budget = tune(record, options)
    for way, ragged, repeats in (
        ("bfloat16", True, 2),
        ("bfloat16", False, 2),
        ("tf32", True, 1),
        ("float32", True, 1),
    ):
        all_pairs(record, options, way, ragged, rates[way], budget, repeats)
    for way, recompute in (("float32", True), ("bfloat16", True), ("bfloat16", False)):
        training_step(record, options, way, recompute)
    naive(record, options, "pair by pair", 100, at_once=1)
    naive(record, options, "stacked batches", 2048 if options.device == "cuda" else 64, at_once=512)


if __name__ == "__main__":
    main()
