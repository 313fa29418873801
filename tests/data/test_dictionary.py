from __future__ import annotations

from pathlib import Path

import pytest

from quintet.data.dictionary import Dictionary, vector_coverage
from quintet.data.vocabulary import WordVocabulary

TEXTS = ["A dog runs", "A dog and an Owl", "the dog sleeps"]


def vectors(folder: Path, *words: str) -> Path:
    path = folder / "vectors.txt"
    path.write_text("".join(f"{word} 1 2\n" for word in words), encoding="utf-8")
    return path


def test_words_are_counted_before_and_after_the_dictionary() -> None:
    found = Dictionary.of(WordVocabulary.build(["dog dog and"], min_count=1), [*TEXTS, "nothing here"])
    assert (found.words, found.without) == (2, 1)
    assert found.written == (3 + 5 + 3 + 2) / 4
    assert found.kept == (1 + 2 + 1 + 0) / 4
    assert str(found) == "2 words in the dictionary; 1.0 of 3.2 words of a text are in it; 1 texts have none"


def test_coverage_is_of_words_and_of_what_is_written(tmp_path: Path) -> None:
    vocabulary = WordVocabulary.build(TEXTS, min_count=1, case=True)
    coverage, found = vector_coverage(vectors(tmp_path, "dog", "owl", "sleeps", "cat"), vocabulary, TEXTS)
    assert found == {"dog", "sleeps"}
    assert (coverage.found, coverage.words) == (2, 8)
    assert coverage.occurrences == 4 / 11
    assert coverage.other_case == 1, "Owl has a vector as owl"
    assert coverage.missing[0] == "A"


@pytest.mark.parametrize(
    ("case", "words", "expected"),
    [
        (True, ["a", "dog", "runs", "and", "an", "owl", "the", "sleeps"], ["in another case"]),
        (False, ["A", "dog", "runs", "and", "an", "owl", "the", "sleeps"], ["in another case"]),
        (True, ["A", "dog"], ["only 2 of 8"]),
        (True, ["A", "dog", "runs", "and", "an", "Owl", "the", "sleeps"], []),
    ],
)
def test_mostly_missing_words_and_words_in_another_case_are_warned_of(
    case: bool, words: list[str], expected: list[str], tmp_path: Path
) -> None:
    vocabulary = WordVocabulary.build(TEXTS, min_count=1, case=case)
    coverage, _ = vector_coverage(vectors(tmp_path, *words), vocabulary, TEXTS)
    warnings = coverage.warnings(case)
    assert len(warnings) == len(expected)
    assert all(part in warning for part, warning in zip(expected, warnings, strict=True))
    if expected == ["in another case"]:
        assert f"data.tokenizer.case={str(not case).lower()}" in warnings[0]
