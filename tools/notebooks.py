"""`make notebooks`: runs the notebooks of docs/notebooks and keeps their outputs.

    python -m tools.notebooks [NAME ...]

They need no network: the corpus is generated. A notebook that raises an error is left as it was.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parents[1] / "docs/notebooks"


def execute(path: Path, timeout: int = 1800) -> nbformat.NotebookNode:
    """The notebook with new outputs, and without anything that depends on the machine or on the time."""
    notebook = nbformat.read(path, as_version=4)
    options: dict[str, Any] = {"timeout": timeout, "kernel_name": "python3"}
    options |= {"resources": {"metadata": {"path": "."}}, "coalesce_streams": True}  # what a cell prints is one output
    NotebookClient(notebook, **options).execute()
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
        for output in cell.get("outputs", []):
            output.get("data", {}).pop("text/html", None)  # rich writes its tables twice
    return notebook


if __name__ == "__main__":
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if len(sys.argv) == 1 or path.stem in sys.argv[1:]:
            nbformat.write(execute(path), path)
            print(f"{path.name}: {path.stat().st_size:,} bytes")
