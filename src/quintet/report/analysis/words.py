"""Discriminative words of a run (Dual-Path, Fig. 11)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from quintet.errors import QuintetError
from quintet.evaluation.discriminative_words import WordDrops, word_drops, word_means
from quintet.report.analysis.subject import Finding, Options, Subject
from quintet.report.figures import draw_word_drops, draw_word_means

SHOWN = 15  # words of the figure of means, from each end


def words(subjects: Sequence[Subject], options: Options) -> Finding:
    """Remove one word at a time: which ones the score depends on, in some texts and on average."""
    numbers: dict[str, Any] = {}
    figures: dict[str, Any] = {}
    for number, subject in enumerate(subjects, 1):
        rows = _choose(subject, options)
        found = _drops(subject, rows)
        means = word_means(found)
        numbers[subject.label] = {
            "sentences": [
                {"text": subject.split.texts[row].id, **one.to_json()} for row, one in zip(rows, found, strict=True)
            ],
            "means": means,
        }
        suffix = "" if number == 1 else f"-{number}"
        examples = [(one.words, one.drops) for one in found if one.words][: options.examples]
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
    """Rows of texts, in random order; those with an image, which are all of a split that can be measured."""
    rng = np.random.default_rng(options.seed)
    paired = [row for row, images in enumerate(subject.split.images_of_text) if len(images)]
    return rng.permutation(paired)[: options.samples].tolist()


def _drops(subject: Subject, rows: Sequence[int]) -> list[WordDrops]:
    tokenizer = subject.run.tokenizer
    if tokenizer is None:
        raise QuintetError(f"run {subject.run.folder} has no tokenizer, so its texts cannot be taken apart")
    pictures = [int(subject.split.images_of_text[row][0]) for row in rows]
    sentences = [subject.split.texts[row].text for row in rows]
    return word_drops(subject.run.matcher, tokenizer, subject.image_codes[pictures], sentences, device=subject.device)
