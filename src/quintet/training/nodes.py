"""Training on several computers (nodes): what must be the same on all of them, and their copies of the run folder.

The first process writes the run folder. Where the other nodes do not see it, they get a copy of its files when the run
starts, after every stage, at the end, and when it is resumed.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import quintet
from quintet import distributed
from quintet.errors import CorpusError, RecipeError
from quintet.files import atomic_write, file_checksum
from quintet.runs.run_folder import RUN_FILES, STAGE_FILES
from quintet.training.inputs import TrainingData
from quintet.training.recipe_models import Recipe

CHUNK = 64 << 20  # bytes of a file that are sent at a time


def check_same(recipe: Recipe, data: TrainingData) -> None:
    """Raise in all processes unless all of them have the same versions, recipe and data."""
    store = None if data.store is None else file_checksum(data.store.folder / "manifest.json")
    facts: dict[str, Any] = {
        "version of Quintet": quintet.__version__,
        "version of torch": torch.__version__,
        "recipe": recipe.model_dump_json(exclude={"data": {"corpus"}}),
        **{f"{name} split (ids, groups)": found for name, found in data.checksums().items()},
        "image features": store,
    }
    everywhere = distributed.gather_objects((socket.gethostname(), facts))
    first, expected = everywhere[0]
    for rank, (host, found) in enumerate(everywhere):
        other = [name for name, value in found.items() if value != expected[name]]
        if other:
            raise CorpusError(
                f"process {rank} on {host} has another {', '.join(other)} than process 0 on {first}; copy "
                f"the corpus folder {data.corpus.root} from one node to all, features too, and start again"
            )


def require_one_folder(recipe: Recipe, out: Path) -> None:
    """Raise where a stage reads what other processes write into the run folder, and not all nodes see one folder."""
    if distributed.world_size() == 1:
        return
    marker = out / f".node-{distributed.from_main(secrets.token_hex(8))}"
    if distributed.is_main():
        marker.touch()
    distributed.barrier()
    shared = all(distributed.gather_objects(marker.exists()))
    if distributed.is_main():
        marker.unlink()
    for stage in [] if shared else recipe.stages:
        categories = any(isinstance(loss, dict) and loss.get("categories") for loss in stage.loss.values())
        if stage.negatives is not None or stage.batches.kind == "neighbours" or categories:
            raise RecipeError(
                f"stage {stage.name!r} reads from the run folder what other processes write there (mined negatives, "
                f"clusters), and not all nodes see the same {out}; put the run on a disk that all nodes share"
            )


def copy_from_first(out: Path) -> None:
    """Make the files of the run on this node those of the first; nothing is sent where all nodes see one folder."""
    if distributed.world_size() == 1:
        return
    files = distributed.from_main({name: file_checksum(out / name) for name in _files(out)})
    lacks: list[str] = []
    if not distributed.is_main() and int(os.environ.get("LOCAL_RANK", "0")) == 0:
        for name in set(_files(out)) - set(files):
            (out / name).unlink(missing_ok=True)
        there = {name: file_checksum(out / name) for name in _files(out)}
        lacks = [name for name, checksum in files.items() if there.get(name) != checksum]
    for name in sorted(set().union(*distributed.gather_objects(lacks))):
        _send(out / name, wanted=name in lacks)
    distributed.barrier()


def _files(out: Path) -> list[str]:
    """What a run is made of, without the logs, run.json last."""
    stages = [name for name in STAGE_FILES if name != "log.jsonl"]
    found = [path for name in stages for path in sorted(out.glob(f"stages/*/{name}"))]
    found += [out / name for name in RUN_FILES if (out / name).is_file()]
    return [str(path.relative_to(out)) for path in found]


def _send(path: Path, wanted: bool) -> None:
    if not wanted:
        for _ in _chunks(path):
            pass
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        for chunk in _chunks(path):
            file.write(chunk)


def _chunks(path: Path) -> Iterator[bytes]:
    """The content of the first process's file, in all processes."""
    file = path.open("rb") if distributed.is_main() else None
    try:
        while chunk := distributed.from_main(b"" if file is None else file.read(CHUNK)):
            yield chunk
    finally:
        if file is not None:
            file.close()
