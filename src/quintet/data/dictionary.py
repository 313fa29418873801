"""What a vocabulary keeps of texts, and how many of their words have pretrained vectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from quintet.data.vocabulary import SPECIAL_TOKENS, WordVocabulary, split_words

FEW = 0.5  # of the words with vectors: fewer are worth a warning
OTHER_CASE = 0.05  # of the words with vectors in another case only: more are


@dataclass(frozen=True)
class VectorCoverage:
    """Which words of a vocabulary a file has vectors for."""

    file: str
    dim: int
    found: int
    words: int
    occurrences: float  # share of the words of all texts, repeated ones counted each time
    other_case: int  # words that the file has in lower case or capitalised only
    missing: tuple[str, ...]  # the most frequent

    def __str__(self) -> str:
        share = 100 * self.found / max(self.words, 1)
        text = f"{self.file}: vectors of dim {self.dim} for {self.found:,} of {self.words:,} words ({share:.1f} %)"
        text += f", which are {100 * self.occurrences:.1f} % of all that is written"
        return text + (f"; missing: {', '.join(self.missing)}" if self.missing else "")

    def warnings(self, case: bool) -> list[str]:
        found = []
        if self.found < FEW * self.words:
            found.append(
                f"only {self.found:,} of {self.words:,} words of the training texts have a vector in {self.file}"
            )
        if self.other_case > OTHER_CASE * self.words:
            found.append(
                f"{self.other_case:,} of {self.words:,} words have a vector in {self.file} in another case only; "
                f"set data.tokenizer.case={str(not case).lower()}"
            )
        return found


def vector_coverage(
    path: Path | str, vocabulary: WordVocabulary, texts: Iterable[str], examples: int = 10
) -> tuple[VectorCoverage, set[str]]:
    """How far a file covers a vocabulary and the texts it is of, and the words that it has."""
    from quintet.data.word_vectors import read_word_vectors

    words = vocabulary.words[len(SPECIAL_TOKENS) :]
    others = {word: {word.lower(), word.capitalize()} - {word} for word in words}
    asked = [*words, *sorted({other for found in others.values() for other in found} - set(words))]
    vectors, has = read_word_vectors(path, asked)
    known = {word for word, found in zip(asked, has, strict=True) if found}
    covered = known & set(words)
    counts = Counter(word for text in texts for word in split_words(text, lower=not vocabulary.case))
    missing = [word for word in words if word not in known]
    coverage = VectorCoverage(
        str(path),
        vectors.shape[1],
        len(covered),
        len(words),
        sum(counts[word] for word in covered) / max(counts.total(), 1),
        sum(not known.isdisjoint(others[word]) for word in missing),
        tuple(sorted(missing, key=lambda word: (-counts[word], word))[:examples]),
    )
    return coverage, covered


@dataclass(frozen=True)
class Dictionary:
    """How many words a vocabulary has, and how many of the words of a text."""

    words: int  # special tokens aside
    written: float  # words of a text, mean
    kept: float  # of them in the dictionary, mean
    without: int  # texts that have none of them
    vectors: VectorCoverage | None = None

    @classmethod
    def of(cls, vocabulary: WordVocabulary, texts: Iterable[str], vectors: VectorCoverage | None = None) -> Dictionary:
        """
        >>> print(Dictionary.of(WordVocabulary.build(["a dog", "a cat"], min_count=2), ["a dog", "a cat"]))
        1 word in the dictionary; 1.0 of 2.0 words of a text are in it
        """
        written, kept = [], []
        for text in texts:
            words = split_words(text, lower=not vocabulary.case)
            written.append(len(words))
            kept.append(sum(word in vocabulary for word in words))
        count = max(len(written), 1)
        size = len(vocabulary) - len(SPECIAL_TOKENS)
        return cls(size, sum(written) / count, sum(kept) / count, kept.count(0), vectors)

    def __str__(self) -> str:
        noun = "word" if self.words == 1 else "words"
        without = f"; {self.without:,} texts have none" if self.without else ""
        return (
            f"{self.words:,} {noun} in the dictionary; {self.kept:.1f} of {self.written:.1f} words of a text are in it"
            + without
        )

    def content(self) -> dict[str, Any]:
        return asdict(self)
