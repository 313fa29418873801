"""`make_scenes`: the generated corpus of coloured shapes, the same on every machine for the same seed."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from PIL import Image as PILImage

from quintet.data.corpus import FORMAT, HEADER, Corpus, Image, Text
from quintet.data.scenes.captions import captions
from quintet.data.scenes.render import Drawing, draw
from quintet.data.scenes.scene import Scene, family, generator
from quintet.errors import CorpusError
from quintet.files import header_format
from quintet.locks import folder_lock

OPTIONS = {
    "train": "how many training scenes",
    "dev": "how many validation scenes",
    "test": "how many test scenes",
    "seed": "another number gives other scenes",
    "size": "width and height of the images in pixels",
    "workers": "processes that draw",
}
# What overwriting replaces: a corpus of scenes, its features, and its cached text features.
_OWN_FILE = re.compile(
    r"(corpus|splits)\.json|(images|texts)\.jsonl|(images|pictures)/(train|dev|test)-\d+\.png"
    r"|features/[^/]+/((settings|skipped|manifest|ids)\.json|journal\.jsonl|(features|boxes|rows)\.npy)"
    r"|texts/[^/]+-[0-9a-f]{16}/(manifest\.json|(features|starts)\.npy)"
)
_LEFT_OVER = re.compile(rf"(new|old)/({_OWN_FILE.pattern}|\.[^/]+\.[a-z0-9_]{{8}}\.partial)")
SMALLEST = 32  # pixels; below this a small thing has no shape
# Held-out scenes are drawn first and are never drawn again, so they do not depend on how many are trained on.
SPLITS = ("test", "dev", "train")
FAMILIES, SCENES = 0, 1  # what a random generator is for


def make_scenes(
    out: Path | str,
    *,
    train: int = 2000,
    dev: int = 200,
    test: int = 200,
    seed: int = 0,
    size: int = 96,
    workers: int = 1,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Corpus:
    """Draw and describe scenes, and save them as a corpus at `out`, which appears when it is complete.

    The same seed gives the same texts and pixels, however many processes draw (`workers`). No scene (background, layout
    and groups) occurs twice, so held-out scenes are new ones. With `overwrite` a corpus at `out` is replaced once the
    new one is complete. `progress`, if given, is called with (scenes done, scenes in all).
    """
    sizes = {"test": test, "dev": dev, "train": train}
    _check(sizes, seed, size, workers)
    folder = Path(out).resolve()
    with folder_lock(folder.parent, f"drawing {folder.name}", f".{folder.name}.lock"):
        _clear(folder)
        _check_folder(folder, overwrite)
        try:
            beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent))
            try:
                _write(beside / "new", sizes, seed, size, workers, progress)
                os.sync()  # thousands of small images: one sync for all of them, before the rename that commits them
                _move(beside / "new", folder, beside / "old")
            finally:
                shutil.rmtree(beside, ignore_errors=True)
        except OSError as error:
            raise CorpusError(
                f"could not write scenes to {out}: {error.strerror or error}; nothing was kept"
            ) from error
    return Corpus.open(out)


def _check(sizes: dict[str, int], seed: int, size: int, workers: int) -> None:
    for name, count in sizes.items():
        if count < 0:
            raise CorpusError(f"scenes: {name}={count}; a split has zero or more scenes")
    if not sum(sizes.values()):
        raise CorpusError("scenes: all splits are empty; ask for at least one scene")
    if seed < 0:
        raise CorpusError(f"scenes: seed={seed}; a seed is zero or more")
    if size < SMALLEST:
        raise CorpusError(f"scenes: size={size}; images need at least {SMALLEST} pixels a side")
    if workers < 1:
        raise CorpusError(f"scenes: workers={workers}; at least one process draws")


def _check_folder(out: Path, overwrite: bool) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        if header_format(out / HEADER) != FORMAT:
            raise CorpusError(f"{out} exists and is not an empty folder or a corpus; choose another")
        if not overwrite:
            raise CorpusError(f"{out} already holds a corpus; choose another folder, or allow overwriting it")
        for path in sorted(out.rglob("*")):
            name = path.relative_to(out).as_posix()
            if path.is_symlink() or not (path.is_dir() or _OWN_FILE.fullmatch(name)):
                raise CorpusError(f"{path} is not of generated scenes and would be lost; move it away")


def _clear(folder: Path) -> None:
    """Remove what killed drawings of this corpus left beside it, and put back a corpus that was being replaced."""
    temporary = re.compile(re.escape(f".{folder.name}.") + r"[a-z0-9_]{8}\.partial")
    for beside in [path for path in folder.parent.iterdir() if temporary.fullmatch(path.name)]:
        paths = {path.relative_to(beside).as_posix(): path for path in beside.rglob("*")}
        if any(path.is_symlink() for path in (beside, *paths.values())) or not all(
            path.is_dir() or _LEFT_OVER.fullmatch(name) for name, path in paths.items()
        ):
            continue  # someone else's
        if "old" in paths and not folder.exists():
            (beside / "old").replace(folder)
        shutil.rmtree(beside, ignore_errors=True)


def _move(new: Path, folder: Path, old: Path) -> None:
    """Rename `new` to `folder`. The previous folder becomes `old`, and is restored if that fails."""
    if folder.exists():
        folder.replace(old)
    try:
        new.replace(folder)
    except OSError:
        if old.exists():
            old.replace(folder)
        raise


def _write(
    folder: Path,
    sizes: dict[str, int],
    seed: int,
    size: int,
    workers: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    (folder / "images").mkdir(parents=True)
    images: list[Image] = []
    texts: list[Text] = []
    seen: set[Scene] = set()
    orders = [
        _Order(folder, seed, key, index, size, scene, kin)
        for key, split in enumerate(SPLITS)
        for index, (scene, kin) in enumerate(scenes(seed, key, sizes[split], seen))
    ]
    with ProcessPoolExecutor(workers, get_context("spawn")) if workers > 1 else nullcontext() as pool:
        for image, own in map(_draw, orders) if pool is None else pool.map(_draw, orders, chunksize=50):
            images.append(image)
            texts += own
            if progress is not None:
                progress(len(images), len(orders))
    ids = [image.id for image in images]
    splits = {split: [id_ for id_ in ids if id_.startswith(f"{split}-")] for split in reversed(SPLITS) if sizes[split]}
    note = f"generated: seed {seed}, {size} x {size} pixels"
    Corpus("scenes", images, texts, splits, root=folder, notes=[note]).save(folder)


@dataclass(frozen=True)
class _Order:
    """What a process needs to draw a scene."""

    folder: Path
    seed: int
    split: int
    index: int
    size: int
    scene: Scene
    kin: int


def _draw(order: _Order) -> tuple[Image, list[Text]]:
    rng, split = generator(order.seed, SCENES, order.split, order.index), SPLITS[order.split]
    id_ = f"{split}-{order.index:05d}"
    drawing = draw(order.scene, rng, order.size)
    path = f"images/{id_}.png"
    PILImage.fromarray(drawing.pixels).save(order.folder / path, format="PNG")
    image = Image(id_, id_, path, _extra(order.scene, drawing, f"{split}-{order.kin}"))
    return image, [Text(f"{id_}#{n}", id_, text, id_) for n, text in enumerate(captions(order.scene, rng))]


def scenes(seed: int, split: int, count: int, seen: set[Scene]) -> Iterator[tuple[Scene, int]]:
    """`count` scenes with the number of their family, none of them in `seen`, to which they are added."""
    done = number = 0
    while done < count:
        for scene in family(generator(seed, FAMILIES, split, number)):
            if scene not in seen and done < count:
                seen.add(scene)
                done += 1
                yield scene, number
        number += 1


def _extra(scene: Scene, drawing: Drawing, kin: str) -> dict[str, Any]:
    objects = [
        {
            "label": scene.groups[thing.group].shape,
            "box": [round(edge, 4) for edge in box],
            "colour": scene.groups[thing.group].colour,
            "size": scene.groups[thing.group].size,
            "texture": scene.groups[thing.group].texture,
        }
        for thing, box in zip(drawing.things, drawing.boxes, strict=True)
    ]
    return {"objects": objects, "background": scene.background, "family": kin}
