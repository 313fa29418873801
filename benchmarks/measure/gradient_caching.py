"""Gradient caching (`batches.chunk`) against the plain step: memory and time of a training step of a dual encoder.

    python -m benchmarks.measure.gradient_caching --threads 2
    python -m benchmarks.measure.gradient_caching --device cuda --sizes 256 1024 4096 --chunk 64

The matcher is a `clip` with random weights, from a configuration; the loss is contrastive. Every step runs in a process
of its own, plain and in chunks in turn, so that the peak is of that way alone: resident memory above what the process
had before its first step, on a GPU the memory of tensors. Seconds are of processor time on a CPU, which other programs
disturb least, and elapsed ones. Ratios are medians over the rounds.
Writes benchmarks/results/gradient_caching_DEVICE.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from quintet.data.batches import ImageBatch, PairBatch, TextBatch
from quintet.evaluation.result import provenance
from quintet.files import write_json
from quintet.losses.contrastive import ContrastiveObjective
from quintet.losses.step import Progress, Step
from quintet.models import create_model
from quintet.protocols import module_of

RESULTS = Path(__file__).parents[1] / "results"
WORDS, VOCABULARY = 24, 1000
TOWER = {"intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 4, "hidden_size": 256}
CONFIG = {
    "model_type": "clip",
    "projection_dim": 256,
    "text_config": TOWER | {"vocab_size": VOCABULARY, "max_position_embeddings": 32, "eos_token_id": VOCABULARY - 1},
    "vision_config": TOWER | {"image_size": 128, "patch_size": 16},
}


def pairs(size: int, device: torch.device) -> PairBatch:
    random = torch.Generator().manual_seed(size)
    tokens = torch.randint(1, VOCABULARY - 1, (size, WORDS), generator=random)
    tokens[:, -1] = VOCABULARY - 1
    texts = TextBatch(tokens, torch.full((size,), WORDS))
    images = ImageBatch(pixels=torch.randn(size, 3, 128, 128, generator=random))
    rows = torch.arange(size)
    return PairBatch(images, texts, rows, rows, rows, rows).to(device)


def peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def one_process(size: int, chunk: int | None, repeats: int, device: torch.device, precision: str) -> dict[str, float]:
    """Some steps of one way: the median seconds, and the peak above what was there before."""
    torch.manual_seed(0)
    matcher: Any = create_model("clip", config=CONFIG)
    module_of(matcher).train().to(device)
    loss = ContrastiveObjective(temperature="matcher", has_logit_scale=True)

    def step(batch: PairBatch, chunk: int | None) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            terms = loss(Step(matcher, batch, Progress(epoch=0.0), None, chunk))
        torch.stack([term.values.mean() for term in terms.values()]).sum().backward()
        if device.type == "cuda":
            torch.cuda.synchronize()

    step(pairs(2, device), None)  # gradients and work space of the libraries are there from here on
    batch = pairs(size, device)
    before = peak_bytes(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    seconds = []
    for _ in range(repeats):
        elapsed, processor = time.perf_counter(), time.process_time()
        step(batch, chunk)
        seconds.append((time.perf_counter() - elapsed, time.process_time() - processor))
    elapsed, processor = (statistics.median(column) for column in zip(*seconds, strict=True))
    return {"seconds": elapsed, "cpu_seconds": processor, "peak_bytes": peak_bytes(device) - before}


def in_a_process(size: int, chunk: int | None, options: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.measure.gradient_caching", "--one", str(size), str(chunk or 0)]
    command += ["--device", options.device, "--threads", str(options.threads), "--repeats", str(options.repeats)]
    done = subprocess.run([*command, "--precision", options.precision], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measure(size: int, options: argparse.Namespace) -> dict[str, Any]:
    rounds = [
        {"plain": in_a_process(size, None, options), "chunks": in_a_process(size, options.chunk, options)}
        for _ in range(options.rounds)
    ]
    key = "seconds" if options.device == "cuda" else "cpu_seconds"
    found: dict[str, Any] = {"size": size, "rounds": rounds}
    for way in ("plain", "chunks"):
        names = ("seconds", "cpu_seconds", "peak_bytes")
        found[way] = {name: statistics.median(one[way][name] for one in rounds) for name in names}
    found["times_slower"] = statistics.median(one["chunks"][key] / one["plain"][key] for one in rounds)
    found["times_less_memory"] = statistics.median(
        one["plain"]["peak_bytes"] / max(1, one["chunks"]["peak_bytes"]) for one in rounds
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 256, 512])
    parser.add_argument("--chunk", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=2, help="steps in each process")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", type=int, nargs=2, metavar=("SIZE", "CHUNK"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    if options.one:
        size, chunk = options.one
        print(json.dumps(one_process(size, chunk or None, options.repeats, device, options.precision)))
        return
    rows = []
    for size in options.sizes:
        rows.append(measure(size, options))
        print(
            f"batch {size}: {rows[-1]['times_slower']:.2f} times the time, a {rows[-1]['times_less_memory']:.1f}th of "
            "the memory",
            flush=True,
        )
    matcher: Any = create_model("clip", config=CONFIG)
    settings = {key: getattr(options, key) for key in ("chunk", "rounds", "repeats", "precision", "threads")}
    content = {
        "benchmark": "gradient_caching",
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "settings": settings | {"words": WORDS, "image": 128, "patch": 16},
        "parameters": sum(parameter.numel() for parameter in matcher.parameters()),
        "rows": rows,
        "provenance": provenance(),
    }
    write_json(options.out or RESULTS / f"gradient_caching_{device.type}.json", content)


if __name__ == "__main__":
    main()
