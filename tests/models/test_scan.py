from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import quintet
from quintet.data.batches import ImageBatch, TextBatch
from quintet.errors import RecipeError
from quintet.models.scan import SCAN, build_scan
from quintet.protocols import Matcher

SIZES = {"image_dim": 12, "vocabulary_size": 20, "embed_dim": 8, "word_dim": 5}


def hinge(scores: Tensor, margin: float = 0.2) -> Tensor:
    """The hardest negative of every row and column, one by one."""
    n, loss = len(scores), torch.zeros(())
    for i in range(n):
        loss = loss + max(max(0.0, margin + scores[i, j] - scores[i, i]) for j in range(n) if j != i)
        loss = loss + max(max(0.0, margin + scores[j, i] - scores[i, i]) for j in range(n) if j != i)
    return loss


def reference(folder: Path, name: str) -> tuple[dict[str, Any], Any]:
    values = np.load(folder / f"{name}.npz")
    return json.loads(str(values["opt"])), values


@pytest.mark.parametrize("name", ["scan_t2i_logsumexp", "scan_i2t_mean"])
@pytest.mark.parametrize("budget", [None, 20_000])
def test_scores_and_loss_are_those_of_the_authors(references: Path, name: str, budget: int | None) -> None:
    options, values = reference(references, name)
    matcher = build_scan(
        image_dim=options["img_dim"],
        vocabulary_size=options["vocab_size"],
        embed_dim=options["embed_size"],
        word_dim=options["word_dim"],
        direction=options["cross_attn"],
        norm=options["raw_feature_norm"],
        aggregation={"LogSumExp": "lse", "Mean": "mean"}[options["agg_func"]],
        lambda_softmax=options["lambda_softmax"],
        lambda_lse=options["lambda_lse"],
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
    torch.testing.assert_close(hinge(scores).item(), float(values["loss"]), rtol=0, atol=1e-5)
    torch.testing.assert_close(pairs, scores.diag())


@pytest.fixture
def matcher() -> SCAN:
    torch.manual_seed(0)
    return build_scan(**SIZES)


def some_images() -> ImageBatch:
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    return ImageBatch(fragments=torch.randn(2, 4, 12), mask=mask, boxes=torch.rand(2, 4, 4))


def test_names_are_those_of_the_authors_checkpoints(matcher: SCAN) -> None:
    names = set(matcher.state_dict())
    assert {"image_encoder.fc.weight", "image_encoder.fc.bias", "text_encoder.embed.weight"} <= names
    assert all(name.split(".")[1] in ("fc", "embed", "rnn") for name in names)
    assert "text_encoder.rnn.weight_hh_l0_reverse" in names


def test_codes_are_unit_fragments_with_mask_and_boxes(matcher: SCAN) -> None:
    assert isinstance(matcher, Matcher)
    batch = some_images()
    images = matcher.encode_images(batch)
    torch.testing.assert_close(images.fragments.norm(dim=-1), batch.mask.float())
    assert torch.equal(images.boxes, batch.boxes)
    texts = matcher.encode_texts(TextBatch.from_ids([[1, 4, 2], [7]]))
    assert texts.mask.tolist() == [[True, True, True], [True, False, False]]
    torch.testing.assert_close(texts.fragments.norm(dim=-1), texts.mask.float())


@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_a_text_scores_alone_as_in_a_batch(direction: str) -> None:
    torch.manual_seed(1)
    matcher = build_scan(**SIZES, direction=direction)
    images = matcher.encode_images(some_images())
    sentences = [[1, 4, 2], [7], [3, 3, 9, 11, 2, 5]]
    together = matcher.score(images, matcher.encode_texts(TextBatch.from_ids(sentences)))
    for column, ids in enumerate(sentences):
        alone = matcher.score(images[1], matcher.encode_texts(TextBatch.from_ids([ids])))
        torch.testing.assert_close(alone[0, 0], together[1, column])


def test_every_parameter_learns(matcher: SCAN) -> None:
    images, texts = matcher.encode_images(some_images()), matcher.encode_texts(TextBatch.from_ids([[1, 4, 2], [7]]))
    matcher.score(images, texts).sum().backward()
    for name, parameter in matcher.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_attention_has_words_regions_and_boxes(matcher: SCAN) -> None:
    images, texts = matcher.encode_images(some_images()), matcher.encode_texts(TextBatch.from_ids([[1, 4, 2], [7]]))
    found = matcher.attention(images[1], texts[0])
    assert found.weights.shape == (3, 2)
    assert found.boxes.shape == (2, 4)
    torch.testing.assert_close(found.weights.sum(dim=1), torch.ones(3))


def test_the_paper_is_the_default_and_the_authors_code_an_option(matcher: SCAN) -> None:
    assert matcher.attends["relu_slope"] == 0.0
    images, texts = matcher.encode_images(some_images()), matcher.encode_texts(TextBatch.from_ids([[1, 4, 2], [7]]))
    authors = build_scan(**SIZES, relu_slope=0.1)
    assert not torch.allclose(matcher.score(images, texts), authors.score(images, texts))


@pytest.mark.parametrize(
    ("argument", "value", "near"),
    [("direction", "t2t", "t2i"), ("norm", "clipped_l2", "clipped_l2norm"), ("aggregation", "average", "mean")],
)
def test_a_wrong_choice_is_named(argument: str, value: str, near: str) -> None:
    with pytest.raises(RecipeError, match=f"{argument} .*'{value}'.*{near}"):
        quintet.create_model("scan", **SIZES, **{argument: value})


def test_pixels_are_refused(matcher: SCAN) -> None:
    with pytest.raises(RecipeError, match="regions"):
        matcher.encode_images(ImageBatch(pixels=torch.zeros(1, 3, 4, 4)))
