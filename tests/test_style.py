"""How the tests are written: a pattern names what matters in a message, so that its wording may change."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent
MOST_WORDS = 4


def patterns(code: str) -> list[tuple[int, str]]:
    """The line and the text of each `match=` pattern; what an f-string fills in counts as nothing."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.keyword) and node.arg == "match":
            parts = [part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
            found.append((node.value.lineno, "".join(part for part in parts if isinstance(part, str))))
    return found


def words(pattern: str) -> int:
    """The words of the longest alternative; `.*` separates words, and a number is none."""
    return max(len(re.findall(r"\S*[A-Za-z]\S*", part.replace(".*", " "))) for part in pattern.split("|"))


def test_a_pattern_names_the_noun_that_matters_and_not_the_sentence() -> None:
    found = {path: patterns(path.read_text(encoding="utf-8")) for path in sorted(TESTS.rglob("*.py"))}
    assert sum(map(len, found.values())) > 500
    long = [f"{path}:{line}: {text}" for path, all_ in found.items() for line, text in all_ if words(text) > MOST_WORDS]
    assert not long


def test_words_are_counted() -> None:
    code = 'raises(E, match="no run of " f"{name} here")\nraises(E, match=re.escape("one two"))'
    assert patterns(code) == [(1, "no run of  here"), (2, "one two")]
    assert [words(text) for text in ("no run of it", r"'a'.*b\.png", "one two|three", "3 of 4 images")] == [4, 2, 2, 2]
