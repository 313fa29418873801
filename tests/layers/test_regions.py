from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from quintet.layers.regions import ChannelDropout, RegionProjection, xavier_linear

MASK = torch.tensor([[True, True, True, False], [False, True, True, False], [True, True, True, True]])


def test_init_is_the_authors() -> None:
    linear = xavier_linear(200, 100)
    bound = math.sqrt(6 / 300)
    assert 0.95 * bound < float(linear.weight.detach().abs().max()) <= bound
    assert (linear.bias == 0).all()


@pytest.mark.parametrize("mlp", [False, True])
def test_padding_changes_nothing(mlp: bool) -> None:
    projection = RegionProjection(8, 6, mlp=mlp).double().train()
    fragments = torch.randn(3, 4, 8, dtype=torch.float64)
    projection.fc.bias.data.fill_(3.0)
    out = projection(fragments, MASK)
    assert out.shape == (3, 4, 6)
    assert (out[~MASK] == 0).all()
    padded = torch.cat([fragments, torch.full((3, 2, 8), 1e6, dtype=torch.float64)], dim=1)
    padded[:, :4][~MASK] = -5
    again = RegionProjection(8, 6, mlp=mlp).double().train()
    again.load_state_dict(RegionProjection(8, 6, mlp=mlp).state_dict() | projection.state_dict())
    torch.testing.assert_close(again(padded, torch.nn.functional.pad(MASK, (0, 2)))[:, :4], out)


def test_the_batch_statistics_are_those_of_real_fragments() -> None:
    projection = RegionProjection(8, 6, mlp=True).double().train()
    fragments = torch.randn(3, 4, 8, dtype=torch.float64)
    out = projection(fragments, MASK)
    assert projection.mlp is not None
    first, second = projection.mlp.layers
    for row in range(3):
        for place in range(4):
            if not MASK[row, place]:
                continue
            hidden = first(fragments[MASK])  # (9, 3)
            mean, variance = hidden.mean(dim=0), hidden.var(dim=0, unbiased=False)
            normal = (first(fragments[row, place]) - mean) / torch.sqrt(variance + 1e-5)
            expected = projection.fc(fragments[row, place]) + second(torch.relu(normal))
            torch.testing.assert_close(out[row, place], expected)
    torch.testing.assert_close(projection.mlp.bns[0].running_mean, 0.1 * first(fragments[MASK]).mean(dim=0))


def test_evaluation_does_not_depend_on_the_mask() -> None:
    projection = RegionProjection(8, 6, mlp=True).double()
    fragments = torch.randn(3, 4, 8, dtype=torch.float64)
    projection(fragments, MASK)
    projection.eval()
    torch.testing.assert_close(projection(fragments, MASK)[MASK], projection(fragments)[MASK])
    torch.testing.assert_close(projection(fragments)[1, 2], projection(fragments[1, 2][None, None])[0, 0])


@pytest.mark.parametrize("mlp", [False, True])
def test_gradients_reach_every_parameter(mlp: bool) -> None:
    projection = RegionProjection(8, 6, mlp=mlp)
    projection(torch.randn(3, 4, 8), MASK).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in projection.parameters())


@pytest.mark.parametrize("mlp", [False, True])
def test_dropout_hides_channels_in_training_alone(mlp: bool) -> None:
    projection = RegionProjection(1000, 1000, mlp=mlp, dropout=0.4)
    nn.init.eye_(projection.fc.weight)
    if projection.mlp is not None:
        nn.init.zeros_(projection.mlp.layers[1].weight)
        nn.init.zeros_(projection.mlp.layers[1].bias)
    fragments = torch.ones(3, 4, 1000)
    found = projection.train()(fragments)
    assert abs((found == 0).float().mean() - 0.4) < 0.03
    torch.testing.assert_close(found.mean(), torch.tensor(1.0), atol=0.05, rtol=0)
    torch.testing.assert_close(projection.eval()(fragments), fragments)


def test_names_are_those_of_the_authors() -> None:
    assert set(RegionProjection(8, 6).state_dict()) == {"fc.weight", "fc.bias"}
    names = set(RegionProjection(8, 6, mlp=True).state_dict())
    assert {"fc.weight", "mlp.layers.0.weight", "mlp.layers.1.bias", "mlp.bns.0.running_mean"} <= names


def test_a_vector_in_place_of_fragments() -> None:
    projection = RegionProjection(8, 6)
    vectors = torch.randn(5, 8)
    torch.testing.assert_close(projection(vectors), projection(vectors[:, None])[:, 0])


def test_wrong_channels_are_named() -> None:
    with pytest.raises(ValueError, match=r"7 channels.* 8"):
        RegionProjection(8, 6)(torch.zeros(1, 2, 7))


def test_channels_are_hidden_in_all_fragments_alike() -> None:
    """So that hiding before or after the mean over fragments is the same."""
    fragments = torch.randn(5, 4, 40, dtype=torch.float64)
    dropout = ChannelDropout(0.3)
    torch.manual_seed(0)
    hidden = dropout(fragments)
    torch.manual_seed(0)
    torch.testing.assert_close(hidden.mean(dim=1), dropout(fragments.mean(dim=1)))
    gone = (hidden == 0).all(dim=1)  # (n, d)
    assert 0.15 < gone.double().mean() < 0.45
    assert (gone[0] != gone[1]).any(), "images lose channels of their own"
    torch.testing.assert_close(hidden, torch.where(gone[:, None], 0, fragments / 0.7))
    assert dropout.eval()(fragments) is fragments
