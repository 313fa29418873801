"""Writing a run folder: what is known before the first step, then the weights. `run_folder` describes the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

import quintet
from quintet.data.tokenizers import Tokenizer
from quintet.errors import RunError
from quintet.files import read_json, write_json
from quintet.runs.checkpoint import save_tensors
from quintet.runs.run_folder import FORMAT, VERSION


def start_run(
    folder: Path,
    *,
    name: str,
    model: dict[str, Any],
    tokenizer: Tokenizer | None,
    image_input: dict[str, Any],
    corpus: Path | None = None,
    splits: dict[str, str] | None = None,
) -> None:
    """Write what is known before the first step; `splits` are checksums of what it trains and selects on."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "model.json", model)
    write_json(folder / "images.json", image_input)
    if tokenizer is not None:
        write_json(folder / "tokenizer.json", tokenizer.state())
    _write_head(folder, name, "training", corpus, splits)


def finish_run(folder: Path, state_dict: dict[str, Tensor], facts: dict[str, Any] | None = None) -> None:
    """Write the final weights and mark the run complete, in this order."""
    head = read_json(folder / "run.json")
    save_tensors(folder / "weights.safetensors", state_dict, {"run": head["name"], "quintet": quintet.__version__})
    write_json(folder / "run.json", head | {"status": "complete"} | (facts or {}))


def write_run(
    folder: Path,
    *,
    name: str,
    model: dict[str, Any],
    state_dict: dict[str, Tensor],
    tokenizer: Tokenizer | None,
    image_input: dict[str, Any],
    facts: dict[str, Any] | None = None,
) -> None:
    """A complete run from weights that were trained elsewhere. `facts` are added to run.json (origin, notes)."""
    if (folder / "run.json").exists():
        raise RunError(f"{folder} is a run already; choose another folder or remove it first")
    start_run(folder, name=name, model=model, tokenizer=tokenizer, image_input=image_input)
    finish_run(folder, state_dict, facts)


def _write_head(folder: Path, name: str, status: str, corpus: Path | None, splits: dict[str, str] | None) -> None:
    head = {
        "format": FORMAT,
        "version": VERSION,
        "quintet": quintet.__version__,
        "name": name,
        "status": status,
        "corpus": None if corpus is None else str(corpus.resolve()),
        "splits": splits,
    }
    write_json(folder / "run.json", head)
