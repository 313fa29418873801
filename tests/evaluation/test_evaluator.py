from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from quintet.codes import Codes
from quintet.data.batches import ImageBatch, TextBatch
from quintet.data.corpus import Split
from quintet.errors import QuintetError
from quintet.evaluation.evaluator import evaluate_members
from quintet.evaluation.metrics import retrieval_metrics
from quintet.evaluation.scoring import Member
from quintet.runs.encoding import encode_batches
from quintet.scores import dot_score_pairs, dot_scores

MakeSplit = Callable[..., Split]


class Tiny(nn.Module):
    """The smallest matcher that encodes: a mean over fragments, a table of words."""

    image_input = "fragments"

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(50, dim)
        self.dropout = nn.Dropout(0.5)
        self.frozen = nn.BatchNorm1d(dim).eval()

    def encode_images(self, images: ImageBatch) -> Codes:
        assert images.fragments is not None
        return Codes(embedding=self.dropout(images.fragments.mean(1)))

    def encode_texts(self, texts: TextBatch) -> Codes:
        return Codes(embedding=self.dropout(self.words(texts.tokens).mean(1)))

    def score(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        assert not self.training
        return dot_scores(image_codes, text_codes)

    def score_pairs(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        return dot_score_pairs(image_codes, text_codes)


def random_member(split: Split, seed: int = 0, dim: int = 24, name: str = "") -> Member:
    """Embeddings that know something of the groups."""
    generator = torch.Generator().manual_seed(seed)
    of_group = torch.randn(len(split.groups), dim, generator=generator)
    images = of_group[split.image_groups] + torch.randn(len(split.images), dim, generator=generator)
    texts = of_group[split.text_groups] + torch.randn(len(split.texts), dim, generator=generator)
    return Member(Tiny().eval(), Codes(embedding=images), Codes(embedding=texts), name)


def uneven_split(make_split: MakeSplit) -> Split:
    rng = np.random.default_rng(0)
    return make_split(np.repeat(range(90), rng.integers(1, 3, 90)), np.repeat(range(90), rng.integers(1, 8, 90)))


def image_batches(features: Tensor, size: int) -> Iterator[ImageBatch]:
    for start in range(0, len(features), size):
        yield ImageBatch(fragments=features[start : start + size])


def text_batches(tokens: Tensor, size: int) -> Iterator[TextBatch]:
    for start in range(0, len(tokens), size):
        rows = tokens[start : start + size]
        yield TextBatch(rows, torch.full((len(rows),), rows.shape[1]))


@pytest.mark.usefixtures("folds_of_any_size")
@pytest.mark.parametrize("protocol", ["full", "5fold", "identity"])
def test_every_block_size_gives_the_same_result(make_split: MakeSplit, protocol: str) -> None:
    split = uneven_split(make_split)
    members = [random_member(split, seed) for seed in range(2)]
    results = [
        evaluate_members(members, split, protocol, block=block, bootstrap=20)
        for block in (1, 37, (64, 300), (100, 256), 4096)
    ]
    for result in results[1:]:
        assert result.metrics == results[0].metrics
        assert result.intervals == results[0].intervals
        for ours, theirs in zip(result.ranks, results[0].ranks, strict=True):
            assert np.array_equal(ours.pair_i2t, theirs.pair_i2t)
            assert np.array_equal(ours.pair_t2i, theirs.pair_t2i)


def test_equals_the_metrics_of_the_whole_matrix(make_split: MakeSplit) -> None:
    split = uneven_split(make_split)
    one, two = random_member(split, 1), random_member(split, 2)
    scores = [
        dot_scores(m.image_codes.to(dtype=torch.float64), m.text_codes.to(dtype=torch.float64)) for m in (one, two)
    ]
    assert evaluate_members([one], split, bootstrap=0).metrics == pytest.approx(
        retrieval_metrics(scores[0], split.image_groups, split.text_groups)
    )
    assert evaluate_members([one, two], split, bootstrap=0).metrics == pytest.approx(
        retrieval_metrics((scores[0] + scores[1]) / 2, split.image_groups, split.text_groups)
    )


@pytest.mark.usefixtures("folds_of_any_size")
def test_the_result_says_what_was_measured(make_split: MakeSplit) -> None:
    split = uneven_split(make_split)
    result = evaluate_members(
        [random_member(split, name="a"), random_member(split, 1, name="b")], split, "5fold", seed=4
    )
    assert result.kind == "ensemble of 2"
    assert result.members == ("a", "b")
    assert result.counts["images"] == len(split.images)
    assert result.counts["folds"] == 5
    assert sum(result.counts["images_a_fold"]) == result.counts["i2t_queries"] == len(split.images)
    assert sum(result.counts["texts_a_fold"]) == result.counts["t2i_queries"] == len(split.texts)
    assert result.settings == {"block": [1024, 1024], "bootstrap": 1000, "seed": 4, "device": "cpu"}
    assert result.chance["rsum"] < result.metrics["rsum"]
    low, high = result.intervals["rsum"]
    assert low < result.metrics["rsum"] < high


def test_encoding_ignores_dropout_and_puts_every_module_back() -> None:
    matcher = Tiny().train()
    matcher.frozen.eval()
    features, tokens = torch.randn(10, 4, 16), torch.randint(0, 50, (20, 6))
    images = encode_batches(matcher, image_batches(features, 3), "cpu")
    texts = encode_batches(matcher, text_batches(tokens, 7), "cpu")
    again = encode_batches(matcher, image_batches(features, 10), "cpu")
    assert torch.allclose(images.embedding, again.embedding)  # type: ignore[arg-type]
    assert torch.allclose(images.embedding, features.mean(1), atol=1e-6)  # type: ignore[arg-type]
    assert len(texts) == 20
    assert not texts.embedding.requires_grad  # type: ignore[union-attr]
    assert matcher.training
    assert matcher.dropout.training
    assert not matcher.frozen.training


def test_a_module_is_put_back_also_after_an_error() -> None:
    matcher = Tiny().train()
    with pytest.raises(QuintetError, match="no batch to encode"):
        encode_batches(matcher, [], "cpu")
    assert matcher.training


def test_batches_that_do_not_make_the_split_are_refused(make_split: MakeSplit) -> None:
    split = make_split(range(10), range(10))
    wrong = random_member(make_split(range(9), range(9)))
    with pytest.raises(QuintetError, match="9 and 9"):
        evaluate_members([wrong], split)


def test_nan_codes_are_refused(make_split: MakeSplit) -> None:
    split = make_split(range(5), range(5))
    member = random_member(split)
    member.image_codes.embedding[3, 0] = torch.nan  # type: ignore[index]
    with pytest.raises(QuintetError, match="image row 3"):
        evaluate_members([member], split)


def test_encoding_is_float32_whatever_training_had_switched_on() -> None:
    seen = []

    class Watched(Tiny):
        def encode_images(self, images: ImageBatch) -> Codes:
            seen.append(
                (
                    torch.get_float32_matmul_precision(),
                    torch.backends.cudnn.allow_tf32,
                    torch.is_autocast_enabled("cpu"),
                )
            )
            return super().encode_images(images)

    torch.set_float32_matmul_precision("high")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            images = [ImageBatch(fragments=torch.ones(2, 3, 16))]
            encode_batches(Watched(), images, "cpu")
        assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == ("high", True)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert seen == [("highest", False, False)]
