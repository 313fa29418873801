"""Fixtures: the plain twin of mining (sort everything, in Python), odd corpora, and matchers with exact scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from quintet.codes import Codes
from quintet.data.corpus import Corpus, Image, Split, Text
from quintet.mining.exclude import normalise
from quintet.scores import dot_score_pairs, dot_scores


class Dots:
    """An embedding matcher that counts how often it is asked."""

    image_input = "fragments"

    def __init__(self) -> None:
        self.calls = 0

    def score(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        self.calls += 1
        return dot_scores(image_codes, text_codes)

    def score_pairs(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        return dot_score_pairs(image_codes, text_codes)


class BestFragments:
    """A toy cross-attention matcher: each word finds its best region, and the words add up."""

    image_input = "fragments"

    def score(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        assert image_codes.fragments is not None
        assert text_codes.fragments is not None
        products = torch.einsum("ird,twd->itrw", image_codes.fragments, text_codes.fragments)
        best = products.amax(dim=2)  # (i, t, w)
        return best.masked_fill(~text_codes.real()[None], 0.0).sum(dim=2)


@dataclass(frozen=True)
class Case:
    """A split with codes whose products are small integers: exact in every precision, and full of ties."""

    split: Split
    images: Codes
    texts: Codes

    @property
    def scores(self) -> np.ndarray:
        return dot_scores(self.images, self.texts).numpy()


def make_case(
    groups: int,
    seed: int,
    *,
    most_texts: int = 7,
    most_images: int = 3,
    dim: int = 4,
    spread: int = 2,
    sentences: int = 0,
) -> Case:
    """`texts`: how many different ones there are; 0: all differ."""
    rng = np.random.default_rng(seed)
    images, texts = [], []
    for group in range(groups):
        images += [Image(f"i{group}.{k}", str(group)) for k in range(rng.integers(1, most_images + 1))]
        for k in range(rng.integers(1, most_texts + 1)):
            words = rng.integers(sentences) if sentences else f"{group} {k}"
            texts.append(Text(f"t{group}.{k}", str(group), rng.choice(["Words {}.", "words  {}"]).format(words)))
    split = Corpus("odd", images, texts, {"train": [str(group) for group in rng.permutation(groups)]}).split("train")
    codes = [
        Codes(embedding=torch.from_numpy(rng.integers(-spread, spread + 1, (len(rows), dim)).astype(np.float32)))
        for rows in (split.images, split.texts)
    ]
    return Case(split, *codes)


def plain_lists(
    scores: Sequence[Sequence[float]],
    split: Split,
    top_texts: int,
    top_images: int,
    exclude_duplicates: bool = False,
    false_negative_margin: float | None = None,
) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    """Lists by sorting every row and column in Python; and how many candidates were above the threshold."""
    sentences = [normalise(text.text) for text in split.texts]
    owned: dict[int, set[str]] = {}
    for group, sentence in zip(split.text_groups.tolist(), sentences, strict=True):
        owned.setdefault(group, set()).add(sentence)

    def negative(image: int, text: int) -> bool:
        group = int(split.image_groups[image])
        return group != split.text_groups[text] and not (exclude_duplicates and sentences[text] in owned[group])

    def best(candidates: list[tuple[float, int]], positives: list[float], top: int) -> tuple[list[int], int]:
        above = 0
        if false_negative_margin is not None:
            cap = np.float32(max(positives)) + np.float32(false_negative_margin)
            above = sum(score > cap for score, _ in candidates)
            candidates = [pair for pair in candidates if pair[0] <= cap]
        ordered = [row for _, row in sorted(candidates, key=lambda pair: (-pair[0], pair[1]))]
        return (ordered + [-1] * top)[:top], above

    everything = range(len(split.images)), range(len(split.texts))
    text_lists = [
        best(
            [(scores[i][t], t) for t in everything[1] if negative(i, t)],
            [scores[i][t] for t in everything[1] if split.image_groups[i] == split.text_groups[t]],
            top_texts,
        )
        for i in everything[0]
    ]
    image_lists = [
        best(
            [(scores[i][t], i) for i in everything[0] if negative(i, t)],
            [scores[i][t] for i in everything[0] if split.image_groups[i] == split.text_groups[t]],
            top_images,
        )
        for t in everything[1]
    ]
    above = {"texts": sum(line[1] for line in text_lists), "images": sum(line[1] for line in image_lists)}
    return np.array([line[0] for line in text_lists]), np.array([line[0] for line in image_lists]), above


@pytest.fixture(scope="session")
def case() -> Callable[..., Case]:
    return make_case


@pytest.fixture(scope="session")
def plain() -> Callable[..., Any]:
    return plain_lists


@pytest.fixture(scope="session")
def new_dots() -> Callable[[], Dots]:
    return Dots


@pytest.fixture
def dots() -> Dots:
    return Dots()


@pytest.fixture
def best_fragments() -> BestFragments:
    return BestFragments()
