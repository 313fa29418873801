"""Reading original checkpoints: old and new files, Python 2's, and files that mean harm."""

from __future__ import annotations

import argparse
import os
import pickle
import struct
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from quintet.errors import QuintetError
from quintet.runs.convert.original import ConversionError, read_checkpoint


def content(**changes: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    image = OrderedDict({"fc.weight": torch.randn(4, 3), "fc.bias": torch.randn(4)})
    text = OrderedDict({"embed.weight": torch.randn(9, 2)})
    opt = argparse.Namespace(margin=0.2, max_violation=True, data_name="f30k_precomp", resume="", batch_size=128)
    return {"epoch": 7, "model": [image, text], "best_rsum": np.float64(412.5), "opt": opt, "Eiters": 9000} | changes


class Python2Pickler(pickle._Pickler):
    """Writes strings the way Python 2 did: as bytes without an encoding."""

    dispatch: ClassVar[dict] = dict(pickle._Pickler.dispatch)

    def save_string(self, value: str | bytes) -> None:
        raw = value if isinstance(value, bytes) else value.encode("ascii")
        self.write(pickle.SHORT_BINSTRING + struct.pack("<B", len(raw)) + raw)
        self.memoize(value)

    dispatch[str] = save_string
    dispatch[bytes] = save_string


def _dump(value: object, file: Any, protocol: int = 2) -> None:
    Python2Pickler(file, protocol).dump(value)


PYTHON2 = SimpleNamespace(Pickler=Python2Pickler, dump=_dump, __name__="pickle")


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
def test_both_file_formats(tmp_path: Path, zipped: bool) -> None:
    torch.save(content(), tmp_path / "best.pth.tar", _use_new_zipfile_serialization=zipped)
    read = read_checkpoint(tmp_path / "best.pth.tar")
    assert (read.epoch, read.best) == (7, 412.5)
    assert read.options["data_name"] == "f30k_precomp"
    assert torch.equal(read.parts[0]["fc.weight"], content()["model"][0]["fc.weight"])


def test_files_of_python_2_and_old_numpy(tmp_path: Path) -> None:
    path = tmp_path / "best.pth.tar"
    torch.save(content(), path, pickle_module=PYTHON2, pickle_protocol=2, _use_new_zipfile_serialization=False)
    old = path.read_bytes().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert b"U\x05epoch" in old  # Python 2's string, not the X of Python 3
    path.write_bytes(old)
    read = read_checkpoint(path)
    assert (read.epoch, read.best, read.options["batch_size"]) == (7, 412.5, 128)
    assert torch.equal(read.parts[1]["embed.weight"], content()["model"][1]["embed.weight"])


def test_several_gpus_and_no_options(tmp_path: Path) -> None:
    image = {"module.fc.weight": torch.ones(2, 2), "fc.bias": torch.ones(2)}
    text = {"txt_enc.module.rnn.weight_ih_l0": torch.ones(3)}
    torch.save({"model": [image, text]}, tmp_path / "best.pth.tar")
    read = read_checkpoint(tmp_path / "best.pth.tar")
    assert [sorted(part) for part in read.parts] == [["fc.bias", "fc.weight"], ["rnn.weight_ih_l0"]]
    assert (read.options, read.epoch, read.best) == ({}, None, None)


class Harm:
    """Would make a file when unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("place", ["opt", "best_rsum", "model", "inside opt"])
def test_nothing_is_executed(tmp_path: Path, zipped: bool, place: str) -> None:
    harm: Any = Harm(tmp_path / "executed")
    key, value = ("opt", argparse.Namespace(logger=harm)) if place == "inside opt" else (place, harm)
    torch.save(content(**{key: value}), tmp_path / "bad.pth.tar", _use_new_zipfile_serialization=zipped)
    with pytest.raises(ConversionError, match=r"'posix\.system'.*nothing .*executed"):
        read_checkpoint(tmp_path / "bad.pth.tar")
    assert not (tmp_path / "executed").exists()


def test_a_bare_pickle_is_not_executed_either(tmp_path: Path) -> None:
    (tmp_path / "bad.pth.tar").write_bytes(pickle.dumps(Harm(tmp_path / "executed"), protocol=2))
    with pytest.raises(ConversionError):
        read_checkpoint(tmp_path / "bad.pth.tar")
    assert not (tmp_path / "executed").exists()


def test_the_allowance_ends_with_the_reading(tmp_path: Path) -> None:
    torch.save(content(), tmp_path / "best.pth.tar")
    read_checkpoint(tmp_path / "best.pth.tar")
    assert argparse.Namespace not in torch.serialization.get_safe_globals()


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.6, 0.95])
def test_a_file_cut_short(tmp_path: Path, zipped: bool, share: float) -> None:
    torch.save(content(), tmp_path / "best.pth.tar", _use_new_zipfile_serialization=zipped)
    data = (tmp_path / "best.pth.tar").read_bytes()
    (tmp_path / "cut.pth.tar").write_bytes(data[: int(share * len(data))])
    with pytest.raises(ConversionError, match=r"cut\.pth\.tar cannot be read"):
        read_checkpoint(tmp_path / "cut.pth.tar")


def test_files_that_are_something_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(QuintetError, match="does not exist"):
        read_checkpoint(path)
    path.write_text("hello")
    with pytest.raises(ConversionError, match="cannot be read"):
        read_checkpoint(path)
    for wrong in ({"state_dict": {}}, {"model": [{"fc.weight": "text"}, {}]}, {"model": [{}]}, torch.ones(2)):
        torch.save(wrong, path)
        with pytest.raises(ConversionError, match="state dict"):
            read_checkpoint(path)
    with pytest.raises(QuintetError, match="not a file"):
        read_checkpoint(tmp_path)
