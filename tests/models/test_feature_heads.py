from __future__ import annotations

import torch
from torch import nn

from quintet.models.dual_path import ReleasedHead, two_layer_head


def test_the_papers_head_is_fc_bn_relu_fc() -> None:
    head = two_layer_head(2048, 2048, 2048)
    assert [type(layer) for layer in head] == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]
    assert sum(parameter.numel() for parameter in head.parameters()) == 2 * 2048**2 + 3 * 2048
    assert head[0].bias is None
    assert two_layer_head(4096, 4096, 2048)[3].weight.shape == (2048, 4096)


def test_the_released_head_is_measured_before_its_last_relu() -> None:
    torch.manual_seed(0)
    head, x = ReleasedHead(5, 4, 3), torch.randn(50, 5)
    for norm in head.norm:
        norm.momentum = 1.0  # the statistics that are kept are those of the batch
    trained = head(x)
    assert (trained >= 0).all()
    measured = head.eval()(x)
    assert (measured < 0).any()
    torch.testing.assert_close(measured.relu(), trained, atol=0.05, rtol=0.05)
    hidden = head.norm[0](head.linear[0](x)).relu()
    torch.testing.assert_close(measured, head.norm[1](head.linear[1](hidden)))
    assert len(ReleasedHead(5, 3).linear) == 1, "the released text branch has one fc"
