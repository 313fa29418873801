"""How long it takes to mine hard negatives from embeddings: the 300 hardest texts of every image and the 60 hardest
images of every text, exact, at the size of COCO's training set (113,287 x 566,435, d = 1024) and of Flickr30K's.

    PYTHONPATH=src python benchmarks/mining.py --device cuda --out benchmarks/results/mining_h200.json
    PYTHONPATH=src python benchmarks/mining.py                       # a small size on the CPU
    PYTHONPATH=src python benchmarks/mining.py --device cuda --scan 4096   # also SCAN mining for itself, on part of it

Everything runs in one process on the same tensors. `product` is the matrix product alone, block by block, nothing
selected; `mine` is all of `quintet.mining.mine.mine`, from codes on the device to lists in the computer's memory;
`topk` is the plain way for comparison: half-precision scores, torch.topk of every block in both directions, merged.
Lists are checked on random anchors against float64 scores. Embeddings are made: clusters within clusters, some texts
repeated, so that scores are spread as those of a trained matcher are.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.codes import Codes
from quintet.data.corpus import Image, Split, Text
from quintet.data.negatives import NegativeLists
from quintet.evaluation.result import provenance
from quintet.files import write_json
from quintet.mining.half import HalfShape, Sample, half_shape
from quintet.mining.legs import Legs
from quintet.mining.mine import mine
from quintet.mining.plan import Tuning, default_memory
from quintet.scores.embedding import dot_scores

SIZES = {"coco": (113_287, 566_435), "f30k": (29_000, 145_000), "small": (2_000, 10_000)}
TOP_TEXTS, TOP_IMAGES, SEED, CHECKED = 300, 60, 0, 256
SHAPES = {
    "8192x65536": (8192, 65536),
    "16384x32768": (16384, 32768),
    "16384x4096": (16384, 4096),
    "4096x16384": (4096, 16384),
}


class Products:
    """A matcher whose codes are ready made."""

    image_input = "fragments"

    def score(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        return dot_scores(image_codes, text_codes)


def make_split(images: int, texts: int) -> Split:
    text_groups = np.minimum(np.arange(texts) * images // texts, images - 1)
    names = [str(group) for group in range(images)]
    split = Split(
        "train",
        [Image(f"i{name}", name) for name in names],
        [Text(f"t{row}", names[group], f"text {row}") for row, group in enumerate(text_groups)],
        names,
        np.arange(images),
        text_groups,
    )
    assert split.checksum  # a fact about the corpus, computed once and kept; not part of mining
    return split


def make_codes(split: Split, dim: int, device: torch.device) -> tuple[Codes, Codes]:
    """Unit vectors: a theme, a topic in it, the group's own part, and noise. One text in 200 repeats another."""
    generator = torch.Generator(device).manual_seed(SEED)

    def vectors(count: int) -> Tensor:
        return F.normalize(torch.randn(count, dim, generator=generator, device=device))

    images, texts = len(split.images), len(split.texts)
    themes, topics = vectors(200), vectors(max(2, images // 25))
    topic = torch.randint(len(topics), (images,), generator=generator, device=device)
    theme_of_topic = torch.randint(200, (len(topics),), generator=generator, device=device)
    centres = 0.6 * themes[theme_of_topic[topic]] + 0.6 * topics[topic] + 0.8 * vectors(images)
    text_groups = torch.from_numpy(split.text_groups).to(device)
    image_rows = F.normalize(centres + 0.8 * vectors(images))
    text_rows = F.normalize(centres[text_groups] + 0.8 * vectors(texts))
    again = torch.randint(texts, (2, texts // 200), generator=generator, device=device)
    text_rows[again[0]] = text_rows[again[1]]
    return Codes(embedding=image_rows), Codes(embedding=text_rows)


class Clock:
    def __init__(self, device: torch.device) -> None:
        self.device = device

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def time(self, work: Callable[[], Any], repeats: int, warm: bool = True) -> tuple[list[float], Any]:
        value = work() if warm else None
        seconds = []
        for _ in range(repeats):
            self.wait()
            began = time.perf_counter()
            value = work()
            self.wait()
            seconds.append(time.perf_counter() - began)
        return seconds, value


def product_only(left: Tensor, right: Tensor, shape: tuple[int, int]) -> None:
    """The bare matrix product: same blocks, nothing selected."""
    buffer = torch.empty(shape[0] * shape[1], dtype=left.dtype, device=left.device)
    for rows in left.split(shape[0]):
        for columns in right.split(shape[1]):
            torch.mm(rows, columns.T, out=buffer[: len(rows) * len(columns)].view(len(rows), len(columns)))


def plain_topk(images: Codes, texts: Codes, shape: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """torch.topk of every block, both directions, merged by torch.topk. Positives and rounding are left as they are."""
    assert images.embedding is not None
    assert texts.embedding is not None
    left, right = images.embedding.to(dtype), texts.embedding.to(dtype)
    best = torch.full((len(right), TOP_IMAGES), -torch.inf, dtype=dtype, device=left.device)
    best_rows = torch.full((len(right), TOP_IMAGES), -1, dtype=torch.int64, device=left.device)
    lists = []
    for start in range(0, len(left), shape[0]):
        rows = left[start : start + shape[0]]
        found: tuple[Tensor, Tensor] | None = None
        for first in range(0, len(right), shape[1]):
            columns = right[first : first + shape[1]]
            scores = rows @ columns.T  # (a, b)
            values, places = scores.topk(min(TOP_TEXTS, len(columns)), dim=1)
            places = places + first
            if found is not None:
                both, where = torch.cat([found[0], values], 1), torch.cat([found[1], places], 1)
                values, chosen = both.topk(min(TOP_TEXTS, both.shape[1]), dim=1)
                places = where.gather(1, chosen)
            found = values, places
            part = slice(first, first + len(columns))
            values, places = scores.T.topk(min(TOP_IMAGES, len(rows)), dim=1)
            both, where = torch.cat([best[part], values], 1), torch.cat([best_rows[part], places + start], 1)
            best[part], chosen = both.topk(TOP_IMAGES, dim=1)
            best_rows[part] = where.gather(1, chosen)
        assert found is not None
        lists.append(found[1].int().cpu())
    return torch.cat(lists), best_rows.int().cpu()


def check(lists: NegativeLists, images: Codes, texts: Codes, split: Split) -> dict[str, Any]:
    """Random anchors of both directions against float64 scores of everything, rounded to float32 and sorted."""
    found = (lists.texts, lists.text_scores), (lists.images, lists.image_scores)
    sides = ((images, split.image_groups), (texts, split.text_groups))
    report = {}
    for name, (rows, scores), (anchors, groups), (others, other_groups) in zip(
        ("texts", "images"), found, sides, sides[::-1], strict=True
    ):
        chosen = np.sort(np.random.default_rng(SEED).choice(len(anchors), min(CHECKED, len(anchors)), replace=False))
        assert anchors.embedding is not None
        assert others.embedding is not None
        device = anchors.device
        exact = anchors.embedding[torch.from_numpy(chosen).to(device)].double() @ others.embedding.double().T
        truth = exact.float()  # (anchors, candidates)
        own = torch.from_numpy(groups[chosen]).to(device)[:, None] == torch.from_numpy(other_groups).to(device)
        truth.masked_fill_(own, -torch.inf)
        best, expected = (part[:, : rows.shape[1]] for part in truth.sort(dim=1, descending=True, stable=True))
        mined = torch.from_numpy(np.array(rows[chosen])).to(device).long()
        values = truth.gather(1, mined)
        twice = (mined.sort(dim=1).values.diff(dim=1) == 0).sum()
        report[name] = {
            "anchors": len(chosen),
            "entries": mined.numel(),
            # beyond what rounding to float32 can do: must be 0
            "not_among_the_best": int((values < best[:, -1:] - 2e-7).sum() + twice),
            # equal but for the last bits of float32
            "at_another_place": int((mined != expected).sum()),
            "largest_score_error": float((values - torch.from_numpy(scores[chosen]).to(device)).abs().max()),
        }
    return report


def measure(name: str, arguments: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    split = make_split(*SIZES[name])
    images, texts = make_codes(split, arguments.dim, device)
    clock, on_gpu = Clock(device), device.type == "cuda"
    memory = arguments.memory or default_memory(device)
    planned = (Sample.plan(len(texts), TOP_TEXTS + 6, 16384), Sample.plan(len(images), TOP_IMAGES + 1, 8192))
    usual = half_shape(memory, len(images), len(texts), planned)
    others = SHAPES if on_gpu and arguments.variants else {}
    shapes = {f"usual {usual.images}x{usual.texts}": (usual.images, usual.texts)} | others
    dtype = torch.float16 if on_gpu else torch.float32
    found: dict[str, Any] = {
        "images": len(images),
        "texts": len(texts),
        "dim": arguments.dim,
        "product": {},
        "mine": {},
    }

    def show(kind: str, label: str, seconds: list[float], more: str = "") -> None:
        print(f"{name:6} {kind:8} {label:34} {min(seconds):8.3f} s  {more}", flush=True)

    rounded = [codes.embedding.to(dtype) for codes in (images, texts) if codes.embedding is not None]
    for label, shape in shapes.items():
        seconds, _ = clock.time(lambda shape=shape: product_only(*rounded, shape), arguments.repeats)
        found["product"][label] = seconds
        show("product", label, seconds)
    bare = min(min(seconds) for seconds in found["product"].values())

    def run(precision: Any, kernels: bool, shape: tuple[int, int], samples: tuple[int, int], legs: Legs | None) -> Any:
        sizes = HalfShape(shape[0], shape[1], usual.capacity, usual.pending)
        tuning = Tuning(kernels=kernels, shape=sizes, samples=samples, legs=legs)
        tops = {"top_texts": TOP_TEXTS, "top_images": TOP_IMAGES}
        options = {"precision": precision, "memory_bytes": memory, "device": device, "tuning": tuning}
        return mine(Products(), images, texts, split, **tops, **options)  # type: ignore[arg-type]

    usual_shape = (usual.images, usual.texts)
    variants: dict[str, tuple[Any, ...]] = {
        f"float16 {'triton' if kernel else 'torch'} {label}": ("float16", kernel, shape, (16384, 8192))
        for kernel in ((True, False) if on_gpu else (False,))
        for label, shape in (shapes.items() if kernel else list(shapes.items())[:2])
    }
    if on_gpu and arguments.variants:
        variants["float16 triton samples 32768, 16384"] = ("float16", True, usual_shape, (32768, 16384))
        variants["float16 triton samples 8192, 4096"] = ("float16", True, usual_shape, (8192, 4096))
    if arguments.variants or not on_gpu:
        variants["bfloat16 usual"] = ("bfloat16", on_gpu, usual_shape, (16384, 8192))
    if arguments.float32:
        variants["float32"] = ("float32", on_gpu, usual_shape, (16384, 8192))
    for label, variant in variants.items():
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        seconds, lists = clock.time(lambda variant=variant: run(*variant, None), arguments.repeats)
        peak = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else None
        legs = Legs(device)
        timed, _ = clock.time(lambda variant=variant, legs=legs: run(*variant, legs), 1, warm=False)
        found["mine"][label] = {
            "seconds": seconds,
            "times_the_product": min(seconds) / bare,
            "peak_gib": peak,
            "legs": legs.seconds(),
            "seconds_with_legs": timed[0],
            "computed": lists.manifest["computed"],
            "check": check(lists, images, texts, split),
        }
        parts = " ".join(f"{leg} {value:.3f}" for leg, value in legs.seconds().items())
        show("mine", label, seconds, f"{min(seconds) / bare:.1f} x product; {parts}")
        for side, facts in found["mine"][label]["check"].items():
            print(f"       {side}: {facts}", flush=True)
    if arguments.topk:
        shape = (4096, 65536) if on_gpu else usual_shape
        seconds, _ = clock.time(lambda: plain_topk(images, texts, shape, dtype), 1)
        found["topk"] = seconds
        show("topk", f"{shape[0]}x{shape[1]}", seconds, f"{min(seconds) / bare:.1f} x product")
    found["quantiles"] = lists.manifest["quantiles"]
    return found


def measure_scan(count: int, device: torch.device) -> dict[str, Any]:
    """SCAN (t2i) mines for itself: `count` images of Flickr30K's 29,000 against all 145,000 texts."""
    from quintet.models.scan import build_scan

    texts = SIZES["f30k"][1]
    split = make_split(SIZES["f30k"][0], texts)
    rows = np.arange(len(split.images)) < count
    split = Split("train", split.images[:count], split.texts, split.groups, split.image_groups[rows], split.text_groups)
    matcher = build_scan(image_dim=64, vocabulary_size=100, embed_dim=1024, relu_slope=0.1).to(device).eval()
    generator = torch.Generator(device).manual_seed(SEED)

    def fragments(items: int, length: int) -> Tensor:
        made = torch.empty(items, length, 1024, device=device)
        for part in made.split(4096):
            part.copy_(F.normalize(torch.randn(part.shape, generator=generator, device=device), dim=-1))
        return made

    lengths = torch.randint(6, 21, (texts,), generator=generator, device=device)
    mask = torch.arange(20, device=device) < lengths[:, None]
    image_codes, text_codes = Codes(fragments=fragments(count, 36)), Codes(fragments=fragments(texts, 20), mask=mask)
    began = time.perf_counter()
    lists = mine(matcher, image_codes, text_codes, split, top_texts=TOP_TEXTS, top_images=TOP_IMAGES, device=device)  # type: ignore[arg-type]
    seconds = time.perf_counter() - began
    whole = seconds * SIZES["f30k"][0] / count
    print(
        f"scan   mine     {count} of {SIZES['f30k'][0]} images: {seconds:.1f} s; all of them about {whole:.0f} s",
        flush=True,
    )
    return {
        "images": count,
        "texts": texts,
        "seconds": seconds,
        "seconds_for_29000": whole,
        "lists": lists.manifest["lists"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--sizes", nargs="+", choices=SIZES, default=None, help="default: f30k and coco on a GPU, else small"
    )
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory", type=int, default=None, help="bytes; default: half of what is free")
    parser.add_argument("--variants", action="store_true", help="also other block shapes, sample sizes and bfloat16")
    parser.add_argument("--float32", action="store_true", help="also float32 blocks throughout")
    parser.add_argument("--topk", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--scan", type=int, default=0, metavar="IMAGES", help="also SCAN, on so many images")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "mining.json")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    sizes = arguments.sizes or (["f30k", "coco"] if device.type == "cuda" else ["small"])
    report: dict[str, Any] = {"benchmark": "mining", "top_texts": TOP_TEXTS, "top_images": TOP_IMAGES, "seed": SEED}
    report["device"] = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    report["provenance"] = provenance()
    for name in sizes:
        report[name] = measure(name, arguments, device)
        write_json(arguments.out, report)
    if arguments.scan:
        report["scan"] = measure_scan(arguments.scan, device)
        write_json(arguments.out, report)


if __name__ == "__main__":
    main()
