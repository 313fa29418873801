"""What decides whether a step is recorded; the recording itself is tested on a GPU (test_graphs_on_gpu.py)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quintet.data.batches import ImageBatch, OfflineBatch, PairBatch, TextBatch
from quintet.losses.step import Progress
from quintet.training import graphs
from quintet.training.graphs import Outcome, StepGraphs, _Recording, can_record, copy_of, shapes, tensors
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

    def __init__(self, waiting: set[Any] = frozenset(), room: bool = True) -> None:  # type: ignore[assignment]
        self.told: list[str] = []
        super().__init__(self._plain, [], self.told.append)
        self.did: list[str] = []
        self.waiting, self.room = waiting, room

    def _plain(self, *_: Any) -> Outcome:
        self.did.append("computed")
        return Outcome({}, torch.zeros(2, 0))

    def _watched(self, *given: Any) -> Outcome:
        outcome = self._plain(*given)
        self.did[-1] = "watched"
        if self._phase in self.waiting:
            self._refuse("they wait")
        return outcome

    def _has_room(self) -> bool:
        if not self.room:
            self._refuse("no room")
        return self.room

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
    for phase in ("mean", "hardest"):
        for _ in range(4):
            step(recorder, phase, 4)
    assert recorder.did[:4] == ["computed", "watched", "computed", "computed"]
    assert recorder.did[4:] == ["computed", "watched", "recorded", "replayed", "replayed"]
    assert len(recorder.told) == 1


def test_without_room_for_a_recording_steps_are_computed_and_it_is_told_once() -> None:
    recorder = Recorder(room=False)
    for _ in range(5):
        step(recorder, "mean", 4)
    assert recorder.did == ["computed", "watched", "computed", "computed", "computed"]
    assert len(recorder.told) == 1


def test_recordings_of_a_phase_go_with_it() -> None:
    recorder = Recorder()
    for words in (4, 5):
        for _ in range(3):
            step(recorder, "mean", words)
    recorder._memory = "a pool"
    assert len(recorder._recordings) == 2
    step(recorder, "hardest", 4)
    assert not recorder._recordings
    assert recorder._memory is None


class Doubling:
    """Stands in for a CUDA graph: what was recorded puts twice the images into a gradient."""

    def __init__(self, inputs: PairBatch, gradient: torch.Tensor, outcome: Outcome) -> None:
        self.inputs, self.gradient, self.outcome = inputs, gradient, outcome

    def replay(self) -> None:
        assert self.inputs.images.fragments is not None
        self.gradient.copy_(2 * self.inputs.images.fragments[0])
        self.outcome.sums.add_(1)


def test_a_replay_reads_the_new_batch_and_leaves_its_gradients_with_their_parameters() -> None:
    moved, unmoved = (torch.nn.Parameter(torch.zeros(3, 4)) for _ in range(2))
    inputs, gradient, outcome = batch(4), torch.zeros(3, 4), Outcome({"a": None}, torch.zeros(2, 1))
    graph = Doubling(inputs, gradient, outcome)
    recording = _Recording(graph, inputs, outcome, [(moved, gradient), (unmoved, None)])
    unmoved.grad = torch.ones(3, 4)  # of an earlier step
    first = recording.replay(batch(4, value=1.5))
    assert moved.grad is gradient
    assert torch.equal(gradient, torch.full((3, 4), 3.0))
    assert unmoved.grad is None
    second = recording.replay(batch(4, value=2.0))
    assert torch.equal(gradient, torch.full((3, 4), 4.0))
    assert (float(first.sums[0, 0]), float(second.sums[0, 0])) == (1.0, 2.0), "an outcome is not that of the next step"


def test_there_are_not_more_recordings_than_memory_is_meant_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST", 2)
    recorder = Recorder()
    for words in (4, 5, 6):
        for _ in range(4):
            step(recorder, "mean", words)
    assert recorder.did.count("recorded") == 2
    assert recorder.did[-4:] == ["computed"] * 4
