"""Training a small recipe loads only the modules that it uses: whoever follows the walk reads no more files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

MODULES = 57  # the number in docs/architecture.md
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
    assert len(loaded) <= MODULES, " ".join(sorted(loaded))
    unused = ("report", "studies", "search", "serve", "mining", "features")
    assert not [name for name in loaded if name.split(".")[1] in unused]
    # No cross-attention for a dot product, no image tower for features, no bootstrap for validation.
    assert not loaded & {
        "quintet.scores.cross_attention",
        "quintet.backbones.resnet",
        "quintet.backbones.extractor",
        "quintet.evaluation.evaluator",
    }


def test_the_architecture_page_has_the_number() -> None:
    page = Path(__file__).parents[2] / "docs" / "architecture.md"
    assert f"loads {MODULES} modules" in page.read_text()
