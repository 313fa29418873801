"""The scripts under benchmarks/ as modules, and a grid that trains in a second."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a script by its name."""
    monkeypatch.syspath_prepend(BENCHMARKS)

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


@pytest.fixture
def toy(script: Any, tmp_path: Path, tiny_corpus: Path, tiny_recipe: dict[str, Any]) -> SimpleNamespace:
    """Two methods, one of them with AOQ's losses, and two ensembles, on the tiny corpus."""
    grid, row = script("flickr8k_grid"), script("flickr8k_row")
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(yaml.safe_dump(tiny_recipe), encoding="utf-8")
    short = ("stages.*.epochs=1",)
    methods = (
        grid.Method("one", "One", str(recipe), short, "aoq", series=()),
        grid.Method("two", "Two", str(recipe), ("matcher.pooling=max", *short), series=()),
    )
    ensembles = (
        grid.Ensemble("both", "One + Two", ("one-online", "two"), series=()),
        grid.Ensemble("one", "One, two seeds", ("one",), "aoq", series=(), next_seed=True),
    )
    rows = grid.rows(methods, ensembles, (0, 1))
    place = row.Place(tiny_corpus, tmp_path / "runs", tmp_path / "results", "cpu", bootstrap=20)
    return SimpleNamespace(methods=methods, ensembles=ensembles, rows=rows, place=place, grid=grid, row=row)
