"""The folder of an index.

index.json      marks the folder as an index, and says its format
items.sqlite    what the index is: the manifest, the items, which content has which row (see `items.py`)
vectors/        the codes, each once, in append-only files (see `vectors.py`), and FAISS's index where there are many
runs/, towers/  the weights of the runs and of their image towers: the index needs nothing else
images/         images that were in shards, unpacked
lock            while the index is written; readers never wait

A build is a transaction on items.sqlite: a kill leaves the last commit. Other files in the folder are somebody else's
(see `ownership.py`).
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import quintet
from quintet.errors import QuintetError
from quintet.files import UNFINISHED, check_shape, file_checksum, header_format, read_json, write_json
from quintet.search import SearchError, StaleIndex
from quintet.search.items import KINDS, ItemDatabase

FORMAT, VERSION = "quintet-index", 4
UNPACKED = ".quintet-unpacked"  # until a build is finished: what is in the shards that it has unpacked
CHECKSUM = re.compile(r"[0-9a-f]{64}")
RUN_FILES = ("model.json", "tokenizer.json", "run.json", "images.json", "weights.safetensors")
TOWER_FILES = ("tower.safetensors", "config.json", "preprocessor_config.json")
# What an index keeps of a run or a tower, in a folder named by a checksum.
KEPT_FILE = re.compile(rf"runs/[0-9a-f]{{64}}/({'|'.join(RUN_FILES)})|towers/[0-9a-f]{{64}}/({'|'.join(TOWER_FILES)})")

RootKind = Literal["folder", "corpus", "shards"]


@dataclass(frozen=True)
class Root:
    """A folder that was indexed: no image outside of one is ever given out."""

    kind: RootKind
    path: str  # absolute, as `path_text` writes it


# A byte of a name that is not UTF-8 (Python has half a surrogate for it), and what would look like its escape.
_NO_TEXT = re.compile(r"[\ud800-\udfff\0]|\\(?=x[0-9a-f]{2})")


def path_text(path: Path | str) -> str:
    r"""A path as a text that every database and page can hold; `text_path` gives it back.

    >>> path_text(os.fsdecode(b"caf\xe9.jpg")), path_text("café.jpg"), path_text(r"a\xff.jpg")
    ('caf\\xe9.jpg', 'café.jpg', 'a\\x5cxff.jpg')
    """
    return _NO_TEXT.sub(lambda found: f"\\x{ord(found[0]) & 0xFF:02x}", os.fspath(path))


def text_path(text: str) -> str:
    if "\\" not in text:
        return text
    return re.sub(r"\\x([0-9a-f]{2})", lambda found: os.fsdecode(bytes.fromhex(found[1])), text)


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
    faiss: dict[str, dict[str, str | int]]  # kind -> FAISS's index of it, where there is one (see `vector_search.py`)
    counts: dict[str, int]
    roots: tuple[Root, ...]
    kept: dict[str, str] = field(default_factory=dict)  # checksums of the files in runs/ and towers/
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
            found = check_shape(head, Manifest, str(database.path))
        except QuintetError as error:
            raise StaleIndex(f"{error}: it is damaged; build the index again with --overwrite") from None
        names = [*found.kept, *(str(notes.get("file")) for notes in found.faiss.values())]
        if not (
            found.runs
            and all(CHECKSUM.fullmatch(run.weights) for run in found.runs)
            and all(0 <= number < len(found.runs) for number in (*found.first, *found.rerank))
            and set(found.counts) == {*KINDS}
            and all(kind in found.files for kind in KINDS if found.counts[kind])
            and not any(Path(name).is_absolute() or ".." in Path(name).parts for name in names)
        ):
            raise StaleIndex(f"the manifest in {database.path} is damaged; build the index again with --overwrite")
        return found

    def put(self, database: ItemDatabase) -> None:
        """Inside of a transaction."""
        database.set_head("manifest", asdict(self))


# index.json; reading it needs no torch


def marker(*, unfinished: bool = False) -> dict[str, Any]:
    return {"format": FORMAT + UNFINISHED * unfinished, "version": VERSION, "quintet": quintet.__version__}


def write_marker(index: Path, *, unfinished: bool = False) -> None:
    """Unless it is there."""
    head = marker(unfinished=unfinished)
    if not (index / "index.json").is_file() or read_json(index / "index.json") != head:
        write_json(index / "index.json", head)


def check_marker(index: Path) -> None:
    """Raise unless the folder is an index of this format."""
    path = index / "index.json"
    if not path.is_file() or header_format(path) == FORMAT + UNFINISHED:
        raise SearchError(
            f"{index} is not an index, or its first build has not finished; "
            f"`quintet index RUN IMAGES -o {index}` makes or finishes it"
        )
    try:
        head = read_json(path)
    except QuintetError as error:
        raise StaleIndex(f"{error}; build the index again") from None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise StaleIndex(f"{path} does not belong to a Quintet index")
    version = head.get("version")
    if version != VERSION:
        older = isinstance(version, int) and version < VERSION
        raise StaleIndex(
            f"index {index} has format {version} (of Quintet {head.get('quintet', '?')}), and Quintet "
            f"{quintet.__version__} reads format {VERSION}; "
            + (f"build a new one with: {_command(index, head)}" if older else "update Quintet to use it")
        )


def check_kept(index: Path, manifest: Manifest) -> None:
    """Raise unless what describes the index's runs is as it was written. Weights are compared when they are read."""
    for name, checksum in manifest.kept.items():
        if name.endswith(".json") and file_checksum(index / name) != checksum:
            raise StaleIndex(f"{index / name} is damaged; build the index again")


def _command(index: Path, head: Mapping[str, Any]) -> str:
    """How an index of an older format is built again: of the runs that are in it, from the same sources."""
    with suppress(SearchError, ValueError), closing(ItemDatabase.open_snapshot(index / "items.sqlite")) as old:
        ((manifest,),) = old.query("SELECT value FROM head WHERE name = 'manifest'")  # of format 3
        head = {**head, **json.loads(manifest)}
    runs = [str(index / "runs" / run["weights"]) for run in _listed(head, "runs") if "weights" in run] or ["RUN"]
    own = [number for number in head.get("first") or [0] if number < len(runs)] or [0]
    words = ["quintet", "index", runs[own[0]]]
    words += [root["path"] for root in _listed(head, "roots") if "path" in root] or ["IMAGES"]
    words += [word for number in own[1:] for word in ("--with", runs[number])]
    rerank = [number for number in range(len(runs)) if number not in own]
    words += [word for number in rerank for word in ("--rerank-with", runs[number])]
    words += ["--texts", head["texts"]] if head.get("texts") else []
    return shlex.join([*words, "-o", f"{index}-new"])


def _listed(head: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    value = head.get(name)
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
