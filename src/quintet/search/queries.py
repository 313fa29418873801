"""Texts that can be searched for."""

from __future__ import annotations

from collections.abc import Sequence

from quintet.data.tokenizers import Tokenizer
from quintet.search.errors import EmptyQuery, QueryTooLong, UnknownWords

MAX_CHARACTERS = 10_000
MAX_WORDS = 500  # a text has some twenty; the time of a search grows with the words


def check_text(text: str, tokenizers: Sequence[Tokenizer]) -> None:
    """Raise unless a text has words, not too many, and one that a tokenizer knows."""
    words = text.split()
    if not words:
        raise EmptyQuery("the query is empty; say in a few words what the image should show")
    if len(text) > MAX_CHARACTERS or len(words) > MAX_WORDS:
        raise QueryTooLong(
            f"the query has {len(text):,} characters and {len(words):,} words; at most {MAX_CHARACTERS:,} and "
            f"{MAX_WORDS} are searched for: a text is enough"
        )
    if not any(_knows(tokenizer, text) for tokenizer in tokenizers):
        shown = " ".join(words)[:100]
        raise UnknownWords(f"the matcher knows no word of {shown!r}; it was trained on other words: try plain English")


def _knows(tokenizer: Tokenizer, text: str) -> bool:
    special = tokenizer.kinds().special
    return any(id_ != tokenizer.unknown and not special[id_] for id_ in tokenizer.ids(text))
