"""Devices, their precision and their threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from quintet.errors import QuintetError

R = TypeVar("R")
AT_ONCE = 4  # images that a core encodes together; what a tower makes of more is too large for malloc to keep


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
def side_by_side(device: torch.device) -> Iterator[Callable[[Callable[[Any], R], Any], list[R]]]:
    """Gives a function that encodes a batch in parts: `in_parts(encode, batch)` -> the results of the parts.

    On a CPU each core takes parts of a few items. Torch's own threads share out every layer and wait for each other
    after it; threads of one core each do not wait.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    threads = before if device.type == "cpu" else 1
    pool = ThreadPoolExecutor(threads, "encode", initializer=torch.set_num_threads, initargs=(1,))

    def in_parts(encode: Callable[[Any], R], batch: Any) -> list[R]:
        size = AT_ONCE if device.type == "cpu" else len(batch)
        return list(pool.map(encode, (batch[at : at + size] for at in range(0, len(batch), size))))

    try:
        with pool:
            yield in_parts
    finally:
        torch.set_num_threads(before)
