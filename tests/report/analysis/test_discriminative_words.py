"""Words removed one at a time, against a plain loop that does it text by text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quintet.codes import Codes
from quintet.data.batches import ImageBatch, TextBatch
from quintet.data.vocabulary import WordVocabulary
from quintet.data.wordpiece import WordPiece
from quintet.models import create_model
from quintet.report.analysis import Options, Subject, analyse
from quintet.report.analysis.discriminative_words import WordDrops, word_drops, word_means

TEXTS = ["a red ball", "a dog with a blue ball", "red"]
SIZES = {"embed_dim": 6, "word_dim": 5}


def brute_force(matcher: Any, tokenizer: WordVocabulary, images: Codes, captions: list[str]) -> list[list[float]]:
    """One text at a time, each word taken out of the text itself."""
    found = []
    for row, caption in enumerate(captions):
        words = caption.split()
        variants = [caption] + [" ".join(words[:k] + words[k + 1 :]) for k in range(len(words))]
        scores = []
        for text in variants:
            codes = matcher.encode_texts(TextBatch.from_ids([tokenizer.ids(text)]))
            scores.append(matcher.score(images[row], codes).item())
        found.append([scores[0] - score for score in scores[1:]])
    return found


@pytest.mark.parametrize("name", ["vse++", "scan"])
@pytest.mark.parametrize("batch_size", [2, 256])
def test_against_brute_force(name: str, batch_size: int) -> None:
    torch.manual_seed(0)
    tokenizer = WordVocabulary.build(TEXTS, min_count=1)
    matcher: Any = create_model(name, vocabulary_size=len(tokenizer), image_dim=8, **SIZES).eval()
    images = matcher.encode_images(ImageBatch(fragments=torch.randn(3, 4, 8)))
    with torch.no_grad():
        expected = brute_force(matcher, tokenizer, images, TEXTS)
    matcher.train()  # the words are looked at as they are measured, whatever the mode
    found = word_drops(matcher, tokenizer, images.detach(), TEXTS, batch_size=batch_size)
    assert matcher.training
    for caption, one, drops in zip(TEXTS, found, expected, strict=True):
        assert list(one.words) == caption.split()
        assert one.drops == pytest.approx(drops, abs=1e-5)
    assert max(abs(drop) for drops in expected for drop in drops) > 1e-3


class Summing:
    """Scores a text by the sum of its token ids: what a word carries is its own id."""

    image_input = "fragments"

    def encode_texts(self, texts: TextBatch) -> Codes:
        return Codes(embedding=(texts.tokens * texts.real()).sum(1, keepdim=True).float())

    def score_pairs(self, image_codes: Codes, text_codes: Codes) -> torch.Tensor:
        assert image_codes.embedding is not None
        assert text_codes.embedding is not None
        return (image_codes.embedding * text_codes.embedding).sum(1)


def test_a_word_of_several_pieces_goes_as_a_whole(tmp_path: Any) -> None:
    pytest.importorskip("tokenizers")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "foot", "##ball"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    tokenizer = WordPiece.load(tmp_path / "vocab.txt")
    (found,) = word_drops(Summing(), tokenizer, Codes(embedding=torch.ones(1, 1)), ["red football"])  # type: ignore[arg-type]
    assert found.words == ("red", "football")
    assert found.drops.tolist() == [5.0, 13.0]
    assert found.score == 2 + 5 + 6 + 7 + 3
    assert found.top(1) == [1]


def test_each_text_meets_its_own_image() -> None:
    tokenizer = WordVocabulary.build(TEXTS, min_count=1)
    images = Codes(embedding=torch.tensor([[1.0], [10.0]]))
    first, second = word_drops(Summing(), tokenizer, images, ["red ball", "red ball"])  # type: ignore[arg-type]
    assert second.drops == pytest.approx(10 * first.drops)


def test_nothing_is_removed_where_nothing_would_be_left() -> None:
    tokenizer = WordVocabulary.build(["red"], min_count=1, special_tokens=False)
    (found,) = word_drops(Summing(), tokenizer, Codes(embedding=torch.ones(1, 1)), ["red"])  # type: ignore[arg-type]
    assert found.words == ()
    assert len(found.drops) == 0
    assert found.score == 4.0


def test_means_are_of_words_that_occur_often_enough() -> None:
    found = [
        WordDrops(("red", "ball"), 1.0, np.array([0.1, 0.5])),
        WordDrops(("red", "dog"), 1.0, np.array([0.3, 0.9])),
        WordDrops(("ball",), 1.0, np.array([0.1])),
    ]
    assert [(row["word"], row["count"]) for row in word_means(found, least=2)] == [("ball", 2), ("red", 2)]
    assert [row["drop"] for row in word_means(found, least=2)] == pytest.approx([0.3, 0.2])
    assert word_means(found, least=3) == []


def test_images_and_texts_must_be_as_many() -> None:
    with pytest.raises(ValueError, match="2 images for 1"):
        word_drops(Summing(), WordVocabulary.build(["a"], 1), Codes(embedding=torch.ones(2, 1)), ["a"])  # type: ignore[arg-type]


def test_words_are_of_positive_pairs(
    subjects: list[Subject], tmp_path: Path, few: Options, whole_scores: Callable[[Subject], np.ndarray]
) -> None:
    found = analyse(subjects[:1], tmp_path, ["words"], options=few)["words"]["runs"]["a"]
    assert len(found["texts"]) == 5
    scores, split = whole_scores(subjects[0]), subjects[0].split
    row_of = {text.id: row for row, text in enumerate(split.texts)}
    for shown in found["texts"]:
        text = row_of[shown["text"]]
        assert shown["words"] == split.texts[text].text.split()
        assert shown["score"] == pytest.approx(scores[split.images_of_text[text][0], text], abs=1e-5)
