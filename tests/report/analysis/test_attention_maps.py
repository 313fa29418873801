"""Attention maps of trained runs: blocks of the joint softmax, rows and columns in the order of the figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quintet.data.corpus import Corpus
from quintet.errors import QuintetError
from quintet.report.analysis import Options, Subject, analyse, open_subjects
from quintet.report.analysis.attention_maps import attention_blocks, draw_attention
from quintet.training.recipe import parse_recipe
from quintet.training.stages import train_recipe

MMCA = {"name": "mmca", "embed_dim": 8, "heads": 2, "text_dim": 4, "text_heads": 2, "filters": 4}
SCAN = {"name": "scan", "embed_dim": 8, "word_dim": 6}


def trained(tiny_recipe: dict[str, Any], folder: Path, matcher: dict[str, Any]) -> Subject:
    pytest.importorskip("matplotlib")
    tiny_recipe["matcher"] = matcher
    tiny_recipe["stages"][0] |= {"epochs": 1}
    recipe = parse_recipe(tiny_recipe)
    train_recipe(recipe, folder, device="cpu")
    assert recipe.data.corpus is not None
    (subject,) = open_subjects([folder], Corpus.open(recipe.data.corpus), "test", device=torch.device("cpu"))
    return subject


def test_joint_attention_has_four_blocks(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    subject = trained(tiny_recipe, tmp_path / "run", MMCA)
    image = int(subject.split.images_of_text[1][0])
    found = attention_blocks(subject, image, 1)
    k, m = found.regions, len(found.words)
    assert {name: block.shape for name, block in found.blocks.items()} == {
        "regions to regions": (k, k),
        "regions to words": (k, m),
        "words to regions": (m, k),
        "words to words": (m, m),
    }
    for side in ("regions", "words"):
        rows = found.blocks[f"{side} to regions"].sum(1) + found.blocks[f"{side} to words"].sum(1)
        np.testing.assert_allclose(rows, 1, atol=1e-5)
    # The share of a word among regions is what the matcher draws on the image.
    weights = found.blocks["words to regions"]
    shown = subject.run.matcher.attention(subject.image_codes[image], subject.member.text_codes[1]).weights
    np.testing.assert_allclose(weights / weights.sum(1, keepdims=True), shown, atol=1e-5)
    assert found.labels("words to regions") == (list(found.words), [str(n + 1) for n in range(k)])
    panels = draw_attention(found, "Attention").axes
    assert [axes.get_title(loc="left") for axes in panels] == list(found.blocks)
    assert [label.get_text() for label in panels[1].get_xticklabels()] == list(found.words), "regions to words"

    made = analyse([subject], tmp_path / "out", ["attention"], options=Options(examples=2))["attention"]
    assert made["figures"] == ["words-attention-1.svg", "words-attention-2.svg"]
    rows = json.loads((tmp_path / "out" / "attention.json").read_text())["runs"][subject.label]
    assert len(rows) == 2
    assert rows[0]["image"] != rows[1]["image"] or rows[0]["text"] != rows[1]["text"]


def test_scan_has_one_block_and_others_none(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    for direction, block in (("t2i", "words to regions"), ("i2t", "regions to words")):
        subject = trained(dict(tiny_recipe), tmp_path / direction, SCAN | {"direction": direction})
        found = attention_blocks(subject, 0, 0)
        assert list(found.blocks) == [block]
        np.testing.assert_allclose(found.blocks[block].sum(1), 1, atol=1e-5)
        assert found.blocks[block].shape == tuple(map(len, found.labels(block)))
    plain = trained(dict(tiny_recipe), tmp_path / "vse", {"name": "vse++", "embed_dim": 8, "word_dim": 6})
    with pytest.raises(QuintetError, match="attention to show"):
        analyse([plain], tmp_path / "out", ["attention"])
