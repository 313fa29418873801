"""Training a small recipe loads only the modules that it uses: whoever follows the walk reads no more files."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

MODULES = 58  # the number in docs/architecture.md
COMMAND = {"quintet.cli.main", "quintet.cli.options", "quintet.cli.progress", "quintet.cli.train"}
TRAIN = """
import json, sys
from quintet.cli.main import app
try:
    app(sys.argv[1:])
except SystemExit as end:
    if end.code:
        raise
ours = {name: module for name, module in sys.modules.items() if name.startswith("quintet.")}
print(json.dumps([name for name, module in ours.items() if not hasattr(module, "__path__")]))
"""


@pytest.fixture
def loaded(tiny_recipe: dict[str, Any], tmp_path: Path) -> set[str]:
    """The modules that a whole `quintet train` loads, without packages and without the files of other commands."""
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(yaml.safe_dump(tiny_recipe))
    arguments = ["train", str(recipe), "--out", str(tmp_path / "run"), "--device", "cpu"]
    done = subprocess.run([sys.executable, "-c", TRAIN, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "weights.safetensors").is_file()
    files = json.loads(done.stdout.splitlines()[-1])
    return {name for name in files if not name.startswith("quintet.cli.") or name in COMMAND}


def test_training_loads_only_what_the_recipe_uses(loaded: set[str]) -> None:
    assert {"quintet.training.loop", "quintet.models.vse", "quintet.losses.triplet"} <= loaded
    assert len(loaded) == MODULES, " ".join(sorted(loaded))
    unused = ("report", "studies", "search", "serve", "mining", "features")
    assert not [name for name in loaded if name.split(".")[1] in unused]
    # No cross-attention for a dot product, no image tower for features, no bootstrap for validation.
    assert not loaded & {
        "quintet.scores.cross_attention",
        "quintet.backbones.resnet",
        "quintet.backbones.extractor",
        "quintet.evaluation.evaluator",
    }


ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"


def test_the_architecture_page_has_the_number() -> None:
    assert f"loads {MODULES} modules" in PAGE.read_text()


def test_the_architecture_page_has_the_size() -> None:
    """Within a tenth: it need not change with every commit."""
    sources = [path.read_text() for path in (ROOT / "src" / "quintet").rglob("*.py")]
    modules = sum(bool(source.strip()) for source in sources)
    lines = sum(len(source.splitlines()) for source in sources)
    code = sum(map(lines_of_code, sources))
    found = re.search(
        r"has (\d+) modules with ([\d,]+) lines, ([\d,]+) of them", (ROOT / "docs/architecture.md").read_text()
    )
    assert found is not None
    written = [int(number.replace(",", "")) for number in found.groups()]
    assert written == pytest.approx([modules, lines, code], rel=0.1), (modules, lines, code)


def lines_of_code(source: str) -> int:
    """Without blank lines, comments and docstrings."""
    docstrings = set[int]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node
        ):
            docstrings.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    numbered = enumerate(map(str.strip, source.splitlines()), 1)
    return sum(bool(line) and not line.startswith("#") and number not in docstrings for number, line in numbered)
