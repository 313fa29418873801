"""SCAN's scores: the exact block-wise form against the loop over captions of the authors' code.

    python -m benchmarks.measure.cross_attention --device cuda --out benchmarks/results/cross_attention_h200.json
    python -m benchmarks.measure.cross_attention --device cpu --out benchmarks/results/cross_attention_cpu.json

Both sides run in one process, one after the other, on the same tensors. Measured: all pairs without gradients, and a
whole training step (encoders, hinge loss of the hardest negatives, backward, clipping, Adam) with its peak memory.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.codes import Codes
from quintet.data.batches import ImageBatch, TextBatch
from quintet.models.scan import SCAN, build_scan
from quintet.scores.cross_attention import scan_scores

SETTINGS: dict[str, dict[str, Any]] = {
    "t2i": {"direction": "t2i", "aggregation": "lse", "lambda_softmax": 9.0, "lambda_lse": 6.0, "relu_slope": 0.1},
    "i2t": {"direction": "i2t", "aggregation": "lse", "lambda_softmax": 4.0, "lambda_lse": 5.0, "relu_slope": 0.1},
}


def loop_scores(images: Codes, texts: Codes, settings: dict[str, Any]) -> Tensor:
    """The plain form: captions one by one, each repeated for all images, contexts formed in full."""
    regions, words, lengths = images.fragments, texts.fragments, texts.real().sum(dim=1).tolist()
    assert regions is not None
    assert words is not None
    columns = []
    for caption, length in zip(words, lengths, strict=True):
        repeated = caption[None, :length].repeat(len(regions), 1, 1)  # (n, W, d)
        query, context = (repeated, regions) if settings["direction"] == "t2i" else (regions, repeated)
        products = torch.bmm(context, query.transpose(1, 2))  # (n, Lc, Lq)
        products = F.leaky_relu(products, settings["relu_slope"])
        products = products / (products.pow(2).sum(dim=2, keepdim=True).sqrt() + 1e-8)
        weights = F.softmax(products.transpose(1, 2).contiguous() * settings["lambda_softmax"], dim=2)  # (n, Lq, Lc)
        attended = torch.bmm(context.transpose(1, 2), weights.transpose(1, 2).contiguous()).transpose(1, 2).contiguous()
        dots = (query * attended).sum(dim=2)
        cosines = dots / (query.norm(2, dim=2) * attended.norm(2, dim=2)).clamp(min=1e-8)  # (n, Lq)
        columns.append(torch.logsumexp(cosines * settings["lambda_lse"], dim=1) / settings["lambda_lse"])
    return torch.stack(columns, dim=1)  # (n_images, n_texts)


def fragments(n: int, length: int, dim: int, device: str, lengths: Tensor | None = None) -> Codes:
    values = F.normalize(torch.randn(n, length, dim, device=device), dim=-1)
    mask = None if lengths is None else torch.arange(length, device=device) < lengths.to(device)[:, None]
    return Codes(fragments=values if mask is None else values * mask[..., None], mask=mask)


def caption_lengths(n: int, words: int, ragged: bool) -> Tensor:
    return torch.randint(words // 2, words + words // 2 + 1, (n,)) if ragged else torch.full((n,), words)


def measure(work: Callable[[], Any], device: str, repeats: int, warm: int = 1) -> dict[str, float]:
    """Least and median seconds; on a GPU also the peak bytes allocated above what was there before."""
    for _ in range(warm):
        work()
    before = 0
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    seconds, processor = [], []
    for _ in range(repeats):
        start, used = time.perf_counter(), time.process_time()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        processor.append(time.process_time() - used)
    # The least is what other work on the machine disturbs least; it is what the comparisons take.
    found = {"seconds": min(seconds), "median_seconds": statistics.median(seconds), "repeats": float(repeats)}
    if device == "cpu":
        found["processor_seconds"] = min(processor)  # of all threads; hardly depends on what else runs
    if device == "cuda":
        found["peak_bytes"] = float(torch.cuda.max_memory_allocated())
        found["peak_bytes_above_start"] = found["peak_bytes"] - before
    return found


WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "default, bfloat16": {"precision": "bfloat16"},
    "torch": {"engine": "torch"},
    "torch, bfloat16": {"engine": "torch", "precision": "bfloat16"},
    "compile": {"engine": "compile"},
    "compile, bfloat16": {"engine": "compile", "precision": "bfloat16"},
}


def ours(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The ways to compute that were asked for; on a CPU the default is plain torch, so it stands for all."""
    if options.device == "cpu":
        return {"default": WAYS["default"]}
    wanted = options.engines.split(",")
    return {way: arguments for way, arguments in WAYS.items() if way.split(",")[0] in wanted}


def all_pairs(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    images = fragments(options.images, options.regions, options.dim, options.device)
    for ragged in (False, True):
        lengths = caption_lengths(options.texts, options.words, ragged)
        texts = fragments(options.texts, int(lengths.max()), options.dim, options.device, lengths)
        for name, settings in SETTINGS.items():
            with torch.no_grad():
                expected = loop_scores(images, texts, settings)
                loop = measure(lambda t=texts, s=settings: loop_scores(images, t, s), options.device, options.repeats)
                row = {"what": "all pairs", "direction": name, "ragged": ragged, "loop": loop, "ours": {}}
                for way, arguments in ours(options).items():
                    arguments = {**settings, **arguments, "budget": options.budget}
                    work = lambda t=texts, a=arguments: scan_scores(images, t, **a)  # noqa: E731
                    difference = (work() - expected).abs().max().item()
                    row["ours"][way] = against(loop, measure(work, options.device, options.repeats * 6), difference)
            yield row


def training_step(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One step at batch size `--batch`, for the loop and for each way of ours, from the same weights."""
    lengths = caption_lengths(options.batch, options.words, ragged=False)
    image_batch = ImageBatch(fragments=torch.randn(options.batch, options.regions, options.image_dim)).to(
        options.device
    )
    tokens = torch.randint(0, options.vocabulary, (options.batch, int(lengths.max())))
    text_batch = TextBatch(tokens.to(options.device), lengths)
    for name, settings in SETTINGS.items():
        row: dict[str, Any] = {"what": "training step", "direction": name, "batch": options.batch, "ours": {}}
        loop, first = one_step(options, image_batch, text_batch, settings, None)
        row["loop"] = loop
        for way, arguments in ours(options).items():
            found, loss = one_step(options, image_batch, text_batch, settings, {**arguments, "budget": options.budget})
            row["ours"][way] = against(loop, found, abs(loss - first) / abs(first))
        yield row


def one_step(
    options: argparse.Namespace,
    image_batch: ImageBatch,
    text_batch: TextBatch,
    settings: dict[str, Any],
    arguments: dict[str, Any] | None,
) -> tuple[dict[str, float], float]:
    """Timings of the step and the loss before the first; `arguments` None takes the loop over captions."""
    torch.manual_seed(options.seed)
    matcher: SCAN = build_scan(
        image_dim=options.image_dim,
        vocabulary_size=options.vocabulary,
        embed_dim=options.dim,
        **settings,
        **(arguments or {}),
    ).to(options.device)
    optimizer = torch.optim.Adam(matcher.parameters(), lr=2e-4, fused=options.device == "cuda")

    def step() -> Tensor:
        images, texts = matcher.encode_images(image_batch), matcher.encode_texts(text_batch)
        scores = loop_scores(images, texts, settings) if arguments is None else matcher.score(images, texts)
        loss = hinge(scores)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(matcher.parameters(), 2.0)
        optimizer.step()
        return loss

    with torch.no_grad():
        images, texts = matcher.encode_images(image_batch), matcher.encode_texts(text_batch)
        scores = loop_scores(images, texts, settings) if arguments is None else matcher.score(images, texts)
        first = hinge(scores).item()
    found = measure(step, options.device, options.repeats if arguments is None else options.repeats * 3, warm=3)
    if options.device == "cpu":
        found["bytes_saved_for_backward"] = float(saved_bytes(step))
    return found, first


def hinge(scores: Tensor, margin: float = 0.2) -> Tensor:
    """Hinge on the hardest negative of each row and column, summed."""
    positive = scores.diag()
    own = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    texts = (margin + scores - positive[:, None]).clamp(min=0).masked_fill(own, 0)
    images = (margin + scores - positive[None, :]).clamp(min=0).masked_fill(own, 0)
    return texts.amax(dim=1).sum() + images.amax(dim=0).sum()


def saved_bytes(step: Callable[[], Any]) -> int:
    """Bytes that autograd keeps from the forward to the backward pass, each storage counted once."""
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        step()
    return sum(sizes.values())


def against(loop: dict[str, float], found: dict[str, float], difference: float) -> dict[str, float]:
    compared = {**found, "difference": difference, "times_faster": loop["seconds"] / found["seconds"]}
    for key in ("processor_seconds", "peak_bytes", "peak_bytes_above_start", "bytes_saved_for_backward"):
        if found.get(key):
            compared[f"times_less_{key}"] = loop[key] / found[key]
    return compared


def report(row: dict[str, Any]) -> None:
    ragged = ", ragged" if row.get("ragged") else ""
    print(f"{row['what']}, {row['direction']}{ragged}: loop {row['loop']['seconds']:.4f} s")
    for way, found in row["ours"].items():
        memory = "".join(f", {key.replace('_', ' ')} {found[key]:.1f}" for key in found if key.startswith("times_less"))
        print(
            f"  {way}: {found['seconds']:.4f} s, {found['times_faster']:.1f} times faster, "
            f"difference {found['difference']:.1e}{memory}",
            flush=True,
        )


def environment(options: argparse.Namespace) -> dict[str, Any]:
    name = torch.cuda.get_device_name() if options.device == "cuda" else f"{platform.machine()} CPU"
    return {
        "command": shlex.join(["python", "-m", "benchmarks.measure.cross_attention", *sys.argv[1:]]),
        "seed": options.seed,
        "device": name,
        "threads": torch.get_num_threads(),
        "processors": os.cpu_count(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "sizes": {key: value for key, value in vars(options).items() if isinstance(value, int)},
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--images", type=int, help="1000 on a GPU, 100 on a CPU")
    parser.add_argument("--texts", type=int, help="5000 on a GPU, 500 on a CPU")
    parser.add_argument("--batch", type=int, help="of the training step, 128")
    parser.add_argument("--regions", type=int, default=36)
    parser.add_argument("--words", type=int, default=16)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--image-dim", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=8481)
    parser.add_argument("--budget", type=int, help="bytes of a block; the library's own choice if left out")
    parser.add_argument("--engines", default="default,torch", help="of default, torch, compile (which takes minutes)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="on a CPU")
    parser.add_argument("--matmul", choices=["highest", "high"], default="highest", help="torch's float32 products")
    options = parser.parse_args()
    large = options.device == "cuda"
    options.images = options.images or (1000 if large else 100)
    options.texts = options.texts or (5000 if large else 500)
    options.batch = options.batch or 128
    return options


def main() -> None:
    options = parse()
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision(options.matmul)
    if options.threads:
        torch.set_num_threads(options.threads)
    results = []
    for row in chain(training_step(options), all_pairs(options)):
        report(row)
        results.append(row)
        if options.out:  # after every row: a run that is cut short leaves what it had
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps({**environment(options), "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
