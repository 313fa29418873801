"""One vector a text from its words: convolutions over one, two and three words, the maximum over the text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.layers.regions import xavier_linear

TextNorm = Literal["l2", "layernorm"]


class TextCNN(nn.Module):
    """Eq. 6 and 7 of MMCA, without the normalisation to unit length, which the caller does.

    A window may start at every real word and reads zeros past the last one, so a text has as many windows as words
    (Eq. 6 has k = 1..n). With `inside`, windows that run past the end are left out, and a text shorter than a window
    gets zero for it. Padding never counts.

    `norm="layernorm"` puts the LayerNorm of Eq. 7 after the last layer; "l2" leaves it out, as the text beside it says.

    >>> TextCNN(6, 4, filters=5)(torch.randn(2, 3, 6)).shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        in_dim: int,
        dim: int,
        *,
        filters: int = 256,
        windows: Sequence[int] = (1, 2, 3),
        norm: TextNorm = "l2",
        inside: bool = False,
    ) -> None:
        super().__init__()
        if not windows or min(windows) < 1:
            raise ValueError(f"windows must be of one word or more, got {tuple(windows)}")
        if norm not in get_args(TextNorm):
            raise ValueError(f"norm must be one of {get_args(TextNorm)}, got {norm!r}")
        self.windows = tuple(windows)
        self.in_dim = in_dim
        self.filters = filters
        self.inside = inside
        # A convolution over a window of words is a linear map of those words side by side.
        self.filter_banks = nn.ModuleList(nn.Linear(window * in_dim, filters) for window in self.windows)
        self.fc = xavier_linear(filters * len(self.windows), dim)
        self.norm = nn.LayerNorm(dim) if norm == "layernorm" else nn.Identity()

    def forward(self, words: Tensor, mask: Tensor | None = None) -> Tensor:
        """(..., L, in_dim), (..., L) -> (..., dim); the mask may have fewer dimensions in front."""
        if mask is not None:
            words = words.masked_fill(~mask[..., None], 0)
        length, widest = words.shape[-2], max(self.windows)
        padded = F.pad(words, (0, 0, 0, widest - 1))  # (..., L + widest - 1, in_dim)
        # Every window at the largest width; a narrower window is a slice of its first words.
        spans = torch.cat([padded[..., position : position + length, :] for position in range(widest)], dim=-1).flatten(
            0, -2
        )
        found = []
        for window, bank in zip(self.windows, self.filter_banks, strict=True):
            features = bank(spans[:, : window * self.in_dim]).unflatten(0, words.shape[:-1])  # (..., L, filters)
            start = self._may_start(mask, window, length, words.device)
            if start is not None:
                features = features.masked_fill(~start[..., None], -math.inf)
            found.append(features.amax(dim=-2).clamp(min=0))  # ReLU is monotone, so it can follow the maximum
        return self.norm(self.fc(torch.cat(found, dim=-1)))  # (..., filters x windows) -> (..., dim)

    def _may_start(self, mask: Tensor | None, window: int, length: int, device: torch.device) -> Tensor | None:
        """(..., L) bool: at which words a window may start; None: at all of them."""
        if not self.inside or window == 1:
            return mask
        real = torch.ones(length, dtype=torch.bool, device=device) if mask is None else mask
        return F.pad(real, (0, window - 1))[..., window - 1 :]  # its last word is real
