"""How long mining hard negatives takes beside a plain block top-k: the 300 hardest texts of every image and the 60
hardest images of every text, from embeddings.

    python -m benchmarks.measure.mining --threads 2 --out benchmarks/results/mining_cpu.json
    python -m benchmarks.measure.mining --device cuda --images 113287 --texts 566435 --dim 1024 --out FILE

Everything runs in one process on the same tensors, in turns. `product` is the matrix product alone, block by block,
nothing selected. `top-k` is the plain way: torch.topk of every block in both directions, merged by torch.topk; it
excludes nothing, leaves ties as they fall and, in half precision, decides on rounded scores. `mine` is all of
`quintet.mining.mine.mine_codes`. Its lists are checked on random anchors against float64 scores. Embeddings are made:
clusters within clusters, some texts repeated, so that scores are spread as those of a trained matcher are.
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
from quintet.mining.mine import mine_codes
from quintet.scores import dot_scores

TOP_TEXTS, TOP_IMAGES, SEED, CHECKED = 300, 60, 0, 256
SHAPES = {"cpu": ((4096, 8192),), "cuda": ((8192, 65536), (16384, 32768))}  # of the plain way's blocks


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


def product_only(left: Tensor, right: Tensor, shape: tuple[int, int]) -> None:
    """The bare matrix product: same blocks, nothing selected."""
    buffer = torch.empty(shape[0] * shape[1], dtype=left.dtype, device=left.device)
    for rows in left.split(shape[0]):
        for columns in right.split(shape[1]):
            torch.mm(rows, columns.T, out=buffer[: len(rows) * len(columns)].view(len(rows), len(columns)))


def plain_topk(images: Codes, texts: Codes, shape: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """torch.topk of every block, both directions, merged by torch.topk. No exclusions, ties as they fall."""
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
            "in_another_order": int((mined != expected).sum()),
            "largest_score_error": float((values - torch.from_numpy(scores[chosen]).to(device)).abs().max()),
        }
    return report


def measure(arguments: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    split = make_split(arguments.images, arguments.texts)
    images, texts = make_codes(split, arguments.dim, device)
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    left, right = (codes.embedding.to(dtype) for codes in (images, texts) if codes.embedding is not None)

    def mined(**options: Any) -> Callable[[], NegativeLists]:
        tops = {"top_texts": TOP_TEXTS, "top_images": TOP_IMAGES}
        return lambda: mine_codes(Products(), images, texts, split, device=device, **tops, **options)  # type: ignore[arg-type]

    ways: dict[str, Callable[[], Any]] = {}
    for shape in SHAPES[device.type]:
        name = f"{shape[0]} x {shape[1]}"
        ways[f"product, {name}"] = lambda shape=shape: product_only(left, right, shape)  # type: ignore[misc]
        ways[f"top-k, {name}"] = lambda shape=shape: plain_topk(images, texts, shape, dtype)  # type: ignore[misc]
    for precision in arguments.precisions:
        ways[f"mine, {precision}"] = mined(precision=precision)
    for margin in (0.0, -0.3):  # nothing beats the positives by chance; dozens of candidates an image come within 0.3
        ways[f"mine, duplicates and margin {margin:g}"] = mined(exclude_duplicates=True, false_negative_margin=margin)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    processor: dict[str, list[float]] = {way: [] for way in ways}  # less disturbed by other programs
    checks: dict[str, Any] = {}
    for turn in range(arguments.repeats):
        for way, work in ways.items():
            _wait(device)
            began, at_work = time.perf_counter(), time.process_time()
            result = work()
            _wait(device)
            seconds[way].append(time.perf_counter() - began)
            processor[way].append(time.process_time() - at_work)
            print(f"{turn} {way:30} {seconds[way][-1]:8.2f} s, processor {processor[way][-1]:8.2f} s", flush=True)
            if isinstance(result, NegativeLists) and turn == 0:
                manifest = result.manifest
                checks[way] = {"scored_again": manifest["computed"]["scored_again"], "excluded": manifest["excluded"]}
                if "margin" not in way:
                    checks[way] |= check(result, images, texts, split)
                print(f"  {checks[way]}", flush=True)
    plain, plain_processor = (
        min(min(found) for way, found in times.items() if way.startswith("top-k")) for times in (seconds, processor)
    )
    rows = [
        {
            "way": way,
            "seconds": found,
            "processor_seconds": processor[way],
            "times_plain": min(found) / plain,
            "times_plain_processor": min(processor[way]) / plain_processor,
            **({"check": checks[way]} if way in checks else {}),
        }
        for way, found in seconds.items()
    ]
    for row in rows:
        print(f"{row['way']:30} {min(row['seconds']):8.2f} s {row['times_plain']:6.2f} x top-k", flush=True)
    return {"images": len(images), "texts": len(texts), "dim": arguments.dim, "rows": rows}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--texts", type=int, default=50_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2, help="of torch, on a CPU")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--precisions", nargs="+", default=["auto"], help="auto, float32, float16, bfloat16")
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    on_gpu = device.type == "cuda"
    report: dict[str, Any] = {"benchmark": "mining", "top_texts": TOP_TEXTS, "top_images": TOP_IMAGES, "seed": SEED}
    report |= {"device": torch.cuda.get_device_name(device) if on_gpu else "CPU"}
    report |= {"threads": arguments.threads, "provenance": provenance()} | measure(arguments, device)
    if arguments.out is not None:
        write_json(arguments.out, report)


if __name__ == "__main__":
    main()
