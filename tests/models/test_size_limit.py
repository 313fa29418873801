"""A matcher that does not fit into memory is refused before anything is allocated, and the field is named."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import pytest
import torch

from quintet.errors import RecipeError
from quintet.losses import OBJECTIVES
from quintet.models import MODELS, create_model
from quintet.models.size_limit import build_within

SIZES = {"image_dim": 8, "vocabulary_size": 10, "embed_dim": 4, "word_dim": 4}


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("vse++", "embed_dim", 10**12),
        ("vse++", "embed_dim", 10**30),
        ("scan", "word_dim", 10**11),
        ("vsrn", "blocks", 10**9),
    ],
)
def test_sizes_that_fit_nowhere(name: str, field: str, value: int) -> None:
    tracemalloc.start()
    began = time.monotonic()
    with pytest.raises(RecipeError, match=f"{field}={value}"):
        create_model(name, **(SIZES | {field: value}))
    assert time.monotonic() - began < 60
    assert tracemalloc.get_traced_memory()[1] < 500e6
    tracemalloc.stop()


def test_layers_that_are_copied_count_as_well() -> None:
    sizes: dict[str, Any] = {"image_dim": 8, "vocabulary_size": 10, "embed_dim": 16, "text_dim": 8}
    with pytest.raises(RecipeError, match="text_layers=100"):
        build_within(MODELS, "mmca", sizes | {"text_layers": 100}, limit=500_000)
    build_within(MODELS, "mmca", sizes | {"text_layers": 2}, limit=500_000)


def test_the_bound_is_a_bound_of_bytes() -> None:
    needed = sum(4 * parameter.numel() for parameter in create_model("vse++", **SIZES).state_dict().values())
    build_within(MODELS, "vse++", SIZES, limit=needed)
    with pytest.raises(RecipeError, match="GiB"):
        build_within(MODELS, "vse++", SIZES, limit=needed - 1)


def test_losses_are_bounded_too() -> None:
    with pytest.raises(RecipeError, match=r"groups=1000000000000"):
        build_within(OBJECTIVES, "instance", {"groups": 10**12, "embed_dim": 512})


def test_the_bound_changes_no_weight() -> None:
    torch.manual_seed(0)
    bounded = create_model("vse++", **SIZES).state_dict()
    torch.manual_seed(0)
    free = MODELS.create("vse++", **SIZES).state_dict()
    assert all(torch.equal(bounded[name], free[name]) for name in free)
