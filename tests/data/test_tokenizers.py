from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


HOSTILE = [None, [], -3, "x", {}, -1, 10**40, 1.5, [[]] * 3, {"a": 10**12}, {"a": -1}]


@pytest.mark.parametrize("kind", ["words", "wordpiece"])
def test_a_hostile_tokenizer_is_a_run_error(tmp_path: Path, kind: str) -> None:
    good = WordVocabulary.build(TEXTS, min_count=1).state()
    if kind == "wordpiece":
        pytest.importorskip("tokenizers")
        good = WordPiece.train(TEXTS, size=40).state()
    for field in good.keys() - {"kind"}:
        for value in HOSTILE:
            write_json(tmp_path / "tokenizer.json", good | {field: value})
            if field == "longest" and value is None:
                load_tokenizer(tmp_path / "tokenizer.json")
            elif field == "longest" and kind == "words" and value == 10**40:
                load_tokenizer(tmp_path / "tokenizer.json").ids("a")
            else:
                with pytest.raises(RunError):
                    load_tokenizer(tmp_path / "tokenizer.json")


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_mutated_word_pieces_are_refused_or_read(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    pytest.importorskip("tokenizers")
    saved = WordPiece.train(TEXTS, size=40).state()
    model = saved["tokenizer"]["model"]
    where = data.draw(st.sampled_from([saved["tokenizer"], model, model["vocab"]]))
    where[data.draw(st.sampled_from(sorted(where)))] = data.draw(st.sampled_from(HOSTILE))
    path = tmp_path_factory.mktemp("run") / "tokenizer.json"
    write_json(path, saved)
    with contextlib.suppress(QuintetError):
        load_tokenizer(path).kinds()
