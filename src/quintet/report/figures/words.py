"""Discriminative words (Dual-Path, Fig. 11)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from quintet.report.figures.style import GREY, VERMILION, drawing, new_panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOP = 3  # words that are marked, as in the paper


@drawing
def draw_word_drops(
    texts: Sequence[tuple[Sequence[str], Any]], title: str = "Discriminative words", top: int = TOP
) -> Figure:
    """One panel per text: its words from top to bottom, each with what the score loses without it.

    Of the words that cost something the `top` ones have another colour, and a star for those who do not see it.
    """
    longest = max((len(words) for words, _ in texts), default=1)
    figure, panels = new_panels(title, len(texts), columns=2, size=(6.4, 1.6 + 0.36 * longest))
    for number, (axes, (words, values)) in enumerate(zip(panels, texts, strict=True), 1):
        drops = np.asarray(values, dtype=float)
        best = {place for place in np.argsort(-drops, kind="stable")[:top].tolist() if drops[place] > 0}
        places = np.arange(len(words))
        axes.barh(places, drops, color=[VERMILION if place in best else GREY for place in places])
        axes.set_yticks(places, [f"* {word}" if place in best else word for place, word in enumerate(words)])
        axes.invert_yaxis()  # read from top to bottom
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set(title=f"text {number}", xlabel="score lost without the word (* the most)", ylabel="word")
        axes.grid(visible=False, axis="y")
    return figure


@drawing
def draw_word_means(
    words: Sequence[str], drops: Any, counts: Sequence[int], title: str = "Words by what they carry on average"
) -> Figure:
    """Bars of the mean drop of some words, each with how often it was removed."""
    figure, (axes,) = new_panels(title, size=(6.4, 1.2 + 0.24 * len(words)))
    places = np.arange(len(words))
    axes.barh(places, drops, color=[VERMILION if drop > 0 else GREY for drop in drops])
    axes.set_yticks(places, [f"{word} ({count})" for word, count in zip(words, counts, strict=True)])
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set(xlabel="mean score lost without the word", ylabel="word (how often)")
    axes.grid(visible=False, axis="y")
    return figure
