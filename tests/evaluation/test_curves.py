"""Curves by epoch from the logs of a run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from quintet.errors import RunError
from quintet.evaluation.curves import epoch_curves, error_curves, first_epoch_above, hardness_curves, term_curves


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
    with pytest.raises(RunError, match=r"no metric 'r1'; there are i2t_r1, rsum, t2i_r1"):
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
