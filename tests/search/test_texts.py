from __future__ import annotations

from pathlib import Path

import pytest

from quintet.errors import QuintetError
from quintet.search.sources import find_texts


def test_one_a_line_or_rows_with_fields(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a dog\n\n  a cat  \n")
    assert [sentence.text for sentence in find_texts(tmp_path / "a.txt")] == ["a dog", "a cat"]
    (tmp_path / "a.jsonl").write_text('{"text": "a dog", "page": 3, "tags": []}\n')
    (sentence,) = find_texts(tmp_path / "a.jsonl")
    assert (sentence.text, sentence.metadata) == ("a dog", {"page": 3})


def test_equal_texts_have_equal_contents(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a dog\na dog\na cat\n")
    one, two, three = find_texts(tmp_path / "a.txt")
    assert one.content == two.content != three.content


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "\n \n", "no texts"),
        ("a.jsonl", '{"words": "a dog"}', "no field `text`"),
        ("a.jsonl", '{"text": 3}', "no field `text`"),
        ("a.jsonl", '{"text": "\\ud800"}', "surrogates"),
        ("a.txt", "word " * 9000, "characters"),
    ],
)
def test_what_is_no_list_of_texts_is_told(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(QuintetError, match=message):
        find_texts(tmp_path / name)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(QuintetError, match="neither a file"):
        find_texts(tmp_path / "nowhere.txt")
