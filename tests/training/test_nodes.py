"""Training on two computers: copies of the run, what must be the same, and one of them lost."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp
import yaml

import quintet
from quintet.errors import CorpusError, RecipeError
from quintet.files import read_json, write_json
from quintet.runs.checkpoint import load_tensors
from quintet.training.inputs import open_data
from quintet.training.nodes import CHUNK, check_same, copy_from_first, require_one_folder
from quintet.training.recipe import parse_recipe


def work(rank: int, port: int, folder: str, content: dict[str, Any]) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": "0"}
    own, there = Path(folder) / str(rank), Path(folder) / "0"
    dist.init_process_group("gloo", rank=rank, world_size=2)
    try:
        copy_from_first(own)
        copy_from_first(there)  # of one folder that both see
        mined = parse_recipe(content, ["stages.online.negatives={from: runs/miner, top_texts: 2, top_images: 2}"])
        require_one_folder(mined, there)
        with pytest.raises(RecipeError, match="all nodes share"):
            require_one_folder(mined, own)
        require_one_folder(parse_recipe(content), own)
        recipe = parse_recipe(content)
        check_same(recipe, open_data(recipe, print))
        other = parse_recipe(content, [f"seed={rank}"])
        with pytest.raises(CorpusError, match="another recipe"):
            check_same(other, open_data(other, print))
    finally:
        dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_node_gets_the_files_of_the_first_and_is_compared_with_it(
    tiny_recipe: dict[str, Any], tmp_path: Path
) -> None:
    files = {
        "run.json": b"{}",
        "stages/online/checkpoint.safetensors": bytes(CHUNK) + b"the rest",
        "stages/online/log.jsonl": b"only here",
    }
    for name, content in files.items():
        (tmp_path / "0" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "0" / name).write_bytes(content)
    stale = tmp_path / "1/stages/online"
    stale.mkdir(parents=True)
    for name in ("done.json", "checkpoint.safetensors", "notes.txt"):
        (stale / name).write_bytes(b"older")
    mp.start_processes(work, args=(free_port(), str(tmp_path), tiny_recipe), nprocs=2, start_method="spawn")
    assert (tmp_path / "1/run.json").read_bytes() == b"{}"
    assert (stale / "checkpoint.safetensors").read_bytes() == files["stages/online/checkpoint.safetensors"]
    assert sorted(path.name for path in stale.iterdir()) == ["checkpoint.safetensors", "notes.txt"]
    assert sorted(path.name for path in (tmp_path / "0").iterdir()) == ["run.json", "stages"]


# ---- two computers: network namespaces with a cable between them


@pytest.fixture
def nodes() -> Iterator[list[str]]:
    names = [f"quintet{os.getpid()}{side}" for side in "ab"]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    try:
        for name in names:
            ip("netns", "add", name)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces are not permitted here: {error}")
    try:
        ip("link", "add", "cable", "netns", names[0], "type", "veth", "peer", "name", "cable", "netns", names[1])
        for number, name in enumerate(names, 1):
            ip("-n", name, "address", "add", f"10.77.0.{number}/24", "dev", "cable")
            for device in ("lo", "cable"):
                ip("-n", name, "link", "set", device, "up")
        yield names
    finally:
        for name in names:
            for pid in subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split():
                os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", name], check=False)


def launch(nodes: list[str], folders: list[Path], *arguments: str) -> list[subprocess.Popen[str]]:
    """The same command on each node, as docs/training.md says. Each sees its own folder under the path of the disk."""
    disk = folders[0].parent / "disk"
    disk.mkdir(exist_ok=True)
    started = []
    for rank, (node, folder) in enumerate(zip(nodes, folders, strict=True)):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
        torchrun += ["--node-rank", str(rank), "--master-addr", "10.77.0.1", "--master-port", "29500"]
        train = [*torchrun, "-m", "quintet", "train", *arguments, "--device", "cpu"]
        # `ip netns exec` has mounts of its own.
        mount = f"mount --bind {shlex.quote(str(folder))} {shlex.quote(str(disk))} && cd {shlex.quote(str(disk))}"
        command = ["ip", "netns", "exec", node, "sh", "-c", f"{mount} && exec {shlex.join(train)}"]
        environment = os.environ | {
            "GLOO_SOCKET_IFNAME": "cable",
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "500",
            "PYTHONPATH": str(Path(quintet.__file__).parents[1]),
        }
        started.append(
            subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
        )
    return started


def finish(started: list[subprocess.Popen[str]]) -> list[str]:
    errors = [process.communicate(timeout=500)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], errors
    return errors


@pytest.mark.slow
def test_one_of_two_nodes_is_killed_and_the_run_ends_as_if_nothing_had_been(
    nodes: list[str], tiny_recipe: dict[str, Any], tiny_corpus: Path, tmp_path: Path
) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    tiny_recipe["stages"][0] |= {"epochs": 12, "checkpoint_every": 1, "log_every": 1}
    tiny_recipe["data"]["corpus"] = "corpus"
    for folder in folders:
        folder.mkdir()
        shutil.copytree(tiny_corpus, folder / "corpus")
        (folder / "tiny.yaml").write_text(yaml.safe_dump(tiny_recipe), encoding="utf-8")
    finish(launch(nodes, folders, "tiny.yaml", "-o", "whole"))

    cut = launch(nodes, folders, "tiny.yaml", "-o", "cut")
    checkpoint = folders[0] / "cut/stages/online/checkpoint.safetensors"
    while not checkpoint.exists():
        assert cut[0].poll() is None, cut[0].communicate()[1]
        time.sleep(0.01)
    for pid in subprocess.run(["ip", "netns", "pids", nodes[1]], capture_output=True, text=True).stdout.split():
        os.kill(int(pid), signal.SIGKILL)
    cut[1].wait()
    errors = cut[0].communicate(timeout=200)[1]
    assert cut[0].returncode != 0
    assert "another process of this training" in errors
    assert load_tensors(checkpoint)[1]["state"]["epoch"] < 12

    shutil.rmtree(folders[1] / "cut")  # the node is another computer now, which has the corpus
    finish(launch(nodes, folders, "--resume", "cut"))
    first, _ = load_tensors(folders[0] / "whole/weights.safetensors")
    for folder in folders:
        for run in ("whole", "cut"):
            found, _ = load_tensors(folder / run / "weights.safetensors")
            assert all(found[name].equal(tensor) for name, tensor in first.items())

    texts = folders[1] / "corpus/texts.jsonl"
    texts.write_text("\n".join(texts.read_text().splitlines()[:-1]) + "\n")
    head = folders[1] / "corpus/corpus.json"
    write_json(head, {name: value for name, value in read_json(head).items() if name != "checksums"})
    refused = launch(nodes, folders, "tiny.yaml", "-o", "other")
    told = [process.communicate(timeout=200)[1] for process in refused]
    assert all(process.returncode for process in refused)
    assert all("copy the corpus folder" in each for each in told), told
