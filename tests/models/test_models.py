from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from quintet.data.batches import ImageBatch, TextBatch
from quintet.errors import RecipeError
from quintet.layers.regions import ChannelDropout
from quintet.models import MODELS, create_model, list_models
from quintet.protocols import Matcher

SMALL: dict[str, Any] = {"vocabulary_size": 10, "image_dim": 8, "embed_dim": 6, "word_dim": 4}
TOWER = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
SMALL_CLIP: dict[str, Any] = {
    "model_type": "clip",
    "projection_dim": 6,
    "text_config": TOWER | {"max_position_embeddings": 8},
    "vision_config": TOWER | {"image_size": 16, "patch_size": 8},
}
MORE: dict[str, dict[str, Any]] = {
    "mmca": {"heads": 2, "text_dim": 4, "filters": 5},
    "dual-path": {"text_layout": "small", "text_width": 2},
    "clip": {"config": SMALL_CLIP, "end_token": 3},
    "clip-tokens": {"config": SMALL_CLIP, "end_token": 3, "arguments": {"embed_dim": 6}, "image_dim": None},
}


def small(name: str) -> Any:
    known = MODELS.parameters(name)
    torch.manual_seed(0)
    arguments = {key: value for key, value in SMALL.items() if key in known} | MORE.get(name, {})
    return create_model(name, **arguments).eval()


def images(count: int, kind: str = "fragments") -> ImageBatch:
    torch.manual_seed(1)
    if kind == "pixels":
        return ImageBatch(pixels=torch.randn(count, 3, 16, 16))
    mask = torch.ones(count, 5, dtype=torch.bool)
    mask[0, 3:] = False
    return ImageBatch(fragments=torch.randn(count, 5, 8) * mask[..., None], mask=mask, boxes=torch.rand(count, 5, 4))


TEXTS = TextBatch.from_ids([[1, 5, 6, 2], [1, 7, 2], [1, 2], [1, 8, 9, 4, 2]])


@pytest.mark.parametrize("name", list_models())
def test_every_matcher_keeps_the_protocol(name: str) -> None:
    matcher = small(name)
    assert isinstance(matcher, nn.Module)
    assert isinstance(matcher, Matcher)
    with torch.no_grad():
        image_codes, text_codes = matcher.encode_images(images(4, matcher.image_input)), matcher.encode_texts(TEXTS)
        scores = matcher.score(image_codes, text_codes)
        pairs = matcher.score_pairs(image_codes, text_codes)
    assert (len(image_codes), len(text_codes), scores.shape, pairs.shape) == (4, 4, (4, 4), (4,))
    assert scores.isfinite().all()
    torch.testing.assert_close(scores.diagonal(), pairs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", list_models())
def test_every_matcher_scores_a_single_pair(name: str) -> None:
    matcher = small(name)
    with torch.no_grad():
        image_codes, text_codes = matcher.encode_images(images(4, matcher.image_input)), matcher.encode_texts(TEXTS)
        whole = matcher.score(image_codes, text_codes)
        for row in range(4):
            for column in range(4):
                one = matcher.score(image_codes[row], text_codes[column])
                assert one.shape == (1, 1)
                torch.testing.assert_close(one[0, 0], whole[row, column], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", list_models())
def test_every_matcher_can_be_saved_and_made_again(name: str) -> None:
    first, second = small(name), small(name)
    for parameter in second.parameters():
        nn.init.constant_(parameter, 0.5)
    second.load_state_dict(first.state_dict())
    with torch.no_grad():
        pair = [
            matcher.score(matcher.encode_images(images(3, matcher.image_input)), matcher.encode_texts(TEXTS))
            for matcher in (first, second)
        ]
    assert pair[0].equal(pair[1])


def test_names_and_arguments_are_checked() -> None:
    assert "vse++" in list_models()
    assert list_models() == sorted(list_models())
    with pytest.raises(RecipeError, match=r"'vse'.*'vse\+\+'"):
        create_model("vse")
    with pytest.raises(RecipeError, match=r"'embed_dims'.*'embed_dim'"):
        create_model("vse++", vocabulary_size=10, image_dim=8, embed_dims=4)
    with pytest.raises(RecipeError, match="needs the argument 'vocabulary_size'"):
        create_model("vse++", image_dim=8)


HIDING = ("bfan", "hrem", "mmca", "scan", "vsrn")


@pytest.mark.parametrize("name", HIDING)
def test_channels_of_regions_are_hidden_in_training_alone(name: str) -> None:
    arguments = {key: value for key, value in SMALL.items() if key in MODELS.parameters(name)} | MORE.get(name, {})
    matcher = create_model(name, **arguments, image_dropout=0.5).eval()
    measured = matcher.encode_images(images(4))
    for part in matcher.modules():
        part.training = isinstance(part, ChannelDropout)
    hidden = matcher.encode_images(images(4))
    again = matcher.eval().encode_images(images(4))
    for key in ("embedding", "fragments"):
        if getattr(measured, key) is not None:
            assert not torch.equal(getattr(hidden, key), getattr(measured, key))
            assert torch.equal(getattr(again, key), getattr(measured, key))
