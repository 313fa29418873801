"""A small batch for the losses of Dual-Path, and the whole or a share of it in one or two distributed."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from quintet import distributed
from quintet.data.batches import ImageBatch, PairBatch, TextBatch, TextPool
from quintet.layers.normalize import share_batchnorms
from quintet.losses.step import Progress, Step
from quintet.models.dual_path import DualPath, build_dual_path

TEXTS = [[5, 6, 2], [7, 2], [2], [8, 9, 4, 2], [3, 5], [9, 8], [4]]
GROUPS = torch.tensor([0, 1, 2, 2, 3, 4, 5])  # two images of group 2
TOTAL, CLASSES, DIM = len(TEXTS), 8, 6
POOL = [[4, 4], [5], [6, 7, 8], [9, 9], [2, 3, 4]]
POOL_GROUPS = torch.tensor([0, 2, 6, 1, 7])


def matcher(**options: Any) -> DualPath:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocabulary_size": 12, "image_dim": 4, "embed_dim": DIM, "word_dim": 5, "length": 8}
    made = build_dual_path(**sizes, text_layout="small", text_width=4, **options)
    return made.double().train()


def batch(rows: slice = slice(None), pool: bool = True) -> PairBatch:
    random = torch.Generator().manual_seed(3)
    regions = torch.randn(TOTAL, 3, 4, dtype=torch.float64, generator=random)
    chances, pool_chances = torch.rand(TOTAL, generator=random), torch.rand(len(POOL), generator=random)
    texts = TextBatch.from_ids(TEXTS)
    texts = TextBatch(texts.tokens, texts.lengths, position_noise=chances).take(rows)
    numbers = torch.arange(TOTAL)[rows]
    pooled = TextBatch.from_ids(POOL)
    pooled = TextBatch(pooled.tokens, pooled.lengths, position_noise=pool_chances)
    beside = TextPool(pooled, POOL_GROUPS) if pool else None
    groups = GROUPS[rows]
    return PairBatch(ImageBatch(fragments=regions[rows]), texts, groups, groups, numbers, numbers, pool=beside)


def trained(make: Callable[[], nn.Module], seed: int = 2) -> dict[str, Any]:
    """One step: all values, and the gradients of everything, whoever has it."""
    model, objective = matcher(), make().double()
    share_batchnorms(model)
    torch.manual_seed(seed + distributed.rank())  # each process has a random stream of its own
    terms = objective(Step(model, batch(distributed.share(TOTAL)), Progress(), TOTAL))
    sum(term.weight * term.values.sum() for term in terms.values()).backward()
    named = {**dict(model.named_parameters()), **dict(objective.named_parameters())}
    distributed.sum_gradients(named.values())
    gradients = {}
    for name, parameter in named.items():
        rows = distributed.global_rows(parameter)
        assert parameter.grad is not None, name
        gradients[name] = parameter.grad if rows is None else distributed.gather_rows(parameter.grad, rows)
    values = {name: distributed.gather_rows(term.values.detach(), TOTAL) for name, term in terms.items()}
    return {"values": values, "gradients": gradients}


def _work(rank: int, port: int, folder: str, make: Callable[[], nn.Module]) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    try:
        torch.save(trained(make), Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


def assert_two_processes_train_as_one(make: Callable[[], nn.Module], folder: Path) -> None:
    """Shares of three and four pairs; `make` is a function of a module, so that another process can be sent it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.start_processes(_work, args=(port, str(folder), make), nprocs=2, start_method="spawn")
    expected = trained(make)
    for rank in (0, 1):
        got = torch.load(folder / f"{rank}.pt", weights_only=True)
        assert got["values"].keys() == expected["values"].keys()
        for kind in ("values", "gradients"):
            for name, value in expected[kind].items():
                torch.testing.assert_close(got[kind][name], value, msg=f"{kind} of {name}")
