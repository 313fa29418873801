"""The folder of an index.

index.json        what the index is now; replaced last, so that a kill at any moment leaves the old index serving
generation-N/     items.sqlite, and the store of each kind where the store is a folder of ours
segments/         the codes (see `quintet.search.segments`); generations share them
runs/, towers/    the weights of the runs and of the image towers they see through: the index needs nothing else
images/         images that were in tar shards, unpacked
lock              held while the index is written; readers never wait. It says whose it is, and the index's name in
                  engines

Other files in it are somebody else's (see `quintet.search.ownership`).
"""

from __future__ import annotations

import json
import secrets
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import quintet
from quintet.errors import QuintetError
from quintet.files import read_json, write_json
from quintet.runs.run_folder import FORMAT as RUN_FORMAT
from quintet.runs.run_folder import locate, read_head
from quintet.search.errors import SearchError, StaleIndex

if TYPE_CHECKING:
    from quintet.runs.run import Run

FORMAT, VERSION = "quintet-index", 2
RootKind = Literal["folder", "corpus", "shards"]


@dataclass(frozen=True)
class Root:
    """A folder that was indexed: no image outside of one is ever given out."""

    kind: RootKind
    path: str  # absolute


@dataclass(frozen=True)
class IndexRun:
    name: str
    model: str
    weights: str  # checksum; also the name of its folder under runs/


@dataclass(frozen=True)
class SegmentRows:
    name: str
    rows: int


@dataclass(frozen=True)
class Manifest:
    generation: int
    encoder: str  # fingerprint of runs, towers and precision
    precision: str  # of stored fragments
    runs: tuple[IndexRun, ...]
    first: tuple[int, ...]  # which runs' embeddings choose candidates; none: every item is scored
    rerank: tuple[int, ...]  # which runs' whole scores put them in order, as a mean; none: nothing re-ranks
    dim: int  # of the first stage
    store: str  # an address; one without a place, such as "exact", is in the generation's folder
    segments: dict[str, tuple[SegmentRows, ...]]
    counts: dict[str, int]
    roots: tuple[Root, ...]
    texts: str | None = None  # where indexed texts came from
    made: dict[str, Any] = field(default_factory=dict)  # command, time and versions

    def folder(self, index: Path) -> Path:
        return index / f"generation-{self.generation}"

    def write(self, index: Path) -> None:
        head = {"format": FORMAT, "version": VERSION, "quintet": quintet.__version__}
        write_json(index / "index.json", head | asdict(self))

    @staticmethod
    def read(index: Path) -> Manifest:
        path = index / "index.json"
        if not path.is_file():
            raise SearchError(
                f"{index} is not an index, or its first build has not finished (no index.json); "
                f"`quintet index RUN IMAGES -o {index}` makes or finishes it"
            )
        try:
            head = read_json(path)
        except QuintetError as error:
            raise StaleIndex(f"{error}; build the index again") from None
        if not isinstance(head, dict) or head.get("format") != FORMAT:
            raise StaleIndex(f"{path} does not belong to a Quintet index")
        if head.get("version") != VERSION:
            raise StaleIndex(
                f"index {index} has version {head.get('version')} (of Quintet {head.get('quintet', '?')}); Quintet "
                f"{quintet.__version__} reads version {VERSION}: use the Quintet it was made with, or build it again "
                "with --overwrite"
            )
        try:
            return _from_json(head)
        except (KeyError, TypeError, AttributeError) as error:
            raise StaleIndex(f"{path} is damaged ({error!r}); build the index again with --overwrite") from None


def _from_json(head: dict[str, Any]) -> Manifest:
    values = {key: value for key, value in head.items() if key not in ("format", "version", "quintet")}
    values["runs"] = tuple(IndexRun(**run) for run in values["runs"])
    values["roots"] = tuple(Root(**root) for root in values["roots"])
    values["segments"] = {
        kind: tuple(SegmentRows(**segment) for segment in segments) for kind, segments in values["segments"].items()
    }
    values |= {key: tuple(values[key]) for key in ("first", "rerank")}
    return Manifest(**values)


def next_generation(index: Path) -> int:
    """A number that no generation has had, whatever became of it."""
    folders = [
        int(name) for folder in index.glob("generation-*") if (name := folder.name.partition("-")[2]).isdecimal()
    ]
    try:
        return max([*folders, Manifest.read(index).generation]) + 1
    except SearchError:
        return max(folders, default=0) + 1


def keep_run(index: Path, run: Run, source: Path) -> None:
    """Copy what searching needs of a run into the index. `source`: the path it was opened by."""
    place = index / "runs" / run.weights_checksum
    if (place / "images.json").is_file():
        return
    folder, stage = locate(source)
    weights = folder / "weights.safetensors" if stage is None else folder / "stages" / stage / "selected.safetensors"
    partial = place.with_name(f".{place.name}.{secrets.token_hex(4)}.partial")
    try:
        partial.mkdir(parents=True)
        for name in ("model.json", "tokenizer.json"):
            shutil.copyfile(folder / name, partial / name)
        shutil.copyfile(weights, partial / "weights.safetensors")
    except OSError as error:
        raise SearchError(f"could not copy run {folder} into {index}: {error.strerror or error}") from error
    # Without paths of the machine it was trained on: an index may be given away.
    head = read_head(folder)
    write_json(partial / "run.json", head | {"format": RUN_FORMAT, "status": "complete", "corpus": None})
    tower = run.image_input.get("tower")
    images = run.image_input | ({"tower": tower | {"weights": None}} if tower else {})
    write_json(partial / "images.json", images)
    try:
        partial.rename(place)
    except OSError as error:
        raise SearchError(
            f"could not put run {folder} at {place}: {error.strerror or error}; move away what is there"
        ) from error


def describe_run(run: Run) -> IndexRun:
    model = json.loads((run.folder / "model.json").read_text(encoding="utf-8"))
    return IndexRun(run.name, str(model["name"]), run.weights_checksum)
