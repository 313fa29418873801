from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import quintet
from quintet.data.batches import ImageBatch, TextBatch
from quintet.errors import RecipeError
from quintet.models.bfan import BFAN, build_bfan
from quintet.protocols import Matcher

SIZES = {"image_dim": 12, "vocabulary_size": 20, "embed_dim": 8, "word_dim": 5}


@pytest.mark.parametrize("budget", [None, 20_000])
def test_scores_and_loss_are_those_of_the_authors(references: Path, budget: int | None) -> None:
    values = np.load(references / "bfan_prob.npz")
    options = json.loads(str(values["opt"]))
    matcher = build_bfan(
        image_dim=options["img_dim"],
        vocabulary_size=options["vocab_size"],
        embed_dim=options["embed_size"],
        word_dim=options["word_dim"],
        focal=options["focal_type"],
        lambda_softmax=options["lambda_softmax"],
        relu_slope=0.1,
        budget=budget,
    ).eval()
    renamed = {
        key.replace("img_enc/", "image_encoder.").replace("txt_enc/", "text_encoder."): torch.from_numpy(values[key])
        for key in values.files
        if "_enc/" in key
    }
    matcher.load_state_dict(renamed)
    images = matcher.encode_images(ImageBatch(fragments=torch.from_numpy(values["images"])))
    texts = matcher.encode_texts(TextBatch(torch.from_numpy(values["captions"]), torch.from_numpy(values["lengths"])))
    with torch.no_grad():
        scores = matcher.score(images, texts)
        pairs = matcher.score_pairs(images, texts)
    torch.testing.assert_close(scores, torch.from_numpy(values["sim"]), rtol=0, atol=1e-5)
    torch.testing.assert_close(pairs, scores.diag())
    gaps = 0.2 + scores - scores.diag()[:, None], 0.2 + scores.T - scores.diag()[:, None]
    own = torch.eye(len(scores), dtype=torch.bool)
    loss = sum(gap.masked_fill(own, 0).clamp(min=0).amax(dim=1).sum() for gap in gaps)
    torch.testing.assert_close(float(loss), float(values["loss"]), rtol=0, atol=1e-5)


@pytest.fixture(params=["equal", "prob"])
def matcher(request: pytest.FixtureRequest) -> BFAN:
    torch.manual_seed(0)
    return build_bfan(**SIZES, focal=request.param)


def test_is_a_matcher_with_the_names_of_the_authors_checkpoints(matcher: BFAN) -> None:
    assert isinstance(matcher, Matcher)
    assert all(name.split(".")[1] in ("fc", "embed", "rnn") for name in matcher.state_dict())


def test_one_word_and_one_region_give_finite_scores_and_gradients(matcher: BFAN) -> None:
    texts = matcher.encode_texts(TextBatch.from_ids([[4], [1, 2, 3], [5, 5]]))
    for regions in (torch.randn(2, 1, 12), torch.randn(2, 1, 12).expand(2, 6, 12), torch.zeros(2, 3, 12)):
        matcher.zero_grad()
        scores = matcher.score(matcher.encode_images(ImageBatch(fragments=regions)), texts)
        assert scores.shape == (2, 3)
        assert torch.isfinite(scores).all()
        scores.sum().backward(retain_graph=True)
        assert all(torch.isfinite(p.grad).all() for p in matcher.parameters() if p.grad is not None)


def test_attention_of_both_directions(matcher: BFAN) -> None:
    mask = torch.tensor([[True, True, True, False]])
    images = matcher.encode_images(ImageBatch(fragments=torch.randn(1, 4, 12), mask=mask, boxes=torch.rand(1, 4, 4)))
    texts = matcher.encode_texts(TextBatch.from_ids([[4, 9]]))
    words = matcher.attention(images, texts)
    assert words.weights.shape == (2, 3)
    assert words.boxes.shape == (3, 4)
    assert (words.weights == 0).any()  # some region is left out
    torch.testing.assert_close(words.weights.sum(dim=1), torch.ones(2))
    regions = matcher.attention(images, texts, direction="i2t")
    torch.testing.assert_close(regions.weights.sum(dim=0), torch.ones(3))


def test_a_wrong_choice_is_named() -> None:
    with pytest.raises(RecipeError, match=r"focal .*'probs'.*prob"):
        quintet.create_model("bfan", **SIZES, focal="probs")
