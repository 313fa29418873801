"""Figures from plain arrays. Each `draw_` function returns a matplotlib figure, which `save_figure` writes.

matplotlib is the extra `report` and is imported when the first figure is drawn.
"""

from __future__ import annotations

from quintet.report.figures.curves import draw_curves, draw_recalls
from quintet.report.figures.ranks import draw_rank_histogram, draw_rank_intervals
from quintet.report.figures.similarity import draw_correlations, draw_similarities
from quintet.report.figures.speed import draw_accuracy_against_speed
from quintet.report.figures.style import panel_images, save_figure
from quintet.report.figures.words import draw_word_drops, draw_word_means

__all__ = [
    "draw_accuracy_against_speed",
    "draw_correlations",
    "draw_curves",
    "draw_rank_histogram",
    "draw_rank_intervals",
    "draw_recalls",
    "draw_similarities",
    "draw_word_drops",
    "draw_word_means",
    "panel_images",
    "save_figure",
]
