"""The runs that come with Quintet: names that stand wherever the path of a run may stand."""

from __future__ import annotations

from importlib import resources
from pathlib import Path


def shipped_runs() -> dict[str, Path]:
    """Name -> folder. Beside the weights lies a model card: data, results, limits."""
    folder = Path(str(resources.files("quintet") / "pretrained"))
    return {path.parent.name: path.parent for path in sorted(folder.glob("*/run.json"))}
