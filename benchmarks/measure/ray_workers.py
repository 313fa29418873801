"""Photos per second of `quintet index` without Ray, with one Ray worker and with two, one thread each, in turns.

    python -m benchmarks.measure.ray_workers                # 2,000 generated photos
    python -m benchmarks.measure.ray_workers --count 200 --rounds 1 --out build/ray_workers.json

Each build is a process of its own; the one without Ray is kept on one core. The rate is that of the last three
quarters of the photos. What comes before the first batch (Ray starts, workers load the run) is told beside it.
Writes benchmarks/results/ray_workers.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from quintet.data.formats import import_corpus
from quintet.evaluation.result import provenance
from quintet.files import write_json

RESULTS = Path(__file__).parents[1] / "results"
KINDS = {"no_ray": None, "one_worker": 1, "two_workers": 2}


def build(run: str, images: str, index: str, batch_size: int, workers: int | None) -> dict[str, float]:
    """One build, in this process."""
    from quintet.search.indexing import build_index

    if workers is None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    began, seen = time.perf_counter(), list[tuple[float, int]]()

    def progress(done: int, total: int | None) -> None:
        seen.append((time.perf_counter(), done))

    on = {"device": "cpu"} if workers is None else {"ray": "local", "ray_workers": workers}
    options: dict[str, Any] = {"batch_size": batch_size, "workers": 1, **on}
    build_index(run, images, index, progress=progress, **options)
    last = seen[-1]
    begun = next(each for each in seen if each[1] > 0)
    first = next(each for each in seen if each[1] >= last[1] / 4)  # all workers are ready by then
    return {
        "photos_per_second": (last[1] - first[1]) / (last[0] - first[0]),
        "seconds_before_the_first_batch": begun[0] - began,
        "seconds": time.perf_counter() - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", default="quintet-small")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS / "ray_workers.json")
    parser.add_argument("--one", nargs=3, metavar=("KIND", "IMAGES", "INDEX"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        kind, images, index = arguments.one
        print(json.dumps(build(arguments.run, images, index, arguments.batch_size, KINDS[kind])))
        return
    rounds: list[dict[str, dict[str, float]]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        import_corpus("scenes", "-", folder / "scenes", train=arguments.count - 2, dev=1, test=1)
        for number in range(arguments.rounds):
            rounds.append({})
            for kind in KINDS:
                own = ["--run", arguments.run, "--batch-size", str(arguments.batch_size)]
                one = ["--one", kind, str(folder / "scenes"), str(folder / f"{kind}-{number}")]
                done = subprocess.run(
                    [sys.executable, "-m", "benchmarks.measure.ray_workers", *own, *one],
                    env=os.environ | {"OMP_NUM_THREADS": "1"},
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
                rounds[-1][kind] = json.loads(done.stdout.splitlines()[-1])
                print(kind, rounds[-1][kind], flush=True)
    rates = {kind: [each[kind]["photos_per_second"] for each in rounds] for kind in KINDS}
    found = {
        "benchmark": "ray_workers",
        "run": arguments.run,
        "images": arguments.count,
        "batch_size": arguments.batch_size,
        "photos_per_second": {kind: median(rates[kind]) for kind in KINDS},
        "one_worker_of_no_ray": median(map(_share, rates["one_worker"], rates["no_ray"])),
        "two_workers_of_one": median(map(_share, rates["two_workers"], rates["one_worker"])),
        "wanted": {"one_worker_of_no_ray": 0.9, "two_workers_of_one": 1.7},
        "rounds": rounds,
        "provenance": provenance(),
    }
    write_json(arguments.out, found)


def _share(one: float, other: float) -> float:
    return one / other


if __name__ == "__main__":
    main()
