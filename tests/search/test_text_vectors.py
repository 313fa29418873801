"""Query texts without torch: equal vectors, and only where they can be equal."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from quintet.files import file_checksum, write_json
from quintet.models import create_model
from quintet.runs.checkpoint import save_tensors
from quintet.runs.run import load
from quintet.runs.run_folder import shipped_runs
from quintet.search.index_folder import IndexRun, Manifest
from quintet.search.indexing import build_index
from quintet.search.searcher import Searcher
from quintet.search.text_vectors import open_text_vectors

TEXTS = ["a dog in the snow", "two people, on a beach at night!", "xyzzy 1234", "cat " * 40]


def keep(index: Path, folder: Path) -> Manifest:
    """The run as an index keeps it."""
    weights = file_checksum(folder / "weights.safetensors")
    shutil.copytree(folder, index / "runs" / weights)
    run = IndexRun("small", "heads", weights)
    counts = {"image": 0, "text": 0}
    return Manifest(1, "", "float32", (run,), (0,), (), 0, "exact", {}, {}, counts, ())


def _random(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if name.endswith("running_var"):
        return torch.rand_like(tensor) + 0.5
    return 0.3 * torch.randn_like(tensor) if tensor.is_floating_point() else tensor


@pytest.mark.parametrize("with_classes", [True, False])
def test_vectors_are_those_of_torch(tmp_path: Path, with_classes: bool) -> None:
    folder = tmp_path / "run"
    shutil.copytree(shipped_runs()["quintet-small"], folder)
    if not with_classes:  # untrained, with statistics of its own, and a head of another width
        torch.manual_seed(0)
        arguments = {"vocabulary_size": 30522, "image_dim": 2560, "embed_dim": 24, "text_hidden": 40}
        matcher = create_model("heads", **arguments)
        state = {name: _random(name, tensor) for name, tensor in matcher.state_dict().items()}
        save_tensors(folder / "weights.safetensors", state, {})
        write_json(folder / "model.json", {"name": "heads", "arguments": arguments})
        (folder / "checksums.json").unlink()
    run = load(folder, device="cpu")
    texts = open_text_vectors(tmp_path, keep(tmp_path, folder), "auto")
    assert texts is not None
    found, expected = texts.vectors(TEXTS), run.encode_texts(TEXTS).embedding
    assert expected is not None
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected.numpy(), atol=2e-6)


def test_other_runs_and_devices_and_damaged_weights_are_left_to_torch(tmp_path: Path) -> None:
    manifest = keep(tmp_path, shipped_runs()["quintet-small"])
    assert open_text_vectors(tmp_path, manifest, "cuda") is None
    weights = manifest.runs[0].weights
    other = Manifest(**{**vars(manifest), "runs": (IndexRun("small", "vse++", weights),)})
    assert open_text_vectors(tmp_path, other, "auto") is None
    with (tmp_path / "runs" / weights / "weights.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")
    assert open_text_vectors(tmp_path, manifest, "auto") is None


def test_a_search_by_text_imports_no_torch_and_ranks_as_torch_does(tmp_path: Path, pictures: Path) -> None:
    index = tmp_path / "holiday.index"
    build_index("quintet-small", pictures, index, device="cpu")
    with Searcher.open(index, device="cpu") as searcher:
        codes = searcher.encoder.encode_texts([TEXTS[0]])
        (expected,) = searcher._search(codes, 1, "text", "image", 6, None, None, True)
        (found,) = searcher.search_text([TEXTS[0]], k=6)
    assert [hit.item for hit in found] == [hit.item for hit in expected]
    assert [hit.score for hit in found] == pytest.approx([hit.score for hit in expected], abs=1e-5)
    program = f"""
import sys
from quintet.cli.main import app
try:
    app(["search", {str(index)!r}, "--paths", {TEXTS[0]!r}])
finally:
    assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == str(found[0].path)
