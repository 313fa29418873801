"""Vocabularies of the original implementations: SCAN's JSON, the pickled object of VSE++ and VSRN, BERT's."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quintet.data.vocabulary import WordVocabulary
from quintet.data.wordpiece import WordPiece
from quintet.training.convert.checkpoint import ConversionError


class _Holder:
    """Stands in for the pickled `Vocabulary`: keeps its attributes, has no code."""

    def __new__(cls, *_: object) -> _Holder:
        return object.__new__(cls)

    def __init__(self, *_: object) -> None:
        pass


class _Refused(pickle.UnpicklingError):
    pass


class _HolderUnpickler(pickle.Unpickler):
    """Makes nothing but plain values and holders, whatever the file asks for."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "Vocabulary":
            return _Holder
        # How the oldest protocols make an object, under the names of Python 2 and 3.
        if module in ("copyreg", "copy_reg") and name == "_reconstructor":
            return lambda cls, *_: _Holder() if cls is _Holder else _refuse("an object that is no vocabulary")
        if module in ("builtins", "__builtin__") and name == "object":
            return object
        return _refuse(f"{module}.{name}")

    def persistent_load(self, pid: object) -> Any:
        return _refuse("a persistent id")


def _refuse(what: str) -> Any:
    raise _Refused(what)


def read_vocabulary(path: Path | str) -> WordVocabulary | WordPiece:
    """An original vocabulary, or BERT's `vocab.txt`. Nothing in the file is executed."""
    path = Path(path)
    if not path.is_file():
        raise ConversionError(f"{path} does not exist" if not path.exists() else f"{path} is not a file")
    if path.suffix == ".txt":
        return WordPiece.load(path)
    data = path.read_bytes()
    if data.lstrip()[:1] == b"{":
        return WordVocabulary.load_scan_json(path)
    return WordVocabulary(_in_order(path, _unpickle(path, data)))


def _unpickle(path: Path, data: bytes) -> object:
    try:
        content = _HolderUnpickler(io.BytesIO(data), encoding="latin1").load()
    except _Refused as error:
        raise ConversionError(
            f"{path} holds {error}, which a vocabulary has no need of; it was refused, and nothing was executed"
        ) from None
    except (pickle.UnpicklingError, EOFError, AttributeError, LookupError, ValueError, TypeError) as error:
        raise ConversionError(f"{path} is neither SCAN's JSON nor a pickled vocabulary: {error}") from None
    return getattr(content, "word2idx", None)


def _in_order(path: Path, word2idx: object) -> list[str]:
    if not isinstance(word2idx, Mapping):
        raise ConversionError(f"{path} has no table 'word2idx' from words to ids")
    if not all(isinstance(word, str) and isinstance(number, int) for word, number in word2idx.items()):
        raise ConversionError(f"{path}: 'word2idx' must lead from words to whole numbers")
    words = sorted(word2idx, key=lambda word: word2idx[word])
    if [word2idx[word] for word in words] != list(range(len(words))):
        raise ConversionError(f"{path}: the ids are not 0 to {len(words) - 1}, each once")
    return words
