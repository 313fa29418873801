"""Checkpoints and vocabularies that are damaged or mean harm: bounded memory, clear errors, nothing left behind."""

from __future__ import annotations

import os
import pickle
import random
import resource
import signal
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import quintet
from quintet.errors import QuintetError
from quintet.locks import folder_lock
from quintet.runs.convert import convert, read_vocabulary
from quintet.runs.run_folder import RUN_FILES

EMBED, IMAGE, WORDS, WORD = 6, 5, 9, 4


def parts() -> list[dict[str, Any]]:
    torch.manual_seed(0)
    gru = {"weight_ih_l0": (3 * EMBED, WORD), "weight_hh_l0": (3 * EMBED, EMBED)}
    biases = dict.fromkeys(("bias_ih_l0", "bias_hh_l0"), (3 * EMBED,))
    text = {f"rnn.{name}": torch.randn(shape) for name, shape in {**gru, **biases}.items()}
    image = {"fc.weight": torch.randn(EMBED, IMAGE), "fc.bias": torch.randn(EMBED)}
    return [image, {"embed.weight": torch.randn(WORDS, WORD), **text}]


def saved(path: Path, **content: Any) -> Path:
    torch.save({"model": parts()} | content, path)
    return path


def with_tensor(tensor: Any, name: str = "fc.weight") -> list[dict[str, Any]]:
    changed = parts()
    changed[0][name] = tensor
    return changed


def refused(path: Path, out: Path, match: str, kind: str = "vsepp", **given: Any) -> None:
    with pytest.raises(QuintetError, match=match):
        convert(kind, path, out, **given)
    assert not out.exists()


@pytest.mark.parametrize(
    ("tensor", "told"),
    [
        (torch.eye(EMBED).to_sparse(), "not a plain tensor"),
        (torch.eye(EMBED).to_sparse_csr(), "not a plain tensor"),
        (torch.quantize_per_tensor(torch.randn(EMBED, IMAGE), 0.1, 0, torch.qint8), "of type torch.qint8"),
        (torch.randn(EMBED, IMAGE, device="meta"), "no values"),
        (torch.randn(EMBED, IMAGE, dtype=torch.complex64), "of type torch.complex64"),
        (torch.full((EMBED, IMAGE), float("nan")), "NaN"),
        (torch.full((EMBED, IMAGE), float("inf")), "infinite"),
        (torch.zeros(1).expand(40_000, 30_000), "fewer values"),
        (torch.zeros(()), "no matrix"),
    ],
    ids=["sparse", "csr", "quantised", "meta", "complex", "nan", "inf", "expanded", "scalar"],
)
@pytest.mark.filterwarnings("ignore")
def test_tensors_that_are_no_weights(tmp_path: Path, tensor: Any, told: str) -> None:
    refused(saved(tmp_path / "best", model=with_tensor(tensor)), tmp_path / "run", told)


@pytest.mark.filterwarnings("ignore")
def test_nested_tensors(tmp_path: Path) -> None:
    nested = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(1, 3)])
    refused(saved(tmp_path / "best", model=with_tensor(nested)), tmp_path / "run", "plain tensor|cannot be read")


@pytest.mark.parametrize(
    ("kind", "options", "told"),
    [
        ("scan", {"lambda_softmax": "abc"}, "lambda_softmax"),
        ("scan", {"lambda_softmax": [9]}, "lambda_softmax"),
        ("scan", {"cross_attn": ["t2i"]}, "cross_attn"),
        ("scan", {"lambda_softmax": 10**100}, "lambda_softmax"),
        ("scan", {"lambda_softmax": float("nan")}, "lambda_softmax"),
        ("scan", {"use_abs": [1]}, "use_abs"),
        ("scan", {"agg_func": "Median"}, "aggregation"),
    ],
)
@pytest.mark.parametrize("in_file", [True, False])
def test_options_that_make_no_sense(
    tmp_path: Path, kind: str, options: dict[str, Any], told: str, in_file: bool
) -> None:
    path = saved(tmp_path / "best", opt=options if in_file else {})
    if not in_file and "use_abs" in options:
        told = "no option"
    refused(path, tmp_path / "run", told, kind, **({} if in_file else {"options": options}))


def test_what_training_wrote_besides_is_kept_if_it_is_plain(tmp_path: Path) -> None:
    deep: Any = []
    for _ in range(100):
        deep = [deep]
    odd = {"deep": deep, "huge": 10**100, "nan": float("nan"), "long": "x" * 10**6, "margin": 0.2}
    path = saved(tmp_path / "best", opt=odd, epoch=10**100, best_rsum=10**100)
    run = convert("vsepp", path, tmp_path / "run")
    origin = quintet.files.read_json(run.folder / "run.json")["origin"]
    assert (origin["options"], origin["epoch"], origin["best"]) == ({"margin": 0.2}, None, None)


def test_many_names_of_few_bytes(tmp_path: Path) -> None:
    """A file of some kilobytes whose tensors would be gigabytes once they are apart."""
    shared = torch.zeros(4_000)
    names = {f"layer{number}.weight": shared for number in range(2_000)}
    path = saved(tmp_path / "best", model=[*parts(), names])
    assert path.stat().st_size < 1_000_000
    refused(path, tmp_path / "run", "no training wrote")


def test_a_compressed_file_is_not_unpacked(tmp_path: Path) -> None:
    """torch's reader would unpack it: 20 kB become 20 MB."""
    big = saved(tmp_path / "big", model=with_tensor(torch.zeros(1_000_000, IMAGE)))
    with zipfile.ZipFile(big) as stored, zipfile.ZipFile(tmp_path / "best", "w", zipfile.ZIP_DEFLATED) as packed:
        for entry in stored.infolist():
            packed.writestr(entry.filename, stored.read(entry))
    assert (tmp_path / "best").stat().st_size < 100_000
    refused(tmp_path / "best", tmp_path / "run", "unpacks to")


def limited(memory: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))


HOSTILE_PICKLES = {
    "memo": b"\x80\x02}r" + struct.pack("<I", 2**31 - 1) + b".",  # the C unpickler would fill 32 GB
    "bytearray": b"\x80\x05\x96" + struct.pack("<Q", 2**62) + b".",
    "text": b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b".",
    "long": b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b".",
    "frame": b"\x80\x04\x95" + struct.pack("<Q", 2**63 - 1) + b".",
    "deep": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "words": pickle.dumps({"word2idx": {"a": 10**5000}}),
}


@pytest.mark.parametrize("name", HOSTILE_PICKLES)
def test_vocabularies_that_ask_for_memory(tmp_path: Path, name: str) -> None:
    (tmp_path / "vocab.pkl").write_bytes(HOSTILE_PICKLES[name])
    code = "import sys; from quintet.runs.convert import read_vocabulary as r\ntry: r(sys.argv[1])\n"
    code += "except __import__('quintet').QuintetError as error: print('refused', str(error)[:80])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "vocab.pkl")],
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=limited(6 * 2**30),
    )
    assert done.stdout.startswith("refused"), done.stdout + done.stderr


@pytest.mark.parametrize(
    "content",
    [
        '{"word2idx": {"<pad>": 0}, "idx2word": {"0": "<pad>"}, "idx": 1.0}',
        '{"word2idx": {}, "idx2word": {}, "idx": null}',
        '{"word2idx": [], "idx2word": 3, "idx": "x"}',
        '{"word2idx": {"a": ' + "9" * 5000 + '}, "idx2word": {"0": "a"}, "idx": 1}',
        "{" + '"a":{' * 50_000,
        '{"word2idx": {"\\ud800": 0}, "idx2word": {"0": "\\ud800"}, "idx": 1}',
    ],
)
def test_vocabularies_in_json_that_make_no_sense(tmp_path: Path, content: str) -> None:
    (tmp_path / "vocab.json").write_text(content)
    with pytest.raises(QuintetError):
        read_vocabulary(tmp_path / "vocab.json")


def test_fifos_and_links_to_themselves(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("fifo", "loop"):
        refused(tmp_path / name, tmp_path / "run", name)
        with pytest.raises(QuintetError, match=name):
            read_vocabulary(tmp_path / name)


@pytest.mark.parametrize("zipped", [True, False])
def test_damaged_checkpoints_are_told(tmp_path: Path, zipped: bool) -> None:
    """Flips anywhere: a run of the file as it is, or an error for people. Seeded."""
    content = {"model": parts(), "opt": {"margin": 0.2}, "epoch": 3}
    torch.save(content, tmp_path / "whole", _use_new_zipfile_serialization=zipped)
    whole = (tmp_path / "whole").read_bytes()
    rng = random.Random(5)
    for number in range(120):
        damaged = bytearray(whole)
        for _ in range(rng.choice((1, 1, 3, 30))):
            damaged[rng.randrange(len(damaged) // 3 if number % 2 else len(damaged))] = rng.randrange(256)
        (tmp_path / "bad").write_bytes(damaged)
        out = tmp_path / f"run{number}"
        try:
            run = convert("vsepp", tmp_path / "bad", out)
            assert all(torch.isfinite(tensor).all() for tensor in run.matcher.state_dict().values())
        except QuintetError:
            assert not out.exists()


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path / "best")
    write = os.fsync
    for fails_at in range(1, 8):
        calls = 0

        def full(handle: int, fails_at: int = fails_at) -> None:
            nonlocal calls
            calls += 1
            if calls == fails_at:
                raise OSError(28, "No space left on device")
            write(handle)

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(QuintetError, match="No space left"):
            convert("vsepp", path, tmp_path / "run")
        assert not (tmp_path / "run").exists()
    monkeypatch.setattr(os, "fsync", write)
    convert("vsepp", path, tmp_path / "run")


KILLED = """
import os, sys
from quintet.runs.convert import convert
left, replace = int(sys.argv[3]), os.replace
def dies(*names):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), 9)
    replace(*names)
os.replace = dies
from pathlib import Path
Path.replace = lambda self, target: dies(self, target)
convert("vsepp", sys.argv[1], sys.argv[2])
"""


@pytest.mark.parametrize("write", [1, 3, 5, 6])
def test_what_a_kill_leaves_is_taken_over(tmp_path: Path, write: int) -> None:
    """Killed in the middle of the first, third ... file: before it has its name."""
    path, out = saved(tmp_path / "best"), tmp_path / "run"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path), str(out), str(write)], capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert out.is_dir()
    assert write == 1 or not (out / "run.json").exists() or '"starting"' in (out / "run.json").read_text()
    run = convert("vsepp", path, out)
    assert {path.name for path in out.iterdir()} == {*RUN_FILES} - {"recipe.yaml", "tokenizer.json"}
    assert run.matcher.state_dict().keys() == quintet.load(out).matcher.state_dict().keys()


def test_files_of_others_are_not_replaced(tmp_path: Path) -> None:
    path = saved(tmp_path / "best")
    for name in ("model.json", "weights.safetensors", "run.json", "lock"):
        out = tmp_path / f"with {name}"
        out.mkdir()
        (out / name).write_text("mine")
        with pytest.raises(QuintetError, match=name):
            convert("vsepp", path, out)
        assert [(file.name, file.read_text()) for file in out.iterdir()] == [(name, "mine")]


def test_two_conversions_into_one_folder(tmp_path: Path) -> None:
    path = saved(tmp_path / "best")
    in_another_process = "import sys; from quintet.runs.convert import convert; convert('vsepp', *sys.argv[1:])"
    command = [sys.executable, "-c", in_another_process, str(path), str(tmp_path / "run")]
    with folder_lock(tmp_path / "run", "training tiny"):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 1
        assert f"training tiny, process {os.getpid()}" in done.stderr
    convert("vsepp", path, tmp_path / "run")
    assert not (tmp_path / "run" / "lock").exists()
