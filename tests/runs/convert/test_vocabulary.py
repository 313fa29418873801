"""Reading original vocabularies."""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from quintet.errors import QuintetError
from quintet.runs.convert.original import ConversionError
from quintet.runs.convert.translate import read_vocabulary

WORDS = ["<pad>", "<start>", "<end>", "<unk>", "dog", "café", "a"]


def pickled(words: list[str], protocol: int, extra: Any = None) -> bytes:
    """The pickle of an instance of `vocab.Vocabulary`, a class that no reader of it has."""
    module = ModuleType("vocab")
    cls: Any = type("Vocabulary", (), {"__module__": "vocab"})
    module.Vocabulary = cls  # type: ignore[attr-defined]
    vocabulary = cls()
    vocabulary.word2idx = {word: number for number, word in enumerate(words)}
    vocabulary.idx2word = dict(enumerate(words))
    vocabulary.idx = len(words)
    if extra is not None:
        vocabulary.extra = extra
    sys.modules["vocab"] = module
    try:
        return pickle.dumps(vocabulary, protocol)
    finally:
        del sys.modules["vocab"]


@pytest.mark.parametrize("protocol", [0, 1, 2])
def test_pickled_object(tmp_path: Path, protocol: int) -> None:
    (tmp_path / "vocab.pkl").write_bytes(pickled(WORDS, protocol))
    assert read_vocabulary(tmp_path / "vocab.pkl").words == WORDS


def test_python_2_pickle(tmp_path: Path) -> None:
    """As Python 2 wrote it: byte strings, classes by the module that made them."""
    table = b"".join(b"U" + bytes([len(word)]) + word.encode() + b"K" + bytes([n]) for n, word in enumerate(WORDS[:5]))
    data = b"\x80\x02cvocab\nVocabulary\nq\x00)\x81q\x01}q\x02U\x08word2idx}(" + table + b"usb."
    (tmp_path / "vocab.pkl").write_bytes(data)
    assert read_vocabulary(tmp_path / "vocab.pkl").words == WORDS[:5]


def test_json(tmp_path: Path) -> None:
    saved = {
        "word2idx": {word: number for number, word in enumerate(WORDS)},
        "idx2word": {str(number): word for number, word in enumerate(WORDS)},
        "idx": len(WORDS),
    }
    (tmp_path / "vocab.json").write_text(json.dumps(saved), encoding="utf-8")
    vocabulary = read_vocabulary(tmp_path / "vocab.json")
    assert vocabulary.words == WORDS
    assert vocabulary.ids("A dog") == [1, 6, 4, 2]


class Harm:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_nothing_is_executed(tmp_path: Path, protocol: int) -> None:
    for data in (
        pickle.dumps(Harm(tmp_path / "executed"), protocol),
        pickled(WORDS, protocol, extra=Harm(tmp_path / "executed")),
    ):
        (tmp_path / "vocab.pkl").write_bytes(data)
        with pytest.raises(ConversionError, match=r"posix\.system.*nothing was executed"):
            read_vocabulary(tmp_path / "vocab.pkl")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("call", [b"cbuiltins\nobject\n(tR.", b"ccopyreg\n_reconstructor\n(cbuiltins\nobject\nNNtR."])
def test_only_vocabularies_are_made(tmp_path: Path, call: bytes) -> None:
    (tmp_path / "vocab.pkl").write_bytes(b"\x80\x02" + call)
    with pytest.raises(ConversionError):
        read_vocabulary(tmp_path / "vocab.pkl")


def test_damaged_and_wrong_files(tmp_path: Path) -> None:
    path = tmp_path / "vocab"
    with pytest.raises(QuintetError, match="does not exist"):
        read_vocabulary(path)
    path.write_bytes(pickled(WORDS, 2)[:-20])
    with pytest.raises(ConversionError, match="neither"):
        read_vocabulary(path)
    path.write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(ConversionError, match="word2idx"):
        read_vocabulary(path)
    path.write_bytes(pickled(WORDS, 2).replace(b"K\x06", b"K\x09"))
    with pytest.raises(ConversionError, match="0 to 6"):
        read_vocabulary(path)
    path.write_bytes(pickled(WORDS[1:], 2))
    with pytest.raises(QuintetError, match="<pad>"):
        read_vocabulary(path)
