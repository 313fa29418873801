"""Training that has gone wrong says so: NaN, and the classic collapse of the hardest-negative loss."""

from __future__ import annotations

import math

from quintet.errors import TrainingError

PATIENCE = 100  # optimizer steps in a row at the flat value
TOLERANCE = 0.01  # relative


def refuse_not_finite(losses: dict[str, float], where: str) -> None:
    """Stop when a term is NaN or infinite; the last checkpoint is from before it."""
    bad = [name for name, value in losses.items() if not math.isfinite(value)]
    if bad:
        raise TrainingError(
            f"{bad[0]!r} became {losses[bad[0]]} at {where}. Try a lower learning rate, gradient "
            "clipping (clip: 2.0), or float32 instead of bfloat16. The last checkpoint is from before this step"
        )


class CollapseWatch:
    """Counts steps on which every anchor's cost sits at the value it has when all scores are equal."""

    def __init__(self, count: int = 0) -> None:
        self.count = count  # part of the checkpoint

    def look(self, flat: dict[str, float | None], means: dict[str, float]) -> str | None:
        """A message when the loss has been flat for `PATIENCE` steps, once; `flat` is `Term.flat` of each term."""
        known = {name: value for name, value in flat.items() if value is not None}
        stuck = bool(known) and all(abs(means[name] - value) <= TOLERANCE * value for name, value in known.items())
        self.count = self.count + 1 if stuck else 0
        if self.count != PATIENCE:
            return None
        return (
            f"the loss has stood at the margin for {PATIENCE} steps (2 x batch x margin in sum): all scores are "
            "equal, the matcher has collapsed. Try warmup_epochs (gentler negatives first), warmup: softmax, a lower "
            "learning rate, warmup_steps, or a smaller batch"
        )
