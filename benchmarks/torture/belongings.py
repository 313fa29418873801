"""A person's files in every place where ours could be: whatever a command does, they are the same afterwards.

Each command is watched once, and then finds files, folders and links of a person at the paths that it wrote to.
"""

from __future__ import annotations

import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import quintet
from benchmarks.torture import material
from benchmarks.torture.attack import Attack, Outcome, copy_tree, in_child
from benchmarks.torture.material import Material
from quintet.cli.main import app
from quintet.errors import QuintetError

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
    "import": lambda made, out, again: quintet.import_corpus("webdataset", made.shards, out, overwrite=again),
    "scenes": lambda made, out, again: quintet.import_corpus(
        "scenes", "-", out, train=2, dev=1, test=1, size=32, overwrite=again
    ),
    "backup": lambda made, out, again: quintet.backup_index(made.index, out),
    "evaluate": lambda made, out, again: command(
        "evaluate", made.run, "--bootstrap", 0, "-o", out / "result.json", "--ranks", out / "ranks.npz"
    ),
    "analyse": lambda made, out, again: command(
        "analyse", made.run, "--what", "distributions,ranks", "--png", "-o", out
    ),
    "report": lambda made, out, again: command("report", made.run, "--bootstrap", 0, "--samples", 2, "-o", out),
    "export": lambda made, out, again: command("export", made.run, "--onnx", "-o", out),
    "search": lambda made, out, again: command("search", made.index, material.QUERY, "-o", out / "page.html"),
}
# What the command made before, so that its own files and a person's lie side by side.
EARLIER = {
    "train": "run",
    "mine": "lists",
    "features": "corpus",
    "index": "index",
    "convert": "run",
    "import": "corpus",
    "scenes": "corpus",
    "backup": "index",
}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_written: dict[str, list[str]] = {}


def command(*words: Any) -> None:
    """A command line; a refusal is raised, as functions raise it."""
    try:
        app([*map(str, words), *(("--device", "cpu") if words[0] != "export" else ())], prog_name="quintet")
    except SystemExit as done:
        if done.code:
            raise QuintetError(f"exit status {done.code}") from None


def written_by(name: str, made: Material, folder: Path) -> list[str]:
    """Every path below a folder that a command writes to, makes, renames or removes, temporary names left out."""
    if name not in _written:
        folder.mkdir()
        if name == "features":
            copy_tree(made.corpus, folder / "out")
        ending = in_child(_watch, name, made, folder)
        if ending.kind != "done":
            raise RuntimeError(f"{name} fails undisturbed: {ending}")
        _written[name] = [path for path in ending.value if not re.search(r"\.[a-z0-9_]{8}\.partial", path)]
    return _written[name]


def _watch(name: str, made: Material, folder: Path) -> list[str]:
    found: set[str] = set()

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        paths: tuple[Any, ...] = ()
        if event == "open" and ((arguments[1] and {*arguments[1]} & {*"wax+"}) or (arguments[2] or 0) & WRITES):
            paths = arguments[:1]
        elif event in ("os.rename", "os.link"):
            paths = arguments[:2]
        elif event in ("os.mkdir", "os.remove", "os.rmdir", "sqlite3.connect"):
            paths = arguments[:1]
        for path in paths:
            if isinstance(path, str | bytes | os.PathLike):
                found.add(os.path.abspath(os.fsdecode(path).removeprefix("file:").partition("?")[0]))  # noqa: PTH100

    sys.addaudithook(note)
    COMMANDS[name](made, folder / "out", True)
    below = [Path(path).relative_to(folder) for path in found if Path(path).is_relative_to(folder)]
    return sorted(str(path) for path in below if len(path.parts) > 1 or path.name != "out")


def attack(name: str, rng: random.Random, made: Material, folder: Path) -> Iterator[Outcome]:
    places = [*(f"out/{each}" for each in NAMES), *4 * written_by(name, made, folder / "watched")]
    at, photo = folder / "at", folder / "photo.png"
    at.mkdir()
    photo.write_bytes(b"mine")
    if name in EARLIER and (name == "features" or rng.random() < 0.5):
        copy_tree(made.folder / EARLIER[name], at / "out")
    put = [str(photo)]
    for place in rng.sample(places, rng.randint(1, 6)):
        path = at / place
        if os.path.lexists(path) or any(parent.is_file() for parent in path.parents):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        kind = rng.choice(("file", "file", "file", "link", "folder"))
        if kind == "link":
            path.symlink_to(photo)
        elif kind == "folder":
            path.mkdir()
            path /= "diary.txt"
        if kind != "link":
            path.write_bytes(rng.choice(CONTENTS) + rng.randbytes(2).hex().encode())
        put.append(str(path))
    before = {path: _state(path) for path in put}
    ending = in_child(COMMANDS[name], made, at / "out", rng.random() < 0.5)
    gone = [os.path.relpath(path, at) for path, state in before.items() if _state(path) != state]
    if gone:
        yield Outcome(name, f"a person's {', '.join(gone)} was lost", ending.detail[:150])
    elif not ending.told:
        yield ending.lost(name, f"with {', '.join(os.path.relpath(path, at) for path in put[1:])}")
    else:
        yield Outcome(name)


def _state(path: str) -> tuple[bool, bytes] | None:
    """Whether it is a link, and what is in it; None where it is no file."""
    return (os.path.islink(path), Path(path).read_bytes()) if os.path.isfile(path) else None  # noqa: PTH113, PTH114


ATTACKS: dict[str, Attack] = {f"a person's files in the output of {name}": partial(attack, name) for name in COMMANDS}
