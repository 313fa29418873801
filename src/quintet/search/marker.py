"""index.json: marks a folder as an index, and says its format. Reading it needs no torch."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import quintet
from quintet.errors import QuintetError
from quintet.files import read_json, write_json
from quintet.search.errors import SearchError, StaleIndex

FORMAT, VERSION = "quintet-index", 3


def write_marker(index: Path) -> None:
    """Unless it is there."""
    path, head = index / "index.json", {"format": FORMAT, "version": VERSION, "quintet": quintet.__version__}
    if not path.is_file() or read_json(path) != head:
        write_json(path, head)


def check_marker(index: Path) -> None:
    """Raise unless the folder is an index of this format."""
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
    version = head.get("version")
    if version != VERSION:
        older = isinstance(version, int) and version < VERSION
        raise StaleIndex(
            f"index {index} has format {version} (of Quintet {head.get('quintet', '?')}), and Quintet "
            f"{quintet.__version__} reads format {VERSION}; "
            + (f"build it again with: {_command(index, head)}" if older else "update Quintet to use it")
        )


def _command(index: Path, head: Mapping[str, Any]) -> str:
    """How an index of an older format is built again: of the runs that are in it, from the same sources."""
    runs = [str(index / "runs" / run["weights"]) for run in _listed(head, "runs") if "weights" in run] or ["RUN"]
    own = [number for number in head.get("first") or [0] if number < len(runs)] or [0]
    words = ["quintet", "index", runs[own[0]]]
    words += [root["path"] for root in _listed(head, "roots") if "path" in root] or ["IMAGES"]
    words += [word for number in own[1:] for word in ("--with", runs[number])]
    rerank = [number for number in range(len(runs)) if number not in own]
    words += [word for number in rerank for word in ("--rerank-with", runs[number])]
    words += ["--texts", head["texts"]] if head.get("texts") else []
    return shlex.join([*words, "-o", str(index), "--overwrite"])


def _listed(head: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    value = head.get(name)
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
