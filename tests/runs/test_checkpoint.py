from __future__ import annotations

import os
import random
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from quintet import distributed
from quintet.errors import QuintetError, RunError
from quintet.losses.instance import ShardedClassifier
from quintet.runs.checkpoint import load_checkpoint, load_tensors, save_checkpoint, save_tensors
from quintet.training.optim import clip_gradients


def trained(seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    for _ in range(2):
        step(module, optimizer)
    return module, optimizer


def step(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    module(torch.randn(4, 3)).square().sum().backward()
    optimizer.step()


def test_everything_comes_back_bit_for_bit(tmp_path: Path) -> None:
    module, optimizer = trained()
    save_checkpoint(tmp_path / "c", module, optimizer, {"step": 2, "best": 0.1 + 0.2})
    expected_random = (torch.rand(3), np.random.rand(3), random.random())  # noqa: NPY002
    step(module, optimizer)
    fresh, fresh_optimizer = trained(seed=1)
    state = load_checkpoint(tmp_path / "c", fresh, fresh_optimizer)
    assert state == {"step": 2, "best": 0.1 + 0.2}
    again = (torch.rand(3), np.random.rand(3), random.random())  # noqa: NPY002
    assert torch.equal(again[0], expected_random[0])
    assert np.array_equal(again[1], expected_random[1])
    assert again[2] == expected_random[2]
    step(fresh, fresh_optimizer)
    for ours, theirs in zip(fresh.state_dict().values(), module.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)


def test_tied_weights_can_be_saved(tmp_path: Path) -> None:
    shared = torch.ones(3)
    save_tensors(tmp_path / "w", {"a": shared, "b": shared}, {})
    assert torch.equal(load_tensors(tmp_path / "w")[0]["b"], shared)


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    module, optimizer = trained()
    with pytest.raises(RunError, match="does not exist"):
        load_checkpoint(tmp_path / "none", module, optimizer)
    save_checkpoint(tmp_path / "c", module, optimizer, {})
    content = (tmp_path / "c").read_bytes()
    (tmp_path / "c").write_bytes(content[: len(content) // 2])
    with pytest.raises(RunError, match="damaged"):
        load_checkpoint(tmp_path / "c", module, optimizer)


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    module, optimizer = trained()
    save_tensors(tmp_path / "c", {}, {"version": 99})
    with pytest.raises(RunError, match="version 99"):
        load_checkpoint(tmp_path / "c", module, optimizer)


def test_another_number_of_processes_is_refused(tmp_path: Path) -> None:
    module, optimizer = trained()
    save_tensors(tmp_path / "c", {}, {"version": 1, "processes": 2})
    with pytest.raises(RunError, match="as many"):
        load_checkpoint(tmp_path / "c", module, optimizer)


FILL_THE_DISK = """
import resource, signal, sys, torch
from pathlib import Path
from quintet.errors import QuintetError
from quintet.runs.checkpoint import save_tensors
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
try:
    save_tensors(Path(sys.argv[1]), {"w": torch.zeros(1_000_000)}, {})
except QuintetError as error:
    print("refused:", error)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="needs file size limits")
def test_a_full_disk_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    assert resource.RLIMIT_FSIZE is not None
    path = tmp_path / "c"
    save_tensors(path, {"w": torch.ones(3)}, {})
    done = subprocess.run([sys.executable, "-c", FILL_THE_DISK, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("refused: could not write")
    assert torch.equal(load_tensors(path)[0]["w"], torch.ones(3))
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"], "no partial file stays behind"


def test_an_unwritable_place_is_an_error_for_people(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(QuintetError, match="could not write"):
        save_tensors(tmp_path / "file" / "c", {"w": torch.ones(1)}, {})


def classify(module: nn.Module, optimizer: torch.optim.Optimizer, random_seed: int) -> float:
    """A clipped step of a classifier (shared out where there are several processes) on a layer that all have."""
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(random_seed))
    mine = distributed.share(6)
    costs, _ = module[1](distributed.gather_rows(module[0](x[mine]), 6), torch.arange(6))  # type: ignore[index]
    optimizer.zero_grad()
    costs[mine].sum().backward()
    parameters = list(module.parameters())
    distributed.sum_gradients(parameters)
    norm = clip_gradients(parameters, 0.5)
    optimizer.step()
    return float(norm)


def classifying() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), ShardedClassifier(4, 7, bias=True))
    return module, torch.optim.Adam(module.parameters(), lr=0.1)


def work(rank: int, port: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    try:
        module, optimizer = classifying()
        assert classify(module, optimizer, 1) > 0.5
        save_checkpoint(Path(folder) / "two", module, optimizer, {})
        fresh, fresh_optimizer = classifying()
        load_checkpoint(Path(folder) / "two", fresh, fresh_optimizer)
        for each in ((module, optimizer), (fresh, fresh_optimizer)):
            classify(*each, 2)
        assert all(torch.equal(a, b) for a, b in zip(module.parameters(), fresh.parameters(), strict=True))
        save_checkpoint(Path(folder) / "later", fresh, fresh_optimizer, {})
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_what_is_shared_out_is_saved_whole_and_resumed_in_parts(tmp_path: Path) -> None:
    """And two processes clip and step as one does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.start_processes(work, args=(port, str(tmp_path)), nprocs=2, start_method="spawn")
    module, optimizer = classifying()
    for name, seed in (("two", 1), ("later", 2)):
        classify(module, optimizer, seed)
        save_checkpoint(tmp_path / "one", module, optimizer, {})
        got, wanted = load_tensors(tmp_path / name)[0], load_tensors(tmp_path / "one")[0]
        kinds = ("module/", "optimizer/")
        assert {n for n in got if n.startswith(kinds)} == {n for n in wanted if n.startswith(kinds)}
        for entry in (n for n in wanted if n.startswith(kinds)):
            torch.testing.assert_close(got[entry], wanted[entry], msg=entry)


def test_the_same_tensors_are_the_same_bytes(tmp_path: Path) -> None:
    written = set()
    for _ in range(20):
        save_tensors(tmp_path / "a.safetensors", {"b": torch.ones(2), "a": torch.zeros(3)}, {"epoch": 1, "z": 2})
        written.add((tmp_path / "a.safetensors").read_bytes())
    assert len(written) == 1


def test_the_checksum_of_earlier_versions_is_still_compared(tmp_path: Path) -> None:
    save_tensors(tmp_path / "a.safetensors", {"a": torch.zeros(3)}, {"epoch": 1})
    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        value = file.metadata()["quintet"]
    for crc, told in ((value[:8], False), ("00000000", True)):
        save_file({"a": torch.zeros(3)}, tmp_path / "b.safetensors", metadata={"quintet": value[8:], "crc32": crc})
        if told:
            with pytest.raises(RunError, match="damaged"):
                load_tensors(tmp_path / "b.safetensors")
        else:
            assert load_tensors(tmp_path / "b.safetensors")[1] == {"epoch": 1}
