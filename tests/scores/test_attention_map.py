from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from quintet.codes import Codes
from quintet.scores.cross_attention import attention_map

SETTINGS: dict[str, Any] = {"norm": "clipped_l2norm", "lambda_softmax": 9.0, "relu_slope": 0.1}


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return torch.nn.functional.cosine_similarity(a, b, dim=-1)


@pytest.mark.parametrize("focal", [None, "equal", "prob"])
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_weights_sum_to_one_over_what_is_attended_to(
    make_codes: Callable[..., Codes], direction: str, focal: str | None
) -> None:
    image, text = make_codes([4, 6], seed=1)[0], make_codes([3, 5], seed=2)[0]
    found = attention_map(image, text, direction=direction, focal=focal, **SETTINGS)
    assert found.weights.shape == (3, 4)  # real words, real regions
    assert found.boxes is None
    torch.testing.assert_close(
        found.weights.sum(dim=1 if direction == "t2i" else 0),
        torch.ones_like(found.weights[:, 0] if direction == "t2i" else found.weights[0]),
    )


def test_a_word_looks_at_the_region_that_equals_it() -> None:
    regions = torch.eye(5)[None]
    found = attention_map(
        Codes(fragments=regions, boxes=torch.rand(1, 5, 4)),
        Codes(fragments=regions[:, [3, 1]]),
        direction="t2i",
        **SETTINGS,
    )
    assert found.weights.argmax(dim=1).tolist() == [3, 1]


def test_boxes_are_those_of_the_real_regions(make_codes: Callable[..., Codes]) -> None:
    image, text = make_codes([4], seed=1), make_codes([3], seed=2)
    boxes = torch.rand(1, 4, 4)
    mask = torch.tensor([[True, False, True, True]])
    found = attention_map(Codes(fragments=image.fragments, mask=mask, boxes=boxes), text, direction="i2t", **SETTINGS)
    assert found.weights.shape == (3, 3)
    assert torch.equal(found.boxes, boxes[0, [0, 2, 3]])


def test_one_pair_at_a_time(make_codes: Callable[..., Codes]) -> None:
    with pytest.raises(ValueError, match="one image and one text"):
        attention_map(make_codes([4, 4]), make_codes([3]), direction="t2i", **SETTINGS)
