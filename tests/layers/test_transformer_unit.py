from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from quintet.layers.transformer_unit import TransformerUnit


def make(**more: Any) -> TransformerUnit:
    torch.manual_seed(0)
    return TransformerUnit(8, heads=2, **more).double().eval()


@pytest.mark.parametrize("scale", ["sqrt_dk", "sqrt_d"])
def test_the_unit_is_equations_1_to_4(scale: Any) -> None:
    unit = make(scale=scale, bias=True)
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    reference = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True, norm_first=False).double().eval()
    attention, rest = reference.self_attn, unit.rest
    stretch = 1.0 if scale == "sqrt_dk" else math.sqrt(4 / 8)  # torch divides by the root of the head's width
    with torch.no_grad():
        attention.in_proj_weight.copy_(torch.cat([unit.query.weight * stretch, unit.key.weight, unit.value.weight]))
        attention.in_proj_bias.copy_(torch.cat([unit.query.bias * stretch, unit.key.bias, unit.value.bias]))
        pairs = (
            (attention.out_proj, rest.output),
            (reference.linear1, rest.ffn_in),
            (reference.linear2, rest.ffn_out),
            (reference.norm1, rest.norm_attention),
            (reference.norm2, rest.norm_ffn),
        )
        for theirs, ours in pairs:
            theirs.load_state_dict(ours.state_dict())
        assert (unit(x) - reference(x)).abs().max() < 1e-12


def test_padding_is_not_attended_to() -> None:
    unit = make()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    mask = torch.tensor([[True, True, True, False, False], [True, False, True, False, True]])
    with torch.no_grad():
        found = unit(x, mask)
        changed = unit(x.masked_fill(~mask[..., None], 1e3), mask)
        assert torch.equal(found[mask], changed[mask])
        for row in range(2):
            alone = unit(x[row, mask[row]][None])[0]
            assert (found[row, mask[row]] - alone).abs().max() < 1e-12


def test_an_item_without_fragments_is_finite() -> None:
    unit = make()
    assert unit(torch.randn(1, 3, 8, dtype=torch.float64), torch.zeros(1, 3, dtype=torch.bool)).isfinite().all()


def test_own_attention_and_its_weight() -> None:
    unit = make()
    x = torch.randn(2, 4, 8, dtype=torch.float64)
    mask = torch.tensor([[True, True, True, True], [True, True, False, False]])
    with torch.no_grad():
        query, key, value = unit.project(x)
        mixed, weight = unit.attend_own(query, key, value, mask)
        for row in range(2):
            for head in range(2):
                part = slice(4 * head, 4 * head + 4)
                logits = query[row, :, part] @ key[row, mask[row], part].T
                assert (weight[row, :, head] - logits.exp().sum(dim=1).log()).abs().max() < 1e-12
                expected = logits.softmax(dim=1) @ value[row, mask[row], part]
                assert (mixed[row, :, part] - expected).abs().max() < 1e-12


def test_dropout_only_in_training() -> None:
    unit = make(dropout=0.5)
    x = torch.randn(1, 3, 8, dtype=torch.float64)
    assert torch.equal(unit(x), unit(x))
    unit.train()
    assert not torch.equal(unit(x), unit(x))


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="3 heads"):
        TransformerUnit(8, heads=3)
    with pytest.raises(ValueError, match="scale"):
        make(scale="sqrt")
    with pytest.raises(ValueError, match="activation"):
        make(activation="tanh")
