"""Several processes that work on one batch: gathering rows with gradients, and summing gradients.

Without `torchrun` every function is the identity, so callers need no second path. The convention: every process returns
the loss of its own anchors, the loss of the batch is the sum over processes, and gradients are summed, not averaged.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from quintet.codes import Codes
from quintet.errors import QuintetError, first_line

T = TypeVar("T")


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def is_main() -> bool:
    return rank() == 0


def is_main_launched() -> bool:
    """Whether torchrun counts this process as the first; unlike `is_main`, also outside of `process_group`."""
    return int(os.environ.get("RANK", "0")) == 0


def share(total: int, process: int | None = None) -> slice:
    """The rows of a global batch that a process (default: this one) works on: consecutive, as even as possible.

    >>> share(10)
    slice(0, 10, None)
    """
    process = rank() if process is None else process
    return slice(process * total // world_size(), (process + 1) * total // world_size())


class _GatherRows(torch.autograd.Function):
    """All-gather along dim 0. Backward: each process gets the sum over all processes of the gradient of its rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, total: int) -> Tensor:
        sizes = [share(total, process) for process in range(world_size())]
        largest = max(part.stop - part.start for part in sizes)
        padded = rows.new_zeros((largest, *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        ctx.mine = share(total)
        return torch.cat([part[: size.stop - size.start] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        summed = gradients[0].contiguous()
        dist.all_reduce(summed)
        return summed[ctx.mine], None


def gather_rows(rows: Tensor, total: int) -> Tensor:
    """The rows of all processes, in order of process; `total` is their number."""
    if world_size() == 1:
        return rows
    if rows.dtype == torch.bool:
        return gather_rows(rows.to(torch.uint8), total).bool()
    return _GatherRows.apply(rows, total)


def gather_codes(codes: Codes, total: int) -> Codes:
    """The Codes of all processes; fragments are padded to the longest anywhere."""
    if world_size() == 1:
        return codes
    if codes.fragments is not None:
        length = torch.tensor(codes.fragments.shape[1], device=codes.device)
        dist.all_reduce(length, op=dist.ReduceOp.MAX)
        codes = codes.pad_fragments(int(length))
    return Codes(**{name: gather_rows(tensor.contiguous(), total) for name, tensor in codes.tensors().items()})


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Sum the gradients of all processes, in one message per dtype. A parameter unused in this process counts as zero.

    A parameter that no process used keeps no gradient, as with one process, and optimizers skip it. What is sharded
    has its whole gradient already.
    """
    if world_size() == 1:
        return
    wanted = [parameter for parameter in parameters if parameter.requires_grad and not is_sharded(parameter)]
    wanted = _used_anywhere(wanted)
    for dtype in sorted({parameter.dtype for parameter in wanted}, key=str):
        same = [parameter for parameter in wanted if parameter.dtype == dtype]
        for parameter in same:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        flat = torch.cat([parameter.grad.reshape(-1) for parameter in same if parameter.grad is not None])
        dist.all_reduce(flat)
        offset = 0
        for parameter in same:
            parameter.grad = flat[offset : offset + parameter.numel()].view_as(parameter)
            offset += parameter.numel()


def _used_anywhere(parameters: list[nn.Parameter]) -> list[nn.Parameter]:
    if not parameters:
        return []
    used = torch.tensor([float(parameter.grad is not None) for parameter in parameters], device=parameters[0].device)
    dist.all_reduce(used)
    return [parameter for parameter, many in zip(parameters, used.tolist(), strict=True) if many]


def all_reduce_sum(values: Tensor) -> Tensor:
    """The sum over processes, without gradient (for logging and counts)."""
    values = values.detach().clone()
    if world_size() > 1:
        dist.all_reduce(values)
    return values


class _AddUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return all_reduce_sum(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return all_reduce_sum(gradients[0].contiguous())


def all_reduce_with_gradient(values: Tensor) -> Tensor:
    """The sum over processes, with gradients. Every process must use the result: backward is a sum of all, too."""
    return values if world_size() == 1 else _AddUp.apply(values)


def all_reduce_max(values: Tensor) -> Tensor:
    """The elementwise maximum over processes, without gradient."""
    values = values.detach().clone()
    if world_size() > 1:
        dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return values


def shared_generator(device: torch.device) -> torch.Generator | None:
    """A generator with the same seed in all processes, taken from the first one's stream.

    None (the device's own generator) for one process with a GPU: a replayed CUDA graph draws from that one only.
    """
    if device.type == "cuda" and world_size() == 1:
        return None
    seed = torch.randint(2**62, (1,))
    if world_size() > 1:
        seed = all_reduce_sum((seed if is_main() else torch.zeros_like(seed)).to(device))
    return torch.Generator(device).manual_seed(int(seed))


def mark_sharded(parameter: nn.Parameter, total: int) -> None:
    """Mark `parameter` as this process's share of `total` rows; no process has all of them."""
    parameter.global_rows = total  # type: ignore[attr-defined]


def global_rows(parameter: Tensor) -> int | None:
    """The total rows of a sharded parameter over all processes; None: every process has all of it."""
    return getattr(parameter, "global_rows", None)


def is_dtensor(tensor: Tensor) -> bool:
    """Whether the tensor is one of FSDP, whose other parts are in other processes."""
    loaded = sys.modules.get("torch.distributed.tensor")  # importing it takes seconds, and few trainings need it
    return loaded is not None and isinstance(tensor, loaded.DTensor)


def is_sharded(parameter: Tensor) -> bool:
    """Whether this process has a part of the parameter only."""
    return is_dtensor(parameter) or global_rows(parameter) is not None


def shard_layers(module: nn.Module, layers: Iterable[nn.Module], device: torch.device) -> None:
    """Leave a share of the parameters of each layer in each process (FSDP); the rest of `module` stays whole.

    A layer is put together while it computes, and its gradients are summed into the shares. `module` is used by its
    methods `encode_images` and `encode_texts`.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

    if not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
        raise QuintetError(f"shard: true needs a newer torch than {torch.__version__}; leave it out, or update torch")
    broadcast_module(module)  # while it is whole
    mesh = init_device_mesh(device.type, (world_size(),))
    for layer in layers:
        sharded = fully_shard(layer, mesh=mesh)
        sharded.set_gradient_divide_factor(1.0)  # a sum
        sharded.set_force_sum_reduction_for_comms(True)  # gloo has no factors
    # As the root it lets a layer be fetched while the one before computes.
    fully_shard(module, mesh=mesh, ignored_params={each for each in module.parameters() if not is_dtensor(each)})
    for verb in ("encode_images", "encode_texts"):
        register_fsdp_forward_method(module, verb)


def part_like(whole: Tensor, parameter: Tensor) -> Tensor:
    """This process's part of a tensor that is as large as `parameter`, a DTensor."""
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)  # type: ignore


def even_batch_size(total: int, most: int) -> int:
    """The largest size up to `most` of which all processes make equally many batches of their `share`.

    Layers that FSDP shards must be used by all processes at once.
    """
    shares = [share(total, process) for process in range(world_size())]
    counts = ({-(-(part.stop - part.start) // size) for part in shares} for size in range(most, 0, -1))
    return next((most - number for number, found in enumerate(counts) if len(found) == 1), most)


def broadcast_module(module: nn.Module) -> None:
    """Copy the first process's parameters and buffers to all others, except what is sharded."""
    if world_size() > 1:
        for tensor in (*module.parameters(), *module.buffers()):
            if not is_sharded(tensor):
                dist.broadcast(tensor.data, src=0)


def from_main(value: T) -> T:
    """The first process's value, in all of them."""
    if world_size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def gather_objects(value: T) -> list[T]:
    """The values of all processes, in all of them."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def barrier() -> None:
    if world_size() > 1:
        dist.barrier()


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Join the process group that torchrun announces, if there is one, for the duration of the block."""
    alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
    if alone or (dist.is_available() and dist.is_initialized()):
        yield
        return
    # Its functions take the group at the time of import as a default. torch imports it when a step first needs it; the
    # group would then outlive the block, and its threads would sometimes abort the exiting process.
    importlib.import_module("torch.distributed.nn.functional")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    except RuntimeError as error:
        # gloo raises plain RuntimeErrors that begin with the line of its source.
        if isinstance(error, dist.DistError) or "gloo" in str(error):
            raise QuintetError(
                f"another process of this training ended or cannot be reached ({first_line(error)}); see what it "
                "said, then start all of them again (a training goes on with --resume)"
            ) from error
        raise
    finally:
        dist.destroy_process_group()
