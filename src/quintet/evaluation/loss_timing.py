"""Time per batch of each loss (AOQ supplement, its table of training efficiency)."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from quintet.data.batches import PairBatch
from quintet.losses.quintuplet import QuintupletObjective
from quintet.losses.step import Progress, Step
from quintet.losses.triplet import TripletObjective
from quintet.protocols import Matcher, module_of


def paper_losses() -> dict[str, nn.Module]:
    """The four rows of the paper's table: the baseline, then Eq. 3, 4 and 5."""
    return {
        "online": TripletObjective(),
        "OffTri": QuintupletObjective("triplet"),
        "OffQuin": QuintupletObjective("quintuplet"),
        "AdapOffQuin": QuintupletObjective("adaptive"),
    }


def time_losses(
    matcher: Matcher,
    batch: PairBatch,
    objectives: Mapping[str, nn.Module] | None = None,
    *,
    repeats: int = 20,
    warmup: int = 3,
) -> list[dict[str, Any]]:
    """Seconds per training step (encode, score, loss, backward, Adam) of each loss on one batch with offline negatives.

    The batch is already on the matcher's device: reading offline negatives from disk, which loader processes do beside
    training, is not counted. The losses take turns, so that a machine that slows down slows them all. The matcher
    itself is not changed. Each row has the median and the fastest step, and the median relative to the first loss.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    steppers = {
        name: _Stepper(copy.deepcopy(matcher), copy.deepcopy(objective), batch)
        for name, objective in (paper_losses() if objectives is None else objectives).items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in steppers}
    for turn in range(warmup + repeats):
        for name, stepper in steppers.items():
            spent = stepper.timed()
            if turn >= warmup:
                seconds[name].append(spent)
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    first = next(iter(medians.values()))
    return [
        {
            "loss": name,
            "seconds": medians[name],
            "fastest": min(found),
            "relative": medians[name] / first,
            "batch": len(batch),
            "repeats": repeats,
        }
        for name, found in seconds.items()
    ]


class _Stepper:
    """One loss with its own copy of the matcher."""

    def __init__(self, matcher: Matcher, objective: nn.Module, batch: PairBatch) -> None:
        self.matcher, self.objective, self.batch = matcher, objective, batch
        self.device = batch.text_groups.device
        self.module = nn.ModuleList([module_of(matcher), objective]).to(self.device).train()
        self.optimizer = torch.optim.Adam(
            [parameter for parameter in self.module.parameters() if parameter.requires_grad], lr=1e-6
        )

    def timed(self) -> float:
        self._wait()
        began = time.perf_counter()
        terms = self.objective(Step(self.matcher, self.batch, Progress()))
        torch.stack([term.weight * term.values.sum() for term in terms.values()]).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._wait()
        return time.perf_counter() - began

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
