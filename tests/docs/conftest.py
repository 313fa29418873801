"""For tests of the pages: their fenced blocks, and a folder with what they speak of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Block:
    page: Path
    line: int  # of its first line of content
    text: str


def fenced_blocks(page: str, language: str) -> list[Block]:
    """The fenced blocks of one language on a page (a path under the root of the repository), in order."""
    path = ROOT / page
    found: list[Block] = []
    opened, first, content = None, 0, list[str]()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if opened is None and line.startswith("```"):
            opened, first, content = line[3:].strip(), number + 1, []
        elif opened is not None and line.startswith("```"):
            if opened == language:
                found.append(Block(path, first, "\n".join(content)))
            opened = None
        else:
            content.append(line)
    return found


@pytest.fixture
def blocks_of() -> Callable[[str, str], list[Block]]:
    return fenced_blocks


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of the code on a page, with a few generated photos."""
    generator = torch.Generator().manual_seed(0)
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in ("photos", "Pictures"):
        (tmp_path / folder).mkdir()
    photos = (f"{folder}/{number}.jpg" for folder in ("photos", "Pictures") for number in range(4))
    for name in ("dog.jpg", "beach.jpg", *photos):
        pixels = torch.randint(0, 256, (6, 8, 3), generator=generator, dtype=torch.uint8).numpy()
        Image.fromarray(pixels).resize((96, 72)).save(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path
