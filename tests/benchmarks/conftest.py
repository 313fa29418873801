"""The scripts under benchmarks/ as modules, and a grid that trains in a second."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Import a script by its name, from whichever folder of benchmarks/ it is in."""
    monkeypatch.syspath_prepend(ROOT)

    def load(name: str) -> ModuleType:
        (path,) = (ROOT / "benchmarks").glob(f"*/{name}.py")
        return importlib.import_module(f"benchmarks.{path.parent.name}.{name}")

    return load


@pytest.fixture
def toy(script: Any, tmp_path: Path, tiny_corpus: Path, tiny_recipe: dict[str, Any]) -> SimpleNamespace:
    """Two methods, one of them with AOQ's losses, and two ensembles, on the tiny corpus."""
    grids, row = script("rows"), script("flickr8k_row")
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(yaml.safe_dump(tiny_recipe), encoding="utf-8")
    short = ("stages.*.epochs=1",)
    methods = (
        grids.Method("one", "One", str(recipe), short, "aoq", series=()),
        grids.Method("two", "Two", str(recipe), ("matcher.pooling=max", *short), series=()),
    )
    ensembles = (
        grids.Ensemble("both", "One + Two", ("one-online", "two"), series=()),
        grids.Ensemble("one", "One, two seeds", ("one",), "aoq", series=(), next_seed=True),
    )
    rows = grids.rows(methods, ensembles, (0, 1))
    setup = row.Setup(tiny_corpus, tmp_path / "runs", tmp_path / "results", "cpu", bootstrap=20)
    return SimpleNamespace(methods=methods, ensembles=ensembles, rows=rows, setup=setup, grids=grids, row=row)
