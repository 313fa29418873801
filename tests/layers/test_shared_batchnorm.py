"""BatchNorm over several processes, here over a group of one, against torch's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn

from quintet.layers.batchnorm import SharedBatchNorm


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_torchs_own(group_of_one: None, dtype: torch.dtype, affine: bool) -> None:
    """Also in bfloat16, which cannot even count to 257."""
    x = (3 + torch.randn(257, 4, generator=torch.Generator().manual_seed(0))).to(dtype)
    plain, shared = nn.BatchNorm1d(4, affine=affine), SharedBatchNorm(nn.BatchNorm1d(4, affine=affine))
    assert shared.state_dict().keys() == plain.state_dict().keys()
    expected, got = plain(x), shared(x)
    assert got.dtype == expected.dtype == dtype
    torch.testing.assert_close(got, expected, atol=1e-5 if dtype == torch.float32 else 0.02, rtol=1e-5)
    torch.testing.assert_close(shared.running_mean, plain.running_mean, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(shared.running_var, plain.running_var, atol=1e-5, rtol=1e-4)
    plain.eval()
    shared.eval()
    torch.testing.assert_close(shared(x), plain(x), atol=1e-5 if dtype == torch.float32 else 0.02, rtol=1e-4)
