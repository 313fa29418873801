"""Gathering over two real processes (gloo), against the whole batch in one."""

from __future__ import annotations

import importlib
import json
import os
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from quintet import distributed
from quintet.codes import Codes
from quintet.layers.normalize import SharedBatchNorm, share_batchnorms

TOTAL = 5


def whole_batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(TOTAL, 3, generator=generator), torch.randn(TOTAL, 3, generator=generator)


def loss_of(images: torch.Tensor, all_texts: torch.Tensor, mine: slice) -> torch.Tensor:
    """Each anchor's cost looks at all scores of the batch, as a hardest-negative loss does."""
    scores = distributed.gather_rows(images @ all_texts.T, TOTAL)
    return (scores.softmax(1).square().sum(1) + scores.softmax(0).square().sum(0))[mine].sum()


def make_model(affine: bool) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, affine=affine))


def work(rank: int, port: int, folder: str, affine: bool) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    try:
        torch.manual_seed(rank)  # copy_from_first must undo the difference
        model = make_model(affine)
        distributed.broadcast_module(model)
        share_batchnorms(model)
        images, texts = whole_batch()
        mine = distributed.share(TOTAL)
        codes = distributed.gather_codes(Codes(embedding=model(texts[mine])), TOTAL)
        assert codes.embedding is not None
        loss = loss_of(model(images[mine]), codes.embedding, mine)
        loss.backward()
        distributed.sum_gradients(model.parameters())
        ragged = Codes(fragments=torch.full((3 if rank else 2, 1 + rank, 2), float(rank)))
        gathered = distributed.gather_codes(ragged, TOTAL)
        results = {
            "loss": distributed.all_reduce_sum(loss),
            "gradients": [parameter.grad for parameter in model.parameters()],
            "mask": gathered.mask,
            "running": model[1].running_var,
            "is_shared": isinstance(model[1], SharedBatchNorm),
        }
        torch.save(results, Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("affine", [True, False])
def test_two_processes_make_the_gradient_of_the_whole_batch(tmp_path: Path, affine: bool) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.start_processes(work, args=(port, str(tmp_path), affine), nprocs=2, start_method="spawn")
    torch.manual_seed(0)
    model = make_model(affine)
    images, texts = whole_batch()
    text_codes = model(texts)
    loss = loss_of(model(images), text_codes, distributed.share(TOTAL))
    loss.backward()
    for rank in (0, 1):
        got = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert got["is_shared"]
        torch.testing.assert_close(got["loss"], loss.detach())
        for gradient, parameter in zip(got["gradients"], model.parameters(), strict=True):
            torch.testing.assert_close(gradient, parameter.grad, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(got["running"], model[1].running_var)
        assert got["mask"].tolist() == [[True, False]] * 2 + [[True, True]] * 3


def join_and_leave(rank: int, port: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
    with distributed.process_group(torch.device("cpu")):
        importlib.import_module("torch.distributed.nn.functional")  # as torch does when a step first needs it
        distributed.barrier()
        during = thread_names()
    (Path(folder) / f"{rank}.json").write_text(json.dumps([during, thread_names()]))


def thread_names() -> list[str]:
    return [task.joinpath("comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted as Linux shows them")
def test_no_thread_of_the_group_outlives_it(tmp_path: Path) -> None:
    """One that does may abort the process as it exits, after all work is done."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.start_processes(join_and_leave, args=(port, str(tmp_path)), nprocs=2, start_method="spawn")
    for rank in (0, 1):
        during, after = json.loads((tmp_path / f"{rank}.json").read_text())
        assert any("gloo" in name for name in during)
        assert not [name for name in after if "gloo" in name]


def test_one_process_is_the_identity() -> None:
    rows = torch.arange(6.0).reshape(3, 2)
    assert distributed.gather_rows(rows, 3) is rows
    assert distributed.share(7) == slice(0, 7)
    assert distributed.is_main()
    model = nn.Sequential(nn.BatchNorm1d(2))
    share_batchnorms(model)
    assert isinstance(model[0], nn.BatchNorm1d)
