"""Several processes at one folder: writers and writers, writers and readers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.torture import material
from benchmarks.torture.attack import Attack, Outcome, copy_tree, digest, in_child, left_over, start_child, wait_for
from benchmarks.torture.material import Material

WRITERS: dict[str, tuple[Callable[[Material, Path, int], Any], Callable[[Material, Path], Any]]] = {
    "train": (
        lambda made, at, seed: material.train(at / "run", made.corpus, seed),
        lambda made, at: digest((at / "run/weights.safetensors").read_bytes(), material.read_run(at / "run")),
    ),
    "mine": (
        lambda made, at, seed: material.mine(made.run, made.corpus, at / "lists"),
        lambda made, at: material.read_lists(at / "lists", made.corpus),
    ),
    "features": (
        lambda made, at, seed: material.extract(at / "corpus", made.tower, overwrite=True),
        lambda made, at: material.read_features(at / "corpus/features/small"),
    ),
    "index": (
        lambda made, at, seed: material.index(made.run, [made.images, made.corpus][seed], at / "index"),
        lambda made, at: material.read_index(at / "index"),
    ),
}
_alone: dict[str, list[Any]] = {}


def _begin(name: str, made: Material, at: Path) -> None:
    at.mkdir(parents=True)
    if name == "features":
        copy_tree(made.corpus, at / "corpus")


def two_writers(name: str, rng: random.Random, made: Material, folder: Path) -> Iterator[Outcome]:
    """Both at once, of two seeds or sources: the result is one of theirs, whole; whoever lost was told."""
    write, read = WRITERS[name]
    if name not in _alone:
        _alone[name] = []
        for seed in (0, 1):
            at = folder / f"alone-{seed}"
            _begin(name, made, at)
            wrote, found = in_child(write, made, at, seed), in_child(read, made, at)
            if wrote.kind != "done" or found.kind != "done":
                raise RuntimeError(f"{name} fails alone: {wrote} {found}")
            _alone[name].append(found.value)
    at = folder / "both"
    _begin(name, made, at)
    children = []
    for seed in (0, 1):
        children.append(start_child(write, made, at, seed))
        time.sleep(rng.uniform(0, 0.1))
    endings = [wait_for(*child) for child in children]
    for ending in endings:
        if not ending.told:
            yield ending.lost(name, "with another writer")
            return
    now = in_child(read, made, at)
    done = [number for number, ending in enumerate(endings) if ending.kind == "done"]
    if not done:
        yield Outcome(name, "both writers were refused", endings[0].detail[:100])
    elif now.kind != "done":
        yield now.lost(name, "after two writers")
    elif now.value not in [_alone[name][number] for number in done]:
        yield Outcome(name, "a mixture of two writers")
    elif name == "train" and len(done) == 2:
        yield Outcome(name, "two trainings of different seeds into one folder were both said to be done")
    else:
        rest = left_over(at)
        yield Outcome(name, "left over" if rest else "", ", ".join(rest[:1]))


def readers(rng: random.Random, made: Material, folder: Path) -> Iterator[Outcome]:
    """An index is opened again and again while it is rebuilt, back and forth between two contents."""
    at = copy_tree(made.index, folder / "index")
    values = [in_child(material.read_index, made.index).value]
    other = in_child(_build_other, made, folder / "other")
    values.append(other.value)
    writer = start_child(_rebuild, made, at, 3)
    reader = start_child(_read_often, at, values, rng.uniform(1, 2))
    read, wrote = wait_for(*reader), wait_for(*writer)
    for name, ending in (("reader", read), ("writer", wrote)):
        yield Outcome(f"index {name}") if ending.kind == "done" else ending.lost(f"index {name}")


def _build_other(made: Material, at: Path) -> Any:
    material.index(made.run, made.corpus, at)
    return material.read_index(at)


def _rebuild(made: Material, at: Path, turns: int) -> None:
    for turn in range(turns):
        material.index(made.run, [made.corpus, made.images][turn % 2], at, prune=True)


def _read_often(at: Path, values: list[Any], seconds: float) -> int:
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        if material.read_index(at) not in values:
            raise AssertionError("a reader saw neither the old index nor the new one")
        count += 1
    return count


def changed_under_reader(rng: random.Random, made: Material, folder: Path) -> Iterator[Outcome]:
    """Vector files are cut short or removed while an index is open: an answer or an error, not a crash."""
    at = copy_tree(made.index, folder / "index")
    ending = in_child(_search_after_damage, at, rng.getrandbits(32))
    yield Outcome("open index") if ending.told else ending.lost("open index")


def _search_after_damage(at: Path, seed: int) -> None:
    rng = random.Random(seed)
    with material.Searcher.open(at, device="cpu") as searcher:
        for path in sorted((at / "vectors").iterdir()):
            if rng.random() < 0.5:
                path.unlink()
            else:
                with path.open("r+b") as file:
                    file.truncate(rng.randrange(path.stat().st_size + 1))
        searcher.search_text([material.QUERY], k=5)


ATTACKS: dict[str, Attack] = {
    **{f"two writers: {name}": partial(two_writers, name) for name in WRITERS},
    "readers while an index is rebuilt": readers,
    "vectors cut short under an open index": changed_under_reader,
}
