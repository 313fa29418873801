"""Unit length, in the two forms of the published methods, and half precision to float32."""

from __future__ import annotations

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)


def widen(tensor: Tensor) -> Tensor:
    """Half precision to float32; wider types stay.

    Under autocast vectors come in half precision, which is too coarse for margins, ranks and long sums.
    """
    return tensor.float() if tensor.dtype in HALF else tensor


def l2norm(x: Tensor, dim: int = -1, eps: float = 1e-8) -> Tensor:
    """Divide by the Euclidean length along `dim`.

    With `eps` above zero, x / (|x| + eps): SCAN, BFAN, SAEM, VSE-infinity and HREM. With `eps=0`, x / |x|: VSE++, VSRN
    and AOQ; there a vector of zeros stays zero, where the authors' code gives NaN. The gradient at zero is finite in
    both. Half precision is measured in float32, where 1e-8 is not rounded away.

    >>> l2norm(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), eps=0)
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    length = torch.linalg.vector_norm(x, dim=dim, keepdim=True, dtype=torch.float32 if x.dtype in HALF else None)
    divisor = length + eps if eps > 0 else length.masked_fill(length == 0, 1.0)
    return (x / divisor).to(x.dtype)
