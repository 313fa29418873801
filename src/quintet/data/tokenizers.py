"""From texts to token ids: what every tokenizer offers, and how a saved one is read back."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from quintet.data.vocabulary import TokenKinds, WordVocabulary
from quintet.errors import RunError
from quintet.files import read_json

if TYPE_CHECKING:
    from quintet.data.batches import TextBatch

_log = logging.getLogger(__name__)


class Tokenizer(Protocol):
    pad: int  # the id that fills a batch up
    unknown: int  # the id of what it does not know

    def __len__(self) -> int:
        """How many ids there are: the size of an embedding table for them."""
        ...

    def ids(self, text: str) -> list[int]:
        """Token ids of a text, start and end tokens included; at least one."""
        ...

    def tokens(self, text: str) -> list[str]:
        """The same as words or word pieces, one for each id, for people to read."""
        ...

    def kinds(self) -> TokenKinds:
        """What each id is."""
        ...

    def plain_words(self) -> list[str]:
        """The words of letters, of three or more, that it knows whole, by id."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything needed to make it again, as JSON; `kind` names the class."""
        ...


def tell_cut(tokenizer: Tokenizer, before: int, texts: int) -> None:
    """Log how many of some texts were too long for the model, where the tokenizer counts them (`cut`, `before`: so far
    and when they began)."""
    cut = cuts(tokenizer) - before
    if cut:
        limit = getattr(tokenizer, "max_length", None)
        _log.warning("%d of %d texts are longer than the %s tokens a text may have, and were cut", cut, texts, limit)


def cuts(tokenizer: Tokenizer) -> int:
    """How many texts it has cut so far; 0 where it does not count them."""
    return int(getattr(tokenizer, "cut", 0))


def text_batch(tokenizer: Tokenizer, texts: Sequence[str]) -> TextBatch:
    from quintet.data.batches import TextBatch  # with torch, which tokens alone do not need

    return TextBatch.from_ids([tokenizer.ids(text) for text in texts], pad=tokenizer.pad)


def load_tokenizer(path: Path | str) -> Tokenizer:
    """Read back what `write_json(path, tokenizer.state())` wrote."""
    state = read_json(path)
    kind = state.get("kind") if isinstance(state, dict) else None
    if kind == "words":
        return WordVocabulary.from_state(state)
    if kind == "wordpiece":
        from quintet.data.wordpiece import WordPiece

        return WordPiece.from_state(state)
    if kind == "pretrained":
        from quintet.data.pretrained_tokenizer import PretrainedTokenizer

        return PretrainedTokenizer.from_state(state)
    raise RunError(f"{path}: unknown tokenizer kind {kind!r}; this Quintet knows words, wordpiece, pretrained")
