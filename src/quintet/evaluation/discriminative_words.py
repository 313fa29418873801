"""Which words a matcher goes by: remove one at a time and see how far the score drops (Dual-Path, Fig. 11)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.codes import Codes
from quintet.data.batches import TextBatch
from quintet.data.tokenizers import Tokenizer
from quintet.data.vocabulary import TokenKinds
from quintet.protocols import Matcher, evaluation_mode
from quintet.runs.devices import full_precision

PIECE = "##"  # how a piece is written that goes on with the word before it


@dataclass(frozen=True)
class WordDrops:
    """A text against its image: the score, and how much of it each word carries."""

    words: tuple[str, ...]
    score: float  # of the whole text
    drops: np.ndarray  # (words,) the score minus the score without the word: large where the word matters

    def top(self, count: int = 3) -> list[int]:
        """The places of the most discriminative words, the first first.

        >>> WordDrops(("a", "red", "ball"), 0.5, np.array([0.0, 0.1, 0.3])).top(2)
        [2, 1]
        """
        return np.argsort(-self.drops, kind="stable")[:count].tolist()

    def to_json(self) -> dict[str, Any]:
        return {"words": list(self.words), "score": self.score, "drops": self.drops.tolist()}


def word_drops(
    matcher: Matcher,
    tokenizer: Tokenizer,
    image_codes: Codes,
    sentences: Sequence[str],
    *,
    batch_size: int = 256,
    device: torch.device | str | None = None,
) -> list[WordDrops]:
    """Row i of `image_codes` against `texts[i]`, whole and without each of its words.

    The images stay as they were encoded; the variants of all texts are encoded together, `batch_size` at a time.
    A word of several pieces is removed as a whole; marks of start and end stay. A text of a single word has no
    words to compare and gets none.
    """
    if len(image_codes) != len(sentences):
        raise ValueError(f"{len(image_codes)} images for {len(sentences)} texts")
    kinds = tokenizer.kinds()
    cut = [_variants(tokenizer, kinds, text) for text in sentences]
    ids = [variant for _, variants in cut for variant in variants]
    pictures = [row for row, (_, variants) in enumerate(cut) for _ in variants]
    place = torch.device(device) if device is not None else image_codes.device
    scores = _score_rows(matcher, tokenizer.pad, image_codes, pictures, ids, batch_size, place)
    found, start = [], 0
    for words, variants in cut:
        whole, without = scores[start], scores[start + 1 : start + len(variants)]
        found.append(WordDrops(words, float(whole), whole - without))
        start += len(variants)
    return found


def word_means(found: Iterable[WordDrops], least: int = 3) -> list[dict[str, Any]]:
    """What each word carries on average, of words that occur `least` times or more; the largest drop first."""
    drops: dict[str, list[float]] = defaultdict(list)
    for text in found:
        for word, drop in zip(text.words, text.drops.tolist(), strict=True):
            drops[word].append(drop)
    rows = [
        {"word": word, "drop": float(np.mean(values)), "count": len(values)}
        for word, values in drops.items()
        if len(values) >= least
    ]
    return sorted(rows, key=lambda row: (-row["drop"], row["word"]))


def _variants(tokenizer: Tokenizer, kinds: TokenKinds, text: str) -> tuple[tuple[str, ...], list[list[int]]]:
    """The words of a text, and token ids: of the whole text first, then without each word."""
    ids, tokens = tokenizer.ids(text), tokenizer.tokens(text)
    spans: list[list[int]] = []  # the places of each word's pieces
    for place, id_ in enumerate(ids):
        if kinds.continues[id_] and spans:
            spans[-1].append(place)
        elif not kinds.mark[id_]:
            spans.append([place])
    spans = [span for span in spans if len(span) < len(ids)]  # something has to be left to encode
    words = tuple("".join(tokens[place].removeprefix(PIECE) for place in span) for span in spans)
    without = [[id_ for place, id_ in enumerate(ids) if place not in span] for span in spans]
    return words, [ids, *without]


def _score_rows(
    matcher: Matcher,
    pad: int,
    image_codes: Codes,
    pictures: Sequence[int],
    ids: Sequence[list[int]],
    batch_size: int,
    device: torch.device,
) -> np.ndarray:
    """(n,): the score of each list of token ids with its image."""
    scores = np.empty(len(ids))
    # Texts of like length together: less padding to encode.
    order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
    with torch.no_grad(), evaluation_mode(matcher), full_precision(device):
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            texts = matcher.encode_texts(TextBatch.from_ids([ids[row] for row in rows], pad).to(device))
            images = image_codes[torch.tensor([pictures[row] for row in rows], device=image_codes.device)]
            part: Tensor = matcher.score_pairs(images.to(device), texts)
            scores[rows] = part.float().cpu().numpy()
    return scores
