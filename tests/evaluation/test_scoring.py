from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quintet.codes import Codes
from quintet.errors import QuintetError
from quintet.evaluation.scoring import Member, member_scores, whole_tiles
from quintet.scores import dot_scores


class Dot:
    """A matcher of ready embeddings."""

    image_input = "fragments"

    def __init__(self) -> None:
        self.shapes: set[tuple[int, int]] = set()

    def score(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        self.shapes.add((len(image_codes), len(text_codes)))
        return dot_scores(image_codes, text_codes)


def member(images: int, texts: int, seed: int = 0, dim: int = 33) -> Member:
    generator = torch.Generator().manual_seed(seed)
    codes = [Codes(embedding=torch.randn(n, dim, generator=generator)) for n in (images, texts)]
    return Member(Dot(), *codes)  # type: ignore[arg-type]


def assemble(members: list[Member], block: tuple[int, int]) -> Tensor:
    score_block = member_scores(members)
    images, texts = len(members[0].image_codes), len(members[0].text_codes)
    scores = torch.empty(images, texts)
    for i in range(0, images, block[0]):
        for t in range(0, texts, block[1]):
            rows, columns = slice(i, min(i + block[0], images)), slice(t, min(t + block[1], texts))
            scores[rows, columns] = score_block(rows, columns)
    return scores


@pytest.mark.parametrize("block", [(64, 256), (128, 512), (192, 256), (1024, 1024)])
def test_scores_are_the_same_bits_for_every_block_of_whole_tiles(block: tuple[int, int]) -> None:
    one = member(150, 700)
    assert torch.equal(assemble([one], block), assemble([one], (64, 256)))
    assert one.matcher.shapes == {(192, 704)}  # type: ignore[attr-defined]
    expected = dot_scores(one.image_codes.to(dtype=torch.float64), one.text_codes.to(dtype=torch.float64))
    assert torch.allclose(assemble([one], block).double(), expected, atol=1e-4)


def test_equal_codes_get_equal_scores_wherever_they_stand() -> None:
    one = member(70, 300, dim=1024)
    text = one.text_codes[[0] * 300]
    scores = assemble([Member(one.matcher, one.image_codes, text)], (64, 256))
    assert torch.equal(scores, scores[:, :1].expand_as(scores))


def test_an_ensemble_is_the_mean_of_the_score_matrices() -> None:
    members = [member(30, 90, seed) for seed in range(3)]
    alone = [assemble([one], (64, 256)) for one in members]
    assert torch.allclose(assemble(members, (64, 256)), torch.stack(alone).mean(0), atol=1e-5)


def test_training_settings_do_not_leak_into_the_scores() -> None:
    one = member(10, 10)
    plain = assemble([one], (64, 256))
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = assemble([one], (64, 256))
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert scores.dtype == torch.float32
    assert torch.equal(scores, plain)


def test_members_of_different_splits_are_refused() -> None:
    with pytest.raises(QuintetError, match="same images and texts"):
        member_scores([member(3, 4), member(3, 5)])
    with pytest.raises(QuintetError, match="no matcher"):
        member_scores([])


def test_a_matcher_that_scores_the_wrong_shape_is_named() -> None:
    class Broken(Dot):
        def score(self, image_codes: Codes, text_codes: Codes) -> Tensor:
            return torch.zeros(len(image_codes))

    good = member(3, 4)
    with pytest.raises(QuintetError, match=r"Broken\.score returned shape"):
        assemble([Member(Broken(), good.image_codes, good.text_codes)], (64, 256))  # type: ignore[arg-type]


def test_whole_tiles() -> None:
    assert whole_tiles(1) == (64, 256)
    assert whole_tiles((65, 1000)) == (128, 1024)
    with pytest.raises(QuintetError, match="at least one"):
        whole_tiles(0)
