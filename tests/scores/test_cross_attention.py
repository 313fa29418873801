from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quintet.codes import Codes
from quintet.scores.attention import Aggregation, Norm
from quintet.scores.cross_attention import (
    Engine,
    attention_map,
    bfan_scores,
    cosines_by,
    has_triton,
    scan_scores,
    working_copies,
)

Make = Callable[..., Codes]
Twin = Callable[..., Tensor]

some_lengths = st.lists(st.integers(1, 7), min_size=1, max_size=6)


@pytest.mark.parametrize("slope", [0.0, 0.1])
@pytest.mark.parametrize("norm", get_args(Norm))
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_every_normalisation_equals_the_plain_twin(
    make_codes: Make, scan_twin: Twin, direction: str, norm: Norm, slope: float
) -> None:
    images, texts = make_codes([5, 3, 5, 1], seed=1), make_codes([4, 1, 7, 2, 4], seed=2)
    arguments = {"direction": direction, "norm": norm, "relu_slope": slope}
    ours = scan_scores(images, texts, **arguments)
    torch.testing.assert_close(ours, scan_twin(images, texts, **arguments), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_every_aggregation_equals_the_plain_twin(
    make_codes: Make, scan_twin: Twin, direction: str, aggregation: Aggregation
) -> None:
    images, texts = make_codes([5, 3, 5], seed=3), make_codes([4, 1, 7, 2], seed=4)
    arguments = {"direction": direction, "aggregation": aggregation, "lambda_softmax": 4.0, "lambda_lse": 5.0}
    ours = scan_scores(images, texts, **arguments)
    torch.testing.assert_close(ours, scan_twin(images, texts, **arguments), rtol=1e-10, atol=1e-12)


def test_lengths_other_than_one_are_divided_out(make_codes: Make, scan_twin: Twin) -> None:
    images, texts = make_codes([5, 3], seed=3), make_codes([4, 1, 7], seed=4)
    images, texts = replace(images, fragments=images.fragments * 3), replace(texts, fragments=texts.fragments * 0.2)
    torch.testing.assert_close(scan_scores(images, texts), scan_twin(images, texts), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("budget", [1, 3000, None])
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
@pytest.mark.parametrize("norm", ["clipped_l2norm", "l1norm", "softmax"])
def test_gradients_are_those_of_the_plain_twin(
    make_codes: Make, scan_twin: Twin, direction: str, norm: Norm, budget: int | None
) -> None:
    arguments = {"direction": direction, "norm": norm, "relu_slope": 0.1}
    found = []
    for score in (scan_twin, lambda i, t, **a: scan_scores(i, t, budget=budget, **a)):
        images, texts = make_codes([4, 2, 4], seed=5), make_codes([3, 1, 6, 3], seed=6)
        for codes in (images, texts):
            codes.fragments.requires_grad_()
        scores = score(images, texts, **arguments)
        upstream = torch.linspace(-1, 2, scores.numel(), dtype=scores.dtype).view_as(scores)
        found.append(torch.autograd.grad((scores * upstream).sum(), [images.fragments, texts.fragments]))
    for plain, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("budget", [1, None])
@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_gradcheck(make_codes: Make, direction: str, paired: bool, budget: int | None) -> None:
    images, texts = make_codes([3, 2], seed=7, dim=3), make_codes([1, 3], seed=8, dim=3)
    arguments = {"direction": direction, "relu_slope": 0.1, "budget": budget, "paired": paired}

    def score(regions: Tensor, words: Tensor) -> Tensor:
        return scan_scores(replace(images, fragments=regions), replace(texts, fragments=words), **arguments)

    regions = images.fragments.nan_to_num(0.3).requires_grad_()
    words = texts.fragments.nan_to_num(0.3).requires_grad_()
    assert torch.autograd.gradcheck(score, (regions, words))


@settings(deadline=None, max_examples=40)
@given(some_lengths, some_lengths, st.integers(1, 20_000), st.sampled_from(["t2i", "i2t"]), st.randoms())
def test_blocks_padding_and_order_change_nothing(
    make_codes: Make, image_lengths: list[int], text_lengths: list[int], budget: int, direction: str, random: object
) -> None:
    images, texts = make_codes(image_lengths, seed=9), make_codes(text_lengths, seed=10)
    whole = scan_scores(images, texts, direction=direction)
    assert torch.isfinite(whole).all()
    torch.testing.assert_close(scan_scores(images, texts, direction=direction, budget=budget), whole)

    longer = Codes.cat([texts, make_codes([9], seed=11)])[: len(texts)]
    torch.testing.assert_close(scan_scores(images, longer, direction=direction), whole)

    rows, columns = list(range(len(images))), list(range(len(texts)))
    random.shuffle(rows)  # type: ignore[attr-defined]
    random.shuffle(columns)  # type: ignore[attr-defined]
    mixed = scan_scores(images[rows], texts[columns], direction=direction, budget=budget)
    torch.testing.assert_close(mixed, whole[rows][:, columns])


@settings(deadline=None, max_examples=25)
@given(some_lengths, st.integers(1, 20_000), st.sampled_from(["t2i", "i2t"]))
def test_pairs_are_the_diagonal(make_codes: Make, lengths: list[int], budget: int, direction: str) -> None:
    images, texts = make_codes(lengths[::-1], seed=12), make_codes(lengths, seed=13)
    whole = scan_scores(images, texts, direction=direction)
    pairs = scan_scores(images, texts, direction=direction, paired=True, budget=budget)
    torch.testing.assert_close(pairs, whole.diag())


@settings(deadline=None, max_examples=25)
@given(some_lengths, some_lengths, st.sampled_from(get_args(Norm)), st.sampled_from(["t2i", "i2t"]), st.booleans())
def test_zero_and_opposite_fragments_give_finite_scores_and_gradients(
    make_codes: Make, image_lengths: list[int], text_lengths: list[int], norm: Norm, direction: str, zero: bool
) -> None:
    images = make_codes(image_lengths, seed=14, dtype=torch.float32)
    texts = make_codes(text_lengths, seed=15, dtype=torch.float32)
    first = images.fragments[0, 0]
    # Every product of the first image is negative or zero: plain ReLU leaves nothing to normalise.
    regions = (images.fragments * 0 + (0.0 if zero else 1.0) * first).requires_grad_()
    words = (texts.fragments * 0 - first).requires_grad_()
    scores = scan_scores(
        replace(images, fragments=regions), replace(texts, fragments=words), norm=norm, direction=direction
    )
    assert torch.isfinite(scores).all()
    for grad in torch.autograd.grad(scores.sum(), [regions, words]):
        assert torch.isfinite(grad).all()


def test_one_image_one_word_one_caption(make_codes: Make, scan_twin: Twin) -> None:
    for image_lengths, text_lengths in (([3], [1]), ([1], [1]), ([3, 2], [1]), ([4], [2, 1])):
        images, texts = make_codes(image_lengths, seed=16), make_codes(text_lengths, seed=17)
        for direction in ("t2i", "i2t"):
            ours = scan_scores(images, texts, direction=direction)
            assert ours.shape == (len(image_lengths), len(text_lengths))
            torch.testing.assert_close(ours, scan_twin(images, texts, direction=direction))


def test_no_items_no_scores(make_codes: Make) -> None:
    images, texts = make_codes([3, 2]), make_codes([2])
    assert scan_scores(images[:0], texts).shape == (0, 1)
    assert scan_scores(images, texts[:0]).shape == (2, 0)
    assert scan_scores(images[:0], texts[:0], paired=True).shape == (0,)


def test_a_mask_may_have_holes(make_codes: Make, scan_twin: Twin) -> None:
    images, texts = make_codes([5, 5, 5], seed=18), make_codes([4, 4], seed=19)
    images.mask[0, 2] = images.mask[2, 0] = texts.mask[1, 1] = False
    for direction in ("t2i", "i2t"):
        ours = scan_scores(images, texts, direction=direction)
        torch.testing.assert_close(ours, scan_twin(images, texts, direction=direction))


def test_half_precision_is_summed_in_float32(make_codes: Make) -> None:
    images = make_codes([5, 3, 5], seed=20, dim=64, dtype=torch.float32)
    texts = make_codes([4, 1, 7], seed=21, dim=64, dtype=torch.float32)
    exact = scan_scores(images, texts)
    rounded = scan_scores(images, texts, precision="bfloat16")
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).abs().max() < 0.02
    for dtype in (torch.float16, torch.bfloat16):
        scores = scan_scores(images.to(dtype=dtype), texts.to(dtype=dtype))
        assert scores.dtype == torch.float32
        torch.testing.assert_close(scores, exact, rtol=0, atol=0.02)


def test_autocast_does_not_touch_the_scores(make_codes: Make) -> None:
    images, texts = make_codes([5, 3], dtype=torch.float32), make_codes([4, 1, 7], seed=1, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = scan_scores(images, texts)
    torch.testing.assert_close(inside, scan_scores(images, texts))


@pytest.mark.parametrize(
    ("argument", "value"),
    [("direction", "both"), ("norm", "l3norm"), ("aggregation", "min"), ("precision", "int4"), ("engine", "jax")],
)
def test_a_wrong_choice_is_named(make_codes: Make, argument: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"{argument} must be"):
        scan_scores(make_codes([2]), make_codes([2]), **{argument: value})


def test_codes_that_cannot_be_scored_are_refused(make_codes: Make) -> None:
    images, texts = make_codes([2, 2]), make_codes([2, 3, 1])
    with pytest.raises(ValueError, match="no fragments"):
        scan_scores(Codes(embedding=torch.ones(2, 3)), texts)
    with pytest.raises(ValueError, match="as many images"):
        scan_scores(images, texts, paired=True)
    texts.mask[1] = False
    with pytest.raises(ValueError, match=r"item 1 .*real fragment"):
        scan_scores(images, texts)
    with pytest.raises(ValueError, match="budget"):
        scan_scores(images, images, budget=0)


def test_auto_is_plain_torch_without_a_gpu(make_codes: Callable[..., Codes]) -> None:
    images, texts = make_codes([4, 2], seed=1), make_codes([3, 1, 5], seed=2)
    assert torch.equal(scan_scores(images, texts, engine="auto"), scan_scores(images, texts, engine="torch"))


def test_the_fused_kernel_counts_fewer_working_copies(make_codes: Callable[..., Codes]) -> None:
    codes = make_codes([2])
    assert working_copies("triton", codes) < working_copies("torch", codes)
    assert working_copies("torch", codes, focal=True) > working_copies("torch", codes)


def test_an_unknown_normalisation_is_refused_before_any_work() -> None:
    with pytest.raises(ValueError, match="norm must be"):
        cosines_by("torch", norm="l9", relu_slope=0.1, temperature=9.0)  # type: ignore[arg-type]


def test_triton_is_for_cuda() -> None:
    assert not has_triton() or torch.cuda.is_available()


@pytest.mark.slow
def test_compiled_scores_and_gradients_are_the_plain_ones(make_codes: Callable[..., Codes]) -> None:
    found = []
    for engine in ("torch", "compile"):
        grads, scores = [], []
        for lengths in ([3, 3, 3], [2, 5, 4, 5]):  # other shapes, the same program
            images, texts = make_codes([4, 2, 4], seed=1), make_codes(lengths, seed=2)
            images.fragments.requires_grad_()
            score = scan_scores(images, texts, engine=engine, budget=2000)
            scores.append(score.detach())
            grads += torch.autograd.grad(score.sum(), [images.fragments])
        found.append((*scores, *grads))
    for plain, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, plain)


@pytest.mark.gpu
@pytest.mark.parametrize("budget", [None, 200_000])
@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("engine", ["auto", "torch", "triton"])
@pytest.mark.parametrize("matcher", ["t2i", "i2t", "equal", "prob"])
def test_a_gpu_gives_the_scores_and_gradients_of_a_cpu(
    make_codes: Callable[..., Codes], matcher: str, engine: Engine, paired: bool, budget: int | None
) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    score = (
        partial(scan_scores, direction=matcher) if matcher in ("t2i", "i2t") else partial(bfan_scores, focal=matcher)
    )
    found = []
    # A single word normalises every product to its sign: regions are at the threshold of the gates but for rounding.
    last = 2 if matcher == "prob" else 1
    for device, dtype, by in (("cpu", torch.float64, "torch"), ("cuda", torch.float32, engine)):
        images = make_codes([36, 20, 36, 5, 36], seed=1, dim=512).to(device, dtype)
        texts = make_codes([16, 3, 9, 16, last], seed=2, dim=512).to(device, dtype)
        images.fragments.requires_grad_()
        texts.fragments.requires_grad_()
        scores = score(images, texts, relu_slope=0.1, engine=by, paired=paired, budget=budget)
        upstream = torch.linspace(-1, 2, scores.numel(), device=device).view_as(scores)
        grads = torch.autograd.grad((scores * upstream).sum(), [images.fragments, texts.fragments])
        found.append([scores, *grads])
    for exact, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours.cpu().double(), exact, rtol=1e-4, atol=1e-5)


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
    with pytest.raises(ValueError, match="one image"):
        attention_map(make_codes([4, 4]), make_codes([3]), direction="t2i", **SETTINGS)
