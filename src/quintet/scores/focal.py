"""BFAN's focal attention: keep the context fragments that matter more than the others to a query.

Liu, Mao, Liu, Zhang, Wang, Zhang: Focus Your Attention: A Bidirectional Focal Attention Network for Image-Text
Matching, ACM MM 2019.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

Focal = Literal["equal", "prob"]


def focal_gates(weights: Tensor, context_mask: Tensor | None, focal: Focal) -> Tensor:
    """(C, Lc, Q, Lq), ones where a context fragment is kept, without gradient.

    With x the attention of one query over its L real context fragments, fragment i is kept where F_i > 0:

    - `equal`: F_i = sum_j (x_i - x_j) = L x_i - sum_j x_j;
    - `prob`: F_i = sum_j (x_i - x_j) sqrt(x_j) = x_i sum_j sqrt(x_j) - sum_j x_j sqrt(x_j).

    Where attention is uniform (a context of one fragment, or equal fragments) nothing stands out and every F_i is zero.
    Then all fragments are kept: the attention stays as it is. The authors' code divides zero by zero there.
    """
    if focal not in get_args(Focal):
        raise ValueError(f"focal must be one of {get_args(Focal)}, got {focal!r}")
    x = weights.detach()
    if focal == "equal":
        count: Tensor | int = x.shape[1]
        if context_mask is not None:
            count = context_mask.sum(dim=1)[:, None, None, None]  # (C, 1, 1, 1)
        above = count * x > x.sum(dim=1, keepdim=True)
    else:
        roots = x.sqrt()
        above = x * roots.sum(dim=1, keepdim=True) > (x * roots).sum(dim=1, keepdim=True)
    if context_mask is not None:
        above = above & context_mask[:, :, None, None]
    none_above = ~above.any(dim=1, keepdim=True)  # (C, 1, Q, Lq)
    return (above | none_above).to(torch.result_type(weights, 1.0))
