from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quintet.losses.relation import create_interaction

N, DIM, HEADS = 4, 8, 2


def attend(attention: nn.MultiheadAttention, queries: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """Eq. 12 head by head and row by row, over connected columns only."""
    weight, offset = attention.in_proj_weight, attention.in_proj_bias
    q = queries @ weight[:DIM].T + offset[:DIM]
    k = values @ weight[DIM : 2 * DIM].T + offset[DIM : 2 * DIM]
    v = values @ weight[2 * DIM :].T + offset[2 * DIM :]
    width, heads = DIM // HEADS, []
    for head in range(HEADS):
        part = slice(head * width, (head + 1) * width)
        rows = []
        for row in range(len(queries)):
            linked = [column for column in range(len(values)) if bias[row, column] > -math.inf]
            logits = torch.stack([q[row, part] @ k[c, part] / math.sqrt(width) + bias[row, c] for c in linked])
            rows.append(logits.softmax(0) @ v[linked][:, part])
        heads.append(torch.stack(rows))
    return torch.cat(heads, dim=1) @ attention.out_proj.weight.T + attention.out_proj.bias


def setting() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    images, texts = torch.randn(N, DIM, dtype=torch.float64), torch.randn(N, DIM, dtype=torch.float64)
    bias = torch.randn(2 * N, 2 * N, dtype=torch.float64)
    cut = torch.rand(2 * N, 2 * N) < 0.4
    cut[torch.arange(2 * N), torch.arange(2 * N)] = False
    cut[torch.arange(2 * N), torch.arange(2 * N).roll(N)] = False
    return images, texts, bias.masked_fill(cut, -math.inf)


def made(mechanism: str, **options: Any) -> Any:
    torch.manual_seed(1)
    return create_interaction(mechanism, DIM, heads=HEADS, dropout=0.0, **options).double()


def test_fusion_is_attention_over_both_modalities_at_once() -> None:
    images, texts, bias = setting()
    module = made("fusion", layers=2)
    nodes = torch.cat([images, texts])
    for layer in module.layers:
        nodes = layer.norm1(nodes + attend(layer.self_attn, nodes, nodes, bias))
        nodes = layer.norm2(nodes + layer.linear2(torch.relu(layer.linear1(nodes))))
    found = module(images, texts, bias)
    torch.testing.assert_close(torch.cat(found), nodes)


def test_standalone_goes_across_then_within_in_two_branches() -> None:
    images, texts, bias = setting()
    module = made("standalone", layers=2)
    v, u = images, texts
    for own, other in zip(module.images, module.texts, strict=True):
        results = []
        for branch, nodes, others, across, within in (
            (own, v, u, bias[:N, N:], bias[:N, :N]),
            (other, u, v, bias[N:, :N], bias[N:, N:]),
        ):
            x = branch.inter.norm(nodes + attend(branch.inter.attention, nodes, others, across))
            x = branch.intra.norm(x + attend(branch.intra.attention, x, x, within))
            results.append(branch.norm(x + branch.feed_forward(x)))
        v, u = results
    found = module(images, texts, bias)
    torch.testing.assert_close(found[0], v)
    torch.testing.assert_close(found[1], u)


@pytest.mark.parametrize("mechanism", ["fusion", "standalone"])
def test_gradients_reach_relevance_where_connected_and_nowhere_else(mechanism: str) -> None:
    images, texts, bias = setting()
    connected = bias > -math.inf
    relevance = torch.randn_like(bias).requires_grad_()
    images.requires_grad_()
    texts.requires_grad_()
    found = made(mechanism)(images, texts, relevance.masked_fill(~connected, -math.inf))
    (found[0].square().sum() + found[1].pow(3).sum()).backward()
    assert relevance.grad is not None
    assert not relevance.grad[~connected].any()
    assert (relevance.grad[connected] != 0).float().mean() > 0.9
    for nodes in (images, texts):
        assert nodes.grad is not None
        assert nodes.grad.isfinite().all()
        assert nodes.grad.any(dim=1).all()


@pytest.mark.parametrize("mechanism", ["fusion", "standalone"])
@pytest.mark.parametrize("relations", ["inter", "intra"])
def test_one_kind_of_relation_alone(mechanism: str, relations: str) -> None:
    """Without relations across modalities images do not see texts, and the other way round."""
    images, texts, bias = setting()
    module = made(mechanism, relations=relations)
    images.requires_grad_()
    enhanced_images, enhanced_texts = module(images, texts, bias)
    assert enhanced_images.isfinite().all()
    seen_by_texts = torch.autograd.grad(enhanced_texts.pow(2).sum(), images, retain_graph=True, allow_unused=True)[0]
    assert (seen_by_texts is not None and bool(seen_by_texts.any())) == (relations == "inter")


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="fusion, standalone"):
        create_interaction("merge", DIM)
    with pytest.raises(ValueError, match="'both', 'inter' or 'intra'"):
        create_interaction("fusion", DIM, relations="some")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one layer"):
        create_interaction("fusion", DIM, layers=0)
