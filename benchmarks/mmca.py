"""MMCA's scores of every pair: the split form here against the naive loop over pairs, and against stacked batches.

    PYTHONPATH=src python benchmarks/mmca.py --device cuda --out benchmarks/results/mmca_h200.json
    PYTHONPATH=src python benchmarks/mmca.py --device cpu --out benchmarks/results/mmca_cpu.json

Measured: all pairs without gradients, in float32 and bfloat16, with sentences all of the greatest length and with mixed
ones; a training step (scores of the batch, hinge loss of the hardest negatives, backward) with its peak memory. The
loop forms the joint sequence of one pair at a time; stacked batches do the same for many pairs at once, queries, keys
and values included. Both are timed on a sample of pairs and multiplied up. The floor is the arithmetic that no exact
form can avoid, at the rate of a large matrix product on the same device.
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
from quintet.scores.joint_attention import JointScorer
from quintet.scores.joint_tokens import joint_tokens


def flops_of_pair(regions: float, words: float, dim: int, ffn: int, filters: int) -> dict[str, float]:
    """Operations that belong to a pair, a multiplication and an addition counted as two."""
    tokens = regions + words
    return {
        "attention across": 8 * regions * words * dim,  # two directions, logits and values
        "output projection": 2 * tokens * dim * dim,
        "feed-forward": 4 * tokens * dim * ffn,
        "text CNN": 2 * words * dim * filters * (1 + 2 + 3) + 2 * 3 * filters * dim,
    }


def matmul_rate(device: str, dtype: torch.dtype) -> float:
    """Operations a second of a large matrix product."""
    size = 8192 if device == "cuda" else 1024
    a, b = torch.randn(size, size, device=device, dtype=dtype), torch.randn(size, size, device=device, dtype=dtype)
    return 2 * size**3 / measure(lambda: a @ b, device, 5)["least_seconds"]


def measure(work: Callable[[], Any], device: str, repeats: int) -> dict[str, float]:
    """Median and least seconds; on a GPU also the peak bytes allocated above what was there before."""
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


def stacked(unit: TransformerUnit, cnn: TextCNN, regions: Tensor, words: Tensor) -> Tensor:
    """(n,): i1 . c1 of n pairs of one length, each as a joint sequence of its own."""
    out = unit(torch.cat([regions, words], dim=1))  # (n, k + m, d)
    image, text = out[:, : regions.shape[1]].mean(dim=1), cnn(out[:, regions.shape[1] :])
    return (l2norm(image, eps=0) * l2norm(text, eps=0)).sum(dim=1)


class Data:
    """Items of the benchmark and their codes."""

    def __init__(self, options: argparse.Namespace, ragged: bool) -> None:
        torch.manual_seed(options.seed)
        make: dict[str, Any] = {"device": options.device}
        self.unit = TransformerUnit(options.dim, options.heads).to(options.device)
        self.cnn = TextCNN(options.dim, options.dim, filters=options.filters).to(options.device)
        self.regions = torch.randn(options.images, options.regions, options.dim, **make)
        self.words = torch.randn(options.texts, options.words, options.dim, **make)
        lengths = torch.randint(8, options.words + 1, (options.texts,), **make) if ragged else None
        self.mask = None if lengths is None else torch.arange(options.words, **make) < lengths[:, None]
        self.mean_words = float(options.words if lengths is None else lengths.float().mean())
        self.encode = lambda: (self._codes(self.regions, None), self._codes(self.words, self.mask))

    def _codes(self, x: Tensor, mask: Tensor | None) -> Codes:
        return Codes(fragments=joint_tokens(self.unit, x, mask).packed(), mask=mask)


def naive(options: argparse.Namespace) -> dict[str, Any]:
    """The two naive forms on a sample of pairs, and the time they would take for all of them."""
    data, pairs = Data(options, ragged=False), options.images * options.texts
    generator = torch.Generator().manual_seed(0)
    found: dict[str, Any] = {}
    for name, count in (("pair by pair", options.sample), ("stacked batches", options.sample * 8)):
        image = torch.randint(options.images, (count,), generator=generator).to(options.device)
        text = torch.randint(options.texts, (count,), generator=generator).to(options.device)
        size = 1 if name == "pair by pair" else min(512, count)

        def work(i: Tensor = image, t: Tensor = text, size: int = size) -> Tensor:
            parts = [
                stacked(data.unit, data.cnn, data.regions[i[s : s + size]], data.words[t[s : s + size]])
                for s in range(0, len(i), size)
            ]
            return torch.cat(parts)

        scorer = JointScorer(data.unit, data.cnn)
        image_codes, text_codes = data.encode()
        difference = (work() - scorer(image_codes[image], text_codes[text], paired=True)).abs().max().item()
        timing = measure(work, options.device, 1)
        seconds = timing["seconds"] * pairs / count
        found[name] = {**timing, "sample": count, "seconds_for_all": seconds, "difference": difference}
        print(
            f"{name}: {timing['seconds']:.3f} s for {count} pairs, {seconds:.0f} s for all, difference {difference:.1e}"
        )
    return found


def all_pairs(options: argparse.Namespace, rates: dict[str, float]) -> list[dict[str, Any]]:
    rows = []
    for ragged in (False, True):
        data = Data(options, ragged)
        encoding = measure(data.encode, options.device, options.repeats)
        image_codes, text_codes = data.encode()
        parts = flops_of_pair(options.regions, data.mean_words, options.dim, options.dim, options.filters)
        total = sum(parts.values()) * options.images * options.texts
        exact: Tensor | None = None
        for precision in ("float32", "bfloat16"):
            scorer = JointScorer(data.unit, data.cnn, precision=precision, budget=options.budget)  # type: ignore[arg-type]
            work = lambda s=scorer, i=image_codes, t=text_codes: s(i, t)  # noqa: E731
            found = measure(work, options.device, options.repeats)
            scores = work()
            exact = scores if exact is None else exact
            row = {
                "what": "all pairs",
                "ragged": ragged,
                "precision": precision,
                **found,
                "encoding": encoding,  # projections and attention within the items, once per item
                "flops_of_a_pair": parts,
                "flops": total,
                "floor_seconds": total / rates[precision],
                "share_of_matmul_rate": total / found["seconds"] / rates[precision],
                "greatest_difference_to_float32": (scores - exact).abs().max().item(),
            }
            rows.append(row)
            print(
                f"all pairs, {precision}{', mixed lengths' if ragged else ''}: {found['seconds']:.3f} s, floor "
                f"{row['floor_seconds']:.3f} s ({total / 1e12:.1f} TFLOP), difference "
                f"{row['greatest_difference_to_float32']:.1e}",
                flush=True,
            )
    return rows


def training_step(options: argparse.Namespace) -> list[dict[str, Any]]:
    options = argparse.Namespace(**{**vars(options), "images": options.batch, "texts": options.batch})
    rows = []
    for precision in ("float32", "bfloat16"):
        for recompute in (True, False):
            data = Data(options, ragged=False)
            scorer = JointScorer(
                data.unit,
                data.cnn,
                precision=precision,  # type: ignore[arg-type]
                budget=options.budget,
                recompute=recompute,
            )
            inputs = [data.regions.requires_grad_(), data.words.requires_grad_()]
            inputs += [*data.unit.parameters(), *data.cnn.parameters()]

            def step(data: Data = data, scorer: JointScorer = scorer, inputs: list[Tensor] = inputs) -> None:
                torch.autograd.grad(hinge(scorer(*data.encode())), inputs)

            found = measure(step, options.device, options.repeats)
            rows.append({"what": "training step", "precision": precision, "recompute": recompute, **found})
            memory = f", peak {found['peak_bytes'] / 2**30:.2f} GiB" if "peak_bytes" in found else ""
            kept = "blocks recomputed" if recompute else "blocks kept"
            print(
                f"training step of {options.batch}, {precision}, {kept}: {found['seconds']:.3f} s{memory}", flush=True
            )
    return rows


def hinge(scores: Tensor, margin: float = 0.2) -> Tensor:
    """Hinge on the hardest negative of each row and column, summed."""
    positive = scores.diag()
    own = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    texts = (margin + scores - positive[:, None]).clamp(min=0).masked_fill(own, 0)
    images = (margin + scores - positive[None, :]).clamp(min=0).masked_fill(own, 0)
    return texts.amax(dim=1).sum() + images.amax(dim=0).sum()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--images", type=int, help="1000 on a GPU, 20 on a CPU")
    parser.add_argument("--texts", type=int, help="5000 on a GPU, 100 on a CPU")
    parser.add_argument("--batch", type=int, help="of the training step: 64 on a GPU, 8 on a CPU")
    parser.add_argument("--sample", type=int, help="pairs for the loop: 2000 on a GPU, 50 on a CPU")
    parser.add_argument("--regions", type=int, default=36)
    parser.add_argument("--words", type=int, default=32, help="the greatest number")
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--filters", type=int, default=256)
    parser.add_argument("--budget", type=int, help="bytes of a block; the library's own choice if left out")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    large = options.device == "cuda"
    options.images = options.images or (1000 if large else 20)
    options.texts = options.texts or (5000 if large else 100)
    options.batch = options.batch or (64 if large else 8)
    options.sample = options.sample or (2000 if large else 50)
    return options


def main() -> None:
    options = parse()
    rates = {name: matmul_rate(options.device, getattr(torch, name)) for name in ("float32", "bfloat16")}
    with torch.no_grad():
        results: dict[str, Any] = {"naive": naive(options), "all_pairs": all_pairs(options, rates)}
    results["training_step"] = training_step(options)
    if options.out:
        sizes = {key: value for key, value in vars(options).items() if isinstance(value, int)}
        head = {"seed": options.seed, "sizes": sizes, "matmul_flops_a_second": rates}
        write_json(options.out, {**head, **results, "provenance": provenance()})


if __name__ == "__main__":
    main()
