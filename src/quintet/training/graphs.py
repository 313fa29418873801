"""Training steps recorded as CUDA graphs and replayed (`graphs: true` in a recipe's stage).

A step of these matchers is about a thousand small kernels, and launching them one by one takes Python several times as
long as the GPU needs to run them. Recorded once for each shape of batch, they are launched with one call.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from quintet import distributed
from quintet.data.batches import PairBatch
from quintet.errors import TrainingError
from quintet.losses.step import Progress
from quintet.training.recipe_models import StageRecipe

WORDS = 8  # texts of a batch are padded to a multiple of so many tokens
FIRST, LOOK = 1, 2  # visits of a shape before it is recorded: one compiles kernels, one is checked for waits
MOST = 24  # recordings; further shapes are computed


@dataclass(frozen=True)
class Outcome:
    """What a step returns; its gradients are in the parameters."""

    collapse_values: dict[str, float | None]  # of every term, see `Term`
    sums: Tensor  # (2, terms): the sum of each term's values and their number
    watched: frozenset[str] = frozenset()  # terms of weight 0, which are only logged
    reads_progress: bool = False  # a loss read `step.progress`: a replay would freeze it

    def copy(self) -> Outcome:
        return replace(self, sums=self.sums.clone())


Compute = Callable[[PairBatch, Progress, int, float], Outcome]  # batch, progress, pairs of the global batch, share


def recording_obstacle(stage: StageRecipe, without_phase: Sequence[str], device: torch.device) -> str | None:
    """Why the steps of a stage cannot be recorded; None: they can.

    `without_phase` names the losses that do not declare how they change over time: a replay would freeze them.
    """
    if device.type != "cuda":
        return "the device is not a GPU"
    if distributed.world_size() > 1:
        return "there are several processes"
    if stage.accumulate != 1:
        return "accumulate is not 1"
    if stage.compile:
        return "compile is on"
    if stage.batches.chunk is not None:
        return "batches.chunk encodes again in backward"
    if without_phase:
        return f"loss {without_phase[0]!r} has no phase(progress), so it may change over time"
    return None


@contextmanager
def own_stream(device: torch.device, on: bool) -> Iterator[None]:
    """A CUDA stream of its own: nothing can be recorded on the default stream."""
    if not on:
        yield
        return
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)


class StepGraphs:
    """Calls `compute`, or replays a recording of it: one recording for each phase of the losses and shape of batch.

    A replay leaves gradients where `compute` does and draws new random numbers. Recordings of a phase are dropped when
    it ends. Steps of a phase are computed if they cannot be recorded: when a loss reads `step.progress`, when `compute`
    waits for the GPU, or when memory is short, since recordings take as much again as a step. The reason is reported.
    """

    def __init__(self, compute: Compute, parameters: Sequence[nn.Parameter], note: Callable[[str], None]) -> None:
        self._compute, self._parameters, self._note = compute, list(parameters), note
        self._visits: Counter[Hashable] = Counter()
        self._recordings: dict[Hashable, _Recording] = {}
        self._phase: Hashable = None
        self._refused: str | None = None  # why this phase is not recorded
        self._memory: Any = None  # one pool for all recordings, which never run at the same time

    def __call__(self, phase: Hashable, batch: PairBatch, progress: Progress, total: int, share: float) -> Outcome:
        given = (batch, progress, total, share)
        if phase != self._phase:
            self._begin(phase)
        key = shapes(batch)
        if key not in self._recordings:
            if self._refused or len(self._recordings) == MOST:
                return self._compute(*given)
            self._visits[key] += 1
            if self._visits[key] <= FIRST:
                return self._compute(*given)
            if self._visits[key] <= LOOK:
                outcome = self._watched(*given)
                if outcome.reads_progress:
                    self._refuse("a loss reads step.progress instead of its phase, so it may change at every step")
                return outcome
            if not self._has_room():
                return self._compute(*given)
            self._recordings[key] = self._record(*given)
        return self._recordings[key].replay(batch)

    def _begin(self, phase: Hashable) -> None:
        self._phase, self._refused = phase, None
        self._visits.clear()
        self._recordings.clear()
        self._memory = None  # the pool ends with its last recording

    def _refuse(self, reason: str) -> None:
        self._refused = reason
        self._note(f"training steps are computed, not recorded: {reason} (graphs: false does not try)")

    def _has_room(self) -> bool:
        """Whether the tensors of a step fit into free memory: recordings use memory that nothing else can use."""
        a_step = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
        if self._memory is not None or torch.cuda.mem_get_info()[0] > a_step:
            return True
        self._refuse(f"the GPU has no {a_step / 2**30:.1f} GiB free for it")
        return False

    def _watched(self, *given: Any) -> Outcome:
        """Compute a step and see whether it waits for the GPU."""
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                outcome = self._compute(*given)
        finally:
            torch.cuda.set_sync_debug_mode(before)
        if any("synchronizing CUDA operation" in str(one.message) for one in caught):
            self._refuse("they wait for the GPU somewhere")
        return outcome

    def _record(self, batch: PairBatch, progress: Progress, total: int, share: float) -> _Recording:
        inputs = copy_of(batch)
        for parameter in self._parameters:
            parameter.grad = None  # the backward pass then allocates gradients in the recording's pool
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._memory, stream=torch.cuda.current_stream()):
                outcome = self._compute(inputs, progress, total, share)
        except RuntimeError as error:
            cause = error.__context__ or error  # ending a broken recording raises, too
            raise TrainingError(
                f"a training step could not be recorded ({cause}). The last checkpoint is intact: "
                "set graphs: false for this stage in the run's recipe.yaml, then resume"
            ) from error
        self._memory = graph.pool()
        gradients = [(parameter, parameter.grad) for parameter in self._parameters]
        return _Recording(graph, inputs, outcome, gradients)


@dataclass(frozen=True)
class _Recording:
    graph: Any
    inputs: PairBatch
    outcome: Outcome
    gradients: list[tuple[nn.Parameter, Tensor | None]]

    def replay(self, batch: PairBatch) -> Outcome:
        for kept, new in zip(tensors(self.inputs), tensors(batch), strict=True):
            kept.copy_(new, non_blocking=True)
        self.graph.replay()
        for parameter, gradient in self.gradients:
            parameter.grad = gradient
        return self.outcome.copy()


def tensors(batch: Any) -> Iterator[Tensor]:
    """Every tensor of a batch, in the order of its fields."""
    for field in fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, Tensor):
            yield value
        elif value is not None:
            yield from tensors(value)


def shapes(batch: Any) -> Hashable:
    """A key that is equal for batches of the same tensors, shapes and dtypes: one recording serves them.

    >>> from quintet.data.batches import TextBatch
    >>> one, other, longer = (TextBatch.from_ids(ids) for ids in ([[1, 2]], [[3, 4]], [[5, 6, 7]]))
    >>> shapes(one) == shapes(other), shapes(one) == shapes(longer)
    (True, False)
    """
    found: list[Hashable] = []
    for field in fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, Tensor):
            found.append((tuple(value.shape), value.dtype))
        else:
            found.append(None if value is None else shapes(value))
    return tuple(found)


def copy_of(batch: Any) -> Any:
    """A copy of the batch in new memory."""
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    copies = {
        name: value.clone() if isinstance(value, Tensor) else copy_of(value)
        for name, value in values.items()
        if value is not None
    }
    return replace(batch, **copies)
