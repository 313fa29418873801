"""The folder of an index.

index.json      marks the folder as an index, and says its format
items.sqlite    what the index is: the manifest, the items, which content has which row (see `items.py`)
vectors/        the codes, each once, in append-only files (see `vectors.py`), and FAISS's index where there are many
runs/, towers/  the weights of the runs and of their image towers: the index needs nothing else
images/         images that were in tar shards, unpacked
lock            held while the index is written; readers never wait. It says whose it is, and the index's name in
                engines

A build is a transaction on items.sqlite: a kill leaves the last commit. Other files in the folder are somebody else's
(see `ownership.py`).
"""

from __future__ import annotations

import secrets
import shutil
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintet.backbones.create import FAMILIES, create_tower
from quintet.files import write_json
from quintet.runs.checkpoint import save_tensors
from quintet.runs.run_folder import FORMAT as RUN_FORMAT
from quintet.runs.run_folder import file_checksum, read_head
from quintet.search.errors import SearchError, StaleIndex
from quintet.search.items import ItemDatabase
from quintet.search.marker import check_marker
from quintet.search.sources import Root

if TYPE_CHECKING:
    from quintet.runs.run import Run


@dataclass(frozen=True)
class IndexRun:
    name: str
    model: str
    weights: str  # checksum; also the name of its folder under runs/


@dataclass(frozen=True)
class Manifest:
    """What an index is; a value in its database, changed by the same transaction as the items."""

    generation: int
    encoder: str  # fingerprint of runs, towers and precision
    precision: str  # of stored fragments
    runs: tuple[IndexRun, ...]
    first: tuple[int, ...]  # which runs' embeddings choose candidates; none: every item is scored
    rerank: tuple[int, ...]  # which runs' whole scores put them in order, as a mean; none: nothing re-ranks
    dim: int  # of the first stage
    store: str  # "exact", "faiss" (in the index itself), or the address of an engine
    files: dict[str, str]  # kind -> the set of files that holds its codes
    faiss: dict[str, dict[str, Any]]  # kind -> FAISS's index of it, where there is one (see `stores/local.py`)
    counts: dict[str, int]
    roots: tuple[Root, ...]
    texts: str | None = None  # where indexed texts came from
    made: dict[str, Any] = field(default_factory=dict)  # command, time and versions

    @staticmethod
    def read(index: Path) -> Manifest:
        """Of the last build that was finished."""
        check_marker(index)
        with closing(ItemDatabase.open_snapshot(index / "items.sqlite")) as database:
            return Manifest.of(database)

    @staticmethod
    def of(database: ItemDatabase) -> Manifest:
        head = database.head("manifest")
        if head is None:
            raise StaleIndex(f"{database.path} holds no finished build; build the index again")
        try:
            values = dict(head)
            values["runs"] = tuple(IndexRun(**run) for run in values["runs"])
            values["roots"] = tuple(Root(**root) for root in values["roots"])
            values |= {key: tuple(values[key]) for key in ("first", "rerank")}
            return Manifest(**values)
        except (KeyError, TypeError, AttributeError) as error:
            raise StaleIndex(
                f"{database.path} is damaged ({error!r}); build the index again with --overwrite"
            ) from None

    def put(self, database: ItemDatabase) -> None:
        """Inside of a transaction."""
        database.set_head("manifest", asdict(self))


# The runs and towers that an index keeps


def keep_run(index: Path, run: Run) -> None:
    """Copy what searching needs of a run into the index."""
    kept = index / "runs" / run.weights_checksum
    if (kept / "images.json").is_file():
        return
    folder = run.folder
    files = [folder / "weights.safetensors", *folder.glob("stages/*/selected.safetensors")]
    weights = next((file for file in files if file.is_file() and file_checksum(file) == run.weights_checksum), None)
    if weights is None:
        raise SearchError(f"the weights of run {folder} have changed since it was opened; open it again")
    partial = kept.with_name(f".{kept.name}.{secrets.token_hex(4)}.partial")
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
        partial.rename(kept)
    except OSError as error:
        raise SearchError(
            f"could not put run {folder} at {kept}: {error.strerror or error}; move away what is there"
        ) from error


def describe_run(run: Run) -> IndexRun:
    return IndexRun(run.name, str(run.model["name"]), run.weights_checksum)


def keep_tower(folder: Path, state: dict[str, Any] | None) -> None:
    """Write a tower's weights under `folder`, unless they are there, or it is not known which tower it was.

    `state`: as `FeatureExtractor.state` gives it.
    """
    if not state or "checksum" not in state:
        return
    kept = folder / str(state["checksum"])
    if (kept / "tower.safetensors").is_file():
        return
    name = str(state["name"])
    tower = create_tower(name, state["weights"])
    if name.startswith("hf:"):
        _keep_description(kept, name.removeprefix("hf:"))
    family = any(name.startswith(prefix) for prefix in FAMILIES)
    model: Any = tower.model if family else tower
    save_tensors(kept / "tower.safetensors", model.state_dict(), {"tower": name})


def kept_tower(folder: Path, state: dict[str, Any]) -> tuple[dict[str, Any], Path]:
    """What `FeatureExtractor.from_state` takes to make the tower from the index's own files."""
    kept = folder / str(state.get("checksum"))
    weights = kept / "tower.safetensors"
    if not weights.is_file():
        raise StaleIndex(f"{weights} is missing, the weights of the image tower; build the index again")
    name = str(state["name"])
    return state | {"name": f"hf:{kept}" if name.startswith("hf:") else name}, weights


def _keep_description(kept: Path, name: str) -> None:
    """What transformers needs besides the weights: the shape of the model, and how it wants its images."""
    from transformers import AutoConfig
    from transformers.image_processing_base import ImageProcessingMixin

    source = str(Path(name).expanduser()) if Path(name).expanduser().is_dir() else name
    AutoConfig.from_pretrained(source).save_pretrained(kept)
    write_json(kept / "preprocessor_config.json", ImageProcessingMixin.get_image_processor_dict(source)[0])
