"""Mining in a process of its own: killed at any moment, and measured by the memory it takes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from quintet.codes import Codes
from quintet.data.corpus import Image, Split, Text
from quintet.mining.mine import mine_codes
from quintet.scores import dot_scores

NAME = {"name": "products", "weights": "of a seed"}


class Products:
    image_input = "fragments"

    def score(self, image_codes: Codes, text_codes: Codes) -> torch.Tensor:
        return dot_scores(image_codes, text_codes)


def embeddings(images: int, texts: int, dim: int = 8) -> tuple[Split, Codes, Codes]:
    names = [str(number) for number in range(images)]
    groups = np.arange(texts) % images
    rows = [Text(f"t{row}", names[group], f"text {row}") for row, group in enumerate(groups)]
    split = Split("train", [Image(f"i{name}", name) for name in names], rows, names, np.arange(images), groups)
    generator = torch.Generator().manual_seed(0)
    codes = (Codes(embedding=torch.randn(size, dim, generator=generator)) for size in (images, texts))
    return split, *codes


def mine_slowly(journal: str, seconds: float) -> None:
    split, images, texts = embeddings(60, 200)

    def wait(done: int, total: int | None) -> None:
        sys.stdout.write(f"{done}\n")
        sys.stdout.flush()
        time.sleep(seconds)

    mine_codes(
        Products(), images, texts, split, top_texts=9, top_images=5, memory=2**12, tile=(4, 8), source=NAME,
        journal=Path(journal), progress=wait, false_negative_margin=0.1,
    )  # fmt: skip


def measure_memory(images: int, texts: int, memory: int) -> None:
    split, image_codes, text_codes = embeddings(images, texts)
    small, *codes = embeddings(64, 64)
    mine_codes(Products(), *codes, small)  # everything is imported
    before = peak_bytes()
    mine_codes(Products(), image_codes, text_codes, split, memory=memory, tile=(64, 256))
    sys.stdout.write(str(peak_bytes() - before))


def peak_bytes() -> int:
    """Of this program; `ru_maxrss` would count what the program that started it had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM:")))


def start(call: str) -> subprocess.Popen[str]:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import {Path(__file__).stem} as t; t.{call}"
    )
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def test_mining_killed_at_any_moment_goes_on_by_itself(tmp_path: Path) -> None:
    split, images, texts = embeddings(60, 200)
    options = {"top_texts": 9, "top_images": 5, "memory": 2**12, "tile": (4, 8), "false_negative_margin": 0.1}
    whole = mine_codes(Products(), images, texts, split, source=NAME, **options)  # type: ignore[arg-type]
    for blocks in (30, 110, 111):  # blocks seen in this process; each one goes on from where the last was killed
        child = start(f"mine_slowly({str(tmp_path)!r}, 0.002)")
        assert child.stdout is not None
        for _ in range(blocks):
            child.stdout.readline()
        child.kill()
        child.wait()
        child.stdout.close()
    assert list(tmp_path.glob("images-*.npz")), "killed after some stripes"
    seen: list[int] = []
    found = mine_codes(
        Products(), images, texts, split, source=NAME, journal=tmp_path, **options,  # type: ignore[arg-type]
        progress=lambda done, total: seen.append(done),
    )  # fmt: skip
    assert seen[0] > 4 * 8, "a finished stripe is not scored again"
    for part in ("texts", "text_scores", "images", "image_scores"):
        assert np.array_equal(getattr(found, part), getattr(whole, part)), part
    assert found.manifest["excluded"] == whole.manifest["excluded"]


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="the peak is read from Linux")
def test_memory_is_that_of_blocks_and_lists() -> None:
    images, texts, memory = 3000, 30_000, 2**25
    child = start(f"measure_memory({images}, {texts}, {memory})")
    output, _ = child.communicate()
    lists = 8 * (images * (300 + 16) + texts * (60 + 16))
    assert 0 < int(output) < memory + 4 * lists < 4 * images * texts / 2, "less than half of the score matrix"
