"""Small untrained runs of every sort: features with and without a known tower, pixels, cross-attention."""

from __future__ import annotations

from collections.abc import Callable
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

TEXTS = ["a red thing on a green ground", "two blue things", "a large striped cat sleeps beside an old dog", "a dog"]

MakeRun = Callable[..., Path]


@pytest.fixture
def texts() -> list[str]:
    return list(TEXTS)


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    """Five images of random colours, of different sizes and modes."""
    generator = torch.Generator().manual_seed(0)
    paths = []
    for number in range(5):
        pixels = torch.randint(0, 256, (4, 5, 3), generator=generator, dtype=torch.uint8).numpy()
        image = Image.fromarray(pixels).resize((50 + 7 * number, 40), Image.Resampling.NEAREST)
        paths.append(tmp_path / f"photo{number}.png")
        (image.convert("L") if number == 3 else image).save(paths[-1])
    return paths


@pytest.fixture
def tower_file(tmp_path: Path) -> Path:
    torch.manual_seed(7)
    save_tensors(tmp_path / "small.safetensors", create_tower("small-cnn").state_dict(), {})
    return tmp_path / "small.safetensors"


@pytest.fixture
def make_run(tmp_path: Path, tower_file: Path) -> MakeRun:
    """`make_run("scan")`: an untrained run on features of a small tower; other arguments go to the matcher."""

    def make(name: str, *, seed: int = 1, pixels: bool = False, vocabulary: bool = True, **arguments: Any) -> Path:
        folder = tmp_path / f"run-{name}{'-pixels' if pixels else ''}"
        words = WordVocabulary.build(TEXTS, min_count=1)
        sizes: dict[str, Any] = {"vocabulary_size": len(words), "embed_dim": 8} | arguments
        if name in ("vse++", "vsrn", "scan", "bfan"):
            sizes.setdefault("word_dim", 6)
        sizes |= {"tower": "small-cnn"} if pixels else {"image_dim": 128}
        torch.manual_seed(seed)
        matcher = create_model(name, **sizes)
        tower = FeatureExtractor.create("small-cnn", tower_file, grid=(2, 3)).state()
        write_run(
            folder,
            name=name,
            model={"name": name, "arguments": sizes},
            state_dict=matcher.state_dict(),
            tokenizer=words if vocabulary else None,
            image_input={"kind": "pixels"} if pixels else {"kind": "features", "name": "small", "tower": tower},
        )
        return folder

    return make
