"""`WordVocabulary`: the words of the training texts as ids, and `split_words`, the rules for what a word is."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from quintet.errors import QuintetError, RunError
from quintet.files import check_shape, read_json

_SAME = str.maketrans(
    {  # typographic quotes, single then double; zero-width space and byte order mark
        "\u2019": "'",
        "\u2018": "'",
        "\u201c": '"',
        "\u201d": '"',
        "\u201e": '"',
        "\u200b": " ",
        "\ufeff": " ",
    }
)
_JOINED = {
    "cannot": ("can", "not"), "gonna": ("gon", "na"), "gotta": ("got", "ta"),
    "wanna": ("wan", "na"), "gimme": ("gim", "me"), "lemme": ("lem", "me"),
}  # fmt: skip
_ABBREVIATIONS = {
    "mr", "mrs", "ms", "dr", "st", "jr", "sr", "prof", "vs", "etc", "ave", "blvd", "mt", "ft", "inc", "co",
    "corp", "ltd",
}  # fmt: skip
_ALONE = ';@#$%&?!*()\\[\\]{}<>"`'  # inside a regular expression's brackets
_PIECE = re.compile(
    rf"(\.{{2,}}|--+|`+|''+|[{_ALONE}]|[,:](?!\d))|"  # what stands alone
    rf"((?:(?!\.{{2,}}|--|''|[,:](?!\d))[^{_ALONE}])+)"  # a word: anything up to the next of those
)
_CLITIC = re.compile(r"(.+?)(n't|'(?:s|m|d|ll|re|ve))")
_BARE_CLITIC = re.compile(r"'(?:s|m|d|t|n|ll|re|ve|em)'?")
_INITIALS = re.compile(r"[^\W\d_](?:\.[^\W\d_])*")
_CLOSING = frozenset([")", "]", "}", ">", '"', "''", "'"])
_OPENING = frozenset(["(", "[", "{", "<", "``"])
_DASHES = frozenset("\u2013\u2014")
_INSIDE_WORDS = frozenset("\u00b7\u05f3\u05f4")  # middle dot (Catalan), geresh and gershayim (Hebrew)

# Scripts without spaces, split as Unicode does without a dictionary (UAX #29): every ideograph, kana of hiragana and
# letter of bopomofo is a word, a run of katakana is one, and so is a letter of Thai, Lao, Khmer, Burmese and the
# scripts like them, with its marks and what is stacked on it.
_MARKS = r"\u3099\u309a\u302a-\u302f\ufe00-\ufe0f\U000e0100-\U000e01ef"
_IDEOGRAPHS = (
    r"\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3041-\u3096\u309d-\u309f\u3105-\u312f\u31a0-\u31bf"
    r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
_KATAKANA = r"\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f"
_SOUTH_EAST_ASIAN = [  # Thai, Lao, Burmese, Khmer, Tai Le, New Tai Lue, Tai Tham, and what extends Burmese and Tai
    *range(0x0E01, 0x0F00), *range(0x1000, 0x10A0), *range(0x1780, 0x1800), *range(0x1950, 0x19E0),
    *range(0x1A20, 0x1AB0), *range(0xA9E0, 0xAA00), *range(0xAA60, 0xAAE0),
]  # fmt: skip
_LETTERS = "".join(chr(c) for c in _SOUTH_EAST_ASIAN if unicodedata.category(chr(c)) in ("Lo", "Lm"))
_VOWELS = "".join(chr(c) for c in _SOUTH_EAST_ASIAN if unicodedata.category(chr(c)) in ("Mn", "Mc")) + "\u0e33\u0eb3"
_STACKS = "\u1039\u17d2\u1a60"  # the next letter is written below
_UNSPACED = re.compile(
    rf"[{_IDEOGRAPHS}][{_MARKS}]*|[{_KATAKANA}][{_KATAKANA}{_MARKS}]*|[{_LETTERS}](?:[{_STACKS}][{_LETTERS}]|[{_VOWELS}])*"
)


def split_words(text: str, lower: bool = True) -> list[str]:
    """The words and punctuation marks of a text, lower-cased unless that is turned off.

    >>> split_words("A man's T-shirt doesn't fit, so he (40) smiles.")
    ['a', 'man', "'s", 't-shirt', 'does', "n't", 'fit', ',', 'so', 'he', '(', '40', ')', 'smiles', '.']
    """
    text = unicodedata.normalize("NFC", (text.lower() if lower else text).translate(_SAME))
    if not text.isascii():
        text = "".join(f" {char} " if _stands_alone(char) else char for char in text)
        text = _UNSPACED.sub(r" \g<0> ", text)
    chunks = text.split()
    words: list[str] = []
    for position, chunk in enumerate(chunks, 1):
        if chunk.isalpha():
            words.extend(_JOINED.get(chunk, (chunk,)))
        else:
            words.extend(_split_chunk(chunk, last=position == len(chunks)))
    return words


def _is_plain(word: str) -> bool:
    """Of letters, with marks; of three or more, where letters make up words."""
    letters = "".join(char for char in word if unicodedata.category(char)[0] != "M")
    return letters.isalpha() and (len(word) > 2 or _UNSPACED.fullmatch(word) is not None)


def _stands_alone(char: str) -> bool:
    if char.isascii() or char in _INSIDE_WORDS:
        return False
    return char in _DASHES or unicodedata.category(char) in ("Po", "Ps", "Pe", "Pi", "Pf")


def _split_chunk(chunk: str, last: bool) -> Iterator[str]:
    pieces = _PIECE.findall(chunk)
    before = ""
    for position, (alone, word) in enumerate(pieces, 1):
        if alone:
            quote = "``" if not before or before in _OPENING else "''"
            before = quote if alone == '"' else alone
            yield before
        else:
            ends_text = last and all((later or other) in _CLOSING for later, other in pieces[position:])
            yield from _split_word(word, ends_text)
            before = word


def _split_word(word: str, ends_text: bool) -> Iterator[str]:
    after: list[str] = []
    if len(word) > 1 and word[0] == "'" and not _BARE_CLITIC.fullmatch(word.rstrip(".")):
        yield "'"
        word = word[1:]
    while len(word) > 1:
        stem = word[:-1]
        if word[-1] == "." and (ends_text or not (stem in _ABBREVIATIONS or _INITIALS.fullmatch(stem))):
            word, tail = stem, "."
        elif word[-1] == "'" and len(stem.strip("'")):
            word, tail = stem, "'"
        elif match := _CLITIC.fullmatch(word):
            word, tail = match.groups()
        else:
            break
        after.append(tail)
        ends_text = False
    yield from _JOINED.get(word, (word,))
    yield from reversed(after)


PAD, START, END, UNKNOWN = range(4)
SPECIAL_TOKENS = ("<pad>", "<start>", "<end>", "<unk>")
MASK = "<mask>"
SCAN_KEYS = ("word2idx", "idx2word", "idx")


@dataclass(frozen=True)
class Coverage:
    """How much of some texts a vocabulary knows."""

    tokens: int
    unknown: int
    examples: tuple[tuple[str, int], ...]  # the most frequent unknown words, with their counts

    def __str__(self) -> str:
        share = 100 * self.unknown / max(self.tokens, 1)
        words = ", ".join(word for word, _ in self.examples)
        return f"{self.unknown} of {self.tokens} words unknown ({share:.2f} %)" + (f": {words}" if words else "")


@dataclass(frozen=True)
class TokenKinds:
    """What the ids of a tokenizer are, for code that changes texts."""

    special: np.ndarray  # (ids,) bool: no part of a word, such as padding, start and end
    continues: np.ndarray  # (ids,) bool: a piece that goes on with the word before it
    mask: int | None  # stands for a word that is hidden


class WordVocabulary:
    """Ids of words: `<pad>` 0, `<start>` 1, `<end>` 2, `<unk>` 3, then the words.

    A text becomes `<start>` words `<end>`, or only its words with `special_tokens=False`. `max_length` is in ids, the
    two special tokens included; None cuts nothing. Words outside the vocabulary are `<unk>`, or with
    `drop_unknown` left out (before the cut). Words are lower-cased; `case=True` keeps their capitals.

    >>> vocabulary = WordVocabulary.build(["A dog runs.", "A dog!"], min_count=2)
    >>> vocabulary.words
    ['<pad>', '<start>', '<end>', '<unk>', 'a', 'dog']
    >>> vocabulary.ids("The dog"), vocabulary.tokens("The dog")
    ([1, 3, 5, 2], ['<start>', 'the', 'dog', '<end>'])
    """

    pad = PAD
    unknown = UNKNOWN

    def __init__(
        self,
        words: Sequence[str],
        special_tokens: bool = True,
        max_length: int | None = None,
        drop_unknown: bool = False,
        case: bool = False,
    ) -> None:
        if max_length is not None and max_length < 3:
            raise ValueError(f"max_length must leave room for <start>, a word and <end>, got {max_length}")
        self.words = list(words)  # id -> word
        self.special_tokens = special_tokens
        self.max_length = max_length
        self.drop_unknown = drop_unknown
        self.case = case
        self._id_of = {word: id_ for id_, word in enumerate(self.words)}
        self._kinds: TokenKinds | None = None
        if tuple(self.words[: len(SPECIAL_TOKENS)]) != SPECIAL_TOKENS:
            raise QuintetError(f"a vocabulary starts with {' '.join(SPECIAL_TOKENS)}, this one with {self.words[:4]}")
        if len(self._id_of) != len(self.words):
            twice = next(word for word, count in Counter(self.words).items() if count > 1)
            raise QuintetError(f"the vocabulary holds {twice!r} more than once")

    @classmethod
    def build(
        cls,
        texts: Iterable[str],
        min_count: int = 4,
        max_words: int | None = None,
        special_tokens: bool = True,
        max_length: int | None = None,
        drop_unknown: bool = False,
        case: bool = False,
    ) -> WordVocabulary:
        """From the training texts, and no others: words seen `min_count` times or more, the most frequent first.

        Words of equal count are in alphabetical order, so the same texts in any order give the same ids.
        `max_words` keeps only the most frequent ones (the four special tokens are not counted).
        """
        if min_count < 1:
            raise ValueError(f"min_count must be at least 1, got {min_count}")
        counts = Counter(word for text in texts for word in split_words(text, lower=not case))
        ordered = sorted(counts, key=lambda word: (-counts[word], word))
        frequent = (word for word in ordered if counts[word] >= min_count and word not in SPECIAL_TOKENS)
        return cls([*SPECIAL_TOKENS, *islice(frequent, max_words)], special_tokens, max_length, drop_unknown, case)

    def only(self, known: Collection[str]) -> WordVocabulary:
        """The same vocabulary with these of its words only, in the same order."""
        words = [word for word in self.words[len(SPECIAL_TOKENS) :] if word in known]
        return WordVocabulary(
            [*SPECIAL_TOKENS, *words], self.special_tokens, self.max_length, self.drop_unknown, self.case
        )

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._id_of

    def ids(self, text: str) -> list[int]:
        """Never empty: a text without words gives `<start> <end>`, or without special tokens `<unk>`.

        Where unknown words are dropped as well, it gives `<pad>`.
        """
        words = [self._id_of.get(word, UNKNOWN) for word in self._kept(text)]
        return [START, *words, END] if self.special_tokens else words or [self._nothing]

    def tokens(self, text: str) -> list[str]:
        """One for each id, as written in the text: unknown words are shown, not replaced."""
        words = self._kept(text)
        return (
            [SPECIAL_TOKENS[START], *words, SPECIAL_TOKENS[END]]
            if self.special_tokens
            else words or [SPECIAL_TOKENS[self._nothing]]
        )

    @property
    def _nothing(self) -> int:
        return PAD if self.drop_unknown else UNKNOWN

    def _kept(self, text: str) -> list[str]:
        words = split_words(text, lower=not self.case)
        if self.drop_unknown:
            words = [word for word in words if word in self._id_of]
        return words if self.max_length is None else words[: self.max_length - 2 * self.special_tokens]

    def coverage(self, texts: Iterable[str], examples: int = 10) -> Coverage:
        """How many words of some texts are unknown.

        >>> print(WordVocabulary.build(["a dog"], min_count=1).coverage(["a cat", "a dog"]))
        1 of 4 words unknown (25.00 %): cat
        """
        tokens, unknown = 0, Counter[str]()
        for text in texts:
            words = split_words(text, lower=not self.case)
            tokens += len(words)
            unknown.update(word for word in words if word not in self._id_of)
        frequent = sorted(unknown.items(), key=lambda item: (-item[1], item[0]))
        return Coverage(tokens, unknown.total(), tuple(frequent[:examples]))

    def kinds(self) -> TokenKinds:
        """Hidden words are `<unk>`, unless the vocabulary has a word `<mask>` (VSE-infinity's code adds one)."""
        if self._kinds is None:  # asked for with every query
            mask = self._id_of.get(MASK, UNKNOWN)
            special = np.isin(np.arange(len(self)), [PAD, START, END, *([mask] if mask != UNKNOWN else [])])
            self._kinds = TokenKinds(special, np.zeros(len(self), dtype=bool), mask)
        return self._kinds

    def plain_words(self) -> list[str]:
        return [word for word in self.words[len(SPECIAL_TOKENS) :] if _is_plain(word)]

    def state(self) -> dict[str, Any]:
        flags = {
            "marks": self.special_tokens,
            "longest": self.max_length,
            "drop_unknown": self.drop_unknown,
            "case": self.case,
        }
        return {"kind": "words", **flags, "words": self.words}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> WordVocabulary:
        try:
            saved = check_shape(state, _State, "a saved word vocabulary")
            return cls(saved.words, saved.marks, saved.longest, saved.drop_unknown, saved.case)
        except (QuintetError, ValueError) as error:
            raise RunError(f"{error}; the file is damaged") from None

    @classmethod
    def load_scan_json(
        cls,
        path: Path | str,
        special_tokens: bool = True,
        max_length: int | None = None,
        drop_unknown: bool = False,
        case: bool = False,
    ) -> WordVocabulary:
        """Read the JSON that SCAN, BFAN and AOQ ship: `word2idx`, `idx2word` (string keys) and `idx`, the size."""
        saved = read_json(path)
        if not isinstance(saved, dict) or any(key not in saved for key in SCAN_KEYS):
            raise QuintetError(f"{path}: not SCAN's vocabulary, which has the keys {', '.join(SCAN_KEYS)}")
        if not isinstance(saved["word2idx"], dict) or not isinstance(saved["idx2word"], dict):
            raise QuintetError(f"{path}: word2idx and idx2word must be objects")
        tables = check_shape(saved, _ScanVocabulary, str(path))
        id_of, word_of, size = tables.word2idx, tables.idx2word, tables.idx
        if not len(id_of) == len(word_of) == size:
            raise QuintetError(f"{path}: word2idx has {len(id_of)} words, idx2word {len(word_of)}, idx says {size}")
        for id_ in range(size):
            word = word_of.get(str(id_))
            if word is None:
                raise QuintetError(f"{path}: idx2word has no word {id_}; ids must run from 0 to {size - 1}")
            if id_of.get(word) != id_:
                raise QuintetError(f"{path}: {word!r} is {id_} in idx2word but {id_of.get(word)} in word2idx")
        try:
            return cls([word_of[str(id_)] for id_ in range(size)], special_tokens, max_length, drop_unknown, case)
        except QuintetError as error:
            raise QuintetError(f"{path}: {error}") from None


@dataclass(frozen=True)
class _State:
    """What `WordVocabulary.state` gives."""

    words: list[str]
    marks: bool = True
    longest: int | None = None
    drop_unknown: bool = False
    case: bool = False


@dataclass(frozen=True)
class _ScanVocabulary:
    word2idx: dict[str, int]
    idx2word: dict[str, str]
    idx: int
