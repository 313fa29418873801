"""Curves by epoch from the logs of a run."""

from __future__ import annotations

import copy
import json
import math
import shutil
from pathlib import Path

import pytest
import torch

from quintet.data.corpus import Corpus
from quintet.errors import QuintetError, RunError
from quintet.files import write_jsonl
from quintet.report.analysis import Options, Subject, analyse, open_subjects, training_curves
from quintet.report.analysis.training_curves import (
    epoch_curves,
    error_curves,
    first_epoch_above,
    hardness_curves,
    term_curves,
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    logs = {
        "online": [
            {"kind": "train", "step": 1, "epoch": 0, "lr": 0.1, "triplet.text": 2.0},
            {"kind": "train", "step": 2, "epoch": 0, "lr": 0.1, "triplet.text": 1.0},
            {
                "kind": "validation",
                "step": 2,
                "epoch": 1,
                "selected": True,
                "i2t_r1": 10.0,
                "t2i_r1": 8.0,
                "rsum": 60.0,
            },
            {"kind": "train", "step": 4, "epoch": 1, "lr": 0.1, "triplet.text": 0.5},
            {
                "kind": "validation",
                "step": 4,
                "epoch": 2,
                "selected": True,
                "i2t_r1": 30.0,
                "t2i_r1": 20.0,
                "rsum": 90.0,
            },
        ],
        "offline": [
            {"kind": "train", "step": 1, "epoch": 0, "lr": 0.1, "quintuplet.online_text": 2.0},
            {
                "kind": "train",
                "step": 2,
                "epoch": 1,
                "lr": 0.1,
                "quintuplet.gap_online": 0.25,
                "quintuplet.online_text": 1.0,
            },
            {
                "kind": "train",
                "step": 3,
                "epoch": 1,
                "lr": 0.1,
                "quintuplet.gap_online": 0.75,
                "quintuplet.online_text": 0.0,
            },
            {
                "kind": "validation",
                "step": 3,
                "epoch": 2,
                "selected": True,
                "i2t_r1": 35.0,
                "t2i_r1": 25.0,
                "rsum": 99.0,
            },
        ],
    }
    for stage, rows in logs.items():
        folder = tmp_path / "stages" / stage
        folder.mkdir(parents=True)
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "log.jsonl").write_text(lines + '{"kind": "train", "st')  # cut short by a kill
    return tmp_path


def test_validation_by_epoch(run: Path) -> None:
    curves = epoch_curves(run)
    assert curves["online"] == {"epoch": [1, 2], "i2t_r1": [10.0, 30.0], "t2i_r1": [8.0, 20.0]}
    assert epoch_curves(run, ["rsum"])["offline"] == {"epoch": [2], "rsum": [99.0]}
    assert first_epoch_above(curves["online"], "i2t_r1", 10.0) == 2
    assert first_epoch_above(curves["online"], "i2t_r1", 30.0) is None
    with pytest.raises(RunError, match=r"'r1'.* i2t_r1, rsum, t2i_r1"):
        epoch_curves(run, ["r1"])


def test_terms_by_epoch(run: Path) -> None:
    assert term_curves(run)["online"] == {"epoch": [1.0, 2.0], "triplet.text": [1.5, 0.5]}
    offline = term_curves(run)["offline"]
    assert offline["quintuplet.online_text"] == [2.0, 0.5]
    assert math.isnan(offline["quintuplet.gap_online"][0])
    assert hardness_curves(run) == {"offline": {"epoch": [2.0], "quintuplet.gap_online": [0.5]}}


def test_a_folder_without_logs_and_a_damaged_log(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no training logs"):
        epoch_curves(tmp_path / "nothing")
    (run / "stages" / "online" / "log.jsonl").write_text("nonsense\n")
    with pytest.raises(RunError, match="damaged"):
        epoch_curves(run)


def test_classification_errors_by_epoch(tmp_path: Path) -> None:
    rows = [
        {"kind": "train", "step": 1, "epoch": 0, "lr": 0.1, "instance.image": 2.0, "instance.image_error": 0.9},
        {"kind": "train", "step": 2, "epoch": 1, "lr": 0.1, "instance.image": 1.0, "instance.image_error": 0.5},
    ]
    log = tmp_path / "stages" / "one" / "log.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert error_curves(tmp_path) == {"one": {"epoch": [1.0, 2.0], "instance.image_error": [0.9, 0.5]}}


def test_curves_hold_every_stage_once(two_seeds: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    paths = [two_seeds / "a", two_seeds / "a" / "stages" / "online", two_seeds / "b" / "stages" / "offline"]
    chosen = open_subjects(paths, Corpus.open(tiny_corpus), "dev", device=torch.device("cpu"))
    assert [one.label for one in chosen] == ["a", "a, stage online", "b, stage offline"]
    found = analyse(chosen, tmp_path, ["curves", "hardness"])
    assert {run: sorted(stages) for run, stages in found["curves"]["validation"].items()} == {
        "a": ["offline", "online"],
        "b": ["offline"],
    }
    assert found["curves"]["validation"]["a"]["online"]["epoch"] == [1, 2]
    assert "triplet.text" in found["curves"]["losses"]["a"]["online"]
    assert list(found["hardness"]["runs"]["a"]) == ["offline"]


def test_a_run_without_logs_does_not_cost_the_others_their_curves(
    two_seeds: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    shutil.copytree(two_seeds / "b", tmp_path / "bare", ignore=shutil.ignore_patterns("log.jsonl"))
    both = open_subjects(
        [two_seeds / "a", tmp_path / "bare"], Corpus.open(tiny_corpus), "dev", device=torch.device("cpu")
    )
    found = analyse(both, tmp_path / "out", ["curves"])
    assert list(found["curves"]["validation"]) == ["a"]
    with pytest.raises(QuintetError, match="holds no training logs"):
        analyse(both[1:], tmp_path / "out", ["curves"])


def test_errors_are_drawn_where_they_were_logged(subjects: list[Subject], tmp_path: Path) -> None:
    rows = [
        {"kind": "train", "step": step, "epoch": step - 1, "instance.image_error": 1 / step, "instance.text_error": 0.5}
        for step in (1, 2, 4)
    ]
    write_jsonl(tmp_path / "run" / "stages" / "one" / "log.jsonl", rows)
    subjects[0].run = copy.copy(subjects[0].run)
    subjects[0].run.folder = tmp_path / "run"
    found = analyse(subjects[:1], tmp_path / "out", ["errors"])["errors"]
    assert found["runs"]["a"]["one"]["instance.image_error"] == [1.0, 0.5, 0.25]
    assert "error of the text branch (%)" in (tmp_path / "out" / "errors.svg").read_text()


def test_losses_of_initial_and_enhanced_embeddings_share_an_axis(
    subjects: list[Subject], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = {"relation.initial": 2.0, "relation.enhanced": 1.0, "relation.regularisation": 0.5}
    rows = [{"kind": "train", "step": step, "epoch": step - 1} | terms for step in (1, 2)]
    write_jsonl(tmp_path / "run" / "stages" / "one" / "log.jsonl", rows)
    subjects[0].run = copy.copy(subjects[0].run)
    subjects[0].run.folder = tmp_path / "run"
    drawn = []
    monkeypatch.setattr(training_curves, "draw_curves", lambda panels, title: drawn.append(panels))
    training_curves.curves(subjects[:1], Options())
    assert drawn[-1] == {
        "triplet loss (relation)": {
            "a: one, initial": ([1.0, 2.0], [2.0, 2.0]),
            "a: one, enhanced": ([1.0, 2.0], [1.0, 1.0]),
        },
        "relation.regularisation": {"a: one": ([1.0, 2.0], [0.5, 0.5])},
    }
