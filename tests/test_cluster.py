"""Tasks and workers, without Ray: a twin of its actors whose workers end in any order and die when they are told to."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import pytest

from quintet import cluster
from quintet.cluster import AT_ONCE, Cluster, Pool, Task, WorkerLost, worker_pool
from quintet.errors import QuintetError


@dataclass(eq=False)
class Actor:
    alive: bool = True


class Actors:
    """`poison`: items that kill a worker. `deaths`: the numbers of calls that kill one, as a node that fails does."""

    def __init__(self, count: int, seed: int, poison: Sequence[int] = (), deaths: Sequence[int] = ()) -> None:
        self.count, self.poison, self.deaths = count, poison, set(deaths)
        self.random, self.calls, self.most, self.started = random.Random(seed), 0, 0, 0
        self._under_way: dict[int, tuple[Actor, Task | None]] = {}
        self._handles = 0

    def _handle(self, actor: Actor, task: Task | None) -> int:
        self._handles += 1
        self._under_way[self._handles] = actor, task
        return self._handles

    def start(self) -> tuple[Actor, int]:
        self.started += 1
        actor = Actor()
        return actor, self._handle(actor, None)

    def send(self, worker: Actor, task: Task) -> int:
        handle = self._handle(worker, task)
        self.most = max(self.most, sum(other is worker for other, _ in self._under_way.values()))
        return handle

    def wait(self, handles: Sequence[int]) -> int | None:
        return self.random.choice(list(handles)) if self.random.random() < 0.8 else None

    def result(self, handle: int) -> Any:
        actor, task = self._under_way.pop(handle)
        if task is not None:
            self.calls += 1
        kept = [item for at, item in enumerate(task.items) if at not in task.lost] if task is not None else []
        if self.calls in self.deaths or any(item in self.poison for item in kept):
            self.deaths.discard(self.calls)
            actor.alive = False
        if not actor.alive:
            raise WorkerLost("the worker died")
        return None if task is None else [10 * item for item in kept]

    def stop(self, worker: Actor) -> None:
        worker.alive = False


def tasks(count: int) -> list[Task]:
    return [Task([3 * number, 3 * number + 1, 3 * number + 2]) for number in range(count)]


@pytest.mark.parametrize("seed", range(8))
def test_results_come_in_the_order_of_the_tasks_whoever_dies(seed: int) -> None:
    deaths = random.Random(seed).sample(range(1, 60), 6)
    backend = Actors(3, seed, deaths=deaths)
    found = list(Pool(backend).map(tasks(20)))
    assert [result for _, result in found] == [[10 * item for item in task.items] for task in tasks(20)]
    assert backend.most <= AT_ONCE
    assert backend.started > 3, "dead workers are replaced"


@pytest.mark.parametrize("seed", range(40))
def test_items_that_kill_their_worker_are_named_and_the_rest_goes_on(seed: int) -> None:
    found = list(Pool(Actors(2, seed, poison=(7, 8, 31))).map(tasks(14)))
    lost = {task.items[at] for task, _ in found for at in task.lost}
    assert lost == {7, 8, 31}
    assert [item for _, result in found for item in result] == [10 * item for item in range(42) if item not in lost]


def test_a_task_that_kills_every_worker_is_an_error() -> None:
    class Deadly(Actors):
        def result(self, handle: int) -> Any:
            self.deaths = {self.calls + 1}
            return super().result(handle)

    with pytest.raises(QuintetError, match="died again and again"):
        list(Pool(Deadly(2, 0)).map([Task()]))
    with pytest.raises(QuintetError, match="died again and again"):
        list(Pool(Deadly(2, 0)).map(tasks(1)))


def test_a_task_whose_items_all_kill_is_not_blamed_on_them() -> None:
    with pytest.raises(QuintetError, match="died again and again"):
        list(Pool(Actors(2, 0, poison=range(100))).map([Task(list(range(10)))]))


def test_no_more_tasks_are_taken_than_workers_need() -> None:
    taken: list[int] = []

    def endless() -> Any:
        for number in range(10**6):
            taken.append(number)
            yield Task([number])

    results = Pool(Actors(2, 1)).map(endless())
    for given in range(30):
        assert next(results)[1] == [10 * given]
        assert len(taken) <= given + 1 + 2 * AT_ONCE * 2


def test_a_task_may_be_done_again_when_all_before_it_are_given_away() -> None:
    given: list[int] = []

    def again(task: Task, result: list[int]) -> Task | None:
        """The second item is not wanted once the task before has been given away."""
        assert len(given) == task.items[0] // 3, "asked in turn"
        return None if task.lost else Task(task.items, lost={1: "known"})

    for _, result in Pool(Actors(3, 5)).map(tasks(9), again):
        given += result[:1]
        assert len(result) == 2


def test_no_worker_that_starts_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "PATIENCE", 0.0)
    backend = Actors(1, 0)
    monkeypatch.setattr(backend, "wait", lambda handles: None)
    with pytest.raises(QuintetError, match="no Ray worker"):
        list(Pool(backend).map(tasks(1)))


def test_workers_that_never_become_ready_are_an_error() -> None:
    class Broken(Actors):
        def start(self) -> tuple[Actor, int]:
            actor, handle = super().start()
            actor.alive = False
            return actor, handle

    with pytest.raises(QuintetError, match="before they are ready"):
        list(Pool(Broken(2, 0)).map(tasks(1)))


def test_options_without_a_cluster_and_bad_ones_are_refused() -> None:
    assert Cluster.of(None, None, 0.0, "cpu") is None
    for options in ((None, 2, 0.0, "auto"), (None, None, 0.5, "auto"), ("auto", None, 0.0, "cuda")):
        with pytest.raises(QuintetError, match="no effect"):
            Cluster.of(*options)
    for options in (("head:6379", None, 0.0, "auto"), ("auto", 0, 0.0, "auto"), ("auto", None, 1.5, "auto")):
        with pytest.raises(QuintetError, match="Ray"):
            Cluster.of(*options)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(QuintetError, match=r"quintet-retrieval\[ray\]"), worker_pool(Cluster("local"), dict):
        pass


# On Ray itself


class Tripler:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def work(self, task: Task) -> list[int]:
        kept = [item for at, item in enumerate(task.items) if at not in task.lost]
        if 17 in kept:
            os._exit(11)  # as a decoder that crashes
        if 99 in kept:
            raise OSError(28, "No space left on device")
        return [self.factor * item for item in kept]


@pytest.mark.slow
def test_ray_runs_the_tasks_in_order_and_isolates_what_kills(capfd: pytest.CaptureFixture[str]) -> None:
    if find_spec("ray") is None:  # importing it here would be too early for its settings
        pytest.skip("no ray")
    with worker_pool(Cluster("local", 2), Tripler, 3) as pool:
        found = list(pool.map(tasks(12)))
        assert [result for _, result in found][:2] == [[0, 3, 6], [9, 12, 15]]
        assert [(task.items[at]) for task, _ in found for at in task.lost] == [17]
        with pytest.raises(QuintetError, match="No space left"):
            list(pool.map([Task([99])]))
    assert capfd.readouterr().out == "", "Ray is quiet"


@pytest.mark.slow
def test_other_versions_on_a_worker_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr(cluster, "versions", lambda: {"python": "3.9.0", "torch": "1.0"})
    with (
        pytest.raises(QuintetError, match="other versions"),
        worker_pool(Cluster("local", 1), Tripler, 3) as pool,
    ):
        list(pool.map(tasks(1)))


@pytest.mark.slow
def test_no_cluster_at_the_address_is_an_error() -> None:
    pytest.importorskip("ray")
    for address in ("ray://127.0.0.1:1",):  # "auto" would find a cluster that somebody else has started
        script = (
            "from quintet.cluster import *\nfrom quintet.errors import QuintetError\n"
            f"try:\n    worker_pool(Cluster({address!r}), dict).__enter__()\n"
            "except QuintetError as error:\n    print(error)\n"
        )
        told = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=200
        )
        assert "no Ray cluster answers" in told.stdout, told
