"""The notebooks: executed, small, and of names that exist; slow: they run again without an error."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

import quintet

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


def code_cells(path: Path) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def program(path: Path) -> ast.Module:
    """Its Python; what a cell writes to a Python file is part of it."""
    sources = ["".join(cell["source"]) for cell in code_cells(path)]
    python = [text for text in sources if not re.match(r"%%writefile \S+\.yaml", text)]
    return ast.parse("\n".join(re.sub(r"^%%writefile .*\n", "", text) for text in python))


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["add-a-method", "search", "train-and-compare"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_executed_without_an_error_and_small(path: Path) -> None:
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert outputs
    assert not [output for output in outputs if output["output_type"] == "error"]
    streams = [[output["name"] for output in cell["outputs"] if "name" in output] for cell in cells]
    assert [names for names in streams if len(names) > len(set(names))] == [], "what a cell prints is in pieces"
    assert path.stat().st_size < 1_000_000
    text = json.dumps([output.get("text", "") for output in outputs])
    assert not re.search(r"/(?:root|home|tmp|Users)/", text), "an output names a folder of one machine"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_names_and_options_that_a_notebook_uses_exist(path: Path) -> None:
    used = set()
    for node in ast.walk(program(path)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("quintet"):
            module = importlib.import_module(node.module)
            assert all(hasattr(module, name.name) for name in node.names), ast.unparse(node)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "quintet":
            assert node.attr in quintet.__all__, node.attr
            used.add(node.attr)
        if isinstance(node, ast.Call) and re.fullmatch(r"quintet\.\w+", name := ast.unparse(node.func)):
            function = getattr(quintet, name.removeprefix("quintet."))
            parameters = inspect.signature(function).parameters
            options = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
            unknown = [keyword.arg for keyword in node.keywords if keyword.arg not in parameters]
            assert options or not unknown, ast.unparse(node)
    assert {"import_corpus", "train", "evaluate"} <= used


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nbclient")
    from tools.notebooks import execute

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    cells = [cell for cell in execute(path).cells if cell.cell_type == "code"]
    before = [[output["output_type"] for output in cell["outputs"]] for cell in code_cells(path)]
    assert [[output["output_type"] for output in cell.outputs] for cell in cells] == before
