"""Accuracy against speed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quintet.codes import Codes
from quintet.evaluation.scoring import TILE, Member
from quintet.models.vse import build_vse
from quintet.report.analysis.speed import draw_accuracy_against_speed, pairs_per_second


def test_pairs_are_scored_in_tiles_until_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    matcher = build_vse(vocabulary_size=10, image_dim=8, embed_dim=4, word_dim=4)
    shapes = []
    score = matcher.score

    def recorded(images: Codes, texts: Codes) -> torch.Tensor:
        shapes.append((len(images), len(texts)))
        return score(images, texts)

    monkeypatch.setattr(matcher, "score", recorded)
    member = Member(matcher, Codes(embedding=torch.ones(500, 4)), Codes(embedding=torch.ones(500, 4)))
    found = pairs_per_second(member, torch.device("cpu"), least=3.0)
    assert shapes == [TILE] * 4  # one to warm up, then one a second
    assert found == pytest.approx(3 * TILE[0] * TILE[1] / 4)


def test_every_matcher_has_its_own_style_and_the_best_comes_first() -> None:
    pytest.importorskip("matplotlib")
    names = [f"matcher {number}" for number in range(20)]
    figure = draw_accuracy_against_speed(names, np.geomspace(1e3, 1e6, 20), np.arange(20.0))
    legend = figure.axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == names[::-1]
    points = [bar.lines[0] for bar in figure.axes[0].containers]
    assert len({(point.get_color(), point.get_marker()) for point in points}) == 20
    assert [float(point.get_ydata()[0]) for point in points] == list(range(19, -1, -1))
