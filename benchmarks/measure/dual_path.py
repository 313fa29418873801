"""Throughput of the two CNNs of Dual-Path, in images and texts per second, and the floor set by their operations.

    python -m benchmarks.measure.dual_path --device cuda --out benchmarks/results/dual_path.json

Random weights and inputs, the paper's sizes: ResNet-50 on 224 x 224, the text CNN in ResNet-50's arrangement on 32
words, both with their two-layer heads. `encode` is evaluation without gradients (one view, one position), `train` is
forward and backward, `step` a whole step of stage II: both CNNs, instance loss over 29,783 classes, ranking loss and
SGD on 32 pairs.

Torch counts the operations that are executed (multiply and add are two). The floor is operations / peak, where the peak
is the dense rate of the device for the precision as its maker states it, or --peak TFLOP/s. Rows are written as they
are measured; everything takes under a minute on an H200. On a CPU use small numbers:
--batch 2 --pairs 2 --seconds 0.1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from quintet.data.batches import ImageBatch, PairBatch, TextBatch
from quintet.evaluation.result import provenance
from quintet.files import write_json
from quintet.losses.instance import InstanceObjective
from quintet.losses.ranking import RankingObjective
from quintet.losses.step import Progress, Step
from quintet.models.dual_path import DualPath, build_dual_path

WORDS = 20_074  # of the paper's Flickr30k dictionary
# Dense peaks in TFLOP/s by what the device's name contains, as its maker states them.
PEAKS = {
    "H200": {"float32": 67.0, "tf32": 494.7, "bfloat16": 989.4},
    "H100": {"float32": 67.0, "tf32": 494.7, "bfloat16": 989.4},
    "A100": {"float32": 19.5, "tf32": 156.0, "bfloat16": 312.0},
}
PRECISIONS = ("float32", "tf32", "bfloat16")


@contextmanager
def numbers(precision: str, device: torch.device) -> Iterator[None]:
    """Multiply in this precision."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        yield


def peak_of(device: torch.device, precision: str, given: float | None) -> float | None:
    """TFLOP/s, or None where the device is not in the table."""
    if given is not None or device.type != "cuda":
        return given
    name = torch.cuda.get_device_name(device)
    return next((rates[precision] for part, rates in PEAKS.items() if part in name), None)


def images(count: int, device: torch.device) -> ImageBatch:
    return ImageBatch(pixels=torch.randn(count, 3, 224, 224)).to(device)


def random_texts(count: int, length: int, device: torch.device) -> TextBatch:
    lengths = torch.randint(5, min(20, length) + 1, (count,))
    return TextBatch(torch.randint(4, WORDS, (count, length)), lengths, position_noise=torch.rand(count)).to(device)


def encoding(matcher: DualPath, kind: str, batch: Any) -> Callable[[], Tensor]:
    encode = matcher.encode_images if kind == "image" else matcher.encode_texts

    def call() -> Tensor:
        codes = encode(batch)
        assert codes.embedding is not None
        return codes.embedding

    return call


def stage_two(matcher: DualPath, options: argparse.Namespace, device: torch.device) -> Callable[[], None]:
    objectives = nn.ModuleList([InstanceObjective(options.classes, matcher.embed_dim), RankingObjective()]).to(device)
    parameters = [*matcher.parameters(), *objectives.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)
    rows = torch.arange(options.pairs, device=device)
    texts = random_texts(options.pairs, options.length, device)
    batch = PairBatch(images(options.pairs, device), texts, rows, rows, rows, rows)

    def call() -> None:
        step = Step(matcher, batch, Progress())
        terms = [term for objective in objectives for term in objective(step).values()]
        torch.stack([term.weight * term.values.sum() for term in terms]).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return call


def operations(call: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def times(call: Callable[[], Any], seconds: float, device: torch.device) -> list[float]:
    """Seconds of single calls, device synchronised, for about so many seconds after warming up."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    for _ in range(3):
        call()
    wait()
    found: list[float] = []
    while len(found) < 3 or sum(found) < seconds:
        began = time.perf_counter()
        call()
        wait()
        found.append(time.perf_counter() - began)
    return found


def measure(
    kind: str, mode: str, precision: str, matcher: DualPath, options: argparse.Namespace, device: torch.device
) -> dict[str, Any]:
    count = options.pairs if mode == "step" else options.batch * (1 if kind == "image" else 4)
    matcher.train(mode != "encode")
    for parameter in matcher.parameters():
        parameter.grad = None
    if mode == "step":
        call = stage_two(matcher, options, device)
    else:
        inputs = images(count, device) if kind == "image" else random_texts(count, options.length, device)
        forward = encoding(matcher, kind, inputs)

        def call() -> None:
            out = forward()
            if mode == "train":
                out.sum().backward()

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with numbers(precision, device), torch.set_grad_enabled(mode != "encode"):
        work = operations(call)
        typical = statistics.median(times(call, options.seconds, device))
    peak = peak_of(device, precision, options.peak)
    row: dict[str, Any] = {
        "part": kind,
        "mode": mode,
        "precision": precision,
        "batch": count,
        "items_per_second": round(count / typical, 1),
        "batch_ms": round(1000 * typical, 3),
        "gflop_per_item": round(work / count / 1e9, 3),
        "tflop_per_second": round(work / typical / 1e12, 3),
        "peak_tflop_per_second": peak,
        "floor_ms": None if peak is None else round(work / peak / 1e9, 3),
        "times_floor": None if peak is None else round(typical * peak * 1e12 / work, 2),
    }
    if device.type == "cuda":
        row["peak_gib"] = round(torch.cuda.max_memory_allocated(device) / 2**30, 2)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=128, help="images in a batch; four times as many texts")
    parser.add_argument("--pairs", type=int, default=32, help="in a step")
    parser.add_argument("--tower", default="resnet50")
    parser.add_argument("--text-layout", default="resnet50")
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--classes", type=int, default=29_783)
    parser.add_argument("--precisions", nargs="*", default=list(PRECISIONS), choices=PRECISIONS)
    parser.add_argument("--peak", type=float, help="TFLOP/s of a device that is not in the table")
    parser.add_argument("--seconds", type=float, default=1.0, help="of measuring for each row")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.manual_seed(options.seed)
    torch.backends.cudnn.benchmark = True
    matcher = build_dual_path(
        vocabulary_size=WORDS,
        tower=options.tower,
        tower_pretrained=False,
        text_layout=options.text_layout,
        length=options.length,
        flip_test=False,
    ).to(device)
    sizes = {
        "image": sum(parameter.numel() for parameter in matcher.image_encoder.parameters()),
        "text": sum(parameter.numel() for parameter in matcher.text_encoder.parameters()),
    }
    settings = {key: value for key, value in vars(options).items() if key != "out"} | {"parameters": sizes}
    plan = [(kind, mode) for kind in ("image", "text") for mode in ("encode", "train")] + [("both", "step")]
    rows: list[dict[str, Any]] = []
    for kind, mode in plan:
        for precision in options.precisions:
            rows.append(measure(kind, mode, precision, matcher, options, device))
            print(json.dumps(rows[-1]), flush=True)
            if options.out:
                result = {"benchmark": "dual_path", "settings": settings, "rows": rows, "provenance": provenance()}
                write_json(options.out, result)


if __name__ == "__main__":
    main()
