"""Bit flips, truncation and hostile values in every file that is read.

Survived: the result is that of the undamaged file, or a QuintetError says what is wrong, or the command that compares
with checksums tells. Another result without a word is lost.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import quintet
from benchmarks.torture import material
from benchmarks.torture.attack import Attack, Outcome, copy_tree, in_child
from benchmarks.torture.material import Material
from quintet.data.feature_store import FeatureStore

NESTED = "[" * 100_000
VALUES: list[Any] = [
    None, True, -1, 0, 10**30, 1e308, float("nan"), float("inf"), "", "../../x", "a\x00b", "\ud800", [], {}, [[]],
    {"a": {}},
]  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """A folder or file of the material and who reads it."""

    source: str
    files: tuple[str, ...]  # patterns; empty: the source is itself a file

    def read(self, made: Material, at: Path) -> Any:
        if self.source == "lists":
            return material.read_lists(at, made.corpus)
        return getattr(material, f"read_{_reader(self.source)}")(at)

    def verify(self, at: Path) -> bool:
        """Whether `quintet index --verify`, `quintet data check` and what lists are checked with find damage."""
        if self.source.startswith("index"):
            return bool(quintet.verify_index(at))
        if self.source == "corpus/features/small":
            FeatureStore(at).check()
        return False


def _reader(source: str) -> str:
    return {"index-faiss": "index", "recipe.yaml": "recipe", "corpus/features/small": "features"}.get(source, source)


SUBJECTS = {
    "run": Subject("run", ("run.json", "model.json", "tokenizer.json", "images.json", "weights.safetensors")),
    "corpus": Subject("corpus", ("*.json", "*.jsonl")),
    "features": Subject("corpus/features/small", ("*.json", "*.npy")),
    "lists": Subject("lists", ("*.json", "*.npy")),
    "index": Subject(
        "index", ("index.json", "items.sqlite", "vectors/*", "runs/*/*.json", "runs/*/*.safetensors", "towers/*/*")
    ),
    "faiss index": Subject("index-faiss", ("vectors/*",)),
    "recipe": Subject("recipe.yaml", ()),
}
_expected: dict[str, Any] = {}


def attack(name: str, kind: str, rng: random.Random, made: Material, folder: Path) -> Iterator[Outcome]:
    subject = SUBJECTS[name]
    source, at = made.folder / subject.source, folder / Path(subject.source).name
    if name not in _expected:
        ending = in_child(subject.read, made, source)
        if ending.kind != "done":
            raise RuntimeError(f"{name} cannot be read undamaged: {ending}")
        _expected[name] = ending.value
    if source.is_dir():
        copy_tree(source, at)
        files = sorted(path for pattern in subject.files for path in at.glob(pattern) if path.is_file())
    else:
        at.write_bytes(source.read_bytes())
        files = [at]
    if kind == "hostile value":
        files = [path for path in files if path.suffix in (".json", ".jsonl")] or files
    path = rng.choice(files)
    damage(path, kind, rng)
    ending = in_child(subject.read, made, at)
    target = _stable(path.relative_to(at).as_posix()) if path != at else path.name
    if not ending.told:
        yield ending.lost(f"{name}: {target}")
    elif ending.kind == "done" and ending.value != _expected[name]:
        told = in_child(subject.verify, at)
        noticed = told.kind == "refused" or (told.kind == "done" and told.value)
        yield Outcome(f"{name}: {target}", "" if noticed else "another result without a word")
    else:
        yield Outcome(f"{name}: {target}")


def _stable(name: str) -> str:
    """Without checksums and random parts of names."""
    parts = ["*" if len(part) > 30 else part for part in name.split("/")]
    if parts[0] == "vectors":
        parts[-1] = "*" + Path(parts[-1]).suffix
    return "/".join(parts)


def damage(path: Path, kind: str, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if kind == "bit flip" and data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "truncation":
        del data[rng.randrange(len(data) + 1) :]
    elif kind == "zeroed block" and data:
        start = rng.randrange(len(data))
        data[start : start + 512] = bytes(min(512, len(data) - start))
    elif kind == "missing or replaced":
        path.unlink()
        how = rng.choice(("missing", "folder", "link to itself", "empty", "nested", "other bytes"))
        if how == "folder":
            path.mkdir()
        elif how == "link to itself":
            path.symlink_to(path.name)
        elif how != "missing":
            path.write_bytes({"empty": b"", "nested": NESTED.encode()}.get(how, rng.randbytes(4096)))
        return
    elif kind == "hostile value":
        data = bytearray(_hostile_text(path, data.decode(), rng).encode("utf-8", "surrogatepass"))
    path.write_bytes(data)


def _hostile_text(path: Path, text: str, rng: random.Random) -> str:
    """One value of a JSON document, of one line of a JSONL file, or of YAML, replaced."""
    if path.suffix == ".jsonl":
        lines = text.splitlines()
        number = rng.randrange(len(lines))
        lines[number] = json.dumps(_replaced(json.loads(lines[number]), rng))
        return "\n".join(lines)
    if path.suffix == ".json":
        return json.dumps(_replaced(json.loads(text), rng))
    lines = text.splitlines()
    number = rng.randrange(len(lines))
    key = lines[number].partition(":")[0]
    lines[number] = (
        f"{key}: {rng.choice(('1' * 5000, NESTED, '2024-99-99', '.nan', '!!python/object:os.system x', '&a [*a]'))}"
    )
    return "\n".join(lines)


def _replaced(value: Any, rng: random.Random) -> Any:
    """The same value with one node, anywhere, replaced by a hostile one or removed."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(sorted(value))
        if rng.random() < 0.15:
            return {other: each for other, each in value.items() if other != key}
        return value | {key: _replaced(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.85:
        number = rng.randrange(len(value))
        return [*value[:number], _replaced(value[number], rng), *value[number + 1 :]]
    return rng.choice(VALUES)


KINDS = ("bit flip", "truncation", "zeroed block", "missing or replaced", "hostile value")
ATTACKS: dict[str, Attack] = {
    f"{kind}: {name}": partial(attack, name, kind)
    for kind in KINDS
    for name in SUBJECTS
    if not (kind == "hostile value" and name == "faiss index")
}
