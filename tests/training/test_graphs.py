"""What decides whether a step is recorded; the recording itself is tested on a GPU (test_graphs_on_gpu.py)."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from quintet.data.batches import ImageBatch, OfflineBatch, PairBatch, TextBatch
from quintet.files import read_jsonl
from quintet.losses import OBJECTIVES
from quintet.losses.step import Progress, Step, Term
from quintet.training import graphs, loop
from quintet.training.graphs import Outcome, StepGraphs, _Recording, copy_of, recording_obstacle, shapes, tensors
from quintet.training.logs import Silent
from quintet.training.recipe import parse_recipe
from quintet.training.recipe_models import StageRecipe
from quintet.training.stages import train_recipe

STAGE = {"name": "s", "loss": {"triplet": {}}}


def batch(words: int, offline: bool = False, value: float = 0.0) -> PairBatch:
    images = ImageBatch(fragments=torch.full((2, 3, 4), value))
    texts = TextBatch.from_ids([list(range(1, words + 1)), [1]])
    rows = torch.arange(2)
    more = OfflineBatch(texts, images, images, TextBatch.from_ids([[1] * (words + 2), [1]])) if offline else None
    return PairBatch(images, texts, rows, rows, rows, rows, offline=more)


def test_graphs_are_off_unless_asked_for() -> None:
    assert not StageRecipe(**STAGE).graphs


def test_recording_needs_a_gpu_one_process_and_losses_that_declare_their_phases() -> None:
    gpu = torch.device("cuda", 0)
    assert recording_obstacle(StageRecipe(**STAGE), [], gpu) is None
    assert "GPU" in str(recording_obstacle(StageRecipe(**STAGE), [], torch.device("cpu")))
    for refused in ({"accumulate": 2}, {"compile": True}):
        assert next(iter(refused)) in str(recording_obstacle(StageRecipe(**STAGE, **refused), [], gpu))
    assert "'mine'" in str(recording_obstacle(StageRecipe(**STAGE), ["mine"], gpu))


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


class Frozen(StepGraphs):
    """Records on a CPU as a GPU would: a replay gives what was computed when it was recorded."""

    replays = 0

    def _watched(self, *given: Any) -> Outcome:
        return self._compute(*given)

    def _has_room(self) -> bool:
        return True

    def _record(self, *given: Any) -> Any:
        outcome = self._compute(*given)

        class Recording:
            def replay(self, _: PairBatch) -> Outcome:
                Frozen.replays += 1
                return outcome.copy()

        return Recording()


class Ramp(torch.nn.Module):
    """A loss whose one term is worth the number of epochs done; it says nothing of phases."""

    def forward(self, step: Step) -> dict[str, Term]:
        return {"value": Term(0 * step.scores.diagonal() + self.value(step))}

    def value(self, step: Step) -> float:
        return float(int(step.progress.epoch))


class DeclaredRamp(Ramp):
    """The same, declared."""

    def phase(self, progress: Progress) -> int:
        return int(progress.epoch)

    def value(self, step: Step) -> float:
        return float(step.phase_of(self))


class FalseRamp(Ramp):
    """The same, wrongly declared as never changing."""

    def phase(self, progress: Progress) -> None:
        pass


class Told(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


@pytest.mark.parametrize(("ramp", "replayed"), [(Ramp, False), (DeclaredRamp, True), (FalseRamp, False)])
def test_a_loss_that_changes_over_time_is_never_replayed_frozen(
    ramp: type[Ramp], replayed: bool, tiny_recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one that declares its phases is replayed, and only within a phase."""
    obstacle = graphs.recording_obstacle
    monkeypatch.setattr(loop, "StepGraphs", Frozen)
    monkeypatch.setattr(loop, "own_stream", lambda device, on: nullcontext())
    monkeypatch.setattr(
        loop, "recording_obstacle", lambda stage, names, _: obstacle(stage, names, torch.device("cuda"))
    )
    monkeypatch.setattr(Frozen, "replays", 0)
    monkeypatch.setitem(OBJECTIVES.entries, "ramp", f"{__name__}:ramp")
    monkeypatch.setattr(OBJECTIVES, "builder", lambda name: ramp)
    tiny_recipe["stages"][0] |= {"loss": {"ramp": {}}, "graphs": True, "epochs": 3, "log_every": 1}
    display = Told()
    train_recipe(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu", display=display)
    rows = read_jsonl(tmp_path / "run" / "stages" / "online" / "log.jsonl")
    values = [(row["epoch"], row["ramp.value"]) for row in rows if row["kind"] == "train"]
    assert len(values) == 12
    assert all(epoch == value for epoch, value in values)
    assert (Frozen.replays > 0) == replayed
    assert bool(display.notes) != replayed, "a setting that has no effect is told"


def test_without_a_gpu_graphs_are_told_to_have_no_effect(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    display = Told()
    tiny_recipe["stages"][0] |= {"graphs": True, "epochs": 1}
    train_recipe(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu", display=display)
    assert any("graphs: true" in note for note in display.notes)
