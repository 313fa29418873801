"""Where scores come from: a matcher and its codes, asked block by block in float32."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from quintet.codes import Codes
from quintet.errors import QuintetError
from quintet.evaluation.scoring import score_in_tiles
from quintet.protocols import Matcher
from quintet.runs.devices import full_precision

# Products of different shapes round differently. A matcher is always asked for tiles of one shape, cut at the same
# places, so that the lists are the same bits whatever the memory and the number of processes.
TILES = {"cpu": (64, 256), "cuda": (1024, 4096)}
Rows = slice | Tensor  # consecutive rows of a split, or any


class Source:
    """The scores of a split's images and texts."""

    def __init__(
        self,
        matcher: Matcher,
        image_codes: Codes,
        text_codes: Codes,
        device: torch.device,
        tile: tuple[int, int] | None,
    ) -> None:
        self.matcher, self.device = matcher, device
        self.image_codes, self.text_codes = image_codes.detach(), text_codes.detach()
        self.tile = tile or TILES.get(device.type, TILES["cuda"])

    def blocks(self, images: Rows, texts: Rows, width: int) -> Iterator[tuple[slice, Tensor]]:
        """Scores (images, up to `width` texts) of one block of texts after another, with where it lies in `texts`."""
        image_part = self.image_codes[images].to(self.device)
        for start in range(0, count(texts), width):
            stop = min(start + width, count(texts))
            yield slice(start, stop), self.score(image_part, self.text_codes[part(texts, start, stop)])

    def score(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        with torch.no_grad(), full_precision(self.device):
            scores = score_in_tiles(self.matcher, image_codes.to(self.device), text_codes.to(self.device), self.tile)
        if not torch.isfinite(scores.sum()) and not torch.isfinite(scores).all():
            image, text = (~torch.isfinite(scores)).nonzero()[0].tolist()
            raise QuintetError(
                f"a score is {scores[image, text].item()} (image {image}, text {text} of a block); negatives cannot be "
                "ranked: look for NaN or infinity in the features or the weights"
            )
        return scores

    def pairs(self, images: np.ndarray, texts: np.ndarray) -> np.ndarray:
        """(p,) float32: single pairs, but with the very bits that `blocks` gives them."""
        found = np.empty(len(images), np.float32)
        columns = -(-len(self.text_codes) // self.tile[1])
        tiles = images // self.tile[0] * columns + texts // self.tile[1]
        order = np.argsort(tiles, kind="stable")
        cuts = np.flatnonzero(np.diff(tiles[order])) + 1
        for pairs in np.split(order, cuts) if len(order) else []:
            first_image = images[pairs[0]] // self.tile[0] * self.tile[0]
            first_text = texts[pairs[0]] // self.tile[1] * self.tile[1]
            scores = self.score(
                self.image_codes[first_image : first_image + self.tile[0]],
                self.text_codes[first_text : first_text + self.tile[1]],
            )
            row = torch.from_numpy(images[pairs] - first_image).to(self.device)
            column = torch.from_numpy(texts[pairs] - first_text).to(self.device)
            found[pairs] = scores[row, column].cpu().numpy()
        return found

    def fingerprint(self) -> str:
        """Tells these codes from others, at the price of looking at some of their rows."""
        digest = hashlib.sha256(type(self.matcher).__name__.encode())
        for codes in (self.image_codes, self.text_codes):
            rows = torch.linspace(0, len(codes) - 1, min(len(codes), 64), device=codes.device).long()
            for name, tensor in codes[rows].tensors().items():
                digest.update(f"{name} {len(codes)} {tuple(tensor.shape[1:])}".encode())
                digest.update(tensor.float().cpu().numpy().tobytes())
        return digest.hexdigest()


def count(rows: Rows) -> int:
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


def part(rows: Rows, start: int, stop: int) -> Rows:
    """Those from place `start` to place `stop`."""
    return slice(rows.start + start, rows.start + stop) if isinstance(rows, slice) else rows[start:stop]


def numbers(rows: Rows) -> np.ndarray:
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows.cpu().numpy()
