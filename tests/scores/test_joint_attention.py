from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quintet.codes import Codes
from quintet.layers.text_cnn import TextCNN
from quintet.layers.transformer_unit import TransformerUnit
from quintet.scores import joint_attention
from quintet.scores.joint_attention import (
    JointScorer,
    joint_attention_map,
    joint_tokens,
    joint_weights,
    mix,
    word_region_weights,
)

DIM, HEADS = 8, 2


def make(seed: int = 0, dtype: torch.dtype = torch.float64, **more: Any) -> tuple[TransformerUnit, TextCNN]:
    torch.manual_seed(seed)
    unit = TransformerUnit(DIM, HEADS, **more).to(dtype)
    return unit, TextCNN(DIM, DIM, filters=5).to(dtype)


def items(
    lengths: list[int], seed: int, dtype: torch.dtype = torch.float64, spread: float = 1.0
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(len(lengths), max(lengths), DIM, generator=generator, dtype=torch.float64) * spread
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return x.to(dtype), mask


def codes(unit: TransformerUnit, x: Tensor, mask: Tensor) -> Codes:
    return Codes(fragments=joint_tokens(unit, x, mask).packed(), mask=mask)


def stacked_softmax(unit: TransformerUnit, regions: Tensor, words: Tensor) -> Tensor:
    """(h, k + m, k + m): the weights of Eq. 11 over Y = (R; E), for one pair."""
    y = torch.cat([regions, words])
    query, key = (layer(y).view(len(y), HEADS, -1).transpose(0, 1) for layer in (unit.query, unit.key))
    return torch.softmax(query @ key.transpose(1, 2) * unit.scale, dim=-1)


def plain_pair(unit: TransformerUnit, cnn: TextCNN, regions: Tensor, words: Tensor) -> Tensor:
    """i1 . c1 of one pair by Eq. 8 to 14, then 3 to 7, with loops."""
    y = torch.cat([regions, words])
    value = unit.value(y).view(len(y), HEADS, -1).transpose(0, 1)
    heads = stacked_softmax(unit, regions, words) @ value  # (h, k + m, d / h)
    rest = unit.rest
    attended = rest.norm_attention(y + rest.output(torch.cat(list(heads), dim=1)))
    inner = torch.relu(rest.ffn_in(attended))
    out = rest.norm_ffn(attended + rest.ffn_out(inner))
    image, sentence = out[: len(regions)].mean(dim=0), out[len(regions) :]
    pooled = []
    for window, bank in zip(cnn.windows, cnn.filter_banks, strict=True):
        grown = torch.cat([sentence, sentence.new_zeros(window - 1, DIM)])
        found = [torch.relu(bank(grown[k : k + window].reshape(-1))) for k in range(len(sentence))]
        pooled.append(torch.stack(found).amax(dim=0))
    text = cnn.norm(cnn.fc(torch.cat(pooled)))
    return (image / image.norm()) @ (text / text.norm())


def plain_scores(
    unit: TransformerUnit, cnn: TextCNN, images: tuple[Tensor, Tensor], texts: tuple[Tensor, Tensor]
) -> Tensor:
    return torch.stack(
        [
            torch.stack([plain_pair(unit, cnn, r[rm], w[wm]) for w, wm in zip(*texts, strict=True)])
            for r, rm in zip(*images, strict=True)
        ]
    )


@settings(max_examples=25, deadline=None)
@given(
    regions=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    words=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    seed=st.integers(0, 100),
    budget=st.sampled_from([None, 1, 40_000]),
    scale=st.sampled_from(["sqrt_dk", "sqrt_d"]),
)
def test_blocks_equal_the_plain_twin(
    regions: list[int], words: list[int], seed: int, budget: int | None, scale: Any
) -> None:
    unit, cnn = make(seed, scale=scale)
    images, texts = items(regions, seed), items(words, seed + 1)
    with torch.no_grad():
        expected = plain_scores(unit, cnn, images, texts)
        scorer = JointScorer(unit, cnn, budget=budget)
        found = scorer(codes(unit, *images), codes(unit, *texts))
        assert found.shape == expected.shape
        assert (found - expected).abs().max() < 1e-12
        n = min(len(regions), len(words))
        pairs = scorer(codes(unit, *images)[:n], codes(unit, *texts)[:n], paired=True)
        assert (pairs - expected.diagonal()[:n]).abs().max() < 1e-12


def test_many_texts_of_each_length_take_the_way_without_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    unit, cnn = make()
    images, texts = items([5, 3], 1), items([2, 4] * 35 + [3] * 35, 2)
    pair = codes(unit, *images), codes(unit, *texts)
    seen: list[bool] = []
    block = joint_attention._Work._block
    monkeypatch.setattr(joint_attention._Work, "_block", lambda self, *a: seen.append(a[3] is None) or block(self, *a))
    with torch.no_grad():
        exact = JointScorer(unit, cnn)(*pair)
        assert seen
        assert all(seen), "groups of one length"
        monkeypatch.setattr(joint_attention, "_OF_ONE_LENGTH", 1000)
        mixed = JointScorer(unit, cnn)(*pair)
    assert not all(seen)
    assert (exact - mixed).abs().max() < 1e-13
    assert (exact[:, :3] - plain_scores(unit, cnn, images, (texts[0][:3], texts[1][:3]))).abs().max() < 1e-12


@pytest.mark.parametrize("spread", [1.0, 30.0])  # 30: logits in the thousands, where only a shared maximum survives
def test_float32_equals_the_twin_in_float64(spread: float) -> None:
    unit, cnn = make()
    images, texts = items([5, 3, 4], 1, spread=spread), items([6, 2, 1, 4], 2, spread=spread)
    with torch.no_grad():
        expected = plain_scores(unit, cnn, images, texts)
        unit, cnn = unit.float(), cnn.float()
        lower = [(x.float(), mask) for x, mask in (images, texts)]
        found = JointScorer(unit, cnn)(codes(unit, *lower[0]), codes(unit, *lower[1]))
    assert found.dtype == torch.float32
    assert (found - expected).abs().max() < (1e-5 if spread == 1.0 else 1e-3)


def test_bfloat16_is_close_and_keeps_the_type_of_scores() -> None:
    unit, cnn = make(dtype=torch.float32)
    images, texts = items([5, 3, 4], 1, torch.float32), items([6, 2, 1, 4], 2, torch.float32)
    pair = codes(unit, *images), codes(unit, *texts)
    with torch.no_grad():
        exact, rough = JointScorer(unit, cnn)(*pair), JointScorer(unit, cnn, precision="bfloat16")(*pair)
        rows = JointScorer(unit, cnn, precision="bfloat16")(pair[0], pair[1][:3], paired=True)
    assert rough.dtype == rows.dtype == torch.float32
    assert 0 < (rough - exact).abs().max() < 0.03
    assert (rows - exact.diagonal()).abs().max() < 0.03


def test_the_split_of_equation_12_gives_the_softmax_over_all_fragments() -> None:
    unit, _ = make(3)
    (regions, region_mask), (words, word_mask) = items([4, 2], 1), items([3, 5, 1], 2)
    images, texts = joint_tokens(unit, regions, region_mask), joint_tokens(unit, words, word_mask)
    with torch.no_grad():
        read = mix(texts, images, region_mask, heads=HEADS, paired=False)  # (I, T, m, d)
        seen = mix(images, texts, word_mask, heads=HEADS, paired=False)  # (T, I, k, d)
        for i in range(2):
            for t in range(3):
                r, w = regions[i][region_mask[i]], words[t][word_mask[t]]
                weights = stacked_softmax(unit, r, w)
                value = unit.value(torch.cat([r, w])).view(len(r) + len(w), HEADS, -1).transpose(0, 1)
                both = torch.cat(list(weights @ value), dim=1)  # (k + m, d)
                assert (seen[t, i, : len(r)] - both[: len(r)]).abs().max() < 1e-13  # Eq. 13
                assert (read[i, t, : len(w)] - both[len(r) :]).abs().max() < 1e-13  # Eq. 14


def test_a_words_attention_to_regions_and_to_its_own_text_sums_to_one() -> None:
    unit, _ = make(4)
    (regions, region_mask), (words, word_mask) = items([4, 2], 1), items([3, 5], 2)
    images, texts = codes(unit, regions, region_mask), codes(unit, words, word_mask)
    for i in range(2):
        for t in range(2):
            on_regions, rest = word_region_weights(images[i], texts[t], unit)
            r, w = regions[i][region_mask[i]], words[t][word_mask[t]]
            whole = stacked_softmax(unit, r, w).detach()
            assert (joint_weights(images[i], texts[t], unit) - whole).abs().max() < 1e-13
            full = whole[:, len(r) :]  # the words' rows
            assert (on_regions - full[..., : len(r)]).abs().max() < 1e-13
            assert (rest - full[..., len(r) :].sum(dim=-1)).abs().max() < 1e-13
            assert (on_regions.sum(dim=-1) + rest - 1).abs().max() < 1e-13
            shown = joint_attention_map(images[i], texts[t], unit).weights
            assert shown.shape == (len(w), len(r))
            assert (shown.sum(dim=1) - 1).abs().max() < 1e-13


@pytest.mark.parametrize("paired", [False, True])
def test_padding_order_and_neighbours_change_nothing(paired: bool) -> None:
    unit, cnn = make(5)
    images, texts = items([5, 3, 4], 1), items([2, 6, 4], 2)
    scorer = JointScorer(unit, cnn)
    with torch.no_grad():
        before = scorer(codes(unit, *images), codes(unit, *texts), paired=paired)
        longer = [codes(unit, *side).pad_fragments(9) for side in (images, texts)]
        for code in longer:
            assert code.fragments is not None
            code.fragments[~code.real()] = 1e3  # whatever stands at padding
        assert (scorer(*longer, paired=paired) - before).abs().max() < 1e-13
        order = torch.tensor([2, 0, 1])
        moved = scorer(codes(unit, *images)[order], codes(unit, *texts)[order], paired=paired)
        assert (moved - (before[order] if paired else before[order][:, order])).abs().max() < 1e-13
        shuffled = images[0][:, torch.tensor([1, 2, 0, 3, 4])], images[1][:, torch.tensor([1, 2, 0, 3, 4])]
        again = scorer(codes(unit, *shuffled), codes(unit, *texts), paired=paired)
        assert (again - before).abs().max() < 1e-13  # regions are a set


@pytest.mark.parametrize("budget", [None, 1])
@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_of_inputs_and_weights_equal_the_twins(budget: int | None, recompute: bool) -> None:
    unit, cnn = make(6)
    images, texts = items([3, 2], 1), items([2, 4, 1], 2)
    inputs = [images[0].requires_grad_(), texts[0].requires_grad_(), *unit.parameters(), *cnn.parameters()]
    weights = torch.randn(2, 3, dtype=torch.float64)
    expected = torch.autograd.grad((plain_scores(unit, cnn, images, texts) * weights).sum(), inputs)
    scorer = JointScorer(unit, cnn, budget=budget, recompute=recompute)
    found = torch.autograd.grad((scorer(codes(unit, *images), codes(unit, *texts)) * weights).sum(), inputs)
    for a, b in zip(found, expected, strict=True):
        assert (a - b).abs().max() < 1e-11


def test_gradcheck() -> None:
    unit, cnn = make(7)
    images, texts = items([2, 1], 1), items([2, 3], 2)

    def scores(x: Tensor, y: Tensor, paired: bool) -> Tensor:
        return JointScorer(unit, cnn, recompute=False)(
            codes(unit, x, images[1]), codes(unit, y, texts[1]), paired=paired
        )

    for paired in (False, True):
        given_inputs = (images[0].clone().requires_grad_(), texts[0].clone().requires_grad_(), paired)
        assert torch.autograd.gradcheck(scores, given_inputs, atol=1e-6)


def test_dropout_is_the_same_in_the_recomputed_block() -> None:
    unit, cnn = make(8, dropout=0.5)
    images, texts = items([3, 2], 1), items([2, 4], 2)
    gradients = []
    for recompute in (False, True):
        torch.manual_seed(9)
        x = images[0].clone().requires_grad_()
        scorer = JointScorer(unit, cnn, budget=1, recompute=recompute)
        scorer(codes(unit, x, images[1]), codes(unit, *texts)).sum().backward()
        gradients.append(x.grad)
    assert torch.equal(gradients[0], gradients[1])  # type: ignore[arg-type]


def kept_bytes(scorer: JointScorer, pair: tuple[Codes, Codes]) -> int:
    """What autograd keeps between the forward and the backward pass, each storage once."""
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        kept = scorer(*pair)  # noqa: F841 (alive until it is counted)
    return sum(sizes.values())


def test_memory_of_training_follows_the_budget() -> None:
    """The joint sequences of training, 36 + 32 fragments each, at an eighth of the width and 256 of them."""
    torch.manual_seed(0)
    unit, cnn = TransformerUnit(32, 4), TextCNN(32, 32, filters=32)
    x, y = torch.randn(16, 36, 32, requires_grad=True), torch.randn(16, 32, 32, requires_grad=True)
    pair = (
        Codes(fragments=joint_tokens(unit, x, None).packed()),
        Codes(fragments=joint_tokens(unit, y, None).packed()),
    )
    every = kept_bytes(JointScorer(unit, cnn, recompute=False), pair)
    # The estimate behind the block size also covers what the backward pass itself needs.
    assert 0.5 * pair_bytes(unit, cnn) < every / 256 < 0.75 * pair_bytes(unit, cnn)
    assert kept_bytes(JointScorer(unit, cnn, budget=every // 16), pair) < every / 8


def pair_bytes(unit: TransformerUnit, cnn: TextCNN, regions: int = 36, words: int = 32) -> int:
    from quintet.scores.joint_attention import _Work

    return 4 * _Work(JointScorer(unit, cnn), torch.float32, True, False).pair_elements(regions, words)


def test_a_batch_of_64_fits_in_8_gib() -> None:
    unit, cnn = TransformerUnit(256, 16), TextCNN(256, 256)
    codes_of_both = 2 * 64 * (36 + 32) * (5 * 256 + 16) * 4  # and their gradients
    block = 2 << 30  # the budget of a block on an accelerator
    assert codes_of_both + 2 * block < 8 << 30  # twice what a block is thought to need
    assert 4096 * pair_bytes(unit, cnn) > 2 << 30, "there is more than one block, so the budget counts"


def test_nothing_to_score_and_wrong_codes() -> None:
    unit, cnn = make()
    images, texts = codes(unit, *items([3, 2], 1)), codes(unit, *items([2, 2, 1], 2))
    scorer = JointScorer(unit, cnn)
    assert scorer(images[:0], texts).shape == (0, 3)
    assert scorer(images[:0], texts[:0], paired=True).shape == (0,)
    with pytest.raises(ValueError, match="as many images"):
        scorer(images, texts, paired=True)
    with pytest.raises(ValueError, match="another matcher"):
        scorer(Codes(fragments=torch.zeros(1, 2, 7)), texts)
    with pytest.raises(ValueError, match="budget must be positive"):
        JointScorer(unit, cnn, budget=0)(images, texts)
    assert math.isfinite(float(scorer(images, texts).detach().sum()))
