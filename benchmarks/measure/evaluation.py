"""Time of exact ranks: n images against 5 n texts, d = 1024 embeddings, both directions, every positive.

    python -m benchmarks.measure.evaluation                     # 1,000 x 5,000 on the CPU
    python -m benchmarks.measure.evaluation --images 1000 5000 --device cuda

Writes benchmarks/results/evaluation.json; sizes measured earlier on other devices are kept. It also records the
peak resident memory (CPU), and whether three block sizes gave the same ranks.
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
from quintet.evaluation.ranks import Ranks, count_ranks
from quintet.evaluation.result import provenance
from quintet.evaluation.scoring import Member, member_scores, whole_tiles
from quintet.evaluation.significance import bootstrap_intervals
from quintet.files import read_json, write_json
from quintet.scores import dot_score_pairs, dot_scores

CAPTIONS, DIM, SEED = 5, 1024, 0
BLOCKS = (1024, 256, 4096)  # the first one is timed
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

    def rank(block: int) -> Ranks:
        return count_ranks(score_block, image_groups, text_groups, whole_tiles(block))

    rank(BLOCKS[0])  # warm up
    seconds, processor_seconds, ranks = zip(
        *(timed(device, lambda: rank(BLOCKS[0])) for _ in range(repeats)), strict=True
    )
    bootstrap_seconds, _, _ = timed(device, lambda: bootstrap_intervals(ranks[0]))
    return {
        "images": images,
        "texts": images * CAPTIONS,
        "dim": DIM,
        "block": list(whole_tiles(BLOCKS[0])),
        "rank_seconds": list(seconds),
        "rank_seconds_median": float(np.median(seconds)),
        "processor_seconds_median": float(np.median(processor_seconds)),
        "bootstrap_seconds": bootstrap_seconds,
        "equal_for_blocks": {str(block): same(rank(block), ranks[0]) for block in BLOCKS},
        "t2i_r1": float(100 * np.mean(ranks[0].t2i.best == 0)),
        "peak_resident_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "seed": SEED,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "provenance": provenance(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[1000])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    kept = read_json(arguments.out)["measurements"] if arguments.out.exists() else []
    for images in arguments.images:
        found = measure(images, torch.device(arguments.device), arguments.repeats)
        print(f"{images:,} x {images * CAPTIONS:,} on {found['device']}: {found['rank_seconds_median']:.3f} s")
        kept = [row for row in kept if (row["images"], row["device"]) != (images, found["device"])] + [found]
    write_json(arguments.out, {"benchmark": "evaluation", "measurements": kept})


if __name__ == "__main__":
    main()
