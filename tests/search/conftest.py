"""Small untrained runs and images to index: what matters here is where codes go, not how good they are."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from quintet.backbones.create import create_tower
from quintet.backbones.extractor import FeatureExtractor
from quintet.data.vocabulary import WordVocabulary
from quintet.models import create_model
from quintet.runs.checkpoint import save_tensors, write_run

TEXTS = [
    "a red thing on a green ground",
    "two blue things beside a small one",
    "a large striped cat sleeps",
    "an old dog runs through the water",
    "the child paints a round house",
]


def write_images(folder: Path, count: int = 6, seed: int = 0) -> list[Path]:
    """Images of random colours, all different."""
    generator = torch.Generator().manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(count):
        pixels = torch.randint(0, 256, (4, 5, 3), generator=generator, dtype=torch.uint8).numpy()
        path = folder / f"{number}.png"
        Image.fromarray(pixels).resize((50, 40), Image.Resampling.NEAREST).save(path)
        paths.append(path)
    return paths


MakeImages = Callable[..., list[Path]]


@pytest.fixture(scope="session")
def make_images() -> MakeImages:
    return write_images


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    write_images(folder)
    return folder


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    return TEXTS


@pytest.fixture(scope="session")
def tower(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The description of a small tower with weights in a file, as a feature folder's manifest has it."""
    folder = tmp_path_factory.mktemp("tower")
    torch.manual_seed(7)
    save_tensors(folder / "small.safetensors", create_tower("small-cnn").state_dict(), {})
    return FeatureExtractor.create("small-cnn", folder / "small.safetensors", grid=(2, 3)).state()


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that other users may read, too."""
    with tempfile.TemporaryDirectory(prefix="quintet-shared-") as name:
        folder = Path(name) / "folder"
        Path(name).chmod(0o755)
        folder.mkdir()
        yield folder
        folder.chmod(0o755)


MakeRun = Callable[..., Path]


@pytest.fixture(scope="session")
def make_run(tmp_path_factory: pytest.TempPathFactory, tower: dict[str, Any]) -> MakeRun:
    """`make_run("scan")`: an untrained run on features of the small tower; other arguments go to the matcher."""

    def make(name: str, seed: int = 0, pixels: bool = False, **arguments: Any) -> Path:
        folder = tmp_path_factory.mktemp(name.replace("+", "p")) / "run"
        vocabulary = WordVocabulary.build(TEXTS, min_count=1)
        sizes: dict[str, Any] = {"vocabulary_size": len(vocabulary), "embed_dim": 8, **arguments}
        sizes |= {"tower": "small-cnn"} if pixels else {"image_dim": 128}
        torch.manual_seed(seed)
        matcher = create_model(name, **sizes)
        write_run(
            folder,
            name=f"{name}-{seed}",
            model={"name": name, "arguments": sizes},
            state_dict=matcher.state_dict(),
            tokenizer=vocabulary,
            image_input={"kind": "pixels"} if pixels else {"kind": "features", "name": "small", "tower": tower},
        )
        return folder

    return make


@pytest.fixture(scope="session")
def vse(make_run: MakeRun) -> Path:
    return make_run("vse++", word_dim=6)


@pytest.fixture(scope="session")
def pixel_vse(make_run: MakeRun) -> Path:
    return make_run("vse++", word_dim=6, pixels=True)


@pytest.fixture(scope="session")
def scan(make_run: MakeRun) -> Path:
    return make_run("scan", seed=1, word_dim=6)


@pytest.fixture(scope="session")
def bfan(make_run: MakeRun) -> Path:
    return make_run("bfan", seed=2, word_dim=6)


@pytest.fixture(scope="session")
def mmca(make_run: MakeRun) -> Path:
    return make_run("mmca", seed=3, heads=2, text_dim=4, text_heads=2, filters=6)
