from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from quintet.runs.run import load
from quintet.search import UnknownWords
from quintet.search.encoder import Encoder
from quintet.search.indexing import build_index
from quintet.search.searcher import Searcher
from quintet.search.text_codes import LONG, TEXTS_AT_ONCE, TextCodes


class Counting:
    """Encodes a text as its length, and notes the batches."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, texts: Sequence[str]) -> list[int]:
        self.gate.wait(30)
        self.batches.append(list(texts))
        return list(map(len, texts))


def sixteen(code: int) -> int:
    return 16  # bytes


def test_a_batch_gives_every_text_what_it_gets_alone(vse: Path, scan: Path, mmca: Path, sentences: list[str]) -> None:
    encoder = Encoder([load(run, device="cpu") for run in (vse, scan, mmca)])
    encoder.queries.of(sentences[0], sentences)
    assert encoder.queries.batches == 1
    for text in sentences:
        for batched, alone in zip(encoder.queries.of(text), encoder.encode_texts([text]), strict=True):
            for name, tensor in alone.tensors().items():
                torch.testing.assert_close(batched.tensors()[name], tensor, rtol=1e-5, atol=1e-6)
    assert encoder.queries.batches == 1


def test_texts_that_wait_are_one_batch_and_later_they_are_kept() -> None:
    encode = Counting()
    texts = TextCodes(encode, sixteen)
    assert texts.of("a", ["bb", "a", "ccc", "bb"]) == 1
    assert texts.of("bb", ["a", "dddd"]) == 2
    assert encode.batches == [["a", "bb", "ccc"]]
    assert (texts.encoded, texts.batches) == (3, 1)


def test_threads_that_meet_share_batches() -> None:
    encode = Counting()
    texts, waiting = TextCodes(encode, sixteen), [f"text {number}" for number in range(40)]
    encode.gate.clear()
    with ThreadPoolExecutor(40) as threads:
        found = [threads.submit(texts.of, text, waiting) for text in waiting]
        encode.gate.set()
        assert [future.result() for future in found] == list(map(len, waiting))
    assert sorted(encode.batches[0]) == sorted(waiting)
    assert len(encode.batches) == 1


def test_a_batch_is_limited_and_has_the_text_itself() -> None:
    encode = Counting()
    TextCodes(encode, sixteen).of("mine", (f"other {number}" for number in range(1000)))
    assert len(encode.batches[0]) == TEXTS_AT_ONCE
    assert encode.batches[0][0] == "mine"


def test_long_texts_are_encoded_alone() -> None:
    encode, long = Counting(), "x" * (LONG + 1)
    texts = TextCodes(encode, sixteen)
    texts.of("short", [long, "other"])
    texts.of(long, ["third"])
    assert encode.batches == [["short", "other"], [long]]


def test_the_least_recently_used_are_forgotten_beyond_the_limit_of_bytes() -> None:
    encode = Counting()
    texts = TextCodes(encode, sixteen, kept_bytes=3 * 16)
    for text in ("a", "b", "c", "a", "d", "a", "c", "b"):
        texts.of(text)
    assert encode.batches == [["a"], ["b"], ["c"], ["d"], ["b"]]


def test_one_that_is_larger_than_the_limit_is_answered_and_not_kept() -> None:
    encode = Counting()
    texts = TextCodes(encode, sixteen, kept_bytes=15)
    assert texts.of("a", ["b"]) == 1
    texts.of("a")
    assert encode.batches == [["a", "b"], ["a"]]


def test_texts_that_cannot_be_searched_for_spoil_no_batch(vse: Path, pictures: Path, tmp_path: Path) -> None:
    build_index(vse, [pictures], tmp_path / "index", device="cpu")
    with Searcher.open(tmp_path / "index", device="cpu") as searcher:
        searcher.prepare("a red dog", ["", " ", "\ud800", "qqq", "word " * 1000, "a house"])
        searcher.prepare("qqq", ["a dog"])  # raises when it is searched for
        assert searcher.encoder.queries.encoded == 2
        with pytest.raises(UnknownWords):
            searcher.search_text(["qqq"])
        (one,) = searcher.search_text(["a house"])
        both = searcher.search_text(["a house", "a red dog"])
        assert [hit.item for hit in one] == [hit.item for hit in both[0]]
        assert [hit.score for hit in one] == pytest.approx([hit.score for hit in both[0]], abs=1e-6)
