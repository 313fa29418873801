"""A person's files in every place where ours could be: whatever a command does, they are the same afterwards."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import quintet
from benchmarks.torture import material
from benchmarks.torture.attack import Attack, Outcome, copy_tree, in_child
from benchmarks.torture.material import Material

# Names that Quintet itself uses, and names that people use.
NAMES = (
    "lock", "index.json", "items.sqlite", "items.sqlite-wal", "vectors/holiday.bin", "vectors/notes.txt",
    "pictures/2024/beach.png", "images/ab/beach.png", "runs/photos/1.jpg", "runs/notes.txt", "towers/water/1.jpg",
    "run.json", "model.json", "tokenizer.json", "images.json", "weights.safetensors", "recipe.yaml",
    "stages/online/diary.txt", "stages/online/selected.safetensors", "checkpoint.safetensors", "metrics.jsonl",
    "corpus.json", "images.jsonl", "texts.jsonl", "splits.json", "features/small/diary.txt", "manifest.json",
    "texts.npy", "ids.json", "rows.npy", "features.npy", "boxes.npy", "skipped.json", "settings.json",
    ".index.json.abcdefgh.partial", ".try-1", "letter.partial", ".hidden", "notes.txt", "my photos/beach.png",
    "generation-1/beach.png", "segments/image-1/beach.png", "negatives/train/notes.txt",
)  # fmt: skip
CONTENTS = (b"", b"mine\n", b'{"mine": true}\n', b"\x89PNG\r\n\x1a\n mine", b"[]")
COMMANDS: dict[str, Callable[[Material, Path, bool], Any]] = {
    "train": lambda made, out, again: material.train(out, made.corpus),
    "mine": lambda made, out, again: material.mine(made.run, made.corpus, out),
    "features": lambda made, out, again: material.extract(out, made.tower, overwrite=again),
    "index": lambda made, out, again: material.index(made.run, made.images, out, overwrite=again),
    "convert": lambda made, out, again: quintet.convert("bfan", made.folder / "model_best.pth.tar", out),
    "import": lambda made, out, again: quintet.import_corpus(
        "scenes", "-", out, train=2, dev=1, test=1, size=16, overwrite=again
    ),
}
# What the command made before, so that its own files and a person's lie side by side.
EARLIER = {
    "train": "run",
    "mine": "lists",
    "features": "corpus",
    "index": "index",
    "convert": "run",
    "import": "corpus",
}


def attack(name: str, rng: random.Random, made: Material, folder: Path) -> Iterator[Outcome]:
    out = folder / "out"
    if name == "features" or rng.random() < 0.5:
        copy_tree(made.folder / EARLIER[name], out)
    put: dict[str, tuple[str, bytes]] = {}
    for where in rng.sample(NAMES, rng.randint(1, 6)):
        path = out / where
        if name == "features" and rng.random() < 0.5:
            path = out / "features/small" / where
        if os.path.lexists(path) or any(parent.is_file() for parent in path.parents):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        content = rng.choice(CONTENTS) + rng.randbytes(2).hex().encode()
        path.write_bytes(content)
        put[str(path.relative_to(out))] = str(path), content
    ending = in_child(COMMANDS[name], made, out, rng.random() < 0.5)
    gone = [where for where, (path, content) in put.items() if not _same(Path(path), content)]
    if gone:
        yield Outcome(name, f"a person's {', '.join(gone)} was lost", ending.detail[:150])
    elif not ending.told:
        yield ending.lost(name, f"with {', '.join(put)}")
    else:
        yield Outcome(name)


def _same(path: Path, content: bytes) -> bool:
    return path.is_file() and path.read_bytes() == content


ATTACKS: dict[str, Attack] = {f"a person's files in the output of {name}": partial(attack, name) for name in COMMANDS}
