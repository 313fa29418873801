"""What decides whether a step is recorded; the recording itself is tested on a GPU (test_graphs_on_gpu.py)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quintet.data.batches import ImageBatch, OfflineBatch, PairBatch, TextBatch
from quintet.losses.step import Progress
from quintet.training import graphs
from quintet.training.graphs import Outcome, StepGraphs, can_record, copy_of, shapes, tensors
from quintet.training.recipe_models import StageRecipe

STAGE = {"name": "s", "loss": {"triplet": {}}}


def batch(words: int, offline: bool = False, value: float = 0.0) -> PairBatch:
    images = ImageBatch(fragments=torch.full((2, 3, 4), value))
    texts = TextBatch.from_ids([list(range(1, words + 1)), [1]])
    rows = torch.arange(2)
    more = OfflineBatch(texts, images, images, TextBatch.from_ids([[1] * (words + 2), [1]])) if offline else None
    return PairBatch(images, texts, rows, rows, rows, rows, offline=more)


def test_recording_needs_one_process_and_a_gpu() -> None:
    gpu = torch.device("cuda", 0)
    assert can_record(StageRecipe(**STAGE), gpu)
    assert not can_record(StageRecipe(**STAGE), torch.device("cpu"))
    for refused in ({"graphs": False}, {"accumulate": 2}, {"compile": True}):
        assert not can_record(StageRecipe(**STAGE, **refused), gpu)


def test_shapes_tell_batches_apart_by_their_tensors() -> None:
    assert shapes(batch(4)) == shapes(batch(4, value=1.0))
    assert len({shapes(batch(4)), shapes(batch(5)), shapes(batch(4, offline=True))}) == 3


def test_a_copy_has_the_same_values_in_other_memory() -> None:
    first = batch(4, offline=True, value=2.0)
    second = copy_of(first)
    assert shapes(first) == shapes(second)
    assert len(list(tensors(first))) == 13
    for one, other in zip(tensors(first), tensors(second), strict=True):
        assert torch.equal(one, other)
        assert one.data_ptr() != other.data_ptr()


class Recorder(StepGraphs):
    """Says what would be done where there is a GPU."""

    def __init__(self, waiting: set[Any] = frozenset()) -> None:  # type: ignore[assignment]
        self.told: list[str] = []
        super().__init__(self._plain, [], self.told.append)
        self.did: list[str] = []
        self.waiting = waiting

    def _plain(self, *_: Any) -> Outcome:
        self.did.append("computed")
        return Outcome({}, torch.zeros(2, 0))

    def _watched(self, phase: Any, *given: Any) -> Outcome:
        outcome = self._plain(*given)
        self.did[-1] = "watched"
        if phase in self.waiting:
            self._waits.add(phase)
        return outcome

    def _record(self, *_: Any) -> Any:
        self.did.append("recorded")
        did = self.did

        class Recording:
            def replay(self, _: PairBatch) -> Outcome:
                did.append("replayed")
                return Outcome({}, torch.zeros(2, 0))

        return Recording()


def step(recorder: Recorder, phase: str, words: int) -> None:
    recorder(phase, batch(words), Progress(), 2, 1.0)


def test_a_shape_is_computed_then_watched_then_recorded_and_replayed() -> None:
    recorder = Recorder()
    for _ in range(4):
        step(recorder, "mean", 4)
    assert recorder.did == ["computed", "watched", "recorded", "replayed", "replayed"]


def test_other_shapes_and_other_phases_have_recordings_of_their_own() -> None:
    recorder = Recorder()
    for phase, words in (("mean", 4), ("mean", 5), ("hardest", 4)):
        for _ in range(3):
            step(recorder, phase, words)
    assert recorder.did.count("recorded") == 3


def test_a_phase_that_waits_is_never_recorded_and_others_are() -> None:
    recorder = Recorder(waiting={"mean"})
    for _ in range(4):
        step(recorder, "mean", 4)
        step(recorder, "hardest", 4)
    assert recorder.did.count("recorded") == 1
    assert recorder.did.count("computed") == 4


def test_there_are_not_more_recordings_than_memory_is_meant_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST", 2)
    recorder = Recorder()
    for words in (4, 5, 6):
        for _ in range(4):
            step(recorder, "mean", words)
    assert recorder.did.count("recorded") == 2
    assert recorder.did[-4:] == ["computed"] * 4
