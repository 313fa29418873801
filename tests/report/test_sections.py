from __future__ import annotations

import re

import numpy as np

from quintet.evaluation.human_agreement import Agreement
from quintet.evaluation.metrics import chance_level, metrics_of_ranks
from quintet.evaluation.ranks import ranks_of_matrix
from quintet.evaluation.result import Result
from quintet.evaluation.significance import bootstrap_intervals
from quintet.report.sections import results_html


def result(noise: float, intervals: bool = True) -> Result:
    groups = np.arange(12)
    scores = np.eye(12) + noise * np.random.default_rng(0).normal(size=(12, 12))
    ranks = ranks_of_matrix(scores, groups, groups)
    return Result(
        "full", "test", "sum", ("run",), metrics_of_ranks(ranks), bootstrap_intervals(ranks, 20) if intervals else {},
        chance_level(groups, groups), {}, {}, (ranks,),
    )  # fmt: skip


def cells(html: str, row: str) -> list[str]:
    (line,) = re.findall(rf"<tr[^>]*><th scope=\"row\">{re.escape(row)}</th>(.*?)</tr>", html)
    return re.findall(r"<td>(.*?)</td>", line)


def test_numbers_intervals_and_chance_are_in_the_table() -> None:
    found = {"good": result(0.2), "bad": result(2.0)}
    html = results_html(found, "Single models")
    good = cells(html, "good")
    assert len(good) == 9
    low, high = found["good"].intervals["rsum"]
    assert (
        good[-1] == f'<b>{found["good"].metrics["rsum"]:.1f}</b><br><span class="soft">{low:.1f} to {high:.1f}</span>'
    )
    assert "<b>" not in cells(html, "bad")[-1]
    assert cells(html, "chance")[-1] == f"{found['good'].chance['rsum']:.1f}"


def test_agreement_with_people_is_a_column_where_it_was_measured() -> None:
    html = results_html(
        {"run": result(0.2, intervals=False)}, "Single", {"run": Agreement(0.4123, (0.4, 0.42), 5, 15, 1)}
    )
    assert cells(html, "run")[-1].startswith("0.412<br>")
    assert html.count('scope="col"') == 10
    assert "tau-c" not in results_html({"run": result(0.2)}, "Single")


def test_no_results_make_no_table_and_names_are_escaped() -> None:
    assert results_html({}, "Ensembles") == ""
    assert "&lt;run&gt;" in results_html({"<run>": result(0.2)}, "Single")
