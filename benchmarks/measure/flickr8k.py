"""Every method on Flickr8k: a grid of `benchmarks/grids/` on one GPU, several runs at once, one JSON file per row.
--grid scenes is a smaller grid on the generated scenes, --grid clip has dual encoders from scratch on them, --grid
trials has settings that were tried before the recipes were settled, --grid small fits two CPU cores.

    quintet data import flickr PATH_TO_FLICKR8K corpora/flickr8k
    quintet features corpora/flickr8k
    python -m benchmarks.measure.flickr8k --list
    python -m benchmarks.measure.flickr8k --corpus corpora/flickr8k --annotations ExpertAnnotations.txt --jobs 8
    python -m benchmarks.measure.flickr8k --corpus corpora/flickr8k --only 'scan-t2i-*-seed0' --only 'mmca*'
    python -m benchmarks.measure.flickr8k --corpus corpora/flickr8k --only scan-t2i-online-seed0 --again

A row with a result file is done. An interrupted run is resumed; a finished one is trained again only if its weights are
missing and an open row (a second round, an ensemble) needs them. After --minutes no new row starts; the same command
continues later. --again repeats the chosen rows in separate folders and reports whether each is within the recorded
interval. `python -m benchmarks.pages.results_page` makes docs/results.md of the files.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from fnmatch import fnmatch
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks.grids.catalogue import GRIDS, grid_rows
from benchmarks.grids.rows import SEEDS, Row
from benchmarks.measure.flickr8k_row import Setup, check, make_row, recorded_recipe, summary_line
from quintet.errors import QuintetError
from quintet.files import read_json, read_jsonl
from quintet.losses import OBJECTIVES
from quintet.models import MODELS
from quintet.registry import Registry
from quintet.studies.variants import differences
from quintet.training.recipe import parse_recipe

RESULTS = Path(__file__).parents[1] / "results"
HEARTBEAT = 30.0  # seconds between two lines about what is running


def select(rows: Sequence[Row], patterns: Sequence[str], seeds: Sequence[int]) -> list[Row]:
    """Rows whose name, or name with seed, matches a pattern; without patterns all of these seeds."""
    chosen = [row for row in rows if row.seed in seeds]
    if not patterns:
        known = {row.id for row in chosen}
        return [row for row in chosen if row.trains or known.issuperset(row.needs)]
    return [row for row in chosen if any(fnmatch(name, p) for p in patterns for name in (row.name, row.id))]


def plan(rows: Sequence[Row], chosen: Sequence[Row], setup: Setup) -> list[Row]:
    """What has to be made: chosen rows without a result, and before them the runs they need that are not there."""
    by_id = {row.id: row for row in rows}
    wanted: dict[str, Row] = {}

    def want(row: Row) -> None:
        for need in row.needs:
            if not setup.is_trained(need):
                want(by_id[need])
        wanted[row.id] = row

    for row in chosen:
        if not setup.result(row).is_file():
            want(row)
    return [row for row in rows if row.id in wanted]


class Schedule:
    """Rows whose needs are met, started one by one while there is room and time."""

    def __init__(self, rows: Sequence[Row], setup: Setup, minutes: float | None) -> None:
        self.waiting, self.setup, self.total = list(rows), setup, len(rows)
        self.deadline = None if minutes is None else time.monotonic() + 60 * minutes
        self.began = time.monotonic()
        self.running: dict[Future[dict[str, Any]], Row] = {}
        self.done: list[str] = []
        self.failed: dict[str, str] = {}

    def run(self, pool: ProcessPoolExecutor) -> None:
        while self.waiting or self.running:
            self._start(pool)
            if not self.running:
                break
            finished, _ = wait(self.running, timeout=HEARTBEAT, return_when=FIRST_COMPLETED)
            for future in finished:
                self._finish(self.running.pop(future), future)
            if not finished:
                self._say("running: " + "; ".join(map(self._state, self.running.values())))
        late = [row.id for row in self.waiting if row.id not in self.failed]
        if late:
            self._say(f"{len(late)} rows were not started: the time was up, or what they need is not there")

    def _start(self, pool: ProcessPoolExecutor) -> None:
        for row in list(self.waiting):
            if len(self.running) >= self.setup.jobs or (self.deadline is not None and time.monotonic() > self.deadline):
                return
            lost = [need for need in row.needs if need in self.failed]
            if lost:
                self.waiting.remove(row)
                self.failed[row.id] = f"needs {lost[0]}, which failed"
            elif all(self.setup.is_trained(need) for need in row.needs):
                self.waiting.remove(row)
                self.running[pool.submit(make_row, row, self.setup)] = row

    def _finish(self, row: Row, future: Future[dict[str, Any]]) -> None:
        error = future.exception()  # whatever it is: one row must not cost the others their time
        if error is None:
            self.done.append(row.id)
            self._say(f"{row.id}: {summary_line(future.result())}")
            return
        self.failed[row.id] = f"{type(error).__name__}: {error}".partition("\n")[0]
        self._say(f"{row.id} FAILED: {self.failed[row.id]}")
        if isinstance(error, BrokenProcessPool):
            self.waiting.clear()

    def _state(self, row: Row) -> str:
        logs = sorted((self.setup.run(row.id) / "stages").glob("*/log.jsonl"), key=lambda path: path.stat().st_mtime)
        measured = [line for line in read_jsonl(logs[-1]) if line["kind"] == "validation"] if logs else []
        if not measured:
            return row.id
        return f"{row.id} {logs[-1].parent.name} epoch {measured[-1]['epoch']}, rsum {measured[-1]['rsum']:.0f}"

    def _say(self, message: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self.began), 60)
        print(f"{minutes:3}:{seconds:02} [{len(self.done)}/{self.total}] {message}", flush=True)


def use_threads(count: int) -> None:
    torch.set_num_threads(count)


def work(rows: Sequence[Row], setup: Setup, minutes: float | None) -> Schedule:
    schedule = Schedule(rows, setup, minutes)
    # Processes are kept from row to row: starting one costs as much as a short training.
    threads = max(1, (os.cpu_count() or 1) // setup.jobs)
    with ProcessPoolExecutor(setup.jobs, get_context("spawn"), use_threads, (threads,)) as pool:
        schedule.run(pool)
    return schedule


def whole(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe with everything that it leaves to defaults: one on record may be older than a setting."""
    found = parse_recipe(recipe).model_dump(mode="json", by_alias=True)
    found["matcher"] = _defaults(MODELS, found["matcher"]["name"]) | found["matcher"]
    for stage in found["stages"]:
        stage["loss"] = {name: _defaults(OBJECTIVES, name) | given for name, given in stage["loss"].items()}
    return found


def _defaults(registry: Registry, name: str) -> dict[str, Any]:
    given = registry.parameters(name).values()
    return {one.name: one.default for one in given if one.default is not one.empty}


def show(rows: Sequence[Row], setup: Setup) -> None:
    for row in rows:
        path = setup.result(row)
        state = "to do"
        if path.is_file():
            content = read_json(path)
            state = f"done, rsum {content['metrics']['rsum']:.1f}"
            if row.trains and (
                changed := list(differences(whole(content["recipe"]), whole(recorded_recipe(row, setup))))
            ):
                state += f"; since then the recipe has changed: {changed[0]}"
        elif (setup.run(row.id) / "run.json").is_file():
            state = "trained" if setup.is_trained(row.id) else "begun"
        print(f"{row.id:42} {row.label + (f', {row.loss}' if row.loss else ''):44} {state}")
    done = sum(setup.result(row).is_file() for row in rows)
    print(f"{len(rows)} rows, {sum(row.trains for row in rows)} of them trained anew; {done} done")


def compare(rows: Sequence[Row], recorded: Path, again: Setup) -> bool:
    """Whether every row made again lies within the interval on record; says so for each."""
    fine = True
    for row in rows:
        if not (recorded / f"{row.id}.json").is_file() or not again.result(row).is_file():
            continue
        old, new = read_json(recorded / f"{row.id}.json"), read_json(again.result(row))["metrics"]["rsum"]
        low, high = old["intervals"]["rsum"]
        fine &= low <= new <= high
        where = "within" if low <= new <= high else "OUTSIDE"
        print(f"{row.id}: on record {old['metrics']['rsum']:.1f} ({low:.1f} to {high:.1f}), again {new:.1f}: {where}")
    return fine


def with_overrides(rows: Sequence[Row], overrides: Sequence[tuple[str, str]]) -> list[Row]:
    """The rows with what --set adds: PATTERN:KEY=VALUE, for those that train."""
    found = []
    for row in rows:
        more = [setting for pattern, setting in overrides if fnmatch(row.name, pattern)]
        found.append(replace(row, overrides=(*row.overrides, *more)) if row.trains and more else row)
    return found


def _setting(text: str) -> tuple[str, str]:
    pattern, colon, setting = text.partition(":")
    if not colon or "=" not in setting:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form PATTERN:KEY=VALUE, as in mmca*:matcher.heads=8")
    return pattern, setting


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grid", choices=list(GRIDS), default="flickr8k")
    parser.add_argument("--corpus", type=Path, help="corpora/flickr8k, or corpora/scenes for its grid")
    parser.add_argument("--annotations", type=Path, help="ExpertAnnotations.txt, for human agreement")
    parser.add_argument("--runs", type=Path, help="runs/flickr8k, or of the grid's name")
    parser.add_argument("--results", type=Path, help="benchmarks/results/flickr8k, or of the grid's name")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="as in 'scan-*-seed0'")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--set", action="append", default=[], type=_setting, metavar="PATTERN:KEY=VALUE")
    parser.add_argument("--jobs", type=int, default=1, help="rows at once")
    parser.add_argument("--minutes", type=float, help="start no new row after so long")
    parser.add_argument("--bootstrap", type=int, default=1000)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--again", action="store_true", help="make the rows anew, and compare")
    parser.add_argument("--list", action="store_true", help="print the plan and train nothing")
    options = parser.parse_args(arguments)
    options.corpus = options.corpus or Path("corpora") / GRIDS[options.grid].corpus
    options.runs = options.runs or Path("runs") / options.grid
    options.results = options.results or RESULTS / options.grid
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    rows = with_overrides(grid_rows(options.grid), options.set)
    chosen = select(rows, options.only, options.seeds)
    runs, results = options.runs, options.results
    if options.again:
        runs, results = options.runs / "again", options.runs / "again" / "results"
    setup = Setup(
        options.corpus, runs, results, options.device, options.annotations, options.bootstrap, options.jobs,
        tuple(options.set), options.grid,
    )  # fmt: skip
    if not chosen:
        print("no row of the grid matches; --list prints them all")
        return 2
    if options.list:
        show(chosen, setup)
        return 0
    check(setup)
    todo = plan(rows, chosen, setup)
    print(f"{len(chosen)} rows chosen, {len(todo)} to make, {options.jobs} at once", flush=True)
    schedule = work(todo, setup, options.minutes) if todo else None
    fine = compare(chosen, options.results, setup) if options.again else True
    failed = schedule.failed if schedule else {}
    for row_id, reason in failed.items():
        print(f"failed: {row_id}: {reason}")
    return 1 if failed or not fine else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except QuintetError as error:
        sys.exit(f"error: {error}")
