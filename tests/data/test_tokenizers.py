from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quintet.data.tokenizers import load_tokenizer, text_batch
from quintet.data.vocabulary import WordVocabulary
from quintet.data.wordpiece import WordPiece
from quintet.errors import QuintetError, RunError
from quintet.files import write_json

TEXTS = ["A red dog runs.", "A dog", "the blue cat sits on a mat"]


class PadsWithNine:
    pad = 9

    def __len__(self) -> int:
        return 10

    def ids(self, text: str) -> list[int]:
        return [len(word) for word in text.split()]

    def tokens(self, text: str) -> list[str]:
        return text.split()

    def state(self) -> dict[str, Any]:
        return {"kind": "nine"}


def test_text_batch_pads_with_the_tokenizers_pad() -> None:
    batch = text_batch(PadsWithNine(), ["a bcd", "a"])
    assert batch.tokens.tolist() == [[1, 3], [1, 9]]
    assert batch.lengths.tolist() == [2, 1]


def test_words_are_read_back(tmp_path: Path) -> None:
    vocabulary = WordVocabulary.build(TEXTS, min_count=1)
    write_json(tmp_path / "tokenizer.json", vocabulary.state())
    again = load_tokenizer(tmp_path / "tokenizer.json")
    assert isinstance(again, WordVocabulary)
    assert text_batch(again, TEXTS).tokens.equal(text_batch(vocabulary, TEXTS).tokens)


def test_word_pieces_are_read_back(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    pieces = WordPiece.train(TEXTS, size=40)
    write_json(tmp_path / "tokenizer.json", pieces.state())
    again = load_tokenizer(tmp_path / "tokenizer.json")
    assert isinstance(again, WordPiece)
    assert text_batch(again, TEXTS).tokens.equal(text_batch(pieces, TEXTS).tokens)


@pytest.mark.parametrize("state", [{"kind": "bytes"}, {}, [1]])
def test_an_unknown_kind_is_refused(tmp_path: Path, state: Any) -> None:
    write_json(tmp_path / "tokenizer.json", state)
    with pytest.raises(RunError, match="unknown tokenizer kind"):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(QuintetError, match=r"absent\.json does not exist"):
        load_tokenizer(tmp_path / "absent.json")
