from __future__ import annotations

import contextlib
import gzip
import os
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.data import word_vectors
from quintet.data.vocabulary import SPECIAL_TOKENS, WordVocabulary
from quintet.data.word_vectors import WordVectorReport, initial_embedding, read_word_vectors
from quintet.errors import QuintetError

WORDS = ["dog", "cat", "hündchen", "."]
VECTORS = np.array([[1, 2, 3], [-4, 5.5, 6], [0.25, 0, 1e-3], [7, 8, 9]], dtype=np.float32)


def text_lines(words: list[str] = WORDS, vectors: np.ndarray = VECTORS, end: str = "\n") -> bytes:
    rows = zip(words, vectors, strict=True)
    return "".join(f"{word} {' '.join(repr(float(x)) for x in row)}{end}" for word, row in rows).encode()


def binary(words: list[bytes], vectors: np.ndarray = VECTORS, end: bytes = b"\n", count: int | None = None) -> bytes:
    header = f"{len(words) if count is None else count} {vectors.shape[1]}\n".encode()
    rows = zip(words, vectors, strict=True)
    return header + b"".join(word + b" " + row.astype("<f4").tobytes() + end for word, row in rows)


FILES = {
    "glove": text_lines(),
    "word2vec text": b"4 3\n" + text_lines(),
    "word2vec text, space before the line break": b"4 3\n" + text_lines(end=" \n"),
    "glove, windows line breaks": text_lines(end="\r\n"),
    "word2vec binary": binary([word.encode() for word in WORDS]),
    "word2vec binary without line breaks": binary([word.encode() for word in WORDS], end=b""),
}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_every_kind_of_file(tmp_path: Path, content: bytes, packed: bool) -> None:
    path = tmp_path / "vectors"
    path.write_bytes(gzip.compress(content) if packed else content)
    wanted = ["cat", "absent", ".", "hündchen"]
    vectors, found = read_word_vectors(path, wanted)
    assert found.tolist() == [True, False, True, True]
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, [VECTORS[1], [0, 0, 0], VECTORS[3], VECTORS[2]])


def test_glove_words_with_spaces_are_no_trap(tmp_path: Path) -> None:
    lines = b". . . 9 9 9\n" + b". 1 2 3\n" + b"at name@domain.com 4 4 4\nat 5 6 7\n"
    (tmp_path / "glove.txt").write_bytes(b"x 0 0 0\n" + lines)
    vectors, found = read_word_vectors(tmp_path / "glove.txt", [".", "at"])
    assert found.all()
    np.testing.assert_array_equal(vectors, [[1, 2, 3], [5, 6, 7]])


def test_the_first_of_two_counts(tmp_path: Path) -> None:
    (tmp_path / "glove.txt").write_bytes(b"dog 1 2\ndog 3 4\ncat 5 6\n")
    vectors, _ = read_word_vectors(tmp_path / "glove.txt", ["dog", "cat"])
    np.testing.assert_array_equal(vectors, [[1, 2], [5, 6]])


def test_words_that_are_not_utf8_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(binary([b"caf\xe9", b"dog", b"\xff\xfe", b"cat"]))
    vectors, found = read_word_vectors(tmp_path / "w.bin", ["dog", "cat", "café"])
    assert found.tolist() == [True, True, False]
    np.testing.assert_array_equal(vectors[:2], VECTORS[[1, 3]])


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 7), st.integers(1, 40), st.integers(1, 64), st.booleans(), st.randoms(use_true_random=False))
def test_blocks_of_any_size_read_the_same(
    tmp_path_factory: pytest.TempPathFactory, dim: int, count: int, block: int, line_breaks: bool, random: object
) -> None:
    generator = np.random.default_rng(count * 100 + dim)
    values = np.frombuffer(generator.bytes(4 * dim * count), dtype="<f4").reshape(count, dim)  # spaces and breaks too
    values = np.where(np.isfinite(values), values, np.float32(1))
    path = tmp_path_factory.mktemp("blocks") / "w.bin"
    words = [f"w{number}" for number in range(count)]
    path.write_bytes(binary([word.encode() for word in words], values, b"\n" if line_breaks else b""))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_vectors, "BLOCK", block)
        vectors, found = read_word_vectors(path, words)
    assert found.all()
    np.testing.assert_array_equal(vectors, values)


def test_only_wanted_words_are_kept_in_memory(tmp_path: Path) -> None:
    count, dim = 20_000, 100
    row = struct.pack("<100f", *range(dim))
    with (tmp_path / "w.bin").open("wb") as file:  # 8 MB
        file.write(f"{count} {dim}\n".encode())
        for number in range(count):
            file.write(f"w{number} ".encode() + row)
    tracemalloc.start()
    _, found = read_word_vectors(tmp_path / "w.bin", ["w5", "w19999"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.all()
    assert peak < 4 * 2**20


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"dog 1 2 3\ncat 1 2\n", "line 2: expected a word and 3 numbers"),
        (b"dog 1 2 3\n\ncat 1 2 3\n", "line 2"),
        (b"x 1 2 3\ndog 1 two 3\n", "line 2: could not convert"),
        (b"x 1 2 3\ndog 1 nan 3\n", "'dog' holds NaN"),
        (b"5 3\nx 1 2 3\n", "ends after 1 of 5 words"),
        (b"", "line 1"),
        (b"dog\n", "line 1"),
        (b"3 0\n", "dim 0"),
        (b"PK\x03\x04rest", "zip archive"),
        (binary([b"x", b"y", b"z", b"w"])[:-9], "ends within word 4 of 4"),
        (binary([b"x", b"y", b"z", b"w"], count=9), "ends within word 5 of 9"),
        (b"2 3\n" + b"\x00" * 10_000, "no end of the word"),
        (gzip.compress(text_lines() * 100)[:-20], "broken gzip"),
    ],
)
def test_malformed_files_say_where(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "vectors").write_bytes(content)
    with pytest.raises(QuintetError, match=message) as caught:
        read_word_vectors(tmp_path / "vectors", ["dog", "cat", "never there"])
    assert "vectors" in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(QuintetError, match="do not exist"):
        read_word_vectors(tmp_path / "absent.txt", ["dog"])


def test_initial_embedding(tmp_path: Path) -> None:
    (tmp_path / "glove.txt").write_bytes(text_lines() + b"<pad> 9 9 9\n")
    vocabulary = WordVocabulary([*SPECIAL_TOKENS, "dog", "unicorn", "cat"])
    table, report = initial_embedding(vocabulary, tmp_path / "glove.txt", dim=3, seed=7)
    assert table.shape == (7, 3)
    np.testing.assert_array_equal(table[[4, 6]], VECTORS[:2])
    assert report == WordVectorReport(found=2, missing=1, examples=("unicorn",), dim=3)
    assert "2 of 3 words (66.7 %); missing: unicorn" in str(report)
    drawn = table[[0, 1, 2, 3, 5]]  # the marks are drawn even where the file has a word of that name
    assert drawn.abs().max() <= 0.1
    assert drawn.std() > 0.02
    assert initial_embedding(vocabulary, tmp_path / "glove.txt", 3, seed=7)[0].equal(table)
    assert not initial_embedding(vocabulary, tmp_path / "glove.txt", 3, seed=8)[0].equal(table)
    with pytest.raises(QuintetError, match=r"3, not 300.*word_dim"):
        initial_embedding(vocabulary, tmp_path / "glove.txt", dim=300, seed=7)


BOMBS = {
    "dim": b"3 1000000000\na 1.0",
    "zeros": b"\0" * 10**8,
    "one line": b"a" + b" 1" * 10**7,
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_never_takes_much_memory(tmp_path: Path, name: str) -> None:
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(BOMBS[name])
    tracemalloc.start()
    try:
        with pytest.raises(QuintetError, match="bomb"):
            read_word_vectors(path, ["a", "b"])
        assert tracemalloc.get_traced_memory()[1] < 2**25
    finally:
        tracemalloc.stop()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_mutated_files_are_refused_or_read(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    text = b"2 3\na 1.0 2.0 3.0\nb 4.0 5.0 6.0\n"
    content = bytearray(data.draw(st.sampled_from([text, text[4:], gzip.compress(text)])))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("vectors") / "vectors"
    path.write_bytes(content[: data.draw(st.integers(1, len(content)))])
    with contextlib.suppress(QuintetError):
        read_word_vectors(path, ["a", "b"])


def test_a_pipe_is_no_file_of_word_vectors(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(QuintetError, match="not a file"):
        read_word_vectors(tmp_path / "pipe", ["a"])
