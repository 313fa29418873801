"""From original checkpoints to matchers: scores of the released code, and refusals that explain."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import quintet
from quintet.runs.convert import ConversionError, convert, kinds, read_checkpoint, translate
from quintet.runs.run import load

FILES = {"scan": "scan_t2i_logsumexp", "scan i2t": "scan_i2t_mean", "bfan": "bfan_prob", "vsrn": "vsrn_coco"}


def authors_file(path: Path, reference: dict[str, np.ndarray], *parts: str, wrap: str = "", **changes: Any) -> Path:
    """A checkpoint in the authors' layout from the arrays of a reference."""
    model = [
        {
            wrap + k.split("/", 1)[1]: torch.from_numpy(np.array(v))
            for k, v in reference.items()
            if k.startswith(part + "/")
        }
        for part in parts or ("img_enc", "txt_enc")
    ]
    opt = argparse.Namespace(**json.loads(str(reference["opt"]))) if "opt" in reference else None
    torch.save({"epoch": 3, "model": model, "best_rsum": 410.0, "opt": opt, "Eiters": 10} | changes, path)
    return path


def load_reference(references: Path, name: str) -> dict[str, np.ndarray]:
    return dict(np.load(references / f"{FILES[name]}.npz"))


def scores_of(run: Path, reference: dict[str, np.ndarray]) -> Tensor:
    m = quintet.load(run)
    images = quintet.ImageBatch(fragments=torch.from_numpy(reference["images"]), mask=None)
    texts = quintet.TextBatch(
        tokens=torch.from_numpy(reference["captions"]), lengths=torch.from_numpy(reference["lengths"])
    )
    with torch.no_grad():
        return m.score(m.encode_images(images), m.encode_texts(texts))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("wrap", ["", "module."])
def test_converted_scores_equal_the_originals(tmp_path: Path, references: Path, name: str, wrap: str) -> None:
    reference = load_reference(references, name)
    path = authors_file(tmp_path / "model_best.pth.tar", reference, wrap=wrap)
    assert convert(name.split()[0], path, tmp_path / "run").folder == tmp_path / "run"
    assert translate(name.split()[0], read_checkpoint(path)).assumed == {}
    torch.testing.assert_close(
        scores_of(tmp_path / "run", reference), torch.from_numpy(reference["sim"]), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("name", ["vsrn", "bfan"])
def test_aoq_is_told_apart_by_its_tensors(tmp_path: Path, references: Path, name: str) -> None:
    reference = load_reference(references, name)
    parts = ("img_enc", "txt_enc", "caption_model") if name == "vsrn" else ("img_enc", "txt_enc")
    path = authors_file(tmp_path / "best", reference, *parts)
    convert("aoq", path, tmp_path / "run")
    made = translate("aoq", read_checkpoint(path))
    assert made.model == name
    assert bool(made.dropped) == (name == "vsrn")
    torch.testing.assert_close(
        scores_of(tmp_path / "run", reference), torch.from_numpy(reference["sim"]), atol=1e-5, rtol=0
    )


def vsrn_file(path: Path, data_name: str | None, batchnorm: bool, counted: bool = True) -> Path:
    torch.manual_seed(0)
    linear = {"weight": (6, 6, 1), "bias": (6,)}
    gru = {"weight_ih_l0": (18, 6), "weight_hh_l0": (18, 6), "bias_ih_l0": (18,), "bias_hh_l0": (18,)}
    norm = {"weight": (6,), "bias": (6,), "running_mean": (6,), "running_var": (6,)}
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (6, 5), "fc.bias": (6,)}
    shapes |= {f"img_rnn.{k}": v for k, v in gru.items()}
    for block in range(1, 5):
        for layer in ("g", "theta", "phi", "W.0"):
            shapes |= {f"Rs_GCN_{block}.{layer}.{k}": v for k, v in linear.items()}
        shapes |= {f"Rs_GCN_{block}.W.1.{k}": v for k, v in norm.items()}
    shapes |= {f"bn.{k}": v for k, v in norm.items()} if batchnorm else {}
    image: dict[str, Tensor] = {name: torch.rand(shape) for name, shape in shapes.items()}
    if counted:
        image |= {f"Rs_GCN_{block}.W.1.num_batches_tracked": torch.tensor(8) for block in range(1, 5)}
    text = {"embed.weight": torch.rand(9, 6), **{f"rnn.{k}": torch.rand(v) for k, v in gru.items()}}
    opt = argparse.Namespace(**({} if data_name is None else {"data_name": data_name}))
    torch.save({"epoch": 1, "model": [image, text], "best_rsum": 1.0, "opt": opt, "Eiters": 1}, path)
    return path


def test_the_two_settings_of_vsrn(tmp_path: Path) -> None:
    for data_name, batchnorm in (("f30k_precomp", True), ("coco_precomp", False), (None, True), (None, False)):
        run = tmp_path / f"{data_name}{batchnorm}"
        path = vsrn_file(tmp_path / "best", data_name, batchnorm, counted=batchnorm)
        made = translate("vsrn", read_checkpoint(path))
        convert("vsrn", path, run)
        assert made.arguments["final_batchnorm"] is batchnorm
        assert made.arguments["normalise_input"] is not batchnorm
        assert made.arguments["normalise_over"] == "regions"
        assert made.arguments["blocks"] == 4
        assumed = "f30k_precomp" if batchnorm else "coco_precomp"
        told = {"data_name": assumed} if data_name is None else {}
        assert made.assumed == told | {"no_imgnorm": False, "use_abs": False}
        encoder = quintet.load(run).matcher.image_encoder
        assert (encoder.norm is not None) is batchnorm
        assert encoder.relations[0].norm.num_batches_tracked.item() == (8 if batchnorm else 0)


def vsepp_parts() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    torch.manual_seed(0)
    rnn = torch.nn.GRU(4, 6, batch_first=True)
    return (
        {"fc.weight": torch.randn(6, 5), "fc.bias": torch.randn(6)},
        {"embed.weight": torch.randn(9, 4), **{f"rnn.{k}": v.detach() for k, v in rnn.named_parameters()}},
    )


def save_vsepp(checkpoint: Path, vocabulary: Path) -> dict[str, Any]:
    """A checkpoint of VSE++ with its vocabulary of nine words; returns the two tables of the vocabulary."""
    model = list(vsepp_parts())
    torch.save({"epoch": 4, "model": model, "opt": argparse.Namespace(margin=0.2)}, checkpoint)
    words = ["<pad>", "<start>", "<end>", "<unk>", "dog", "a", "cat", "runs", "."]
    saved = {"word2idx": {w: i for i, w in enumerate(words)}, "idx2word": {str(i): w for i, w in enumerate(words)}}
    vocabulary.write_text(json.dumps(saved | {"idx": len(words)}))
    return saved


def test_vsepp_against_its_formula(tmp_path: Path) -> None:
    image, text = vsepp_parts()
    torch.save({"model": [image, text]}, tmp_path / "best")
    convert("vsepp", tmp_path / "best", tmp_path / "run")
    features, ids = torch.randn(3, 1, 5), [[1, 5, 6, 2], [1, 2], [1, 8, 2]]
    rnn = torch.nn.GRU(4, 6, batch_first=True)
    rnn.load_state_dict({k.removeprefix("rnn."): v for k, v in text.items() if k.startswith("rnn.")})
    vectors = features[:, 0] @ image["fc.weight"].T + image["fc.bias"]
    sentences = torch.stack([rnn(text["embed.weight"][row][None])[0][0, -1] for row in ids])
    expected = (vectors / vectors.norm(dim=1, keepdim=True)) @ (sentences / sentences.norm(dim=1, keepdim=True)).T
    m = quintet.load(tmp_path / "run")
    found = m.score(
        m.encode_images(quintet.ImageBatch(fragments=features)), m.encode_texts(quintet.TextBatch.from_ids(ids))
    )
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_vocabulary_and_run(tmp_path: Path) -> None:
    saved = save_vsepp(tmp_path / "best.pth.tar", tmp_path / "vocab.json")
    convert("vsepp", tmp_path / "best.pth.tar", tmp_path / "run", tmp_path / "vocab.json", features="mine")
    run = load(tmp_path / "run")
    assert run.tokenizer is not None
    assert run.tokenizer.ids("A dog runs.") == [1, 5, 4, 7, 8, 2]
    assert run.image_input["name"] == "mine"
    head = json.loads((tmp_path / "run" / "run.json").read_text())
    assert head["origin"]["epoch"] == 4
    assert head["origin"]["options"] == {"margin": 0.2}
    saved["word2idx"]["more"], saved["idx2word"]["9"] = 9, "more"
    (tmp_path / "vocab.json").write_text(json.dumps(saved | {"idx": 10}))
    with pytest.raises(ConversionError, match=r"10 words.* with 9"):
        convert("vsepp", tmp_path / "best.pth.tar", tmp_path / "other", tmp_path / "vocab.json")
    assert not (tmp_path / "other").exists()


def test_options_are_read_assumed_or_replaced(tmp_path: Path, references: Path) -> None:
    reference = load_reference(references, "scan")
    path = authors_file(tmp_path / "best", reference)
    convert("scan", path, tmp_path / "a", options={"lambda_softmax": 20.0, "agg_func": "Max"})
    assert not torch.allclose(scores_of(tmp_path / "a", reference), torch.from_numpy(reference["sim"]), atol=1e-3)
    bare = authors_file(tmp_path / "bare", reference, opt=None)
    convert("scan", bare, tmp_path / "b")
    assert set(json.loads((tmp_path / "b" / "run.json").read_text())["origin"]["assumed"]) == {
        "cross_attn",
        "agg_func",
        "lambda_lse",
        "lambda_softmax",
        "raw_feature_norm",
        "no_imgnorm",
        "no_txtnorm",
    }
    torch.testing.assert_close(  # the reference happens to be the authors' defaults
        scores_of(tmp_path / "b", reference), torch.from_numpy(reference["sim"]), atol=1e-5, rtol=0
    )
    with pytest.raises(ConversionError, match="did you mean 'lambda_softmax'"):
        convert("scan", path, tmp_path / "c", options={"lambda_sofmax": 1})
    with pytest.raises(ConversionError, match=r"cannot be used.*aggregation"):
        convert("scan", path, tmp_path / "c", options={"agg_func": "Median"})
    with pytest.raises(ConversionError, match="no option 'agg_func'"):
        convert("vsepp", path, tmp_path / "c", options={"agg_func": "Mean"})


def test_wrong_kinds_are_named(tmp_path: Path, references: Path) -> None:
    scan = authors_file(tmp_path / "scan", load_reference(references, "scan"))
    bfan = authors_file(tmp_path / "bfan", load_reference(references, "bfan"))
    vsrn = authors_file(tmp_path / "vsrn", load_reference(references, "vsrn"))
    for kind, path, message in (
        ("scan", bfan, "by its options it is one of 'bfan'"),
        ("bfan", scan, "by its options it is one of 'scan'"),
        ("vsrn", scan, "by its options it is one of 'scan'"),
        ("bfan", vsrn, r"may be of kind vsrn\. Tensors missing: rnn.weight_ih_l0_reverse.*unexpected: img_rnn.* more$"),
        ("vsepp", vsrn, r"may be of kind vsrn\. Tensors unexpected: .*Rs_GCN_1\.g\.weight"),
    ):
        with pytest.raises(ConversionError, match=message):
            convert(kind, path, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_missing_misshapen_and_foreign_tensors_are_listed(tmp_path: Path) -> None:
    image, text = vsepp_parts()

    def attempt(image: dict[str, Tensor], text: dict[str, Tensor], **options: Any) -> None:
        torch.save({"model": [image, text], "opt": argparse.Namespace(**options)}, tmp_path / "best")
        convert("vsepp", tmp_path / "best", tmp_path / "run")

    with pytest.raises(ConversionError, match=r"Tensors missing: fc\.bias$"):
        attempt({"fc.weight": image["fc.weight"]}, text)
    with pytest.raises(ConversionError, match=r"shape: fc\.bias .*7.*6,\)$"):
        attempt(image | {"fc.bias": torch.zeros(7)}, text)
    with pytest.raises(ConversionError, match=r"image network.*unexpected: cnn\.0\.weight"):
        attempt(image | {"cnn.0.weight": torch.zeros(7)}, text)
    with pytest.raises(ConversionError, match=r"'embed\.weight' .*second"):
        attempt(image, {"rnn.weight_ih_l0": torch.zeros(7)})
    with pytest.raises(ConversionError, match="measure='order'"):
        attempt(image, text, measure="order")


def test_kinds_that_cannot_be_read(tmp_path: Path) -> None:
    torch.save({"model": list(vsepp_parts())}, tmp_path / "best")
    with pytest.raises(ConversionError, match="did you mean 'scan'"):
        convert("scann", tmp_path / "best", tmp_path / "run")
    assert kinds() == ["aoq", "bfan", "hrem", "scan", "vse-infinity", "vsepp", "vsrn"]


def test_an_existing_run_is_kept(tmp_path: Path) -> None:
    torch.save({"model": list(vsepp_parts())}, tmp_path / "best")
    convert("vsepp", tmp_path / "best", tmp_path / "run")
    with pytest.raises(quintet.QuintetError, match="run already"):
        convert("vsepp", tmp_path / "best", tmp_path / "run")
