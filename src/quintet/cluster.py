"""Workers that hold a model, on a Ray cluster or in this process: tasks go out, results come back in the order of the
tasks, and a worker that dies is replaced.

Ray starts the workers, finds a place for them and says when one died. What is left is here: which task comes next, when
one is tried again, and which item of a task kills the worker that reads it.
"""

from __future__ import annotations

import logging
import os
import platform
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol, TypeVar

from quintet.errors import QuintetError, first_line

AT_ONCE = 2  # tasks of a worker: one that it works on, and one that waits for it
TRIES = 2  # deaths before the items of a task are tried one by one
ROUNDS = 4  # of trying one by one, before something else must be wrong
ALL = 8  # items of a task; where so many, and all of them, kill a worker, it is not they that are at fault
PATIENCE = 120.0  # seconds without any worker before that is an error


@dataclass(frozen=True)
class Cluster:
    """Where the workers run. `workers`: how many; None: as many as there are CPUs, or shares of GPUs."""

    address: str  # auto, local, ray://HOST:PORT
    workers: int | None = None
    gpus: float = 0.0  # of one worker; a fraction shares a GPU with others

    @staticmethod
    def of(ray: str | None, workers: int | None, gpus: float, device: object) -> Cluster | None:
        """What the options of a function ask for; None: this process alone."""
        if ray is None:
            if workers is not None or gpus:
                raise QuintetError("Ray workers, or GPUs for them, have no effect without a cluster; add --ray auto")
            return None
        if ray not in ("auto", "local") and not ray.startswith("ray://"):
            raise QuintetError(f"there is no Ray cluster {ray!r}; use auto, local or ray://HOST:PORT")
        if workers is not None and workers < 1:
            raise QuintetError(f"at least one Ray worker is needed, got {workers}")
        if gpus < 0 or (gpus > 1 and gpus != int(gpus)):
            raise QuintetError(f"a Ray worker has a fraction of a GPU or whole ones, not {gpus:g}")
        if device is not None and str(device) != "auto":
            raise QuintetError(f"the device {device} has no effect on Ray: a worker has a CPU, or what --ray-gpus says")
        return Cluster(ray, workers, gpus)

    @property
    def device(self) -> str:
        """Of a worker, which is shown its own GPU only."""
        return "cuda:0" if self.gpus else "cpu"


@dataclass(frozen=True)
class Task:
    """What a worker is asked to do. Without `items` it is one piece of work."""

    items: Sequence[Any] = ()
    lost: Mapping[int, str] = field(default_factory=dict)  # positions in `items` that kill a worker, and how


T = TypeVar("T", bound=Task)


class WorkerLost(Exception):  # noqa: N818
    """A worker died while it had the task."""


class Backend(Protocol):
    """Starts workers and says what became of them and of their tasks, each by a handle."""

    count: int

    def start(self) -> tuple[Any, Any]:
        """A worker, and the handle of its being ready."""

    def send(self, worker: Any, task: Task) -> Any: ...

    def wait(self, handles: Sequence[Any]) -> Any | None:
        """One of them that has ended; None: none has for a second."""

    def result(self, handle: Any) -> Any:
        """What came out; `WorkerLost` where the worker died."""

    def stop(self, worker: Any) -> None: ...


@dataclass(eq=False)
class _Member:
    worker: Any
    ready: bool = False
    alive: bool = True
    tasks: int = 0  # that it has now
    suspect: bool = False  # what it has may kill it, so it gets nothing else


@dataclass
class _Job:
    """A task, or one of its items alone."""

    number: int
    task: Any
    position: int | None = None
    deaths: int = 0

    @property
    def suspect(self) -> bool:
        """Whether it may kill its worker: nothing else shares that worker, so that no other task is blamed."""
        return self.deaths > 0 or self.position is not None


@dataclass
class _Suspects:
    """The items of a task whose workers died, tried one by one."""

    task: Any
    waiting: int = 0
    rounds: int = 0
    lost: dict[int, str] = field(default_factory=dict)


class Pool:
    """Workers of one kind. `map` may be called again and again, once at a time."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._members: list[_Member] = []
        self._running: dict[Any, tuple[_Member, _Job | None]] = {}  # by handle; no job: it starts
        self._suspects: dict[int, _Suspects] = {}
        self._failed = 0  # workers that died before they were ready, one after the other

    def map(
        self, tasks: Iterable[T], again: Callable[[T, Any], T | None] = lambda task, result: None
    ) -> Iterator[tuple[T, Any]]:
        """Each task with its result, in order.

        `again` is asked when it is a task's turn, all before it being given away: a task instead is done at once.
        So many tasks are under way that no worker waits, and no more: results that wait for an earlier one take memory.
        """
        rest = enumerate(tasks)
        todo, done = deque[_Job](), dict[int, tuple[T, Any]]()
        taken, given, more = 0, 0, True
        self._suspects = {}
        while len(self._members) < self.backend.count:  # the first time
            self._start()
        while True:
            while given in done:
                task, result = done.pop(given)
                other = again(task, result)
                if other is not None:
                    todo.appendleft(_Job(given, other))
                    break
                yield task, result
                given += 1
            while more and not todo and taken < given + 2 * AT_ONCE * self.backend.count and self._free() is not None:
                try:
                    number, task = next(rest)
                except StopIteration:
                    more = False
                    break
                taken = number + 1
                self._send(_Job(number, task))
            while todo and self._free(todo[0].suspect) is not None:
                self._send(todo.popleft())
            if not more and given == taken:
                return
            ended = self._next()
            if ended is None:
                continue
            job, result = ended
            if isinstance(result, WorkerLost):
                todo.extend(self._after_death(job, str(result)))
            elif job.position is not None:
                todo.extend(self._tried(job, None))
            else:
                done[job.number] = job.task, result

    def close(self) -> None:
        for member in self._members:
            self.backend.stop(member.worker)

    def _start(self) -> None:
        worker, handle = self.backend.start()
        self._members.append(_Member(worker))
        self._running[handle] = self._members[-1], None

    def _free(self, suspect: bool = False) -> _Member | None:
        """The worker with the fewest tasks, unless all have enough."""
        most = 1 if suspect else AT_ONCE
        ready = [each for each in self._members if each.ready and not each.suspect and each.tasks < most]
        return min(ready, key=lambda member: member.tasks, default=None)

    def _send(self, job: _Job) -> None:
        member = self._free(job.suspect)
        assert member is not None
        member.tasks += 1
        member.suspect = job.suspect
        self._running[self.backend.send(member.worker, job.task)] = member, job

    def _next(self) -> tuple[_Job, Any] | None:
        """A job that has ended, with its result or `WorkerLost`."""
        began = time.monotonic()
        while (handle := self.backend.wait(list(self._running))) is None:
            if not any(member.ready for member in self._members) and time.monotonic() - began > PATIENCE:
                raise QuintetError(
                    f"no Ray worker could start within {PATIENCE:.0f} s: no node has the CPU, GPU or memory of one "
                    "free; stop what else runs on the cluster, or ask for less (--ray-gpus)"
                )
        member, job = self._running.pop(handle)
        result: Any = None
        try:
            result = self.backend.result(handle)
        except WorkerLost as lost:
            result = lost
            if member.alive:
                member.alive = member.ready = False
                self._members.remove(member)
                self.backend.stop(member.worker)
                self._start()
        if job is None:
            member.ready = member.alive
            self._failed = 0 if member.ready else self._failed + 1
            if self._failed > TRIES * self.backend.count:
                raise QuintetError(
                    f"Ray workers die before they are ready: {result}; is Quintet installed on the nodes, and has each "
                    "memory for the model? Fewer workers (--ray-workers) need less"
                )
            return None
        member.tasks -= 1
        member.suspect = False
        return job, result

    def _after_death(self, job: _Job, why: str) -> list[_Job]:
        if job.deaths + 1 < TRIES:
            return [replace(job, deaths=job.deaths + 1)]
        if job.position is not None:
            return self._tried(job, why)
        suspects = self._suspects.setdefault(job.number, _Suspects(job.task))
        suspects.task, suspects.rounds = job.task, suspects.rounds + 1
        alone = [position for position in range(len(job.task.items)) if position not in job.task.lost]
        if not alone or suspects.rounds > ROUNDS:
            raise _hopeless(why)
        suspects.waiting = len(alone)
        return [_Job(job.number, replace(job.task, items=[job.task.items[at]], lost={}), at) for at in alone]

    def _tried(self, job: _Job, why: str | None) -> list[_Job]:
        """One item was tried alone; after the last of them the task itself, without those that killed a worker."""
        assert job.position is not None
        suspects = self._suspects[job.number]
        suspects.waiting -= 1
        if why is not None:
            suspects.lost[job.position] = why
        if suspects.waiting:
            return []
        if why is not None and len(suspects.lost) == len(suspects.task.items) >= ALL:
            raise _hopeless(why)
        return [_Job(job.number, replace(suspects.task, lost={**suspects.task.lost, **suspects.lost}))]


def _hopeless(why: str) -> QuintetError:
    return QuintetError(
        f"workers died again and again at the same task ({why}); does a node run out of memory? "
        "Fewer workers (--ray-workers) or smaller batches need less; the same command goes on"
    )


class InProcess:
    """One worker, which is this process."""

    count = 1

    def __init__(self, make: Callable[..., Any], *arguments: Any) -> None:
        self._make, self._arguments = make, arguments
        self._outcomes: dict[int, Any] = {}
        self._handles = 0

    def start(self) -> tuple[Any, int]:
        return self._make(*self._arguments), self._keep(None)

    def send(self, worker: Any, task: Task) -> int:
        try:
            return self._keep(worker.work(task))
        except WorkerLost as lost:  # of a test
            return self._keep(lost)

    def _keep(self, outcome: Any) -> int:
        self._handles += 1
        self._outcomes[self._handles] = outcome
        return self._handles

    def wait(self, handles: Sequence[int]) -> int:
        return handles[0]

    def result(self, handle: int) -> Any:
        outcome = self._outcomes.pop(handle)
        if isinstance(outcome, WorkerLost):
            raise outcome
        return outcome

    def stop(self, worker: Any) -> None:
        pass


@contextmanager
def worker_pool(cluster: Cluster | None, make: Callable[..., Any], *arguments: Any) -> Iterator[Pool]:
    """Workers that `make(*arguments)` makes, each with a method `work(task)`. `arguments` travel to them.

    None of a cluster: one worker in this process.
    """
    if cluster is None:
        yield Pool(InProcess(make, *arguments))
        return
    with _connected(cluster) as ray:
        pool = Pool(_OnRay(ray, cluster, make, arguments))
        try:
            yield pool
        finally:
            pool.close()


class _Host:
    """What is an actor on Ray."""

    def start(self, make: Callable[..., Any], *arguments: Any) -> dict[str, str]:
        import torch

        torch.set_num_threads(1)
        with _named_node():
            self.worker = make(*arguments)
        return versions()

    def work(self, task: Task) -> Any:
        with _named_node():
            return self.worker.work(task)


@contextmanager
def _named_node() -> Iterator[None]:
    """What a node lacks (memory, room on a disk, a GPU, a file, a package) is told with its name."""
    try:
        yield
    except (OSError, MemoryError, RuntimeError, ImportError) as error:
        raise QuintetError(
            f"a Ray worker on {platform.node()} failed: {type(error).__name__}: {first_line(error)}; "
            "what is done is kept, and the same command goes on"
        ) from error


def versions() -> dict[str, str]:
    """What must be the same on every node."""
    found = {"python": platform.python_version()}
    for package in ("ray", "torch", "numpy", "pillow", "quintet-retrieval"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # run from a checkout
            found[package] = "none"
    return found


class _OnRay:
    """Actors, one CPU each, and the GPU they are to have."""

    def __init__(self, ray: Any, cluster: Cluster, make: Callable[..., Any], arguments: Sequence[Any]) -> None:
        self.ray, self.versions = ray, versions()
        self.count = cluster.workers or self._room(cluster.gpus)
        self._class = ray.remote(_Host).options(num_cpus=1, num_gpus=cluster.gpus, max_restarts=0, max_task_retries=0)
        # Once into the object store, from which every node takes it.
        self._arguments = [ray.put(each) for each in (make, *arguments)]
        self._first: set[Any] = set()

    def _room(self, gpus: float) -> int:
        total = self.ray.cluster_resources()
        if gpus and not total.get("GPU"):
            raise QuintetError("the Ray cluster has no GPU; leave --ray-gpus out")
        return max(1, int(total["GPU"] / gpus if gpus else total.get("CPU", 1)))

    def start(self) -> tuple[Any, Any]:
        actor = self._class.remote()
        handle = actor.start.remote(*self._arguments)
        self._first.add(handle)
        return actor, handle

    def send(self, worker: Any, task: Task) -> Any:
        return worker.work.remote(task)

    def wait(self, handles: Sequence[Any]) -> Any | None:
        done, _ = self.ray.wait(handles, num_returns=1, timeout=1.0)
        return done[0] if done else None

    def result(self, handle: Any) -> Any:
        first = handle in self._first
        self._first.discard(handle)
        errors = self.ray.exceptions
        try:
            result = self.ray.get(handle)
        except errors.RayTaskError as error:  # raised by our own code on a worker
            if isinstance(error.cause, QuintetError):
                raise error.cause from None
            raise
        except (
            errors.RayActorError,
            errors.OutOfMemoryError,
            errors.ObjectLostError,
            errors.WorkerCrashedError,
        ) as error:
            raise WorkerLost(first_line(error)) from None
        except errors.RayError as error:
            raise QuintetError(f"Ray failed: {first_line(error)}; the same command goes on") from error
        if first and result != self.versions:
            different = [
                f"{name} {result.get(name)}, here {own}"
                for name, own in self.versions.items()
                if result.get(name) != own
            ]
            raise QuintetError(
                f"a Ray worker has other versions than this process: {'; '.join(different)}; install the same"
            )
        return result

    def stop(self, worker: Any) -> None:
        self.ray.kill(worker)


def _has_token() -> bool:
    """Whether there is a token of Ray, which clusters of newer versions ask for."""
    named = any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    return named or (Path.home() / ".ray" / "auth_token").is_file()


@contextmanager
def _connected(cluster: Cluster) -> Iterator[Any]:
    """Ray, connected to the cluster; a connection that was there before stays."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # Ray would tell standard output of every death
    if cluster.address.startswith("ray://") and _has_token():  # Ray shows it to a cluster of its own machine only
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    try:
        import ray
    except ImportError:
        raise QuintetError("a Ray cluster needs ray: pip install 'quintet-retrieval[ray]'") from None
    if ray.is_initialized():
        yield ray
        return
    where: dict[str, Any] = {"address": cluster.address}
    if cluster.address == "local":
        where = {"address": "local", "include_dashboard": False}
    try:
        ray.init(**where, log_to_driver=False, logging_level=logging.ERROR, configure_logging=True)
    except (ConnectionError, ValueError, TimeoutError) as error:
        raise QuintetError(
            f"no Ray cluster answers at {cluster.address} ({first_line(error)}); start one with `ray start --head`, "
            "or use --ray local. A cluster elsewhere may want its token: `ray get-auth-token` on its head prints it, "
            "RAY_AUTH_TOKEN takes it"
        ) from None
    except Exception as error:  # noqa: BLE001  # other versions, a node that does not come up: Ray raises all kinds
        ray.shutdown()
        raise QuintetError(f"Ray ({cluster.address}) refused: {' '.join(str(error).split())[:300]}") from None
    try:
        yield ray
    finally:
        ray.shutdown()
