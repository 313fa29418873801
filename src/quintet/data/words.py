"""A sentence as lower-cased words, close to what nltk's `word_tokenize` gives for a lower-cased caption.

As there: punctuation stands alone; a full stop stays with an abbreviation unless it ends the text; commas and colons
before a digit stay (10,000; 5:30); hyphens, slashes and dots inside words stay (t-shirt, and/or, 3.5); contractions are
split (do n't, dog 's, can not, gon na); double quotes become `` and ''.

Different, on purpose: typographic quotes and apostrophes count as the plain ones (dog’s -> dog 's); an opening single
quote is split from its word; dashes – and — and the punctuation of other scripts stand alone; text is brought to
Unicode's composed form first, so that one word has one spelling. Text written without spaces is not segmented.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

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
    "cannot": ("can", "not"),
    "gonna": ("gon", "na"),
    "gotta": ("got", "ta"),
    "wanna": ("wan", "na"),
    "gimme": ("gim", "me"),
    "lemme": ("lem", "me"),
}
_ABBREVIATIONS = frozenset(
    [
        "mr",
        "mrs",
        "ms",
        "dr",
        "st",
        "jr",
        "sr",
        "prof",
        "vs",
        "etc",
        "ave",
        "blvd",
        "mt",
        "ft",
        "inc",
        "co",
        "corp",
        "ltd",
    ]
)
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


def split_words(sentence: str, lower: bool = True) -> list[str]:
    """The words and marks of a sentence, lower-cased unless that is turned off.

    >>> split_words("A man's T-shirt doesn't fit, so he (40) smiles.")
    ['a', 'man', "'s", 't-shirt', 'does', "n't", 'fit', ',', 'so', 'he', '(', '40', ')', 'smiles', '.']
    """
    text = unicodedata.normalize("NFC", (sentence.lower() if lower else sentence).translate(_SAME))
    if not text.isascii():
        text = "".join(f" {char} " if _stands_alone(char) else char for char in text)
    chunks = text.split()
    words: list[str] = []
    for place, chunk in enumerate(chunks, 1):
        if chunk.isalpha():
            words.extend(_JOINED.get(chunk, (chunk,)))
        else:
            words.extend(_split_chunk(chunk, last=place == len(chunks)))
    return words


def _stands_alone(char: str) -> bool:
    if char.isascii() or char in _INSIDE_WORDS:
        return False
    return char in _DASHES or unicodedata.category(char) in ("Po", "Ps", "Pe", "Pi", "Pf")


def _split_chunk(chunk: str, last: bool) -> Iterator[str]:
    pieces = _PIECE.findall(chunk)
    before = ""
    for place, (alone, word) in enumerate(pieces, 1):
        if alone:
            quote = "``" if not before or before in _OPENING else "''"
            before = quote if alone == '"' else alone
            yield before
        else:
            ends_text = last and all((later or other) in _CLOSING for later, other in pieces[place:])
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
