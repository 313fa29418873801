from __future__ import annotations

from collections import defaultdict

import pytest
import torch

from quintet.codes import Codes
from quintet.data.batches import ImageBatch, OfflineBatch, PairBatch, TextBatch
from quintet.errors import RecipeError
from quintet.losses.step import Progress, Step
from quintet.models.vse import VSE, build_vse


class Counting(torch.nn.Module):
    """A matcher that notes what it is asked, and whether automatic half precision is on then."""

    image_input = "fragments"

    def __init__(self, inner: VSE) -> None:
        super().__init__()
        self.inner = inner
        self.asked: list[str] = []
        self.half: defaultdict[str, set[bool]] = defaultdict(set)

    def note(self, verb: str) -> None:
        self.asked.append(verb)
        self.half[verb].add(torch.is_autocast_enabled("cpu"))

    def encode_images(self, images: ImageBatch) -> Codes:
        self.note("images")
        return self.inner.encode_images(images)

    def encode_texts(self, texts: TextBatch) -> Codes:
        self.note("texts")
        return self.inner.encode_texts(texts)

    def score(self, image_codes: Codes, text_codes: Codes) -> torch.Tensor:
        self.note("score")
        return self.inner.score(image_codes, text_codes)

    def score_pairs(self, image_codes: Codes, text_codes: Codes) -> torch.Tensor:
        self.half["pairs"].add(torch.is_autocast_enabled("cpu"))
        return self.inner.score_pairs(image_codes, text_codes)


def images(seed: int) -> ImageBatch:
    return ImageBatch(fragments=torch.randn(3, 2, 5, generator=torch.Generator().manual_seed(seed)))


def texts(shift: int) -> TextBatch:
    return TextBatch.from_ids([[1, 4 + shift, 2], [1, 5, 6 + shift, 2], [7]])


def make_step(offline: OfflineBatch | None = None) -> tuple[Step, Counting]:
    torch.manual_seed(0)
    matcher = Counting(build_vse(vocabulary_size=12, image_dim=5, embed_dim=4, word_dim=4))
    groups = torch.tensor([7, 7, 8])
    rows = torch.arange(3)
    batch = PairBatch(images(0), texts(0), groups, groups, rows, rows, offline)
    return Step(matcher, batch, Progress()), matcher


def test_everything_is_computed_once_and_when_asked_for() -> None:
    step, matcher = make_step()
    assert matcher.asked == []
    first = step.scores
    assert step.scores is first
    assert sorted(matcher.asked) == ["images", "score", "texts"]
    assert step.same_group.tolist() == [[True, True, False], [True, True, False], [False, False, True]]
    assert step.diagonal.sum() == 3
    assert step.mine == slice(0, 3)


def test_offline_scores_are_those_of_the_named_pairs() -> None:
    offline = OfflineBatch(texts=texts(1), images=images(1), derived_images=images(2), derived_texts=texts(2))
    step, matcher = make_step(offline)
    inner = matcher.inner
    code = {
        "i": inner.encode_images(images(0)),
        "t": inner.encode_texts(texts(0)),
        "i_off": inner.encode_images(images(1)),
        "t_off": inner.encode_texts(texts(1)),
        "i_derived": inner.encode_images(images(2)),
        "t_derived": inner.encode_texts(texts(2)),
    }
    for found, image, text in (
        (step.off_text, "i", "t_off"),
        (step.off_image, "i_off", "t"),
        (step.off_pair, "i_off", "t_off"),
        (step.derived_pair, "i_derived", "t_derived"),
    ):
        torch.testing.assert_close(found, inner.score(code[image], code[text]).diagonal())


@pytest.mark.parametrize("derived", [True, False])
def test_encoded_together_the_codes_are_the_same(derived: bool) -> None:
    parts = OfflineBatch(texts=texts(1), images=images(1), derived_images=images(2), derived_texts=texts(2))
    apart, together = (make_step(parts) for _ in range(2))
    together[0].encode_offline(derived)
    assert together[1].asked == ["images", "texts"]
    for name in ("scores", "off_text", "off_image", "off_pair", "derived_pair"):
        torch.testing.assert_close(getattr(together[0], name), getattr(apart[0], name))
    assert together[1].asked.count("images") == (1 if derived else 2)


def test_what_another_loss_has_encoded_is_not_encoded_again() -> None:
    parts = OfflineBatch(texts=texts(1), images=images(1), derived_images=images(2), derived_texts=texts(2))
    step, matcher = make_step(parts)
    codes = step.text_codes
    step.encode_offline(derived=True)
    assert matcher.asked == ["texts"]
    assert step.text_codes is codes


def test_batches_of_a_batchnorm_stay_apart() -> None:
    parts = OfflineBatch(texts=texts(1), images=images(1), derived_images=images(2), derived_texts=texts(2))
    step, matcher = make_step(parts)
    matcher.norm = torch.nn.BatchNorm1d(4)
    step.encode_offline(derived=True)
    assert matcher.asked == []


def test_a_batch_without_offline_negatives_says_what_is_missing() -> None:
    with pytest.raises(RecipeError, match="negatives"):
        _ = make_step()[0].off_text


def test_half_precision_codes_are_scored_in_float32() -> None:
    step, matcher = make_step()
    matcher.inner.bfloat16()
    step.batch = PairBatch(
        ImageBatch(fragments=images(0).fragments.bfloat16()),  # type: ignore[union-attr]
        *(getattr(step.batch, name) for name in ("texts", "image_groups", "text_groups", "image_rows", "text_rows")),
    )
    assert step.scores.dtype == torch.float32


@pytest.mark.parametrize("ask", ["scores", "codes"])
def test_encoders_run_in_half_precision_and_scores_never(ask: str) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        offline = OfflineBatch(texts=texts(1), images=images(1), derived_images=images(2), derived_texts=texts(2))
        step, matcher = make_step(offline)
        if ask == "codes":  # as a loss does that computes in float32
            with torch.autocast("cpu", enabled=False):
                assert isinstance(step.image_codes, Codes)
                assert isinstance(step.text_codes, Codes)
        assert step.scores.dtype == torch.float32
        assert step.derived_pair.dtype == torch.float32
    assert matcher.half == {"images": {True}, "texts": {True}, "score": {False}, "pairs": {False}}


def test_encoders_run_in_full_precision_where_the_step_began_in_it() -> None:
    step, matcher = make_step()
    with torch.autocast("cpu", torch.bfloat16):
        assert step.scores.dtype == torch.float32
    assert matcher.half == {"images": {False}, "texts": {False}, "score": {False}}
