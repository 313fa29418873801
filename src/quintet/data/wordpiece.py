"""`WordPiece`: BERT's word pieces, by Hugging Face's tokenizers; `learn_pieces` makes a vocabulary of your own."""

from __future__ import annotations

import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from quintet.data.hub import hub_file
from quintet.data.vocabulary import TokenKinds
from quintet.errors import QuintetError, RunError
from quintet.files import check_shape, read_bytes, read_json, user_path

if TYPE_CHECKING:
    from tokenizers import Tokenizer as HuggingFaceTokenizer

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
NEEDED = SPECIAL_TOKENS[:4]
MOST_PIECES = 10_000_000
LARGEST_VOCABULARY = 2**25  # bytes of a vocab.txt
CONTINUED = "##"  # before a piece that does not begin a word


class WordPiece:
    """A text as `[CLS]` pieces `[SEP]`.

    Made by `load` (BERT's vocabulary), `train` (one of your own) or `from_state`. `max_length` is in pieces, the
    two special tokens included (BERT has 512 positions; SAEM takes 32); None cuts nothing.
    """

    def __init__(self, tokenizer: HuggingFaceTokenizer, max_length: int | None = None) -> None:
        if max_length is not None and not 3 <= max_length <= MOST_PIECES:
            raise ValueError(
                f"max_length must leave room for [CLS], a piece and [SEP], and be at most {MOST_PIECES:,}, got "
                f"{max_length}"
            )
        vocabulary = tokenizer.get_vocab()
        missing = [token for token in NEEDED if token not in vocabulary]
        if missing:
            raise QuintetError(f"the WordPiece vocabulary has no {', '.join(missing)}; is it a BERT vocabulary?")
        self.pad: int = vocabulary["[PAD]"]
        self.unknown: int = vocabulary["[UNK]"]
        self.mask: int | None = vocabulary.get("[MASK]")
        self.max_length = max_length
        self._kinds: TokenKinds | None = None
        self._size = max(vocabulary.values()) + 1
        self._tokenizer = tokenizer
        tokenizer.no_padding()
        tokenizer.no_truncation()
        if tokenizer.post_processor is None:
            ends = [(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")]
            tokenizer.post_processor = _hugging_face("processors").TemplateProcessing(
                single="[CLS] $A [SEP]", special_tokens=ends
            )
        if max_length is not None:
            tokenizer.enable_truncation(max_length)

    @classmethod
    def load(cls, source: Path | str, max_length: int | None = None) -> WordPiece:
        """From a `vocab.txt` (lower-casing), a `tokenizer.json`, a folder with either, or a name on the hub."""
        path = user_path(source)
        if path.is_dir():
            inside = [path / name for name in ("tokenizer.json", "vocab.txt") if (path / name).is_file()]
            if not inside:
                raise QuintetError(f"{path} holds neither tokenizer.json nor vocab.txt")
            path = inside[0]
        elif not path.is_file():
            if path.suffix in (".txt", ".json"):
                raise QuintetError(f"{path} does not exist")
            path = _from_hub(str(source))
        tokenizer = _from_json(read_json(path), str(path)) if path.suffix == ".json" else _from_vocabulary(path)
        return cls(tokenizer, max_length)

    @classmethod
    def train(cls, texts: Iterable[str], size: int, max_length: int | None = None) -> WordPiece:
        """Learn at most `size` lower-cased pieces (the five special tokens included) from texts.

        Letters and special tokens are always kept, so the result can be larger than a very small `size`.
        """
        if size < len(SPECIAL_TOKENS):
            raise ValueError(f"size must leave room for the {len(SPECIAL_TOKENS)} special tokens, got {size}")
        normaliser = _hugging_face("normalizers").BertNormalizer(lowercase=True)
        splitter = _hugging_face("pre_tokenizers").BertPreTokenizer()
        words = Counter(word for text in texts for word, _ in splitter.pre_tokenize_str(normaliser.normalize_str(text)))
        pieces = [*SPECIAL_TOKENS, *learn_pieces(words, size - len(SPECIAL_TOKENS))]
        return cls(_bert_tokenizer({piece: id_ for id_, piece in enumerate(pieces)}), max_length)

    def __len__(self) -> int:
        return self._size

    def ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text).ids

    def tokens(self, text: str) -> list[str]:
        return self._tokenizer.encode(text).tokens

    def kinds(self) -> TokenKinds:
        if self.mask is None:
            raise QuintetError("this WordPiece vocabulary has no [MASK], which hidden words need; set augment.words=0")
        if self._kinds is None:  # asked for with every query
            special, continues = (np.zeros(self._size, dtype=bool) for _ in range(2))
            for piece, id_ in self._tokenizer.get_vocab().items():
                special[id_] = piece in SPECIAL_TOKENS and piece != "[UNK]"
                continues[id_] = piece.startswith(CONTINUED)
            self._kinds = TokenKinds(special, continues, self.mask)
        return self._kinds

    def plain_words(self) -> list[str]:
        pieces = sorted(self._tokenizer.get_vocab().items(), key=lambda item: item[1])
        return [piece for piece, _ in pieces if piece.isalpha() and len(piece) > 2]

    def state(self) -> dict[str, Any]:
        """With the whole vocabulary inside, so that a run can be moved to another machine."""
        return {"kind": "wordpiece", "longest": self.max_length, "tokenizer": json.loads(self._tokenizer.to_str())}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> WordPiece:
        try:
            saved = check_shape(state, _State, "the saved tokenizer")
            return cls(_from_json(saved.tokenizer, "the saved tokenizer"), saved.longest)
        except (QuintetError, ValueError) as error:
            raise RunError(str(error)) from None


@dataclass(frozen=True)
class _State:
    """What `WordPiece.state` gives."""

    tokenizer: dict[str, Any]
    longest: int | None = None


def _hugging_face(module: str = "") -> Any:
    try:
        return import_module(f"tokenizers.{module}" if module else "tokenizers")
    except ImportError:
        raise QuintetError(
            "word pieces need the package 'tokenizers' of Hugging Face; install it with `pip install tokenizers`"
        ) from None


def _from_hub(name: str) -> Path:
    _hugging_face()
    try:
        return hub_file(name, "tokenizer.json")
    except (OSError, ValueError) as error:  # no connection and not in the cache; no such name; not a possible name
        reason = str(error).strip().splitlines()[0]
        raise QuintetError(
            f"{name!r} is neither a file or folder here nor a tokenizer that the hub gave: {reason}; "
            "without a connection, give the path of a vocab.txt"
        ) from None


def _from_json(saved: Any, where: str) -> HuggingFaceTokenizer:
    model = saved.get("model") if isinstance(saved, dict) else None
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict):
        raise QuintetError(f"{where} does not hold a tokenizer with its vocabulary")
    # Older files do not name the type; WordPiece alone has a prefix for continued pieces.
    if model.get("type", "WordPiece") != "WordPiece" or "continuing_subword_prefix" not in model:
        raise QuintetError(f"{where} holds a {model.get('type')} tokenizer, not WordPiece")
    vocabulary = check_shape(model["vocab"], dict[str, int], f"{where}: model.vocab")
    if not all(0 <= id_ < MOST_PIECES for id_ in vocabulary.values()):
        raise QuintetError(f"{where}: ids of pieces must lie in 0..{MOST_PIECES - 1:,}")
    try:
        from pydantic_core import to_json  # several times as quick as json

        tokenizer = _hugging_face().Tokenizer.from_str(to_json(saved).decode())
        tokenizer.encode("a")  # a template that names unknown tokens is told only here, as a panic of Rust
        return tokenizer
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001  # the package raises plain Exception, whatever is wrong, or panics
        raise QuintetError(f"{where} does not hold a whole tokenizer: {error}") from None


def _from_vocabulary(path: Path) -> HuggingFaceTokenizer:
    try:
        pieces = read_bytes(path, LARGEST_VOCABULARY).decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise QuintetError(f"{path} is not UTF-8 text: {error}") from None
    pieces = [piece.rstrip("\r") for piece in (pieces[:-1] if pieces[-1] == "" else pieces)]
    vocabulary = {piece: id_ for id_, piece in enumerate(pieces)}  # id = line number
    missing = [token for token in NEEDED if token not in vocabulary]
    if missing:
        raise QuintetError(f"{path} has no line {', '.join(missing)}; is it a BERT vocabulary, one piece a line?")
    return _bert_tokenizer(vocabulary)


def _bert_tokenizer(vocabulary: dict[str, int]) -> HuggingFaceTokenizer:
    """BERT's uncased rules: clean, lower-case, strip accents, split at punctuation, then the longest pieces first."""
    tokenizer = _hugging_face().Tokenizer(_hugging_face("models").WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = _hugging_face("normalizers").BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = _hugging_face("pre_tokenizers").BertPreTokenizer()
    tokenizer.decoder = _hugging_face("decoders").WordPiece()
    tokenizer.add_special_tokens([token for token in SPECIAL_TOKENS if token in vocabulary])
    return tokenizer


def learn_pieces(words: Mapping[str, int], size: int) -> list[str]:
    """The letters of the words in alphabetical order, then joined pieces in the order learned, `size` in all.

    The most frequent pair of neighbouring pieces is joined into one, repeatedly, until there are `size` pieces or no
    pair is left. Of equally frequent pairs the alphabetically first is joined. All letters are kept, even if there are
    more than `size`.

    >>> learn_pieces({"dog": 3, "dogs": 2, "do": 1}, size=7)
    ['##g', '##o', '##s', 'd', 'do', 'dog', 'dogs']
    """
    spelled = [[word[0], *(CONTINUED + letter for letter in word[1:])] for word in sorted(words)]
    counts = [words[word] for word in sorted(words)]
    pieces = sorted({piece for parts in spelled for piece in parts})
    known = set(pieces)
    pairs = Counter[tuple[str, str]]()
    where: dict[tuple[str, str], set[int]] = defaultdict(set)
    for number, parts in enumerate(spelled):
        for pair in pairwise(parts):
            pairs[pair] += counts[number]
            where[pair].add(number)
    heap = [(-count, pair) for pair, count in pairs.items()]
    heapq.heapify(heap)
    while heap and len(pieces) < size:
        count, pair = heapq.heappop(heap)
        if -count != pairs[pair]:  # joined or recounted since; the newer count has an entry of its own
            continue
        joined = pair[0] + pair[1].removeprefix(CONTINUED)
        if joined not in known:
            known.add(joined)
            pieces.append(joined)
        changed = set()
        for number in where.pop(pair):
            before = spelled[number]
            spelled[number] = after = _join(before, pair, joined)
            for old in pairwise(before):
                pairs[old] -= counts[number]
                changed.add(old)
            for new in pairwise(after):
                pairs[new] += counts[number]
                where[new].add(number)
                changed.add(new)
        for other in changed:
            if pairs[other] > 0:
                heapq.heappush(heap, (-pairs[other], other))
    return pieces


def _join(parts: list[str], pair: tuple[str, str], joined: str) -> list[str]:
    out: list[str] = []
    position = 0
    while position < len(parts):
        if tuple(parts[position : position + 2]) == pair:
            out.append(joined)
            position += 2
        else:
            out.append(parts[position])
            position += 1
    return out
