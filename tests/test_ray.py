"""A real Ray cluster of two nodes on this machine: nodes, workers and drivers are killed, and the results are those of
one process that nobody disturbed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Images
from tests.search.test_shards import pack

import quintet
from quintet.data.negatives import NegativeLists

pytestmark = pytest.mark.slow

INDEX = """
import sys, quintet
quintet.build_index("quintet-small", sys.argv[1], sys.argv[2], ray="auto", ray_workers=2, batch_size=4,
                    progress=lambda done, total: print(done, flush=True))
"""
MINE = """
import sys, quintet
from quintet.mining import block_mining
block_mining.BLOCK["cpu"], block_mining.CHUNK["images"] = (64, 4096), 128
quintet.mine("quintet-small", sys.argv[1], out=sys.argv[2], top_texts=20, top_images=10, ray="auto", ray_workers=2,
             progress=lambda done, total: print(done, flush=True))
"""
FEATURES = """
import sys, quintet
quintet.extract_features(sys.argv[1], "efficientnet-lite0", name=sys.argv[2], grid=1, batch_size=4, ray="auto",
                         ray_workers=2, progress=lambda done, total: print(done, flush=True))
"""


class Nodes:
    """A head that runs nothing, and two nodes with a CPU each."""

    def __init__(self, **head: Any) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        from ray.cluster_utils import Cluster

        options = {"num_cpus": 0, "include_dashboard": False, **head}
        self.cluster = Cluster(initialize_head=True, head_node_args=options)
        self.nodes = [self.cluster.add_node(num_cpus=1), self.cluster.add_node(num_cpus=1)]

    def lose_one(self) -> None:
        """Kill a node with all that runs on it; another comes."""
        self.cluster.remove_node(self.nodes.pop(0), allow_graceful=False)
        self.nodes.append(self.cluster.add_node(num_cpus=1))


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    pytest.importorskip("ray")
    made = Nodes()
    monkeypatch.setenv("RAY_ADDRESS", made.cluster.address)
    yield made
    made.cluster.shutdown()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus") / "scenes"
    made = quintet.import_corpus("scenes", "-", folder, train=60, dev=2, test=2, size=64)
    quintet.extract_features(made, "efficientnet-lite2+efficientnet-lite0", grid=1, device="cpu")
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number in range(48):
        pixels = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Images.fromarray(pixels).resize((160, 120)).save(folder / f"{number:03d}.jpg")
    return folder


def finish(script: str, *arguments: Path | str, disturb: Callable[[int, subprocess.Popen[str]], None]) -> int:
    """Run the same command until it ends by itself; how often it ran. `disturb` gets every line of progress."""
    for runs in range(1, 6):
        process = subprocess.Popen(
            [sys.executable, "-c", script, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        for line in process.stdout:
            disturb(int(line), process)
        errors = process.stderr.read() if process.stderr else ""
        if process.wait() == 0:
            return runs
        assert process.returncode == -signal.SIGKILL, errors
    raise AssertionError("it never ends")


class Disturbance:
    """At some points of the progress, each once: a node is lost, a worker is killed, the driver is killed."""

    def __init__(self, nodes: Nodes, **at: int) -> None:
        self.nodes, self.at, self.done = nodes, at, list[str]()

    def __call__(self, progress: int, driver: subprocess.Popen[str]) -> None:
        for what, at in list(self.at.items()):
            if progress >= at:
                del self.at[what]
                self.done.append(what)
                getattr(self, what)(driver)

    def node(self, driver: subprocess.Popen[str]) -> None:
        self.nodes.lose_one()

    def worker(self, driver: subprocess.Popen[str]) -> None:
        """The raylets' children are this process's: those of this cluster only."""
        raylets = {node.all_processes["raylet"][0].process.pid for node in self.nodes.nodes}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                stat = (folder / "stat").read_text()
                name = (folder / "cmdline").read_text()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) in raylets and "_Host" in name:
                os.kill(int(folder.name), signal.SIGKILL)
                return

    def driver(self, driver: subprocess.Popen[str]) -> None:
        driver.send_signal(signal.SIGKILL)


def files(index: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((index / "vectors").iterdir())}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("packed", [False, True])
def test_an_index_is_the_one_of_an_undisturbed_process(
    nodes: Nodes, photos: Path, tmp_path: Path, packed: bool
) -> None:
    if packed:
        images = sorted(photos.iterdir())
        photos = tmp_path / "shards"
        for number in range(0, len(images), 5):
            some = images[number : number + 5]
            pack(photos / f"{number:03d}.tar", {path.name: path.read_bytes() for path in some})
    quintet.build_index("quintet-small", photos, tmp_path / "alone", device="cpu", batch_size=4)
    disturb = Disturbance(nodes, worker=8, node=16, driver=32)
    assert finish(INDEX, photos, tmp_path / "shared", disturb=disturb) == 2
    assert disturb.done == ["worker", "node", "driver"]
    assert files(tmp_path / "shared") == files(tmp_path / "alone")


@pytest.mark.timeout(900)
def test_a_cluster_is_reached_by_its_client_server(photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    made = Nodes(ray_client_server_port=port)
    try:
        script = INDEX.replace('"auto"', f'"ray://127.0.0.1:{port}"')
        assert finish(script, photos, tmp_path / "shared", disturb=lambda done, driver: None) == 1
    finally:
        made.cluster.shutdown()
    quintet.build_index("quintet-small", photos, tmp_path / "alone", device="cpu", batch_size=4)
    assert files(tmp_path / "shared") == files(tmp_path / "alone")


@pytest.mark.timeout(900)
def test_features_are_those_of_an_undisturbed_process(nodes: Nodes, corpus: Path, tmp_path: Path) -> None:
    alone = quintet.extract_features(corpus, "efficientnet-lite0", name="alone", grid=1, batch_size=4, device="cpu")
    disturb = Disturbance(nodes, node=12, worker=28, driver=44)
    assert finish(FEATURES, corpus, "shared", disturb=disturb) == 2
    for name in ("features.npy", "boxes.npy"):
        assert (corpus / "features/shared" / name).read_bytes() == (alone.folder / name).read_bytes()


@pytest.mark.timeout(900)
def test_mined_lists_are_those_of_an_undisturbed_process(nodes: Nodes, tmp_path: Path) -> None:
    made = quintet.import_corpus("scenes", "-", tmp_path / "corpus", train=400, dev=1, test=1, size=48)
    quintet.extract_features(made, "efficientnet-lite2+efficientnet-lite0", grid=1, device="cpu")
    alone = quintet.mine("quintet-small", made, top_texts=20, top_images=10, device="cpu")
    total = len(alone.texts) * len(alone.images)
    disturb = Disturbance(nodes, driver=total // 7, worker=2 * total // 7, node=3 * total // 7)
    assert finish(MINE, made.root, tmp_path / "lists", disturb=disturb) == 2
    assert disturb.done == ["driver", "worker", "node"]
    found = NegativeLists.open(tmp_path / "lists")
    for name in ("texts", "text_scores", "images", "image_scores"):
        assert np.array_equal(getattr(found, name), getattr(alone, name)), name
    assert [path.name for path in tmp_path.glob(".*")] == []


@pytest.mark.timeout(900)
def test_a_second_driver_of_an_index_is_refused(nodes: Nodes, photos: Path, tmp_path: Path) -> None:
    refused: list[Any] = []

    def second(done: int, driver: subprocess.Popen[str]) -> None:
        if done == 4:
            started = time.monotonic()
            other = subprocess.run(
                [sys.executable, "-c", INDEX, str(photos), str(tmp_path / "index")], capture_output=True, text=True
            )
            refused.append((other.returncode, other.stderr, time.monotonic() - started))

    assert finish(INDEX, photos, tmp_path / "index", disturb=second) == 1
    assert refused[0][0] != 0
    assert "another process" in refused[0][1]
