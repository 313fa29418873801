"""Time of one HREM training step: forward, backward, clipping and AdamW, with a BERT-base-size text encoder.

    python -m benchmarks.measure.hrem --device cuda --out benchmarks/results/hrem_step.json

Random weights and features: 36 regions of 2048 channels, 20 tokens, a batch of 128 (as published), relations on.
Steps are timed one by one with the device synchronised; the first ones warm it up. `--parts` also times the encoders
and the graph by themselves. On a CPU use small numbers: --batch 8 --layers 2 --steps 2.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from quintet.data.batches import ImageBatch, PairBatch, TextBatch
from quintet.evaluation.result import provenance
from quintet.files import write_json
from quintet.losses.relation import RelationObjective
from quintet.losses.step import Progress, Step
from quintet.models.hrem import build_hrem


def bert_config(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "model_type": "bert",
        "vocab_size": 30_522,
        "hidden_size": 64 * options.text_heads,
        "num_hidden_layers": options.layers,
        "num_attention_heads": options.text_heads,
        "intermediate_size": 256 * options.text_heads,
    }


def make_batch(options: argparse.Namespace, device: torch.device) -> PairBatch:
    generator = torch.Generator().manual_seed(options.seed)
    n = options.batch
    tokens = torch.randint(1000, 30_000, (n, options.tokens), generator=generator)
    lengths = torch.randint(max(2, options.tokens // 2), options.tokens + 1, (n,), generator=generator)
    lengths[0] = options.tokens
    rows = torch.arange(n)
    images = ImageBatch(fragments=torch.randn(n, options.regions, options.region_dim, generator=generator))
    return PairBatch(images, TextBatch(tokens, lengths), rows, rows, rows, rows).to(device)


def milliseconds(call: Callable[[], Any], steps: int, warmup: int, device: torch.device) -> list[float]:
    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    times = []
    for number in range(warmup + steps):
        wait()
        began = time.perf_counter()
        call()
        wait()
        if number >= warmup:
            times.append(1000 * (time.perf_counter() - began))
    return times


def measure(mechanism: str, precision: str, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    torch.manual_seed(options.seed)
    matcher = build_hrem(
        image_dim=options.region_dim,
        vocabulary_size=30_522,
        text="hf:bert-base-size",
        text_config=bert_config(options),
        text_pretrained=False,
        projection=options.projection,
    )
    objective = RelationObjective(
        matcher.embed_dim, mechanism=mechanism, matching=options.matching, detach_fragments=options.detach_fragments
    )
    module = nn.ModuleDict({"matcher": matcher, "objective": objective}).to(device).train()
    parameters = list(module.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=5e-5, weight_decay=1e-4)
    batch = make_batch(options, device)

    def loss() -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            terms = objective(Step(matcher, batch, Progress()))
        return torch.stack([term.weight * term.values.sum() for term in terms.values()]).sum()

    def step() -> None:
        loss().backward()
        nn.utils.clip_grad_norm_(parameters, 2.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    times = milliseconds(step, options.steps, options.warmup, device)
    row: dict[str, Any] = {
        "mechanism": mechanism,
        "precision": precision,
        "step_ms": round(statistics.median(times), 2),
        "fastest_ms": round(min(times), 2),
        "slowest_ms": round(max(times), 2),
        "pairs_per_second": round(1000 * options.batch / statistics.median(times), 1),
        "parameters": sum(parameter.numel() for parameter in parameters),
    }
    if device.type == "cuda":
        row["peak_gib"] = round(torch.cuda.max_memory_allocated(device) / 2**30, 2)
    if options.parts:
        row["parts_ms"] = parts(matcher, objective, batch, precision, options, device)
    return row


def parts(
    matcher: Any,
    objective: RelationObjective,
    batch: PairBatch,
    precision: str,
    options: argparse.Namespace,
    device: torch.device,
) -> dict[str, float]:
    """Forward and backward of the encoders alone, and of the objective on codes that are given."""

    def encoders() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            codes = [matcher.encode_images(batch.images), matcher.encode_texts(batch.texts)]
        torch.stack([code.embedding.sum() + code.fragments.float().sum() for code in codes]).sum().backward()

    with torch.no_grad():
        images, texts = matcher.encode_images(batch.images), matcher.encode_texts(batch.texts)

    def relations() -> None:
        given = Step(matcher, batch, Progress())
        # as the encoders would leave them: with gradients to pass on
        given.__dict__["image_codes"] = images.map(lambda t: t.clone().requires_grad_() if t.is_floating_point() else t)
        given.__dict__["text_codes"] = texts.map(lambda t: t.clone().requires_grad_() if t.is_floating_point() else t)
        torch.stack([term.values.sum() for term in objective(given).values()]).sum().backward()

    calls = {"encoders": encoders, "relations": relations}
    found = {}
    for name, call in calls.items():
        found[name] = round(statistics.median(milliseconds(call, options.steps, options.warmup, device)), 2)
        for parameter in (*matcher.parameters(), *objective.parameters()):
            parameter.grad = None
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--mechanisms", nargs="*", default=["fusion", "standalone"])
    parser.add_argument("--precisions", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--regions", type=int, default=36)
    parser.add_argument("--region-dim", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--text-heads", type=int, default=12, help="BERT-base: 12 heads of 64 channels")
    parser.add_argument("--projection", default="mlp", choices=["linear", "mlp"])
    parser.add_argument("--matching", default="scan", choices=["dot", "cosine", "scan"])
    parser.add_argument("--detach-fragments", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    rows = []
    for mechanism in options.mechanisms:
        for precision in options.precisions:
            rows.append(measure(mechanism, precision, options, device))
            print(json.dumps(rows[-1]), flush=True)
    settings = {key: value for key, value in vars(options).items() if key != "out"}
    if options.out:
        write_json(options.out, {"benchmark": "hrem", "settings": settings, "rows": rows, "provenance": provenance()})


if __name__ == "__main__":
    main()
