"""Where the photographs that were kept aside lie: in folders, and inside Qt resource files."""

from __future__ import annotations

import io
import struct

import pytest
import torch
from PIL import Image

from benchmarks.measure.public_photos import pictures, ranks
from quintet.codes import Codes


def _file(side: int, kind: str = "JPEG") -> bytes:
    data = io.BytesIO()
    Image.effect_noise((side, side), 80).save(data, kind)
    return data.getvalue()


def test_pictures_of_a_resource_file_come_in_order_without_small_ones_and_broken_ones() -> None:
    large, small, webp = _file(240), _file(100), _file(200, "WEBP")
    broken = large[:50] + bytes(len(large) - 50)
    parts = [large, small, b"text that says RIFF", broken, webp]
    resources = b"qres" + b"".join(struct.pack(">I", len(part)) + part for part in parts)
    assert pictures(resources) == [large, webp]
    assert pictures(b"") == []


@pytest.mark.parametrize(("others", "expected"), [(None, 1), ([[0.9, 0.0], [0.2, 0.0]], 2)])
def test_a_rank_counts_what_scores_at_least_as_high_as_the_best_right_one(
    others: list[list[float]] | None, expected: int
) -> None:
    class Axis:
        def encode_images(self, images: list[Image.Image]) -> Codes:
            return Codes(torch.tensor([[0.5, 0.0], [0.1, 0.0], [0.6, 0.0]]))

        def encode_texts(self, texts: list[str]) -> Codes:
            return Codes(torch.tensor([[1.0, 0.0]] * len(texts)))

        def score(self, images: Codes, texts: Codes) -> torch.Tensor:
            return images.embedding @ texts.embedding.T  # type: ignore[union-attr,operator]

    photos = [(io.BytesIO(_file(8)), queries) for queries in (["first"], ["first", "second"], ["third"])]
    rest = None if others is None else Codes(torch.tensor(others))
    assert ranks(Axis(), photos, rest)["first"] == expected  # type: ignore[arg-type]
