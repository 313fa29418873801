from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from quintet.backbones.weights import load_weights, read_weights, weights_checksum
from quintet.errors import QuintetError


def make(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))


def save(state: object, path: Path) -> Path:
    torch.save(state, path)
    return path


@pytest.mark.parametrize("form", ["pth", "safetensors", "state_dict", "module."])
def test_the_usual_forms_are_read(tmp_path: Path, form: str) -> None:
    source, target = make(1), make(2)
    state = source.state_dict()
    if form == "safetensors":
        path = tmp_path / "w.safetensors"
        save_file(state, path)
    elif form == "state_dict":
        path = save({"state_dict": state, "epoch": 3}, tmp_path / "w.pth")
    elif form == "module.":
        path = save({f"module.{name}": value for name, value in state.items()}, tmp_path / "w.pt")
    else:
        path = save(state, tmp_path / "w.pth")
    load_weights(target, path)
    for name, value in target.state_dict().items():
        assert torch.equal(value, state[name]), name


def test_classifier_may_be_there_counters_may_be_missing_and_halves_are_widened(tmp_path: Path) -> None:
    source, target = make(1), make(2)
    state = {name: value.half() for name, value in source.state_dict().items() if "num_batches" not in name}
    path = save(state | {"fc.weight": torch.zeros(10, 4)}, tmp_path / "w.pth")
    load_weights(target, path, ignore=("fc.",))
    weight = target.state_dict()["0.weight"]
    assert weight.dtype == torch.float32
    assert torch.equal(weight, source.state_dict()["0.weight"].half().float())


def test_what_does_not_fit_is_named_and_nothing_is_changed(tmp_path: Path) -> None:
    target = make(2)
    before = weights_checksum(target)
    state = make(1).state_dict()
    missing = {name: value for name, value in state.items() if name != "1.running_mean"}
    with pytest.raises(QuintetError, match=r"missing \(1.running_mean\).*\(extra\)"):
        load_weights(target, save(missing | {"extra": torch.zeros(1)}, tmp_path / "a.pth"))
    with pytest.raises(QuintetError, match=r"0.weight.*4, 3, 2, 2\D*4, 3, 1, 1"):
        load_weights(target, save(state | {"0.weight": torch.zeros(4, 3, 2, 2)}, tmp_path / "b.pth"))
    assert weights_checksum(target) == before


def test_files_that_are_no_weights(tmp_path: Path) -> None:
    (tmp_path / "cut.pth").write_bytes(save(make().state_dict(), tmp_path / "whole.pth").read_bytes()[:300])
    (tmp_path / "empty.pth").touch()
    (tmp_path / "cut.safetensors").write_bytes(b"\x10")
    (tmp_path / "weights.h5").touch()
    save({"epoch": 3}, tmp_path / "other.pth")
    (tmp_path / "bytes.pth").write_bytes(bytes([2, 125, 113, 1, 40, 88, 130]))  # a pickle that ends in a length
    (tmp_path / "number.pth").write_bytes(b"zha\x02\x01\x00")
    for name in (
        "bytes.pth",
        "number.pth",
        "cut.pth",
        "empty.pth",
        "cut.safetensors",
        "weights.h5",
        "other.pth",
        "absent.pth",
    ):
        with pytest.raises(QuintetError, match=name):
            read_weights(tmp_path / name)


class _Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path("evil"),))


def test_a_file_cannot_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(QuintetError, match="objects other than tensors"):
        read_weights(save({"weight": _Evil()}, tmp_path / "w.pth"))
    assert not (tmp_path / "evil").exists()


def test_the_checksum_is_of_the_content() -> None:
    assert weights_checksum(make(1)) == weights_checksum(make(1)) != weights_checksum(make(2))
    changed = make(1)
    with torch.no_grad():
        changed.state_dict()["1.running_var"][3] += 1e-6
    assert weights_checksum(changed) != weights_checksum(make(1))
    counted = make(1)
    counted.state_dict()["1.num_batches_tracked"].add_(1)
    assert weights_checksum(counted) == weights_checksum(make(1))
