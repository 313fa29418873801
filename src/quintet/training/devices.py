"""Which device to work on."""

from __future__ import annotations

import os

import torch

from quintet.errors import QuintetError


def pick_device(name: str) -> torch.device:
    """ "auto" is the GPU of this process where there is one, else the CPU."""
    if name == "auto":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)  # a device torch knows need not be one this machine has
    except (RuntimeError, AssertionError) as error:
        raise QuintetError(f"no device {name!r} here: {str(error).partition(chr(10))[0]}") from None
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device
