"""Time of exact ranks: n images against 5 n texts, d = 1024 embeddings, both directions, every positive.

    python -m benchmarks.measure.evaluation                     # 1,000 x 5,000 on the CPU
    python -m benchmarks.measure.evaluation --images 1000 5000 --device cuda

Writes benchmarks/results/evaluation.json; sizes measured earlier on other devices are kept. It also records the
peak resident memory, and whether three block sizes gave the same ranks. In the same run it measures what the ranks are
compared with: the product of the embeddings and one comparison of every score with a number of its row, in blocks of
the same size; and the ranks together with as many further positives as ECCV Caption has at 5,000 images, at random
among the best hundredth of their query's candidates. (ECCV Caption's were verified among what five models found first.)
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.codes import Codes
from quintet.evaluation.ranks import BLOCK, Judged, Ranks, count_ranks, count_ranks_and_more
from quintet.evaluation.relevance import make_judged
from quintet.evaluation.result import provenance
from quintet.evaluation.scoring import Member, blocks_of, member_scores
from quintet.evaluation.significance import bootstrap_intervals
from quintet.files import read_json, write_json
from quintet.scores import dot_score_pairs, dot_scores

CAPTIONS, DIM, SEED = 5, 1024, 0
BLOCKS = (1024, 256, 4096)  # the first one is timed
ECCV = {"i2t": (1_261, 22_550), "t2i": (1_332, 11_279)}  # queries and positives at 5,000 images
RESULTS = Path(__file__).parents[1] / "results" / "evaluation.json"


class Embeddings:
    """A matcher whose inputs are already embeddings: nothing but the scores and the counting is timed."""

    image_input = "fragments"

    def encode_images(self, images: Any) -> Codes:
        raise NotImplementedError("the codes of this benchmark are ready made")

    encode_texts = encode_images

    def score(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        return dot_scores(image_codes, text_codes)

    def score_pairs(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        return dot_score_pairs(image_codes, text_codes)


def make_member(images: int, device: torch.device) -> tuple[Member, np.ndarray, np.ndarray]:
    """Unit vectors around a centre for each group, near enough that ranks are those of a trained matcher."""
    generator = torch.Generator().manual_seed(SEED)
    groups = np.arange(images)
    text_groups = np.repeat(groups, CAPTIONS)
    centres = torch.randn(images, DIM, generator=generator)
    image_rows = centres + 4.0 * torch.randn(images, DIM, generator=generator)
    text_rows = centres[torch.from_numpy(text_groups)]
    text_rows += 4.0 * torch.randn(len(text_groups), DIM, generator=generator)
    codes = [Codes(embedding=torch.nn.functional.normalize(rows).to(device)) for rows in (image_rows, text_rows)]
    return Member(Embeddings(), *codes), groups, text_groups


def eccv_like(member: Member) -> list[Judged]:
    """Pairs that score high, as many for the size as ECCV Caption has."""
    rng = np.random.default_rng(SEED)
    images, texts = member.image_codes.embedding, member.text_codes.embedding
    assert images is not None
    assert texts is not None
    sides = []
    for i2t, (queries, positives) in zip((True, False), ECCV.values(), strict=True):
        own, others = (images, texts) if i2t else (texts, images)
        chosen = rng.choice(len(own), max(1, queries * len(images) // 5_000), replace=False)
        best = (own[torch.from_numpy(chosen)] @ others.T).topk(len(others) // 100).indices.cpu().numpy()
        drawn = rng.integers(0, len(chosen), positives * len(images) // 5_000)
        candidates = best[drawn, rng.integers(0, best.shape[1], len(drawn))]
        pairs = np.unique(chosen[drawn] * len(others) + candidates)
        sides.append(make_judged(i2t, pairs // len(others), pairs % len(others)))
    return sides


def product_and_pass(member: Member) -> Tensor:
    """What exact ranks cannot do without: every score, and one look at it. (n_images,)"""
    images, texts = member.image_codes.embedding, member.text_codes.embedding
    assert images is not None
    assert texts is not None
    floors = (images * texts[::CAPTIONS]).sum(1, keepdim=True)
    above = torch.zeros(len(images), dtype=torch.int64, device=images.device)
    for row in range(0, len(images), BLOCK[0]):
        rows = slice(row, row + BLOCK[0])
        for column in range(0, len(texts), BLOCK[1]):
            above[rows] += (images[rows] @ texts[column : column + BLOCK[1]].T >= floors[rows]).sum(1)
    return above


def timed(device: torch.device, work: Any) -> tuple[float, float, Any]:
    """Seconds by the clock, seconds of processor time (on a machine shared with others the steadier number), value."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    began, worked = time.perf_counter(), time.process_time()
    value = work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began, time.process_time() - worked, value


def same(one: Ranks, two: Ranks) -> bool:
    return np.array_equal(one.pair_i2t, two.pair_i2t) and np.array_equal(one.pair_t2i, two.pair_t2i)


def measure(images: int, device: torch.device, repeats: int) -> dict[str, Any]:
    member, image_groups, text_groups = make_member(images, device)
    score_block = member_scores([member])
    judged = eccv_like(member)

    def rank(block: int) -> Ranks:
        return count_ranks(score_block, image_groups, text_groups, blocks_of([member], block))

    def rank_with_eccv() -> Ranks:
        sizes = blocks_of([member], BLOCKS[0])
        return count_ranks_and_more(score_block, image_groups, text_groups, judged, sizes)[0]

    works = {
        "product": lambda: product_and_pass(member),
        "rank": lambda: rank(BLOCKS[0]),
        "eccv": rank_with_eccv,
    }
    seconds: dict[str, list[float]] = {name: [] for name in works}
    processor: dict[str, list[float]] = {name: [] for name in works}
    values: dict[str, Any] = {name: work() for name, work in works.items()}  # warm up
    for _ in range(repeats):  # in turn, so that the machine is the same for all
        for name, work in works.items():
            by_clock, by_processor, values[name] = timed(device, work)
            seconds[name].append(by_clock)
            processor[name].append(by_processor)
    ranks = values["rank"]
    bootstrap_seconds, _, _ = timed(device, lambda: bootstrap_intervals(ranks))
    return {
        "images": images,
        "texts": images * CAPTIONS,
        "dim": DIM,
        "block": list(blocks_of([member], BLOCKS[0])),
        **{f"{name}_seconds": each for name, each in seconds.items()},
        **{f"{name}_seconds_median": float(np.median(each)) for name, each in seconds.items()},
        **{f"{name}_processor_seconds_median": float(np.median(each)) for name, each in processor.items()},
        "eccv_pairs": [len(side.query) for side in judged],
        "equal_with_eccv": same(values["eccv"], ranks),
        "bootstrap_seconds": bootstrap_seconds,
        "equal_for_blocks": {str(block): same(rank(block), ranks) for block in BLOCKS},
        "t2i_r1": float(100 * np.mean(ranks.t2i.best == 0)),
        "peak_resident_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "seed": SEED,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "provenance": provenance(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[1000])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    kept = read_json(arguments.out)["measurements"] if arguments.out.exists() else []
    for images in arguments.images:
        found = measure(images, torch.device(arguments.device), arguments.repeats)
        times = {name: found[f"{name}_seconds_median"] for name in ("product", "rank", "eccv")}
        print(f"{images:,} x {images * CAPTIONS:,} on {found['device']}: product and one pass {times['product']:.3f} s")
        print(f"  ranks {times['rank']:.3f} s ({times['rank'] / times['product']:.2f})")
        print(f"  with ECCV Caption {times['eccv']:.3f} s ({times['eccv'] / times['rank'] - 1:+.1%})")
        kept = [row for row in kept if (row["images"], row["device"]) != (images, found["device"])] + [found]
    write_json(arguments.out, {"benchmark": "evaluation", "measurements": kept})


if __name__ == "__main__":
    main()
