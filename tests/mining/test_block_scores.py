"""Half precision: no score is ever further from its block score than the bound says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.codes import Codes
from quintet.errors import QuintetError
from quintet.mining.block_scores import ProductScores, TileScores, make_scores

EVERYTHING = slice(0, 20)
CPU = torch.device("cpu")


def products(new_dots: Any, seed: int, precision: str, size: float, dim: int, memory: int = 2**30) -> ProductScores:
    generator = torch.Generator().manual_seed(seed)

    def side() -> Codes:
        rows = torch.randn(20, dim, generator=generator).pow(3) * torch.rand(20, 1, generator=generator)
        return Codes(embedding=size * rows)

    return ProductScores(TileScores(new_dots(), side(), side(), CPU), precision, memory)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    precision=st.sampled_from(["float16", "bfloat16"]),
    size=st.sampled_from([1e-6, 0.03, 1.0, 1e4]),
    dim=st.sampled_from([1, 7, 64]),
)
def test_rounding_stays_within_the_bound(new_dots: Any, seed: int, precision: str, size: float, dim: int) -> None:
    scores = products(new_dots, seed, precision, size, dim)
    block = scores.block(EVERYTHING, EVERYTHING)  # in units
    rough = block.float() * scores.unit
    left, right = scores.image_codes.embedding, scores.text_codes.embedding
    assert left is not None
    assert right is not None
    truth = (left.double() @ right.double().T).float()
    assert (truth <= scores.at_most(rough)).all()
    caps = truth.flatten()[torch.randperm(400, generator=torch.Generator().manual_seed(seed))[:20]]
    above = block > scores.surely_above(caps)[:, None]
    assert (truth > caps[:, None])[above].all()
    pairs = torch.cartesian_prod(torch.arange(20), torch.arange(20)).numpy()
    candidates = torch.arange(20).expand(20, -1)
    ways = (
        torch.from_numpy(scores.pairs(pairs[:, 0], pairs[:, 1])).view(20, 20),
        scores.rescore("images", EVERYTHING, candidates, rough),
        scores.rescore("texts", EVERYTHING, candidates, rough.T).T,
        scores.exact("images", torch.arange(20), EVERYTHING),
        scores.exact("texts", torch.arange(20), EVERYTHING).T,
    )
    for way in ways:
        assert torch.equal(way, truth), "one float32 score, however it is asked for"


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_the_bound_is_not_idle(new_dots: Any, precision: str) -> None:
    """Within two orders of magnitude of what happens: with a looser one most anchors would fail the check."""
    scores = products(new_dots, 0, precision, 1.0, 64)
    rough = scores.block(EVERYTHING, EVERYTHING).float() * scores.unit
    truth = scores.exact("images", torch.arange(20), EVERYTHING)
    bound = (scores.at_most(rough) - rough).min()
    assert bound / 100 < (rough - truth).abs().max() < bound * 100


def test_tiles_give_one_score_however_it_is_asked_for(new_dots: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    codes = [Codes(embedding=torch.randn(size, 24, generator=generator)) for size in (37, 50)]
    scores = TileScores(new_dots(), *codes, CPU, tile=(8, 16))
    whole = scores.block(slice(0, 37), slice(0, 50))
    assert torch.equal(scores.block(slice(8, 24), slice(32, 50)), whole[8:24, 32:50])
    rng = np.random.default_rng(0)
    image, text = rng.integers(37, size=60), rng.integers(50, size=60)
    assert scores.pairs(image, text).tolist() == whole[image, text].tolist()
    lines = torch.tensor([0, 3, 9, 10, 36])
    for side, matrix in (("images", whole), ("texts", whole.T)):
        groups = scores.groups(side, lines)  # type: ignore[arg-type]
        others = slice(0, matrix.shape[1])
        found = torch.cat([scores.exact(side, group, others) for group in groups])  # type: ignore[arg-type]
        assert torch.equal(found, matrix[lines])
    assert len(scores.pairs(image[:0], text[:0])) == 0


def test_embeddings_that_do_not_fit_the_memory_are_the_same(new_dots: Any) -> None:
    one, other = (products(new_dots, 3, "float16", 1.0, 16, memory) for memory in (2**30, 64))
    assert torch.equal(one.block(EVERYTHING, EVERYTHING), other.block(EVERYTHING, EVERYTHING))
    rows = torch.arange(20).flip(0).expand(20, -1)
    assert torch.equal(*(scores.rescore("images", EVERYTHING, rows, rows) for scores in (one, other)))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_embeddings_must_be_finite(new_dots: Any, value: float) -> None:
    codes = Codes(embedding=torch.tensor([[value, 1.0]]))
    with pytest.raises(QuintetError, match="not finite"):
        ProductScores(TileScores(new_dots(), codes, codes, CPU), "float16", 2**20)
    zeros = Codes(embedding=torch.zeros(2, 3))
    assert ProductScores(TileScores(new_dots(), zeros, zeros, CPU), "float16", 2**20).unit == 1.0


def test_a_cpu_takes_float32_unless_told_otherwise(new_dots: Any) -> None:
    codes = Codes(embedding=torch.ones(2, 3))
    for precision, expected in (("auto", "float32"), ("float32", "float32"), ("bfloat16", "bfloat16")):
        assert make_scores(new_dots(), codes, codes, CPU, precision, 2**30).precision == expected  # type: ignore[arg-type]
