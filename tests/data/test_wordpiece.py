from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.data import wordpiece
from quintet.data.wordpiece import WordPiece, learn_pieces
from quintet.errors import QuintetError, RunError

pytest.importorskip("tokenizers")

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "##s", "run", "##ning", ",", "cafe", "'", "s"]
TEXTS = ["a dog runs", "two dogs running fast", "the cat is running", "a running dog"] * 5


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    return path


def test_pieces_of_a_text(vocabulary: Path) -> None:
    pieces = WordPiece.load(vocabulary)
    assert pieces.tokens("A Dogs, running CAFÉ") == [
        "[CLS]", "a", "dog", "##s", ",", "run", "##ning", "cafe", "[SEP]",
    ]  # fmt: skip
    assert pieces.ids("A Dogs, running CAFÉ") == [2, 5, 6, 7, 10, 8, 9, 11, 3]
    assert pieces.tokens("dog's xyz") == ["[CLS]", "dog", "'", "s", "[UNK]", "[SEP]"]
    assert pieces.ids("") == [2, 3]
    assert (len(pieces), pieces.pad, pieces.mask) == (len(PIECES), 0, 4)


def test_the_same_as_transformers_bert(vocabulary: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.BertTokenizerFast(str(vocabulary), do_lower_case=True)
    ours = WordPiece.load(vocabulary)
    for text in ["A dog, runs!", "DOGS running 走 [MASK] a", "café's", "", "a" * 300]:
        assert ours.ids(text) == theirs(text)["input_ids"]


def test_crlf_and_a_missing_last_line_break(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes("\r\n".join(PIECES).encode())
    assert WordPiece.load(path).ids("a dog") == [2, 5, 6, 3]


def test_a_pad_that_is_not_zero_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*PIECES[1:], "[PAD]"]), encoding="utf-8")
    assert WordPiece.load(path).pad == len(PIECES) - 1


def test_a_folder_with_either_file(vocabulary: Path, tmp_path: Path) -> None:
    from_text = WordPiece.load(tmp_path)
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "tokenizer.json").write_text(json.dumps(from_text.state()["tokenizer"]), encoding="utf-8")
    assert WordPiece.load(saved).ids("a dog, running") == from_text.ids("a dog, running")
    (tmp_path / "empty").mkdir()
    with pytest.raises(QuintetError, match=r"neither tokenizer\.json nor vocab\.txt"):
        WordPiece.load(tmp_path / "empty")


def test_longest_cuts_and_keeps_the_marks(vocabulary: Path) -> None:
    pieces = WordPiece.load(vocabulary, max_length=5)
    assert pieces.tokens("a dog running running a a") == ["[CLS]", "a", "dog", "run", "[SEP]"]
    assert WordPiece.from_state(pieces.state()).ids("a " * 50) == pieces.ids("a " * 50)
    with pytest.raises(ValueError, match="max_length"):
        WordPiece.load(vocabulary, max_length=2)


def test_state_stands_alone(vocabulary: Path) -> None:
    state = json.loads(json.dumps(WordPiece.load(vocabulary).state()))
    vocabulary.unlink()
    again = WordPiece.from_state(state)
    assert state["kind"] == "wordpiece"
    assert again.ids("A dog's running") == [2, 5, 6, 12, 13, 8, 9, 3]
    assert pickle.loads(pickle.dumps(again)).ids("a dog") == [2, 5, 6, 3]  # loader processes get a copy


def test_a_template_of_unknown_tokens_is_refused(vocabulary: Path) -> None:
    state = WordPiece.load(vocabulary).state()
    assert state["tokenizer"]["post_processor"]["special_tokens"].pop("[SEP]")
    with pytest.raises(RunError, match="whole tokenizer"):  # not a panic of Rust at the first text
        WordPiece.from_state(state)


def test_training_learns_pieces() -> None:
    pieces = WordPiece.train(TEXTS, size=60)
    assert "[UNK]" not in pieces.tokens("a dog is running")
    assert pieces.pad == 0
    assert 5 < len(pieces) <= 60
    assert pieces.ids("A DOG") == pieces.ids("a dog")


def test_training_is_the_same_in_another_process() -> None:
    code = (
        "import json, sys; from quintet.data.wordpiece import WordPiece;"
        f"print(json.dumps(WordPiece.train({TEXTS!r}, size=60).state()))"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(other) == WordPiece.train(TEXTS, size=60).state()


def test_files_that_are_no_vocabulary(tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("dog\ncat\n", encoding="utf-8")
    with pytest.raises(QuintetError, match=r"words.txt .*\[PAD\], \[UNK\]"):
        WordPiece.load(words)
    latin = tmp_path / "latin.txt"
    latin.write_bytes(b"caf\xe9\n")
    with pytest.raises(QuintetError, match="not UTF-8"):
        WordPiece.load(latin)
    with pytest.raises(QuintetError, match=r"absent\.txt does not exist"):
        WordPiece.load(tmp_path / "absent.txt")


@pytest.mark.parametrize(
    "saved",
    [
        None,
        {},
        {"model": {}},
        {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}},
        {"model": {"vocab": {"a": 0}}},
    ],
)
def test_a_tokenizer_of_another_kind_is_refused(tmp_path: Path, saved: Any) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(saved), encoding="utf-8")
    with pytest.raises(QuintetError, match="tokenizer"):
        WordPiece.load(tmp_path / "tokenizer.json")
    with pytest.raises(RunError, match="the saved tokenizer"):
        WordPiece.from_state({"kind": "wordpiece", "tokenizer": saved})


def test_a_hub_name(tmp_path: Path, vocabulary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    saved = tmp_path / "tokenizer.json"
    saved.write_text(json.dumps(WordPiece.load(vocabulary).state()["tokenizer"]), encoding="utf-8")
    monkeypatch.setattr(hub, "hf_hub_download", lambda name, file, revision: str(saved))
    assert WordPiece.load("someone/bert").ids("a dog") == [2, 5, 6, 3]

    def offline(name: str, file: str, revision: str) -> str:
        raise FileNotFoundError("no connection\nmore")

    monkeypatch.setattr(hub, "hf_hub_download", offline)
    with pytest.raises(QuintetError, match=r"'someone/bert' .*no connection"):
        WordPiece.load("someone/bert")


def test_without_the_package_it_is_named(vocabulary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(wordpiece, "import_module", absent)
    with pytest.raises(QuintetError, match="pip install tokenizers"):
        WordPiece.load(vocabulary)


WORDS = st.dictionaries(st.text("abc", min_size=1, max_size=7), st.integers(1, 5), max_size=12)


def plain_pieces(words: dict[str, int], size: int) -> list[str]:
    """The same rule, everything counted anew at every step."""
    spelled = {word: [word[0], *("##" + letter for letter in word[1:])] for word in words}
    pieces = sorted({piece for parts in spelled.values() for piece in parts})
    while len(pieces) < size:
        pairs = Counter[tuple[str, str]]()
        for word, parts in spelled.items():
            for index in range(len(parts) - 1):
                pairs[parts[index], parts[index + 1]] += words[word]
        if not pairs:
            break
        left, right = min(pairs, key=lambda pair: (-pairs[pair], pair))
        joined = left + right[2:]
        for parts in spelled.values():
            index = 0
            while index < len(parts) - 1:
                if (parts[index], parts[index + 1]) == (left, right):
                    parts[index : index + 2] = [joined]
                index += 1
        if joined not in pieces:
            pieces.append(joined)
    return pieces


@settings(deadline=None)
@given(WORDS, st.integers(0, 60))
def test_the_same_as_counting_anew_at_every_step(words: dict[str, int], size: int) -> None:
    assert learn_pieces(words, size) == plain_pieces(words, size)


@settings(deadline=None)
@given(WORDS)
def test_with_room_enough_every_word_is_a_piece(words: dict[str, int]) -> None:
    assert set(words) <= set(learn_pieces(words, 10_000))


def test_letters_are_kept_where_there_is_no_room() -> None:
    assert learn_pieces({"dog": 1}, size=0) == ["##g", "##o", "d"]
    assert learn_pieces({}, size=10) == []
