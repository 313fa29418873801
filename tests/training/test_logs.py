from __future__ import annotations

from pathlib import Path

import pytest

from quintet.errors import RunError, TrainingError
from quintet.files import read_jsonl
from quintet.training import logs
from quintet.training.logs import PATIENCE, CollapseWatch, Log, Window, refuse_not_finite


def steps(folder: Path) -> list[int]:
    return [row["step"] for row in read_jsonl(folder / "log.jsonl")]


def _killed(*_: object) -> None:
    raise InterruptedError


def test_lines_after_the_checkpoint_are_dropped_on_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(tmp_path)
    for step in (1, 2, 3):
        log.write("train", step, loss=0.5)
    log.close()
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')  # cut short by a kill
    whole = (tmp_path / "log.jsonl").read_text()
    with monkeypatch.context() as patch:
        patch.setattr(logs, "write_jsonl", _killed)
        with pytest.raises(InterruptedError):
            Log(tmp_path, resumed_step=2)
    assert (tmp_path / "log.jsonl").read_text() == whole, "a kill while it is cut loses nothing"
    Log(tmp_path, resumed_step=2).close()
    assert steps(tmp_path) == [1, 2]
    Log(tmp_path).close()
    assert steps(tmp_path) == [], "a fresh start leaves nothing of an earlier try"


def test_scalars_reach_tensorboard(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.write("train", 1, loss=0.5)
    log.close()
    assert list((tmp_path / "tensorboard").glob("events*"))


def test_windows_average_and_survive_a_checkpoint() -> None:
    window = Window()
    window.add({"a": 1.0})
    again = Window(dict(window.sums))
    again.add({"a": 2.0})
    assert again.take() == {"a": 1.5}
    assert again.take() == {}


COLLAPSED: dict[str, float | None] = {"text": 0.2, "image": 0.2}


def test_not_finite_losses_stop_training_with_advice() -> None:
    refuse_not_finite({"text": 1.0}, "step 3")
    for bad in (float("nan"), float("inf")):
        with pytest.raises(TrainingError, match=r"step 3.*learning rate"):
            refuse_not_finite({"text": 1.0, "image": bad}, "step 3")


def test_collapse_is_told_once_after_patience() -> None:
    watch = CollapseWatch()
    told = [watch.look(COLLAPSED, {"text": 0.2, "image": 0.2001}) for _ in range(PATIENCE + 5)]
    assert [message is not None for message in told].index(True) == PATIENCE - 1
    assert sum(message is not None for message in told) == 1
    assert "warmup_epochs" in str(told[PATIENCE - 1])


def test_a_moving_loss_starts_the_count_again() -> None:
    watch = CollapseWatch(PATIENCE - 1)
    assert watch.look(COLLAPSED, {"text": 0.2, "image": 0.15}) is None
    assert watch.count == 0


def test_losses_without_a_flat_value_never_collapse() -> None:
    watch = CollapseWatch(PATIENCE - 1)
    assert watch.look({"instance": None}, {"instance": 0.2}) is None


def test_a_log_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log._file = Path("/dev/full").open("w", encoding="utf-8")  # noqa: SIM115
    with pytest.raises(RunError, match="No space left"):
        log.write("train", 1, loss=0.5)
    (tmp_path / "stages").write_bytes(b"mine")
    with pytest.raises(RunError, match="Not a directory"):
        Log(tmp_path / "stages" / "online")
