"""Which code computes the cosines of a block: plain torch, compiled torch, or the fused kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from quintet.codes import Codes
from quintet.scores.attention import Focal, Norm, attended_cosines, check_norm

Engine = Literal["auto", "torch", "compile", "triton"]

# (products, gram, squares, context mask or None, query mask or None) -> cosines; see `attended_cosines`
Cosines = Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor | None], Tensor]


def cosines_by(
    engine: Engine, *, norm: Norm, relu_slope: float, temperature: float, focal: Focal | None = None
) -> Cosines:
    """`attended_cosines` with these settings, computed by the given engine.

    `auto` takes the fused Triton kernel for float32 products on a CUDA device where Triton is installed and the
    fragments fit its tiles, and plain torch otherwise. All engines give the same cosines up to rounding.
    """
    if engine not in get_args(Engine):
        raise ValueError(f"engine must be one of {get_args(Engine)}, got {engine!r}")
    check_norm(norm)
    settings: dict[str, Any] = {
        "norm": norm,
        "relu_slope": float(relu_slope),
        "temperature": float(temperature),
        "focal": focal,
    }
    if engine == "compile":
        return partial(_compiled(), **settings)
    if engine == "torch" or (engine == "auto" and not has_triton()):
        return partial(attended_cosines, **settings)
    from quintet.scores.kernels.cosines import fits, fused_cosines

    if engine == "triton":
        return partial(fused_cosines, **settings)

    def choose(products: Tensor, *others: Any) -> Tensor:
        function = fused_cosines if products.is_cuda and fits(products) else attended_cosines
        return function(products, *others, **settings)

    return choose


def working_copies(engine: Engine, codes: Codes, focal: bool = False) -> tuple[int, int]:
    """How many tensors of the size of a block's products live at once, roughly: without and with gradients."""
    wide = codes.fragments is not None and codes.fragments.dtype == torch.float64
    if engine == "triton" or (engine == "auto" and codes.device.type == "cuda" and has_triton() and not wide):
        return (2, 4) if focal else (1, 2)
    return (7, 11) if focal else (5, 9)


@cache
def has_triton() -> bool:
    """Whether the fused kernel can be compiled here."""
    return torch.cuda.is_available() and find_spec("triton") is not None


@cache
def _compiled() -> Callable[..., Tensor]:
    # Lengths and block sizes differ from block to block: one program for all of them.
    return torch.compile(attended_cosines, dynamic=True)
