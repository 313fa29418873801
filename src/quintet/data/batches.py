"""What goes into a matcher: a batch of images, of texts, or of pairs of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


class _Rows:
    """Dataclasses of tensors (or of such dataclasses) with one row per item, which move and are cut together."""

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        changes: dict[str, Any] = {}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Tensor | _Rows):
                changes[field.name] = value.to(device, non_blocking=non_blocking)
        return replace(self, **changes)  # type: ignore[type-var]

    def take(self, rows: Tensor | slice) -> Self:
        """These rows."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        taken = {
            name: part.take(rows) if isinstance(part, _Rows) else part[rows]
            for name, part in parts.items()
            if part is not None
        }
        return replace(self, **taken)  # type: ignore[type-var]


@dataclass(frozen=True)
class ImageBatch(_Rows):
    """n images, as features of their fragments (regions or grid cells) or as pixels."""

    fragments: Tensor | None = None  # (n, L, d)
    mask: Tensor | None = None  # (n, L) bool, True where a fragment is real; None: all are
    boxes: Tensor | None = None  # (n, L, 4) left, top, right, bottom in 0..1
    pixels: Tensor | None = None  # (n, 3, height, width), normalised as the image tower wants it

    def __post_init__(self) -> None:
        if (self.fragments is None) == (self.pixels is None):
            raise ValueError("an ImageBatch holds either fragments or pixels")
        if self.fragments is not None and self.fragments.dim() != 3:
            raise ValueError(f"fragments must be (n, L, d), got {tuple(self.fragments.shape)}")
        if self.pixels is not None and self.pixels.dim() != 4:
            raise ValueError(f"pixels must be (n, 3, height, width), got {tuple(self.pixels.shape)}")

    def __len__(self) -> int:
        tensor = self.fragments if self.fragments is not None else self.pixels
        assert tensor is not None
        return len(tensor)

    @staticmethod
    def cat(parts: Sequence[ImageBatch]) -> ImageBatch:
        """One batch of several with the same number of fragments, or the same size in pixels."""
        if parts[0].pixels is not None:
            return ImageBatch(pixels=torch.cat([_required(part.pixels) for part in parts]))
        boxed = parts[0].boxes is not None
        return ImageBatch(
            fragments=torch.cat([_required(part.fragments) for part in parts]),
            mask=None if all(part.mask is None for part in parts) else torch.cat([part.real() for part in parts]),
            boxes=torch.cat([_required(part.boxes) for part in parts]) if boxed else None,
        )

    def real(self) -> Tensor:
        """(n, L) bool: which fragments are real."""
        if self.mask is not None:
            return self.mask
        if self.fragments is None:
            raise ValueError("this batch holds pixels, not fragments")
        return torch.ones(self.fragments.shape[:2], dtype=torch.bool, device=self.fragments.device)


def _required(tensor: Tensor | None) -> Tensor:
    if tensor is None:
        raise ValueError("batches that are joined must hold the same things: fragments, boxes or pixels")
    return tensor


@dataclass(frozen=True)
class TextBatch(_Rows):
    """n texts as token ids, padded to the longest of them."""

    tokens: Tensor  # (n, L) int64
    lengths: Tensor  # (n,) int64, each at least 1
    features: Tensor | None = None  # (n, L, d) of a frozen text encoder, where they are kept on disk
    position_noise: Tensor | None = None  # (n,) uniform in [0, 1), drawn anew at each visit: where a text CNN puts them

    def __post_init__(self) -> None:
        if self.tokens.dim() != 2:
            raise ValueError(f"tokens must be (n, L), got {tuple(self.tokens.shape)}")
        lengths = torch.as_tensor(self.lengths, dtype=torch.int64)  # the public call allows a plain list
        object.__setattr__(self, "lengths", lengths.to(self.tokens.device))
        if self.lengths.shape != self.tokens.shape[:1]:
            raise ValueError(f"{len(self.tokens)} texts but lengths of shape {tuple(self.lengths.shape)}")
        if self.features is not None and self.features.shape[:2] != self.tokens.shape:
            raise ValueError(f"features must be {(*self.tokens.shape, 'd')}, got {tuple(self.features.shape)}")
        if self.position_noise is not None and self.position_noise.shape != self.lengths.shape:
            raise ValueError(f"{len(self.tokens)} texts but position_noise of shape {tuple(self.position_noise.shape)}")
        if self.lengths.device.type == "cpu" and len(self.lengths):  # on an accelerator the look would wait for it
            low, high = int(self.lengths.min()), int(self.lengths.max())
            if low < 1 or high > self.tokens.shape[1]:
                raise ValueError(f"lengths must lie in 1..{self.tokens.shape[1]}, got {low}..{high}")

    def __len__(self) -> int:
        return len(self.tokens)

    def real(self) -> Tensor:
        """(n, L) bool: which tokens are real."""
        return torch.arange(self.tokens.shape[1], device=self.tokens.device) < self.lengths[:, None]

    def padded_to(self, length: int, pad: int = 0) -> TextBatch:
        """The same texts padded to `length` tokens, at least the present length."""
        more = length - self.tokens.shape[1]
        features = None if self.features is None else F.pad(self.features, (0, 0, 0, more))
        return replace(self, tokens=F.pad(self.tokens, (0, more), value=pad), features=features)

    @staticmethod
    def cat(parts: Sequence[TextBatch]) -> TextBatch:
        """One batch of several, all padded to the longest."""
        length = max(part.tokens.shape[1] for part in parts)
        given = [part.padded_to(length) for part in parts]
        names = [field.name for field in fields(TextBatch) if getattr(given[0], field.name) is not None]
        return TextBatch(**{name: torch.cat([getattr(part, name) for part in given]) for name in names})

    @staticmethod
    def from_ids(texts: Sequence[Sequence[int] | np.ndarray], pad: int = 0) -> TextBatch:
        """Pad lists of token ids into a batch."""
        lengths = np.array([len(ids) for ids in texts], dtype=np.int64)
        tokens = np.full((len(texts), lengths.max(initial=0)), pad, dtype=np.int64)
        for row, ids in zip(tokens, texts, strict=True):
            row[: len(ids)] = ids
        return TextBatch(torch.from_numpy(tokens), torch.from_numpy(lengths))


@dataclass(frozen=True)
class OfflineBatch(_Rows):
    """The offline hard negatives of n pairs (AOQ section 3.2), row i for pair i."""

    texts: TextBatch  # t_off: a hard negative text of the image
    images: ImageBatch  # i_off: a hard negative image of the text
    derived_images: ImageBatch  # the image of t_off
    derived_texts: TextBatch  # a text of i_off


@dataclass(frozen=True)
class TextPool(_Rows):
    """Training texts beside the batch, from which a loss may take its negatives."""

    texts: TextBatch
    groups: Tensor  # (m,) int64


@dataclass(frozen=True)
class PairBatch(_Rows):
    """n corresponding pairs: row i of the images belongs to row i of the texts."""

    images: ImageBatch
    texts: TextBatch
    image_groups: Tensor  # (n,) int64 group codes; equal code = relevant
    text_groups: Tensor  # (n,) int64
    image_rows: Tensor  # (n,) int64 rows in the split
    text_rows: Tensor  # (n,) int64
    offline: OfflineBatch | None = None  # where the stage trains with mined negatives
    pool: TextPool | None = None  # where a loss asks for one; the same for every process

    def __len__(self) -> int:
        return len(self.texts)

    def of_one_length(self, pad: int = 0) -> PairBatch:
        """The same batch with all its texts padded to one length: fewer different shapes."""
        if self.offline is None:
            return self
        parts = (self.texts, self.offline.texts, self.offline.derived_texts)
        length = max(part.tokens.shape[1] for part in parts)
        texts, off, derived = (part.padded_to(length, pad) for part in parts)
        return replace(self, texts=texts, offline=replace(self.offline, texts=off, derived_texts=derived))
