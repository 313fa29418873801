"""Exact search: every item is scored. Right for any matcher, and quick enough up to some hundred thousand items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from quintet.codes import Codes
from quintet.errors import QuintetError
from quintet.files import read_json, write_json

FORMAT, VERSION = "quintet-index", 1
BLOCK = 4096  # items scored at a time


@dataclass(frozen=True)
class Hit:
    id: str
    score: float


class ExactIndex:
    """The codes of pictures, with their ids. `weights` is the checksum of the matcher that made them."""

    def __init__(self, ids: Sequence[str], codes: Codes, weights: str) -> None:
        if len(ids) != len(codes):
            raise ValueError(f"{len(ids)} ids for {len(codes)} codes")
        self.ids = list(ids)
        self.codes = codes
        self.weights = weights

    def __len__(self) -> int:
        return len(self.ids)

    def search(self, matcher: Any, text_codes: Codes, k: int = 10) -> list[list[Hit]]:
        """For each sentence the k best pictures, best first."""
        with torch.no_grad():
            blocks = [
                matcher.score(self.codes[start : start + BLOCK], text_codes).float()
                for start in range(0, len(self), BLOCK)
            ]
        scores, rows = torch.cat(blocks).T.topk(min(k, len(self)), dim=1)  # (n_texts, k)
        return [
            [Hit(self.ids[row], score) for row, score in zip(best.tolist(), values.tolist(), strict=True)]
            for best, values in zip(rows, scores, strict=True)
        ]

    def save(self, folder: Path | str) -> None:
        folder = Path(folder)
        (folder / "index.json").unlink(missing_ok=True)  # until it is back, codes and ids may not fit each other
        self.codes.save(folder / "codes.safetensors")
        write_json(
            folder / "index.json", {"format": FORMAT, "version": VERSION, "weights": self.weights, "ids": self.ids}
        )

    @staticmethod
    def open(folder: Path | str, weights: str) -> ExactIndex:
        """`weights`: the checksum of the matcher that will search it; codes of another matcher mean nothing to it."""
        folder = Path(folder)
        head = read_json(folder / "index.json")
        if head.get("format") != FORMAT or head.get("version", 0) > VERSION:
            raise QuintetError(f"{folder} is no index that this Quintet reads ({FORMAT} up to version {VERSION})")
        if head["weights"] != weights:
            raise QuintetError(
                f"index {folder} was made by other weights than the ones it is searched with; make it again"
            )
        return ExactIndex(head["ids"], Codes.load(folder / "codes.safetensors"), head["weights"])
