"""What is asked and how its answers are shown: checked queries, several parts in one, near-duplicates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from quintet.data.vocabulary import WordVocabulary, split_words
from quintet.data.wordpiece import WordPiece
from quintet.search import EmptyQuery, QueryTooLong, SearchError, UnknownWords
from quintet.search.sources import LONGEST_TEXT
from quintet.search.stores.store import is_text
from quintet.search.vectors import products

if TYPE_CHECKING:
    from quintet.data.tokenizers import Tokenizer

MAX_WORDS = 500  # of a query; a text has some twenty, and the time of a search grows with the words
SAMPLE = 512  # items whose scores say how those of a query are spread
NEAR = 0.1  # near-duplicates: their squared distance, as a share of that of two items by chance
PAIRS = 3  # so many times as many pairs as there are items may be near-duplicates
COMPARED = 1000  # results whose vectors are compared for it
# Small words of other languages, which word pieces made for English have whole; English captions do not have them.
_SMALL_WORDS = """
un une le les la du au aux dans sur avec deux trois et est ein eine einen einem einer der das mit auf und im zwei drei
unter el las los una unos con dos tres il lo gli nel sul di che tre um uma com na een het twee och ett
"""
OTHER_LANGUAGES = frozenset(_SMALL_WORDS.split())
LESS = 0.5  # weight of what an image should not show, beside 1 for what it should


def check_query(text: str, tokenizers: Sequence[Tokenizer]) -> None:
    """Raise unless a text has words, not too many, and one that a tokenizer knows."""
    words = text.split()
    if not is_text(text):
        raise SearchError("the query holds characters that are no text: a null character, or half of a surrogate pair")
    if not words:
        raise EmptyQuery("the query is empty; say in a few words what the image should show")
    if len(text) > LONGEST_TEXT or len(words) > MAX_WORDS:
        raise QueryTooLong(
            f"the query has {len(text):,} characters and {len(words):,} words; at most {LONGEST_TEXT:,} and "
            f"{MAX_WORDS} are searched for: a text is enough"
        )
    if not any(_knows(tokenizer, word) for word in words for tokenizer in tokenizers):  # mostly the first is known
        shown = " ".join(words)[:100]
        raise UnknownWords(f"the matcher knows no word of {shown!r}; it was trained on other words: try plain English")


def _knows(tokenizer: Tokenizer, text: str) -> bool:
    special = tokenizer.kinds().special
    return any(id_ != tokenizer.unknown and not special[id_] for id_ in tokenizer.ids(text))


def strange_words(text: str, tokenizer: Tokenizer) -> list[str]:
    """The words that the tokenizer does not know, or only in pieces, where they are half of the text or more.

    A rare word among others is understood by the others. A query in another language is not understood at all, and no
    score says so. Word pieces know the letters of many scripts, but only the words of a `WordVocabulary` were trained.
    Those made for English have many words of French, German and Spanish whole; there an article or a preposition tells,
    for itself and for the word that it belongs to.
    """
    trained = isinstance(tokenizer, WordVocabulary)
    kinds = tokenizer.kinds()

    def in_pieces(word: str) -> bool:
        ids = [id_ for id_ in tokenizer.ids(word) if not kinds.special[id_]]
        return tokenizer.unknown in ids or any(kinds.continues[id_] for id_ in ids)

    words = words_of(" ".join(split_words(text)) if trained else text)
    other = OTHER_LANGUAGES if isinstance(tokenizer, WordPiece) and not in_pieces("the") else frozenset()
    strange = [
        word
        for before, word in pairwise(["", *words])
        if in_pieces(word) or not (trained or word.isascii()) or not other.isdisjoint((before, word))
    ]
    return strange if 2 * len(strange) >= len(words) else []


def words_of(text: str) -> list[str]:
    """The different words of a text that have a letter.

    >>> words_of("A dog, a DOG 2")
    ['a', 'dog,', 'dog']
    """
    words = (word for word in text.lower().split() if any(letter.isalpha() for letter in word))
    return list(dict.fromkeys(words))[:MAX_WORDS]


@dataclass(frozen=True)
class Spread:
    """How the scores of one query are spread over the items of an index: what makes two queries comparable."""

    mean: float
    std: float

    @classmethod
    def of(cls, query: np.ndarray, sample: np.ndarray) -> Spread:
        """`query`: (dim,); `sample`: (m, dim), vectors of items."""
        scores = products(sample, query[None])[:, 0].astype(np.float64)
        return cls(float(scores.mean()), max(float(scores.std()), 1e-9))


def combined(parts: Sequence[tuple[float, np.ndarray]], sample: np.ndarray) -> tuple[np.ndarray, float]:
    """One query vector of several with their weights, and what is taken from its scores. What comes out is the weighted
    sum of the deviations of the parts, so that an image does not outweigh a text whose scores are closer together.
    """
    vector, offset = np.zeros(sample.shape[1]), 0.0
    for weight, query in parts:
        spread = Spread.of(query, sample)
        vector += weight * query / spread.std
        offset += weight * spread.mean / spread.std
    return vector.astype(np.float32), offset


def near_distance(sample: np.ndarray) -> float:
    """The squared distance up to which two items are near-duplicates: a share of that of two by chance.

    A run that tells few images apart has most of them close together: the nearest pairs are near-duplicates then.
    """
    limit = NEAR * 2 * float(sample.astype(np.float64).var(axis=0).sum())
    pairs = _squared_distances(sample)[np.triu_indices(len(sample), 1)]
    most = PAIRS * len(sample)
    return limit if len(pairs) <= most else min(limit, max(0.0, float(np.partition(pairs, most)[most])))


def _squared_distances(vectors: np.ndarray) -> np.ndarray:
    """(n, n), in float64. What should be zero may be a little less."""
    rows = vectors.astype(np.float64)
    found = products(rows, rows)
    squares = found.diagonal()
    return squares[:, None] + squares - 2 * found


def near_duplicates(vectors: np.ndarray, distance: float) -> list[int]:
    """For each row, best first, the number of the first row no further than this squared distance, or its own.

    >>> near_duplicates(np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 0.9]]), distance=0.2)
    [0, 1, 0]
    """
    rounding = 1e-12 * float(np.square(vectors, dtype=np.float64).sum(axis=1).max(initial=0))
    near = _squared_distances(vectors) <= distance + rounding
    first = np.arange(len(vectors))
    if near.sum() > len(first):  # more than each to itself
        near = np.tril(near, -1)  # to better ones only
        for number in np.flatnonzero(near.any(axis=1)):
            same = np.flatnonzero(near[number] & (first == np.arange(len(vectors))))
            first[number] = same[0] if len(same) else number
    return list(first.tolist())
