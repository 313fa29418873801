"""Weights from a file into a tower, with every name accounted for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quintet.errors import QuintetError, first_line
from quintet.files import user_path

COUNTER = "num_batches_tracked"  # BatchNorm's step counter: some files leave it out, and it changes nothing here


def read_weights(path: Path | str) -> dict[str, Tensor]:
    """The tensors of a .safetensors or .pth/.pt/.bin file. Nothing in the file is executed."""
    path = user_path(path)
    if not path.is_file():
        raise QuintetError(f"weights file {path} does not exist")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    if path.suffix not in (".pth", ".pt", ".bin"):
        raise QuintetError(f"{path}: weights are read from .safetensors, .pth, .pt or .bin files, not {path.suffix!r}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001  # whatever its reader raises on damaged bytes
        raise QuintetError(
            f"{path} cannot be read as plain weights ({first_line(error)}); it is damaged, or it holds "
            "objects other than tensors: save `model.state_dict()` alone"
        ) from None
    return _tensors(content, path)


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise QuintetError(f"{path} is not a complete safetensors file: {error}") from None


def _tensors(content: Any, path: Path) -> dict[str, Tensor]:
    """A state dict, alone or inside a checkpoint, without the prefix that data parallel training leaves."""
    for key in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not content or not all(isinstance(value, Tensor) for value in content.values()):
        raise QuintetError(f"{path} holds no state dict (a table from names to tensors)")
    if all(name.startswith("module.") for name in content):
        return {name.removeprefix("module."): value for name, value in content.items()}
    return dict(content)


def load_weights(module: nn.Module, path: Path | str, ignore: Sequence[str] = ()) -> None:
    """Fill `module` from a file, strictly: a missing, unexpected or misshapen tensor is an error that names it.

    Names that start with one of `ignore` (the classifier of the published weights) may be there or not. Values are cast
    to the module's own type, so that a file in float16 gives a float32 tower.
    """
    given = {name: value for name, value in read_weights(path).items() if not name.startswith(tuple(ignore))}
    wanted = module.state_dict()
    missing = [name for name in wanted if name not in given and not name.endswith(COUNTER)]
    unexpected = [name for name in given if name not in wanted]
    if missing or unexpected:
        raise QuintetError(
            f"{path} does not fit the tower {type(module).__name__}: {_count(missing, 'missing')}, "
            f"{_count(unexpected, 'not part of it')}; is this the file of another tower?"
        )
    for name, value in given.items():
        if value.shape != wanted[name].shape:
            raise QuintetError(
                f"{path}: {name} is {tuple(value.shape)}, the tower {type(module).__name__} wants "
                f"{tuple(wanted[name].shape)}"
            )
    with torch.no_grad():
        for name, value in given.items():
            wanted[name].copy_(value)


def _count(names: list[str], what: str) -> str:
    shown = f" ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})" if names else ""
    return f"{len(names)} names {what}{shown}"


def weights_checksum(module: nn.Module) -> str:
    """A fingerprint of every parameter and buffer: equal for equal towers, whatever file they came from."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        if not name.endswith(COUNTER):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
            digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()
