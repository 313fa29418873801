"""Two processes mine what one does, also when they go on after a kill, with or without a journal."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from quintet.codes import Codes
from quintet.data.negatives import NegativeLists
from quintet.mining.mine import mine, mine_codes
from quintet.scores import dot_scores
from quintet.training.recipe import parse_recipe
from quintet.training.stages import train_recipe

WAYS: dict[str, dict[str, Any]] = {
    "float32": {"precision": "float32", "memory": 2**15},
    "float16": {"precision": "float16", "memory": 2**16},
    "margin": {"precision": "float32", "memory": 2**15, "false_negative_margin": 0.0},
}
PARTS = ("texts", "text_scores", "images", "image_scores")


class Products:
    image_input = "fragments"

    def score(self, image_codes: Codes, text_codes: Codes) -> torch.Tensor:
        return dot_scores(image_codes, text_codes)


class Killed(Exception):  # noqa: N818
    pass


def mine_all(it: Any, folder: Path, out: Path | None, kill: bool) -> dict[str, Any]:
    found = {}
    for name, options in WAYS.items():

        def stop(done: int, total: int) -> None:
            if done > total // 4:
                raise Killed

        arguments: dict[str, Any] = {**options, "top_texts": 8, "top_images": 5, "tile": (4, 8)}
        if kill:
            try:
                mine_codes(Products(), it.images, it.texts, it.split, journal=folder / name, progress=stop, **arguments)
            except Killed:
                if dist.is_initialized():
                    dist.barrier()
        lists = mine_codes(
            Products(), it.images, it.texts, it.split, journal=folder / name if kill else None, **arguments
        )
        found[name] = lists
        if out is not None:
            arrays = {part: getattr(lists, part) for part in PARTS}
            excluded = sorted(lists.manifest["excluded"].values())
            np.savez(out / f"{name}-{dist.get_rank()}-{kill}.npz", **arrays, excluded=excluded)
    return found


def mine_with_run(run: Path, corpus: Path, out: Path) -> NegativeLists:
    return mine(run, corpus, out=out, top_texts=5, top_images=3, device="cpu")


def work(rank: int, folder: Path, it: Any, run: Path, corpus: Path) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank))
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=2)
    for kill in (False, True):
        mine_all(it, folder / "journals", folder, kill)
    mine_with_run(run, corpus, folder / "lists")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_mine_what_one_does(
    case: Any, tmp_path: Path, tiny_recipe: dict[str, Any], tiny_corpus: Path
) -> None:
    it = case(90, 7, dim=16, spread=6)
    expected = mine_all(it, tmp_path / "alone", None, False)
    train_recipe(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu")
    alone = mine_with_run(tmp_path / "run", tiny_corpus, tmp_path / "alone")
    mp.spawn(work, args=(tmp_path, _Plain(it), tmp_path / "run", tiny_corpus), nprocs=2, join=True)
    together = NegativeLists.open(tmp_path / "lists")
    for part in PARTS:
        assert np.array_equal(getattr(alone, part), getattr(together, part)), part
    for name, lists in expected.items():
        for rank in (0, 1):
            for kill in (False, True):
                found = np.load(tmp_path / f"{name}-{rank}-{kill}.npz")
                for part in PARTS:
                    assert np.array_equal(found[part], getattr(lists, part)), (name, rank, kill, part)
                assert found["excluded"].tolist() == sorted(lists.manifest["excluded"].values())


class _Plain:
    """A case that can be sent to another process."""

    def __init__(self, it: Any) -> None:
        self.split, self.images, self.texts = it.split, it.images, it.texts
