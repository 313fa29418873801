"""`.npy` files: written atomically, and read only where they are complete and hold numbers."""

from __future__ import annotations

import math
import os
from pathlib import Path
from tokenize import TokenError
from typing import IO

import numpy as np

from quintet.errors import CorpusError, QuintetError
from quintet.files import atomic_write, open_regular

# What numpy raises on a damaged header.
_DAMAGE = (
    OSError, ValueError, TypeError, LookupError, SyntaxError, TokenError, ArithmeticError, MemoryError, RecursionError,
)  # fmt: skip


def open_array(path: Path | str, remedy: str, kinds: str = "f") -> np.memmap:
    """Map a whole array. `kinds`: numpy's letters of the types that are accepted, "f" for floating point, "iu" for
    integers. The array must fill its file. `remedy`: what to do where it is missing or damaged.
    """
    try:
        with open_regular(path) as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(file)
            offset, size = file.tell(), os.fstat(file.fileno()).st_size
    except QuintetError as error:
        raise CorpusError(f"{error}; {remedy}") from None
    except _DAMAGE as error:
        raise CorpusError(f"{path} is damaged: not a complete .npy array ({error}); {remedy}") from None
    if dtype.kind not in kinds:
        raise CorpusError(
            f"{path} is not a complete .npy array of {'integers' if kinds == 'iu' else 'real numbers'}: it holds "
            f"values of type {dtype}; {remedy}"
        )
    expected = offset + math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or expected != size:
        raise CorpusError(
            f"{path} is damaged: not a complete .npy array ({size:,} bytes instead of {expected:,} for shape {shape}); "
            f"{remedy}"
        )
    return np.memmap(path, dtype, "r", offset, shape, "F" if fortran else "C")


def read_array(path: Path | str, remedy: str, kinds: str = "f") -> np.ndarray:
    """A small array, read whole."""
    return np.array(open_array(path, remedy, kinds))


def write_array(path: Path | str, array: np.ndarray) -> None:
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.save(file, np.ascontiguousarray(array))


def write_array_header(file: IO[bytes], shape: tuple[int, ...], dtype: str) -> None:
    """What comes before the values of an array that is written piece by piece, in C order."""
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


def all_finite(values: np.ndarray) -> bool:
    """Whether no value is NaN or infinite; one cheap pass."""
    # The sum is finite exactly when every value is (or the values are absurd).
    with np.errstate(invalid="ignore", over="ignore"):  # infinity minus infinity
        return bool(np.isfinite(values.sum(dtype=np.float64)))
