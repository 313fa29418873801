"""Devices, their precision and their threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from quintet.errors import QuintetError


def pick_device(name: torch.device | str) -> torch.device:
    """ "cuda" is the GPU of this process; "auto" is that GPU if there is one, else the CPU."""
    try:
        device = torch.device(device_name(str(name), torch.cuda.is_available()))
        torch.empty(0, device=device)  # a device torch knows need not be one this machine has
    except (RuntimeError, AssertionError) as error:
        raise QuintetError(f"no device {str(name)!r} here: {str(error).partition(chr(10))[0]}") from None
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def device_name(name: str, has_gpu: bool) -> str:
    """With the index of the GPU, so that the processes of torchrun do not all use the first one.

    >>> device_name("auto", has_gpu=False), device_name("cuda:1", has_gpu=True)
    ('cpu', 'cuda:1')
    """
    if name == "auto":
        name = "cuda" if has_gpu else "cpu"
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if name == "cuda" else name


@contextmanager
def tensor_core_products(device: torch.device, on: bool) -> Iterator[None]:
    """Whether products of float32 matrices round their factors to TF32's 10 bits, which a GPU multiplies quicker.

    The setting is restored afterwards. On a CPU nothing changes.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if on and device.type == "cuda" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Plain float32: no autocast and no TF32, whatever training has switched on."""
    before, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    if before != "highest":
        torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False  # torch's default is True: GRUs and convolutions
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        if before != "highest":
            torch.set_float32_matmul_precision(before)
        torch.backends.cudnn.allow_tf32 = cudnn


@contextmanager
def cores_for_decoding(device: torch.device) -> Iterator[None]:
    """While an accelerator computes, leave the CPU to the threads that decode images.

    Torch's own threads would only spin, and on many cores they slow decoding down several times.
    """
    before = torch.get_num_threads()
    if device.type != "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def one_core_a_thread(device: torch.device) -> Iterator[int]:
    """How many threads of the caller may compute side by side, each on one core, in place of torch's own.

    Torch's threads share out every layer and wait for each other after it; several batches side by side do not wait.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield before if device.type == "cpu" else 1
    finally:
        torch.set_num_threads(before)
