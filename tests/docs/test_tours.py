"""The commands of the README and of the pages are run, one after the other, as a reader would, on small data."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.docs.commands import Line, commands

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

# What makes a command small enough for a test. Nothing else of a documented command is changed.
SHORT = ("stages.*.epochs=1", "stages.*.select_after=0", "stages.*.batches.size=16")
SMALLER: dict[tuple[str, ...], tuple[str, ...]] = {
    ("data", "import", "scenes"): ("--option", "train=48", "--option", "dev=16", "--option", "test=16"),
    ("train", "--resume"): (),
    ("train",): SHORT,
    ("study",): SHORT,
    ("features",): ("--workers", "1"),
}
ELSEWHERE = {"pip", "source", "make"}  # what sets the environment up; `make` is what runs these tests


def small(words: tuple[str, ...]) -> list[str]:
    for start, more in SMALLER.items():
        if words[: len(start)] == start:
            return [*words, *more]
    return list(words)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A person's computer: photos in ~/Pictures and ~/holiday."""
    home = tmp_path / "home"
    rng = np.random.default_rng(0)
    for folder in ("Pictures/2024", "trip"):
        (home / folder).mkdir(parents=True)
        for number in range(6):
            pixels = rng.integers(0, 255, (48, 64, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((320, 240)).save(home / folder / f"{number}.jpg")
            (home / folder / f"{number}.txt").write_text(f"noise of number {number}\n")
    return home


def run(line: Line, home: Path) -> None:
    assert line.quintet is not None
    words = [str(home / word[2:]) if word.startswith("~/") else word for word in small(line.quintet)]
    command = [sys.executable, "-m", "quintet", *words]
    if line.words[0] == "torchrun":
        before = line.words[1 : line.words.index("-m")]
        command = [sys.executable, "-m", "torch.distributed.run", *before, "-m", "quintet", *words]
    # BROWSER: what `--open` starts. Two processes of gloo meet on this computer only.
    environment = os.environ | {"HOME": str(home), "BROWSER": "true", "COLUMNS": "200", "GLOO_SOCKET_IFNAME": "lo"}
    if words[0] == "serve":
        _serve(command, home, environment)
        return
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def _serve(command: list[str], home: Path, environment: dict[str, str]) -> None:
    """Start the server, ask for its health, stop it."""
    command = [*command, "--port", "18437"]
    with subprocess.Popen(command, cwd=home, env=environment, stderr=subprocess.PIPE, text=True) as server:
        try:
            for _ in range(120):
                try:
                    with urllib.request.urlopen("http://127.0.0.1:18437/health", timeout=1) as answer:
                        assert json.load(answer)["status"] == "ok"
                        break
                except OSError:
                    assert server.poll() is None, server.stderr.read() if server.stderr else ""
                    time.sleep(0.5)
            else:
                raise AssertionError("the server did not answer within a minute")
        finally:
            server.terminate()


def test_the_readmes_tour(home: Path) -> None:
    for line in commands("README.md"):
        if line.quintet is not None:
            run(line, home)
        else:
            assert line.words[0] in ELSEWHERE, f"nobody checks {line}"
    assert (home / "runs/scan/weights.safetensors").is_file()
    assert (home / "report/index.html").is_file()


def test_search_from_the_first_command_to_the_last(home: Path) -> None:
    shutil.copy(home / "Pictures/2024/0.jpg", home / "photo.jpg")
    (home / "questions.txt").write_text("a dog\na cat\n")
    make_scenes(home, "corpora/scenes")
    for recipe in ("vse", "aoq-scan"):
        out = f"runs/{recipe.removeprefix('aoq-')}"
        run(
            Line("(set-up)", 0, ("quintet", "train", f"{recipe}-scenes", "--corpus", "corpora/scenes", "-o", out)), home
        )
    for line in commands("docs/search.md"):
        words = tuple("holiday" if word == "INDEX" else word for word in line.words)
        run(Line(line.page, line.number, words), home)


def test_training_page(home: Path) -> None:
    make_scenes(home, "corpora/mine")
    for line in commands("docs/training.md"):
        if ">" in line.words:  # quintet recipes show NAME > my.yaml
            cut = line.words.index(">")
            shown = subprocess.run(
                [sys.executable, "-m", "quintet", *line.words[1:cut]], capture_output=True, text=True, check=True
            )
            (home / line.words[cut + 1]).write_text(shown.stdout)
        else:
            run(line, home)


def make_scenes(home: Path, out: str) -> None:
    for words in (("data", "import", "scenes", "-", out), ("features", out)):
        run(Line("(set-up)", 0, ("quintet", *words)), home)


def test_every_command_of_the_readme_is_one_that_the_test_can_run() -> None:
    """No placeholder such as RUN or a file that only the authors have stands in the README's tour."""
    for line in commands("README.md"):
        assert not any(word.isupper() and len(word) > 2 for word in line.words), str(line)


# What a command needs that a test cannot have. Such a command is only parsed (test_commands.py).
OUTSIDE = {
    "ExpertAnnotations.txt": "the judgements that come with Flickr8k",
    "5fold": "a test split of 5,000 images",
    "resnet50.pth": "weights to download",
    "hf:facebook/dinov2-small": "weights to download",
    "0.0.0.0": "a port that is open to the network",
    "docs/make_serve_images.py": "a browser",
}
RUN_OR_CORPUS = re.compile(r"(runs|corpora)/([\w-]+)")


@pytest.mark.parametrize("page", ["docs/evaluation.md", "docs/mining.md", "docs/analysis.md", "docs/report.md"])
def test_pages_about_trained_runs(home: Path, page: str) -> None:
    """The runs and corpora that a page names are copies of two small ones."""
    make_scenes(home, "corpora/scenes")
    for recipe in ("vse", "aoq-scan"):
        words = ("quintet", "train", f"{recipe}-scenes", "--corpus", "corpora/scenes", "-o", f"made/{recipe}")
        run(Line("(set-up)", 0, words), home)
    lines = [line for line in commands(page) if line.quintet and not OUTSIDE.keys() & set(line.words)]
    assert len(lines) >= 2
    for line in lines:
        for kind, name in RUN_OR_CORPUS.findall(" ".join(line.words)):
            made = {"runs": "made/aoq-scan" if "scan" in name else "made/vse", "corpora": "corpora/scenes"}[kind]
            if not (home / kind / name).exists():
                shutil.copytree(home / made, home / kind / name)
                if kind == "runs" and (home / made / "stages/online").exists():  # the page's name of a first stage
                    shutil.copytree(home / made / "stages/online", home / kind / name / "stages/one")
        run(line, home)
