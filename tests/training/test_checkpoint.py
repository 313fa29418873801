from __future__ import annotations

import random
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from quintet.errors import QuintetError, RunError
from quintet.training.checkpoint import load_checkpoint, load_tensors, save_checkpoint, save_tensors


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
    with pytest.raises(RunError, match="start as many as before"):
        load_checkpoint(tmp_path / "c", module, optimizer)


FILL_THE_DISK = """
import resource, signal, sys, torch
from pathlib import Path
from quintet.errors import QuintetError
from quintet.training.checkpoint import save_tensors
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
