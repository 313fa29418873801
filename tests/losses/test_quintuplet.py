"""AOQ's losses against the equations written out one pair at a time, and against the authors' numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quintet.losses.quintuplet import (
    adaptive_offline_quintuplet,
    offline_quintuplet,
    offline_triplet,
    online_negatives,
    online_quintuplet,
    only_offline,
)

MARGIN_1, MARGIN_2, ALPHA, BETA = 0.2, 0.05, 0.4, 1.3
NAMES = ["online_text", "online_image", "offline_text", "offline_image", "offline_pair", "derived_pair"]


def inputs(n: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(n, n), (n,), (n,), (n,), (n,)]
    return [torch.rand(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def plain(
    scores: Tensor, offline: list[Tensor], groups: list[int], loss: str, **options: bool
) -> dict[str, list[float]]:
    """Equations 3 to 5 of the paper and its ablations, in plain numbers."""
    n = len(groups)
    S = scores.tolist()
    off_text, off_image, off_pair, derived = (values.tolist() for values in offline)
    terms: dict[str, list[float]] = {}

    def hinge(margin: float, positive: float, negative: float) -> float:
        cost = max(0.0, margin - positive + negative)
        return cost**2 if options.get("squared") else cost

    def weight(harder: float, online: float) -> float:
        if loss not in ("adaptive", "without"):
            return 1.0
        value = BETA - (harder - online) / ALPHA
        return max(0.0, value) if options.get("clamp") else value

    for a in range(n):
        wrong = [b for b in range(n) if groups[b] != groups[a]]
        t_on = max(wrong, key=lambda b: S[a][b]) if wrong else None
        i_on = max(wrong, key=lambda b: S[b][a]) if wrong else None
        row = dict.fromkeys(NAMES, 0.0)
        if t_on is not None and i_on is not None:
            harder = (S[a][a], S[a][a]) if loss == "without" else (off_text[a], off_image[a])
            row["online_text"] = weight(harder[0], S[a][t_on]) * hinge(MARGIN_1, S[a][a], S[a][t_on])
            row["online_image"] = weight(harder[1], S[i_on][a]) * hinge(MARGIN_1, S[a][a], S[i_on][a])
        row["offline_text"] = hinge(MARGIN_2, S[a][a], off_text[a])
        row["offline_image"] = hinge(MARGIN_2, S[a][a], off_image[a])
        row["offline_pair"] = hinge(MARGIN_2, S[a][a], off_pair[a])
        row["derived_pair"] = hinge(MARGIN_2, S[a][a], derived[a])
        if loss == "online":
            del row["offline_pair"], row["derived_pair"]
            row["online_pair"] = row["online_derived_pair"] = 0.0
            if t_on is not None and i_on is not None and groups[t_on] != groups[i_on]:
                row["online_pair"] = hinge(MARGIN_2, S[a][a], S[i_on][t_on])
                row["online_derived_pair"] = hinge(MARGIN_2, S[a][a], S[t_on][i_on])
        for name, value in row.items():
            terms.setdefault(name, []).append(value)
    dropped = {"triplet": NAMES[4:], "only": NAMES[:2]}.get(loss, [])
    return {name: values for name, values in terms.items() if name not in dropped}


def compute(
    loss: str, scores: Tensor, offline: list[Tensor], negative: Tensor | None, **options: bool
) -> dict[str, Tensor]:
    margins = {"margin_online": MARGIN_1, "margin_offline": MARGIN_2}
    if loss in ("adaptive", "without"):
        compare = "offline" if loss == "adaptive" else "positive"
        return adaptive_offline_quintuplet(
            scores, *offline, **margins, alpha=ALPHA, beta=BETA, negative=negative, compare_with=compare, **options
        )
    if loss == "quintuplet":
        return offline_quintuplet(scores, *offline, **margins, negative=negative, **options)
    if loss == "only":
        return only_offline(scores, *offline, margin_offline=MARGIN_2, **options)
    function = offline_triplet if loss == "triplet" else online_quintuplet
    return function(scores, *offline[:2], **margins, negative=negative, **options)


LOSSES = ["adaptive", "quintuplet", "triplet", "only", "online", "without"]


@pytest.mark.parametrize("loss", LOSSES)
@settings(max_examples=25, deadline=None)
@given(groups=st.lists(st.integers(0, 4), min_size=1, max_size=8), seed=st.integers(0, 10_000), squared=st.booleans())
def test_equals_the_equation_written_out(loss: str, groups: list[int], seed: int, squared: bool) -> None:
    scores, *offline = inputs(len(groups), seed)
    codes = torch.tensor(groups)
    terms = compute(loss, scores, offline, codes[:, None] != codes[None, :], squared=squared)
    expected = plain(scores, offline, groups, loss, squared=squared)
    assert list(terms) == list(expected)
    for name, values in expected.items():
        torch.testing.assert_close(terms[name], torch.tensor(values, dtype=torch.float64), msg=name)


def test_without_a_mask_everything_off_the_diagonal_is_negative() -> None:
    scores, *offline = inputs(5, 3)
    expected = plain(scores, offline, list(range(5)), "adaptive")
    terms = compute("adaptive", scores, offline, None)
    torch.testing.assert_close(torch.stack(list(terms.values())), torch.tensor(list(expected.values())).double())


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("squared", [False, True])
def test_gradients_pass_gradcheck(loss: str, squared: bool) -> None:
    values = [value.requires_grad_() for value in inputs(5, 11)]
    assert torch.autograd.gradcheck(
        lambda scores, *offline: tuple(compute(loss, scores, list(offline), None, squared=squared).values()), values
    )


def test_gradients_are_equation_6() -> None:
    """The first line of Eq. 5 (its text side), by the derivative the paper prints."""
    scores, *offline = (value.requires_grad_() for value in inputs(7, 5))
    off_text, _, off_pair, _ = offline
    terms = adaptive_offline_quintuplet(
        scores, *offline, margin_online=MARGIN_1, margin_offline=MARGIN_2, alpha=ALPHA, beta=BETA
    )
    sum(terms[name].sum() for name in ("online_text", "offline_text", "offline_pair")).backward()  # type: ignore[union-attr]
    assert scores.grad is not None
    assert off_text.grad is not None
    some_active = 0
    for a in range(7):
        s, off, pair = scores[a, a].item(), off_text[a].item(), off_pair[a].item()
        b = max((b for b in range(7) if b != a), key=lambda b: scores[a, b].item())
        on = scores[a, b].item()
        online, offline_, quintuplet = (
            MARGIN_1 - s + on > 0,
            MARGIN_2 - s + off > 0,
            MARGIN_2 - s + pair > 0,
        )
        some_active += online and offline_
        d_positive = ((off - on) / ALPHA - BETA) * online - offline_ - quintuplet
        d_off = ((s - on) / ALPHA - MARGIN_1 / ALPHA) * online + offline_
        d_on = ((2 * on - s - off) / ALPHA + BETA + MARGIN_1 / ALPHA) * online
        assert scores.grad[a, a].item() == pytest.approx(d_positive)
        assert off_text.grad[a].item() == pytest.approx(d_off)
        assert scores.grad[a, b].item() == pytest.approx(d_on)
    assert some_active


def test_hand_computed() -> None:
    scores = torch.tensor([[0.6, 0.5], [0.1, 0.7]])
    terms = adaptive_offline_quintuplet(
        scores,
        torch.tensor([0.65, 0.3]),
        torch.tensor([0.2, 0.8]),
        torch.tensor([0.7, 0.0]),
        torch.tensor([0.0, 0.75]),
    )
    expected = {
        "online_text": [(1.5 - 0.15 / 0.3) * 0.1, 0.0],  # 0.2 - 0.6 + 0.5 = 0.1
        "online_image": [0.0, 0.0],  # 0.2 - 0.6 + 0.1 < 0; 0.2 - 0.7 + 0.5 = 0
        "offline_text": [0.05, 0.0],
        "offline_image": [0.0, 0.1],
        "offline_pair": [0.1, 0.0],
        "derived_pair": [0.0, 0.05],
    }
    assert list(terms) == NAMES
    for name, values in expected.items():
        torch.testing.assert_close(terms[name], torch.tensor(values), msg=name)


def test_weights_may_be_negative_clamped_or_constant() -> None:
    scores = torch.tensor([[0.6, 0.5], [0.5, 0.6]], requires_grad=True)
    far = torch.tensor([1.4, 1.4], requires_grad=True)  # leads by 0.9 = 3 alpha: the weight is 1.5 - 3
    none = torch.full((2,), -1.0)
    as_published = adaptive_offline_quintuplet(scores, far, none, none, none)["online_text"]
    torch.testing.assert_close(as_published.detach(), torch.full((2,), -1.5 * 0.1))
    clamped = adaptive_offline_quintuplet(scores, far, none, none, none, clamp=True)["online_text"]
    assert clamped.tolist() == [0.0, 0.0]
    (gradient,) = torch.autograd.grad(as_published.sum(), far)
    torch.testing.assert_close(gradient, torch.full((2,), -0.1 / 0.3))
    constant = adaptive_offline_quintuplet(scores, far, none, none, none, detach=True)["online_text"]
    torch.testing.assert_close(constant, as_published)
    gradients = torch.autograd.grad(constant.sum(), [far, scores], allow_unused=True)
    assert gradients[0] is None
    torch.testing.assert_close(gradients[1], -1.5 * torch.tensor([[-1.0, 1.0], [1.0, -1.0]]))


@pytest.mark.parametrize("loss", LOSSES)
def test_an_anchor_without_online_negatives_is_finite(loss: str) -> None:
    scores, *offline = (value.requires_grad_() for value in inputs(3, 1))
    terms = compute(loss, scores, offline, torch.zeros(3, 3, dtype=torch.bool))
    total = torch.stack([values.sum() for values in terms.values()]).sum()
    total.backward()
    assert torch.isfinite(total)
    for name in ("online_text", "online_image", "online_pair"):
        assert name not in terms or terms[name].tolist() == [0.0, 0.0, 0.0]
    assert scores.grad is not None
    assert torch.isfinite(scores.grad).all()
    assert torch.equal(scores.grad, torch.diag(scores.grad.diagonal()))


def test_online_negatives_of_some_rows() -> None:
    scores, *_ = inputs(6, 2)
    whole = online_negatives(scores)
    part = whole.take(slice(2, 5))
    for name in ("positive", "text", "image", "pair", "derived", "has_pair"):
        assert torch.equal(getattr(part, name), getattr(whole, name)[2:5])


def test_value_and_gradients_of_the_authors_code(references: Path) -> None:
    file = np.load(references / "aoq_adaptive.npz")
    names = ("im", "s", "im_off", "s_off", "im_off2", "s_off2")
    im, s, im_off, s_off, im_off2, s_off2 = leaves = [torch.from_numpy(file[name]).requires_grad_() for name in names]
    terms = adaptive_offline_quintuplet(
        im @ s.T, (im * s_off).sum(1), (im_off * s).sum(1), (im_off * s_off).sum(1), (im_off2 * s_off2).sum(1)
    )
    total = torch.stack([values.sum() for values in terms.values()]).sum()
    total.backward()
    assert total.item() == pytest.approx(float(file["loss"]), abs=1e-5)
    for number, leaf in enumerate(leaves):
        assert leaf.grad is not None
        np.testing.assert_allclose(leaf.grad.numpy(), file[f"grad{number}"], atol=1e-5)
