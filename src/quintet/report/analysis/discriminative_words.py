"""Discriminative words: remove one word at a time and measure how far the score drops (Dual-Path, Fig. 11)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from quintet.codes import Codes
from quintet.data.batches import TextBatch
from quintet.data.tokenizers import Tokenizer
from quintet.data.vocabulary import TokenKinds
from quintet.errors import QuintetError
from quintet.protocols import Matcher, evaluation_mode
from quintet.report.analysis import Finding, Options, Subject
from quintet.report.figures import GREY, VERMILION, drawing, new_panels
from quintet.runs.devices import full_precision

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PIECE = "##"  # the prefix of a word piece that continues the word before it
TOP = 3  # words that are marked in the figure, as in the paper
SHOWN = 15  # words in the figure of means, from each end


# Numbers


@dataclass(frozen=True)
class WordDrops:
    """The score of a text with its image, and how far it drops without each word."""

    words: tuple[str, ...]
    score: float  # of the whole text
    drops: np.ndarray  # (words,) the score minus the score without the word

    def top(self, count: int = TOP) -> list[int]:
        """Indices of the most discriminative words, the largest drop first.

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
    texts: Sequence[str],
    *,
    batch_size: int = 256,
    device: torch.device | str | None = None,
) -> list[WordDrops]:
    """Score row i of `image_codes` with `texts[i]`, whole and without each of its words.

    The variants of all texts are encoded together, `batch_size` at a time. A word of several pieces is removed as a
    whole; special tokens stay. A text of a single word has nothing to compare, so its `words` are empty.
    """
    if len(image_codes) != len(texts):
        raise ValueError(f"{len(image_codes)} images for {len(texts)} texts")
    kinds = tokenizer.kinds()
    cut = [_variants(tokenizer, kinds, text) for text in texts]
    ids = [variant for _, variants in cut for variant in variants]
    image_rows = [row for row, (_, variants) in enumerate(cut) for _ in variants]
    on = torch.device(device) if device is not None else image_codes.device
    scores = _score_rows(matcher, tokenizer.pad, image_codes, image_rows, ids, batch_size, on)
    found, start = [], 0
    for words, variants in cut:
        whole, without = scores[start], scores[start + 1 : start + len(variants)]
        found.append(WordDrops(words, float(whole), whole - without))
        start += len(variants)
    return found


def word_means(found: Iterable[WordDrops], least: int = 3) -> list[dict[str, Any]]:
    """The mean drop of each word that occurs `least` times or more, the largest first."""
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
    """The words of a text, and its token ids: whole first, then without each word."""
    ids, tokens = tokenizer.ids(text), tokenizer.tokens(text)
    spans: list[list[int]] = []  # the positions of the pieces of each word
    for position, id_ in enumerate(ids):
        if kinds.continues[id_] and spans:
            spans[-1].append(position)
        elif not kinds.special[id_]:
            spans.append([position])
    spans = [span for span in spans if len(span) < len(ids)]  # at least one token must be left to encode
    words = tuple("".join(tokens[position].removeprefix(PIECE) for position in span) for span in spans)
    without = [[id_ for position, id_ in enumerate(ids) if position not in span] for span in spans]
    return words, [ids, *without]


def _score_rows(
    matcher: Matcher,
    pad: int,
    image_codes: Codes,
    image_rows: Sequence[int],
    ids: Sequence[list[int]],
    batch_size: int,
    device: torch.device,
) -> np.ndarray:
    """(n,): the score of each list of token ids with its image."""
    scores = np.empty(len(ids))
    # Texts of similar length share a batch, for less padding.
    order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
    with torch.no_grad(), evaluation_mode(matcher), full_precision(device):
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            texts = matcher.encode_texts(TextBatch.from_ids([ids[row] for row in rows], pad).to(device))
            images = image_codes[torch.tensor([image_rows[row] for row in rows], device=image_codes.device)]
            part: Tensor = matcher.score_pairs(images.to(device), texts)
            scores[rows] = part.float().cpu().numpy()
    return scores


# Figures


@drawing
def draw_word_drops(texts: Sequence[WordDrops], title: str = "Discriminative words", top: int = TOP) -> Figure:
    """One panel per text: its words from top to bottom, each with the drop of the score without it.

    The `top` words with a positive drop have another colour, and a star for readers who do not see it.
    """
    most = max((len(text.words) for text in texts), default=1)
    figure, panels = new_panels(title, len(texts), columns=2, size=(6.4, 1.6 + 0.36 * most))
    for number, (axes, text) in enumerate(zip(panels, texts, strict=True), 1):
        best = {index for index in text.top(top) if text.drops[index] > 0}
        positions = np.arange(len(text.words))
        axes.barh(positions, text.drops, color=[VERMILION if index in best else GREY for index in positions])
        axes.set_yticks(positions, [f"* {word}" if index in best else word for index, word in enumerate(text.words)])
        axes.invert_yaxis()  # read from top to bottom
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set(title=f"text {number}", xlabel="drop of the score without the word (* largest)", ylabel="word")
        axes.grid(visible=False, axis="y")
    return figure


@drawing
def draw_word_means(
    words: Sequence[str], drops: ArrayLike, counts: Sequence[int], title: str = "Mean drop of words"
) -> Figure:
    """Bars of the mean drop of some words, each with how often it was removed."""
    values = np.asarray(drops, dtype=float)
    figure, (axes,) = new_panels(title, size=(6.4, 1.2 + 0.24 * len(words)))
    positions = np.arange(len(words))
    axes.barh(positions, values, color=[VERMILION if drop > 0 else GREY for drop in values])
    axes.set_yticks(positions, [f"{word} ({count})" for word, count in zip(words, counts, strict=True)])
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set(xlabel="mean drop of the score without the word", ylabel="word (count)")
    axes.grid(visible=False, axis="y")
    return figure


# The analysis


def words(subjects: Sequence[Subject], options: Options) -> Finding:
    """Remove one word at a time: how far the score drops, in some texts and on average."""
    numbers: dict[str, Any] = {}
    figures: dict[str, Figure] = {}
    for number, subject in enumerate(subjects, 1):
        rows = _choose(subject, options)
        found = _drops(subject, rows)
        means = word_means(found)
        numbers[subject.label] = {
            "texts": [
                {"text": subject.split.texts[row].id, **one.to_json()} for row, one in zip(rows, found, strict=True)
            ],
            "means": means,
        }
        suffix = "" if number == 1 else f"-{number}"
        examples = [one for one in found if one.words][: options.examples]
        if not examples:
            raise QuintetError("no text has two words or more, so none can be removed")
        title = f"Discriminative words: {subject.label}"
        figures[f"words{suffix}"] = draw_word_drops(examples, title)
        ends = means if len(means) <= 2 * SHOWN else [*means[:SHOWN], *means[-SHOWN:]]
        if ends:
            names, drops, counts = ([row[key] for row in ends] for key in ("word", "drop", "count"))
            figures[f"word-means{suffix}"] = draw_word_means(names, drops, counts, f"{title}, on average")
    return Finding({"runs": numbers}, figures)


def _choose(subject: Subject, options: Options) -> list[int]:
    """Rows of random texts that have an image."""
    rng = np.random.default_rng(options.seed)
    paired = [row for row, images in enumerate(subject.split.images_of_text) if len(images)]
    return rng.permutation(paired)[: options.samples].tolist()


def _drops(subject: Subject, rows: Sequence[int]) -> list[WordDrops]:
    tokenizer = subject.run.tokenizer
    if tokenizer is None:
        raise QuintetError(f"run {subject.run.folder} has no tokenizer, so its texts cannot be split into words")
    images = [int(subject.split.images_of_text[row][0]) for row in rows]
    texts = [subject.split.texts[row].text for row in rows]
    return word_drops(subject.run.matcher, tokenizer, subject.image_codes[images], texts, device=subject.device)
