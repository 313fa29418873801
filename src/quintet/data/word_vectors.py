"""Pretrained word vectors: GloVe text, word2vec text and word2vec binary files, plain or gzipped.

Files are read as a stream and only the wanted words are kept, so GoogleNews (3 million words, 3.6 GB) costs no more
memory than the vocabulary, and neither does a small file that unpacks to gigabytes. Words are compared as UTF-8 bytes:
a broken word in a file matches nothing.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch
from torch import Tensor

from quintet.data.vocabulary import SPECIAL_TOKENS, WordVocabulary
from quintet.errors import QuintetError
from quintet.files import open_regular

BLOCK = 1 << 18  # bytes
LONGEST_LINE = 1 << 18
LONGEST_WORD = 1 << 12
LARGEST_DIM = 1 << 14
_HEADER = re.compile(rb"(\d{1,18})[ \t]+(\d{1,18})\s*")


@dataclass(frozen=True)
class WordVectorReport:
    """How many words of a vocabulary a file has."""

    found: int
    missing: int
    examples: tuple[str, ...]  # of the missing words, the most frequent first where the vocabulary is so ordered
    dim: int

    def __str__(self) -> str:
        share = 100 * self.found / max(self.found + self.missing, 1)
        text = f"vectors of dim {self.dim} for {self.found} of {self.found + self.missing} words ({share:.1f} %)"
        return text + (f"; missing: {', '.join(self.examples)}" if self.examples else "")


def initial_embedding(
    vocabulary: WordVocabulary, path: Path | str, dim: int, seed: int
) -> tuple[Tensor, WordVectorReport]:
    """(words, dim): the file's vector for words it has, uniform(-0.1, 0.1) for others and for special tokens."""
    vectors, found = read_word_vectors(path, vocabulary.words)
    if vectors.shape[1] != dim:
        raise QuintetError(f"{path} holds vectors of dim {vectors.shape[1]}, not {dim}; set word_dim to match")
    found[: len(SPECIAL_TOKENS)] = False
    table = np.random.default_rng(seed).uniform(-0.1, 0.1, vectors.shape).astype(np.float32)
    table[found] = vectors[found]
    missing = [word for word, has in zip(vocabulary.words, found, strict=True) if not has][len(SPECIAL_TOKENS) :]
    return torch.from_numpy(table), WordVectorReport(int(found.sum()), len(missing), tuple(missing[:10]), dim)


def read_word_vectors(path: Path | str, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """(words, dim) float32 vectors, zero where the file has none, and (words,) bool: which were found.

    The first bytes decide the kind of file. The first vector of a word that occurs twice counts.
    """
    path = Path(path)
    row_of = {word.encode("utf-8", "surrogatepass"): row for row, word in enumerate(words)}
    if len(row_of) != len(words):
        raise ValueError("the words must differ from each other")
    with _open(path) as file:
        dim, entries = _entries(file, path, row_of)
        vectors = np.zeros((len(words), dim), dtype=np.float32)
        found = np.zeros(len(words), dtype=bool)
        left = len(words)
        for word, vector in entries:
            row = row_of[word]
            if not found[row]:
                vectors[row], found[row] = vector, True
                left -= 1
            if not left:
                break
    unsound = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(unsound):
        raise QuintetError(f"{path}: the vector of {words[unsound[0]]!r} holds NaN or infinity")
    return vectors, found


Entries = Iterator[tuple[bytes, np.ndarray]]


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    if not path.exists():
        raise QuintetError(f"word vectors {path} do not exist")
    with open_regular(path) as raw:
        magic = raw.peek(4)[:4]
        if magic[:2] == b"PK":
            raise QuintetError(f"{path} is a zip archive; unpack it and give the file inside")
        try:
            if magic[:2] != b"\x1f\x8b":
                yield raw
            else:
                with gzip.open(raw) as unpacked:
                    yield cast(IO[bytes], unpacked)
        except (OSError, EOFError, zlib.error) as error:
            raise QuintetError(f"{path} is damaged or a broken gzip file: {error}") from None


def _entries(file: IO[bytes], path: Path, wanted: dict[bytes, Any]) -> tuple[int, Entries]:
    """The dimension, and the wanted entries as a stream."""
    first = file.readline(LONGEST_LINE)
    header = _HEADER.fullmatch(first)
    if header is None:
        dim = len(first.split()) - 1
        if not 1 <= dim <= LARGEST_DIM:
            raise QuintetError(
                f"{path}, line 1: expected a word and 1 to {LARGEST_DIM} numbers, or word2vec's header (words, dim)"
            )
        return dim, _text_entries(file, path, wanted, dim, line=first, number=1)
    count, dim = int(header[1]), int(header[2])
    if not 1 <= dim <= LARGEST_DIM:
        raise QuintetError(f"{path}, line 1: the header says dim {dim}; it must lie in 1..{LARGEST_DIM}")
    # Only text has a line here that ends in `dim` numbers.
    beginning = file.readline(LONGEST_LINE)
    if _is_text(beginning, dim):
        return dim, _text_entries(file, path, wanted, dim, line=beginning, number=2, count=count)
    return dim, _binary_entries(file, path, wanted, dim, count, beginning)


def _is_text(line: bytes, dim: int) -> bool:
    fields = line.rstrip().rsplit(b" ", dim)
    try:
        return len(fields) == dim + 1 and bool([float(field) for field in fields[1:]])
    except ValueError:
        return False


def _text_entries(
    file: IO[bytes], path: Path, wanted: dict[bytes, Any], dim: int, line: bytes, number: int, count: int | None = None
) -> Entries:
    first = number
    while line:
        line = line.rstrip()
        if line.count(b" ") < dim:
            raise QuintetError(f"{path}, line {number}: expected a word and {dim} numbers separated by single spaces")
        # GloVe 840B has "words" with spaces in them, so the numbers are counted from the end.
        if line.partition(b" ")[0] in wanted and (fields := line.rsplit(b" ", dim))[0] in wanted:
            try:
                with np.errstate(over="ignore"):  # infinity, which is refused
                    yield fields[0], np.array([float(field) for field in fields[1:]], dtype=np.float32)
            except ValueError as error:
                raise QuintetError(f"{path}, line {number}: {error}") from None
        line = file.readline(LONGEST_LINE)
        number += 1
    if count is not None and number - first < count:
        raise QuintetError(f"{path} ends after {number - first} of {count} words; it is cut off")


def _binary_entries(
    file: IO[bytes], path: Path, wanted: dict[bytes, Any], dim: int, count: int, beginning: bytes
) -> Entries:
    """Each entry: the word, a space, dim little-endian float32; some writers put a line break after it."""
    buffer, position, size = beginning, 0, 4 * dim
    for entry in range(count):
        space = buffer.find(b" ", position)
        while space < 0 or len(buffer) < space + 1 + size:
            if space < 0 and len(buffer) - position > LONGEST_WORD:
                raise QuintetError(f"{path}, word {entry + 1}: no end of the word; is this word2vec's binary format?")
            block = file.read(BLOCK)
            if not block:
                raise QuintetError(f"{path} ends within word {entry + 1} of {count}; it is cut off")
            buffer, position = buffer[position:] + block, 0
            space = buffer.find(b" ")
        word = buffer[position:space].lstrip(b"\n")
        if word in wanted:
            yield word, np.frombuffer(buffer, dtype="<f4", count=dim, offset=space + 1)
        position = space + 1 + size
