"""Features that stay in the memory of the device they are used on: a batch is one gather, nothing is copied to it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quintet.data.batches import ImageBatch
from quintet.data.corpus import Image
from quintet.data.features import FeatureStore

READ = 256  # pictures read from disk at a time
SHARE = 0.25  # of the free memory that features may take before they are left on disk


class ResidentFeatures:
    """The features of some pictures, in the type they are stored in; batches equal those of the store bit for bit."""

    def __init__(self, store: FeatureStore, ids: Sequence[str], device: torch.device) -> None:
        unique = list(dict.fromkeys(ids))
        self._row_of = {id_: row for row, id_ in enumerate(unique)}
        parts = []
        for start in range(0, len(unique), READ):
            batch = store.batch(unique[start : start + READ])
            assert batch.fragments is not None
            parts.append(
                ImageBatch(batch.fragments.to(store.dtype), batch.real(), batch.boxes).to(device)  # (n, L, d)
            )
        self._fragments = torch.cat([_required(part.fragments) for part in parts])
        mask = torch.cat([_required(part.mask) for part in parts])
        self._mask = None if bool(mask.all()) else mask
        boxed = parts[0].boxes is not None
        self._boxes = torch.cat([_required(part.boxes) for part in parts]) if boxed else None

    def batch(self, images: Sequence[Image], seeds: Sequence[Sequence[int]] | None = None) -> ImageBatch:
        rows = torch.tensor([self._row_of[image.id] for image in images]).to(self._fragments.device, non_blocking=True)
        return ImageBatch(
            fragments=self._fragments[rows].float(),  # (n, L, d)
            mask=None if self._mask is None else self._mask[rows],
            boxes=None if self._boxes is None else self._boxes[rows],
        )


def fits_on(device: torch.device, store: FeatureStore, pictures: int) -> bool:
    """Whether so many pictures' features take a small part of an accelerator's free memory."""
    if device.type != "cuda":
        return False
    needed = pictures * store.fragments * store.dim * store.dtype.itemsize
    free, _ = torch.cuda.mem_get_info(device)
    return needed <= SHARE * free


def _required(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor
