from __future__ import annotations

import pytest
import torch
from torch import nn

from quintet.layers.fragment_attention import FragmentAggregation, attention_heads


def ragged(lengths: list[int], dim: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    mask = torch.arange(max(*lengths, 1)) < torch.tensor(lengths)[:, None]
    return torch.randn(*mask.shape, dim, dtype=torch.float64), mask


@pytest.mark.parametrize("top", [1, 2])
@pytest.mark.parametrize("relation", [True, False])
def test_mix_of_maximum_and_mean_item_by_item(top: int, relation: bool) -> None:
    """Eq. 2, one item at a time, without any padding."""
    fragments, mask = ragged([5, 1, 3])
    block = FragmentAggregation(8, beta=0.7, top=top, relation=relation).double().eval()
    found = block(fragments, mask)
    for row in range(3):
        own = fragments[row, mask[row]]  # (l, d)
        strongest = own.sort(dim=0, descending=True).values[:top].mean(0)
        related = own if block.layer is None else block.layer(own[None])[0]
        torch.testing.assert_close(found[row], 0.7 * strongest + 0.3 * related.mean(0))


def test_padding_changes_nothing_forward_or_backward() -> None:
    fragments, mask = ragged([5, 2, 4])
    block = FragmentAggregation(8, dropout=0.0).double()
    first = fragments.clone().requires_grad_()
    second = torch.where(mask[..., None], fragments, 1e3).requires_grad_()
    for x in (first, second):
        block(x, mask).square().sum().backward()
    torch.testing.assert_close(block(first, mask), block(second, mask))
    assert first.grad is not None
    assert second.grad is not None
    torch.testing.assert_close(first.grad, second.grad)
    assert not second.grad[~mask].any()


def test_items_without_fragments_become_zeros_and_no_items_are_fine() -> None:
    fragments, mask = ragged([3, 0])
    for block in (FragmentAggregation(8).double().eval(), FragmentAggregation(8, dropout=0.0).double()):
        found = block(fragments, mask)
        assert found.isfinite().all()
        assert not found[1].any()
        assert block(fragments[:0], mask[:0]).shape == (0, 8)


def test_the_layer_is_post_norm_with_a_relu() -> None:
    layer = FragmentAggregation(32).layer
    assert isinstance(layer, nn.TransformerEncoderLayer)
    assert not layer.norm_first
    assert (layer.self_attn.num_heads, layer.linear1.out_features, layer.dropout.p) == (16, 32, 0.1)
    x = torch.randn(1, 4, 32)
    layer.eval()
    attended = layer.norm1(x + layer.self_attn(x, x, x, need_weights=False)[0])
    expected = layer.norm2(attended + layer.linear2(torch.relu(layer.linear1(attended))))
    torch.testing.assert_close(layer(x), expected)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="shared by 3"):
        attention_heads(8, 3)
    with pytest.raises(ValueError, match="at least 1"):
        FragmentAggregation(8, top=0)
