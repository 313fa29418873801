"""The kernels against their plain twins: on a GPU, or anywhere with TRITON_INTERPRET=1."""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1", allow_module_level=True)

from quintet.mining.filter import Collector
from quintet.mining.kernels import pair_products

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(1, 1), (33, 5000), (70, 2048)])
def test_collecting(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(shape, generator=generator).to(DEVICE, dtype)
    rows = torch.randn(shape[0], generator=generator).to(DEVICE, dtype) * 0.2 + 2
    columns = torch.randn(shape[1], generator=generator).to(DEVICE, dtype) * 0.2 + 2.5
    found = []
    for kernels in (False, True):
        collector = Collector(50_000, DEVICE, kernels)
        collector.start()
        collector.add(scores, rows, columns, 100)
        taken = collector.take()
        assert taken is not None
        found.append(sorted(zip(*(part.tolist() for part in taken), strict=True)))
    assert found[0] == found[1]


def test_too_much_is_refused() -> None:
    collector = Collector(50, DEVICE, kernels=True)
    collector.start()
    collector.add(torch.ones(10, 10, device=DEVICE), torch.zeros(10, device=DEVICE), torch.zeros(10, device=DEVICE), 0)
    assert collector.take() is None


@pytest.mark.parametrize("dim", [5, 256, 300])
def test_products_of_pairs(dim: int) -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(n, dim, generator=generator).to(DEVICE) for n in (50, 60))
    i, j = (torch.randint(n, (101,), generator=generator).to(DEVICE) for n in (50, 60))
    expected = (left[i] * right[j]).sum(dim=1, dtype=torch.float64).float()
    assert torch.equal(pair_products(left, right, i, j), expected)
    assert len(pair_products(left, right, i[:0], j[:0])) == 0
