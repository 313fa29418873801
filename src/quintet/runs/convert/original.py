"""Reading the checkpoints of the original implementations without executing anything they hold.

Their layout (VSE++, SCAN, BFAN, VSRN, AOQ): `torch.save` of a dict with `model`, a list of state dicts (image encoder,
text encoder and, in AOQ, the caption model), `opt`, an argparse Namespace, and `epoch`, `best_rsum`, `Eiters`.
"""

from __future__ import annotations

import argparse
import math
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.errors import QuintetError
from quintet.files import open_regular, user_path

SHARED = 4  # how often the tensors of a file may name the same bytes (tied weights)
LONGEST_OPTION = 10_000  # characters


class ConversionError(QuintetError):
    """An original checkpoint or vocabulary cannot be read, or is not what it is said to be."""


@dataclass(frozen=True)
class OriginalCheckpoint:
    path: Path
    parts: list[dict[str, Tensor]]  # image encoder, text encoder (, caption model)
    options: dict[str, Any] = field(default_factory=dict)  # the authors' `opt`
    epoch: int | None = None
    best: float | None = None  # the validation score that chose it


class _NumpyType:
    """Stands in for numpy.dtype: keeps the code, does nothing."""

    def __init__(self, code: str | bytes, *flags: object) -> None:
        self.code = code.decode("ascii") if isinstance(code, bytes) else str(code)

    def __setstate__(self, state: object) -> None:
        pass  # byte order and alignment; scalars of these files are little-endian


def _numpy_scalar(kind: _NumpyType, data: bytes | str) -> float | int | bool:
    """Stands in for numpy's own function: a plain number from its bytes."""
    if kind.code not in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"):
        raise pickle.UnpicklingError(f"a numpy scalar of type {kind.code}")
    raw = data.encode("latin1") if isinstance(data, str) else data  # Python 2 wrote its bytes as text
    return np.frombuffer(raw, dtype=np.dtype(kind.code))[0].item()


ALLOWED: list[Any] = [
    argparse.Namespace,
    (_NumpyType, "numpy.dtype"),
    (_numpy_scalar, "numpy.core.multiarray.scalar"),
    (_numpy_scalar, "numpy._core.multiarray.scalar"),
]


def read_checkpoint(path: Path | str) -> OriginalCheckpoint:
    """The tensors and options of an original checkpoint; a file that wants anything executed is refused."""
    path = user_path(path)
    content = _load(path)
    if isinstance(content, Mapping) and isinstance(content.get("model"), Mapping):
        content = {**content, "model": _halves(content["model"])}
    if not isinstance(content, Mapping) or not isinstance(content.get("model"), (list, tuple)):
        raise ConversionError(
            f"{path} is a torch file, but not a checkpoint of the original implementations: "
            "those hold a dict whose 'model' is a list of state dicts"
        )
    if len(content["model"]) not in (2, 3):
        raise ConversionError(
            f"{path} holds {len(content['model'])} state dicts; expected image encoder, text encoder (, caption)"
        )
    parts = [_tensors(path, part) for part in content["model"]]
    needed = sum(_bytes(tensor) for part in parts for tensor in part.values())
    if needed > SHARED * path.stat().st_size:
        raise ConversionError(
            f"{path} describes tensors of {needed:,} bytes, but holds {path.stat().st_size:,}: no training wrote it"
        )
    options = content.get("opt")
    options = vars(options) if isinstance(options, argparse.Namespace) else options
    epoch, best = content.get("epoch"), content.get("best_rsum")
    return OriginalCheckpoint(
        path,
        parts,
        options=dict(options) if isinstance(options, Mapping) else {},
        epoch=epoch if isinstance(epoch, int) and is_plain(epoch) else None,
        best=float(best) if isinstance(best, (int, float)) and is_plain(best) else None,
    )


def is_plain(value: object) -> bool:
    """Whether an option is a text or number of usual size, which JSON can hold."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return abs(value) < 2**63
    return value is None or (isinstance(value, str) and len(value) <= LONGEST_OPTION)


def _halves(whole: Mapping[Any, Any]) -> object:
    """One state dict of a whole model as the list of its parts; anything else as it is."""
    halves: dict[str, dict[str, Any]] = {}
    for name, value in whole.items():
        if not isinstance(name, str):
            return whole
        halves.setdefault(name.removeprefix("module.").split(".")[0], {})[name] = value
    if not {"img_enc", "txt_enc"} <= halves.keys():
        return whole
    rest = {
        name: value for key, part in halves.items() if key not in ("img_enc", "txt_enc") for name, value in part.items()
    }
    return [halves["img_enc"], halves["txt_enc"], *([rest] if rest else [])]


def _load(path: Path) -> Any:
    open_regular(path).close()  # raises where it is a folder, a FIFO, a link to itself
    try:
        _refuse_compressed(path)
        with torch.serialization.safe_globals(ALLOWED), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old protocols, which is what these files are
            # latin1: most of these files were written by Python 2
            return torch.load(path, map_location="cpu", weights_only=True, encoding="latin1")
    except ConversionError:
        raise
    except pickle.UnpicklingError as error:
        raise ConversionError(_explain(path, error)) from None
    except Exception as error:  # noqa: BLE001  # whatever a reader raises, the file is not one that it can read
        raise ConversionError(
            f"{path} cannot be read: damaged, incomplete or no torch file ({_first(error)})"
        ) from None


def _refuse_compressed(path: Path) -> None:
    """torch stores tensors as they are. A compressed file may unpack to a thousand times its size."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    if unpacked > path.stat().st_size:
        raise ConversionError(
            f"{path} unpacks to {unpacked:,} bytes, more than the file has; torch writes no such files"
        )


def _explain(path: Path, error: pickle.UnpicklingError) -> str:
    named = re.search(r"GLOBAL (\S+)", str(error))
    if named is None:
        return f"{path} cannot be read: damaged, incomplete or no torch file ({_first(error)})"
    return (
        f"{path} holds {named[1]!r}, which a checkpoint of weights and options has no need of. It was refused, and "
        "nothing was executed. If you trust the file, save it again with tensors and plain options only"
    )


def _first(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200] or type(error).__name__


def _tensors(path: Path, part: object) -> dict[str, Tensor]:
    """One state dict with the names a single process gives: `module.` comes from training on several GPUs."""
    if not isinstance(part, Mapping) or not all(isinstance(value, Tensor) for value in part.values()):
        raise ConversionError(f"{path}: an entry of 'model' is not a state dict of tensors")
    for name, tensor in part.items():
        problem = _problem(tensor) if isinstance(name, str) else "has no text for a name"
        if problem is not None:
            raise ConversionError(f"{path}: tensor {str(name)[:80] if isinstance(name, str) else '?'!r} {problem}")
    return {re.sub(r"^(module\.|img_enc\.|txt_enc\.)+|\bmodule\.", "", name): value for name, value in part.items()}


def _problem(tensor: Tensor) -> str | None:
    """What keeps a tensor from being the weights of a matcher."""
    if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.is_nested or tensor.layout != torch.strided:
        return f"is not a plain tensor ({tensor.layout}, {type(tensor).__name__}); save it as a dense one"
    if tensor.is_quantized or tensor.is_complex():
        return f"is of type {tensor.dtype}; save it as float32"
    if tensor.device.type == "meta":
        return "has a shape and no values (device meta); save the model after its weights were loaded"
    if _bytes(tensor) > tensor.untyped_storage().nbytes():
        return f"has the shape {tuple(tensor.shape)}, but the file holds fewer values for it"
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        return "holds values that are NaN or infinite: the training that wrote it had diverged"
    return None


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
