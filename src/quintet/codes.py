"""`Codes`: n images or n texts, encoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintet.errors import QuintetError
from quintet.files import atomic_write, user_path


@dataclass(frozen=True, repr=False)
class Codes:
    """n items as an embedding each, as a set of fragments each, or both.

    Matchers make them (`encode_images`, `encode_texts`) and compare them (`score`, `score_pairs`). In between they are
    rows that can be indexed, joined, moved, saved and memory-mapped.

    >>> codes = Codes(embedding=torch.eye(3))
    >>> len(codes), len(codes[1:]), len(Codes.cat([codes, codes]))
    (3, 2, 6)
    """

    embedding: Tensor | None = None  # (n, d)
    fragments: Tensor | None = None  # (n, L, d)
    mask: Tensor | None = None  # (n, L) bool, True where a fragment is real; None: all are
    boxes: Tensor | None = None  # (n, L, 4) left, top, right, bottom in 0..1, where fragments are image regions

    def __post_init__(self) -> None:
        sizes = {name: len(tensor) for name, tensor in self.tensors().items()}
        if not sizes:
            raise ValueError("Codes need an embedding or fragments")
        if len(set(sizes.values())) > 1:
            raise ValueError(f"the parts of Codes must have one row per item, got {sizes}")

    def tensors(self) -> dict[str, Tensor]:
        """The parts that are present, by name."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def __repr__(self) -> str:
        """
        >>> Codes(embedding=torch.eye(3))
        Codes(embedding (3, 3))
        """
        return f"Codes({', '.join(f'{name} {tuple(tensor.shape)}' for name, tensor in self.tensors().items())})"

    def __len__(self) -> int:
        return len(next(iter(self.tensors().values())))

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> Codes:
        """Rows; an integer gives Codes of length one."""
        if isinstance(index, int):
            if not -len(self) <= index < len(self):  # also what ends a `for` over Codes
                raise IndexError(f"row {index} of {len(self)} Codes")
            index = slice(index, index + 1) if index != -1 else slice(-1, None)
        return self.map(lambda tensor: tensor[index])

    def map(self, change: Callable[[Tensor], Tensor]) -> Codes:
        return replace(self, **{name: change(tensor) for name, tensor in self.tensors().items()})

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Codes:
        """Move, and cast the floating-point parts except boxes."""
        moved = {}
        for name, tensor in self.tensors().items():
            cast = dtype if tensor.is_floating_point() and name != "boxes" else None
            moved[name] = tensor.to(device=device, dtype=cast)
        return Codes(**moved)

    def detach(self) -> Codes:
        return self.map(Tensor.detach)

    @property
    def device(self) -> torch.device:
        return next(iter(self.tensors().values())).device

    def real(self) -> Tensor:
        """(n, L) bool: which fragments are real; all are if there is no mask."""
        if self.mask is not None:
            return self.mask
        if self.fragments is None:
            raise ValueError("these Codes have no fragments")
        return torch.ones(self.fragments.shape[:2], dtype=torch.bool, device=self.fragments.device)

    def pad_fragments(self, length: int) -> Codes:
        """The same items padded to `length` fragments each; the added ones are masked out."""
        if self.fragments is None:
            return self
        boxes = None if self.boxes is None else _pad_rows(self.boxes, length)
        fragments = _pad_rows(self.fragments, length)
        return replace(self, fragments=fragments, mask=_pad_rows(self.real(), length), boxes=boxes)

    @staticmethod
    def cat(parts: Sequence[Codes]) -> Codes:
        """Join rows; fragments of different lengths are padded to the longest and masked."""
        if not parts:
            raise ValueError("nothing to join")
        names = {frozenset(set(part.tensors()) - {"mask"}) for part in parts}
        if len(names) > 1:
            raise ValueError(f"Codes of different kinds cannot be joined: {sorted(map(sorted, names))}")
        fragments = [part.fragments for part in parts if part.fragments is not None]
        max_length = max((tensor.shape[1] for tensor in fragments), default=0)
        masked = any(part.mask is not None for part in parts) or any(t.shape[1] != max_length for t in fragments)
        joined: dict[str, Tensor] = {}
        for name in ("embedding", "fragments", "boxes"):
            tensors = [getattr(part, name) for part in parts]
            if tensors[0] is not None:
                joined[name] = torch.cat([t if name == "embedding" else _pad_rows(t, max_length) for t in tensors])
        if fragments and masked:
            joined["mask"] = torch.cat([_pad_rows(part.real(), max_length) for part in parts])
        return Codes(**joined)

    def save(self, path: Path | str) -> None:
        """Write one safetensors file, atomically."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.tensors().items()}
        try:
            with atomic_write(path) as temporary:
                save_file(tensors, temporary, metadata={"format": "quintet-codes"})
        except SafetensorError as error:
            raise QuintetError(f"could not write {path}: {error}; the previous file was kept") from error

    @staticmethod
    def load(path: Path | str) -> Codes:
        """Read a saved file, memory-mapped."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return Codes(**load_file(user_path(path)))
        except FileNotFoundError:
            raise QuintetError(f"{path} does not exist") from None
        except (SafetensorError, TypeError, ValueError) as error:
            raise QuintetError(f"{path} does not hold Codes: {error}") from None


def _pad_rows(tensor: Tensor, length: int) -> Tensor:
    missing = length - tensor.shape[1]
    if not missing:
        return tensor
    filler: Any = tensor.new_zeros((tensor.shape[0], missing, *tensor.shape[2:]))
    return torch.cat([tensor, filler], dim=1)  # (n, length, ...)
