from __future__ import annotations

import pytest

from quintet.errors import TrainingError
from quintet.training.loop import PATIENCE, CollapseWatch, refuse_not_finite

FLAT: dict[str, float | None] = {"text": 0.2, "image": 0.2}


def test_not_finite_losses_stop_training_with_advice() -> None:
    refuse_not_finite({"text": 1.0}, "step 3")
    for bad in (float("nan"), float("inf")):
        with pytest.raises(TrainingError, match=r"step 3.*lower learning rate"):
            refuse_not_finite({"text": 1.0, "image": bad}, "step 3")


def test_collapse_is_told_once_after_patience() -> None:
    watch = CollapseWatch()
    told = [watch.look(FLAT, {"text": 0.2, "image": 0.2001}) for _ in range(PATIENCE + 5)]
    assert [message is not None for message in told].index(True) == PATIENCE - 1
    assert sum(message is not None for message in told) == 1
    assert "warmup_epochs" in str(told[PATIENCE - 1])


def test_a_moving_loss_starts_the_count_again() -> None:
    watch = CollapseWatch(PATIENCE - 1)
    assert watch.look(FLAT, {"text": 0.2, "image": 0.15}) is None
    assert watch.count == 0


def test_losses_without_a_flat_value_never_collapse() -> None:
    watch = CollapseWatch(PATIENCE - 1)
    assert watch.look({"instance": None}, {"instance": 0.2}) is None
