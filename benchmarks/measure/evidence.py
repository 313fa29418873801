"""Every paper's main claim on generated scenes: the rows of benchmarks/grids/evidence_grid.py, one JSON file each.

    python -m benchmarks.measure.evidence --list
    python -m benchmarks.measure.evidence --parts aoq --processes 2
    python -m benchmarks.measure.evidence --only 'vse-8000-b128-adapoffquin-truth-seed0'
    python -m benchmarks.measure.evidence --only 'vse-2000-b128-online-seed0' --again
    python -m benchmarks.measure.evidence --parts aoq --minutes 9 --processes 14 --device cuda --pack evidence.tgz

Corpora and features are made first, in --work. A row with a result file is done; what a row needs is made with it.
After --minutes whatever runs is stopped; a later call goes on with what is left and the runs in --work. --again
makes the chosen rows, and what they need, in a folder of their own and says whether each is within the recorded
interval. --pack puts all result files into one .tgz.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from benchmarks.grids.evidence_grid import Row, rows
from benchmarks.measure.evidence_row import Setup, make_row, prepare
from quintet.files import read_json

RESULTS = Path(__file__).parents[1] / "results" / "evidence"
HEARTBEAT = 30.0  # seconds between two lines about what is running
PACKING = 15.0  # seconds kept for stopping and packing
SERVICE, PROBE = "nvidia-cuda-mps-control", "import torch; torch.ones(1, device='cuda').item()"


def plan(known: Sequence[Row], chosen: Sequence[Row], setup: Setup) -> list[Row]:
    """What has to be made: chosen rows without a result, and before them what they need that is not there."""
    by_id = {row.id: row for row in known}
    wanted: dict[str, Row] = {}

    def want(row: Row) -> None:
        for need in row.needs:
            if not setup.made(by_id[need]):
                want(by_id[need])
        wanted.setdefault(row.id, row)

    for row in chosen:
        if not setup.result(row.id).is_file():
            want(row)
    return list(wanted.values())  # in the order of the grid, needs before what needs them


def work(setup: Setup, threads: int, pipe: Connection) -> None:
    """A process: makes the rows that it is sent, and answers (whether it went well, a line about it)."""
    torch.set_num_threads(threads)
    while True:
        row = pipe.recv()
        try:
            pipe.send((True, make_row(row, setup)))
        except Exception as error:  # noqa: BLE001  # whatever it is: one row must not cost the others their time
            pipe.send((False, f"{type(error).__name__}: {error}".partition("\n")[0]))


class Schedule:
    """Gives rows whose needs are met to processes, in order; kills the processes at the deadline.

    A row that was killed goes on from its last checkpoint when it is made again.
    """

    def __init__(
        self,
        todo: Sequence[Row],
        known: Sequence[Row],
        setup: Setup,
        deadline: float | None,
        processes: int,
    ) -> None:
        self.waiting, self.setup, self.total, self.deadline = list(todo), setup, len(todo), deadline
        self.by_id = {row.id: row for row in known}
        self.threads = max(1, (os.cpu_count() or 1) // processes)
        self.idle = [self._process() for _ in range(min(processes, len(todo)))]
        self.running: dict[Connection, tuple[BaseProcess, Row, float]] = {}
        self.done: list[str] = []
        self.failed: dict[str, str] = {}
        self.began = self.spoke = time.monotonic()

    def _process(self) -> tuple[BaseProcess, Connection]:
        context = get_context("spawn")
        own, other = context.Pipe()
        process = context.Process(target=work, args=(self.setup, self.threads, other), daemon=True)
        process.start()
        other.close()
        return process, own

    def run(self) -> None:
        try:
            while self._start():
                left = HEARTBEAT if self.deadline is None else min(HEARTBEAT, self.deadline - time.monotonic())
                if left <= 0:
                    self.say(f"time is up: {len(self.running)} rows are stopped, {len(self.waiting)} were not started")
                    return
                for pipe in wait(list(self.running), timeout=left):
                    assert isinstance(pipe, Connection)
                    self._finish(pipe)
                if time.monotonic() - self.spoke > HEARTBEAT:
                    self.say("running: " + ", ".join(row.id for _, row, _ in self.running.values()))
        finally:
            for process in (*(one for one, _ in self.idle), *(one for one, _, _ in self.running.values())):
                process.kill()

    def _start(self) -> bool:
        """Whether anything runs."""
        for row in list(self.waiting):
            lost = [need for need in row.needs if need in self.failed]
            if lost:
                self.waiting.remove(row)
                self.failed[row.id] = f"needs {lost[0]}, which failed"
            elif self.idle and all(self.setup.made(self.by_id[need]) for need in row.needs):
                self.waiting.remove(row)
                process, pipe = self.idle.pop(0)
                pipe.send(row)
                self.running[pipe] = process, row, time.monotonic()
        return bool(self.running)

    def _finish(self, pipe: Connection) -> None:
        process, row, began = self.running.pop(pipe)
        try:
            fine, line = pipe.recv()
            self.idle.append((process, pipe))
        except EOFError:
            fine, line = False, "its process died"
            self.idle.append(self._process())
        if fine:
            self.done.append(row.id)
        else:
            self.failed[row.id] = line
        self.say(f"{row.id}{'' if fine else ' FAILED'}: {line} ({time.monotonic() - began:.0f} s in all)")

    def say(self, message: str) -> None:
        self.spoke = time.monotonic()
        minutes, seconds = divmod(int(self.spoke - self.began), 60)
        print(f"{minutes:3}:{seconds:02} [{len(self.done)}/{self.total}] {message}", flush=True)


@contextmanager
def shared_gpu(device: str) -> Iterator[None]:
    """CUDA's multi-process service where it works: kernels of several processes then run side by side."""
    if not device.startswith("cuda") or shutil.which(SERVICE) is None:
        yield
        return
    works = _succeeds([SERVICE, "-d"]) and _succeeds([sys.executable, "-c", PROBE])
    print(f"multi-process service: {'on' if works else 'does not work'}", flush=True)
    try:
        if not works:
            _succeeds([SERVICE], b"quit\n")
        yield
    finally:
        _succeeds([SERVICE], b"quit\n")


def _succeeds(command: Sequence[str], given: bytes | None = None) -> bool:
    try:
        return subprocess.run(command, input=given, check=False, capture_output=True, timeout=40).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def pack(results: Path, tar: Path) -> None:
    tar.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(tar, "w:gz") as archive:
        for path in sorted(results.glob("*.json")):
            archive.add(path, path.name)
    print(f"{len(list(results.glob('*.json')))} result files in {tar}", flush=True)


def select(known: Sequence[Row], parts: Sequence[str], patterns: Sequence[str], seeds: Sequence[int]) -> list[Row]:
    chosen = [row for row in known if row.seed in seeds and (not parts or row.part in parts)]
    if not patterns:
        return chosen
    return [row for row in chosen if any(fnmatch(name, one) for one in patterns for name in (row.name, row.id))]


def compare(chosen: Sequence[Row], recorded: Path, again: Setup) -> bool:
    """Whether every row made again has a test rsum within the 95 % interval of the recorded one."""
    from benchmarks.pages.evidence_numbers import rsum_interval

    fine = True
    for row in chosen:
        if row.recipe is None or not (recorded / f"{row.id}.json").is_file():
            continue
        old, new = read_json(recorded / f"{row.id}.json"), read_json(again.result(row.id))["test"]["rsum"]
        low, high = rsum_interval(old["hits"])
        fine &= low <= new <= high
        where = "within" if low <= new <= high else "OUTSIDE"
        print(f"{row.id}: on record {old['test']['rsum']:.1f} ({low:.1f} to {high:.1f}), again {new:.1f}: {where}")
    return fine


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=[], choices=sorted({row.part for row in rows()}))
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="as in 'vse-8000-*-seed0'")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--work", type=Path, default=Path("runs/evidence"), help="corpus, features, runs and lists")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--processes", type=int, default=1, help="rows at once")
    parser.add_argument("--minutes", type=float, help="stop after so long, whatever runs")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--graphs", action="store_true", help="on a GPU, record steps and replay them (CUDA graphs)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="changes every recipe, for trials"
    )
    parser.add_argument("--pack", type=Path, help="a .tgz file for all result files")
    parser.add_argument("--again", action="store_true", help="make the chosen rows anew, and compare")
    parser.add_argument("--list", action="store_true", help="print the rows and make none")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    deadline = None if options.minutes is None else time.monotonic() + 60 * options.minutes - PACKING
    work, results = (options.work / "again", options.work / "again" / "results") if options.again else (
        options.work, options.results,
    )  # fmt: skip
    setup = Setup(work.resolve(), results.resolve(), options.device, options.graphs, tuple(options.set))
    known = rows()
    chosen = select(known, options.parts, options.only, options.seeds)
    todo = plan(known, chosen, setup)
    if options.list:
        for row in chosen:
            print(f"{row.id:60} {'done' if setup.result(row.id).is_file() else 'to do'}")
        print(f"{len(chosen)} rows, {sum(setup.result(row.id).is_file() for row in chosen)} done")
        return 0
    print(f"{len(chosen)} rows chosen, {len(todo)} to make, {options.processes} at once", flush=True)
    for folder in (setup.work, setup.results):
        folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    if todo:
        prepare(setup, todo, workers=os.cpu_count() or 1)
        print(f"corpus and features: {time.monotonic() - began:.0f} s", flush=True)
    with shared_gpu(options.device):
        schedule = Schedule(todo, known, setup, deadline, options.processes)
        schedule.run()
    for row_id, reason in schedule.failed.items():
        print(f"failed: {row_id}: {reason}")
    if options.pack is not None:
        pack(setup.results, options.pack)
    return 1 if schedule.failed or (options.again and not compare(chosen, options.results, setup)) else 0


if __name__ == "__main__":
    sys.exit(main())
