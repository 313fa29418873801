"""`make fuzz`: coverage-guided fuzzing of every parser of data from outside, some minutes a target.

    python -m benchmarks.fuzz.fuzzing --minutes 10 --out benchmarks/results/fuzz.json
    python -m benchmarks.fuzz.fuzzing --minutes 1 --only words --keep found     # found/words.jsonl: what was found

Each target runs in a process of its own. One that dies begins again, with the inputs that it has reached, until its
time is up. The result of a target replaces its earlier one in the file; those of other targets stay.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

from benchmarks.torture.attack import in_child
from benchmarks.torture.material import make_material
from quintet.evaluation.result import provenance
from quintet.files import read_json, write_json

NAMES = (
    "checkpoints",
    "runs",
    "recipes",
    "corpora",
    "lists",
    "imports",
    "words",
    "indexes",
    "images",
    "requests",
    "command lines",
)  # `targets.TARGETS`, whose import takes seconds
PROGRESS = re.compile(r"#(\d+)\s.*?\bcov: (\d+) ft: (\d+) corp: (\d+)")
DONE = re.compile(r"stat::number_of_executed_units:\s*(\d+)")
STARTING = 300  # seconds that a process may take before it fuzzes and after its time
LONGEST_SHOWN = 120  # characters of an input in the result


def fuzz(name: str, material: Path, folder: Path, seconds: float, seed: int) -> dict[str, Any]:
    """One target for so many seconds, not counting the start of its processes; what it reached and found."""
    stem = name.replace(" ", "-")
    found, inputs = folder / f"{stem}.jsonl", folder / f"{stem}-inputs"
    executions = edges = reached = 0
    left, deaths = seconds, []
    while left >= 1:
        command = [sys.executable, "-m", "benchmarks.fuzz.target", name, "--material", str(material)]
        command += ["--found", str(found), "--inputs", str(inputs), "--seconds", str(int(left)), "--seed", str(seed)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
        log = folder / f"{stem}.log"
        with log.open("wb") as file:
            try:
                status = subprocess.run(
                    command, stdout=file, stderr=file, env=environment, timeout=left + STARTING
                ).returncode
            except subprocess.TimeoutExpired:
                status = -9
        text = log.read_text(errors="replace")
        rows = [tuple(map(int, row)) for row in PROGRESS.findall(text)]
        done = DONE.findall(text)
        executions += int(done[-1]) if done else rows[-1][0] if rows else 0
        edges, reached = max([edges, *(row[1] for row in rows)]), max([reached, *(row[3] for row in rows)])
        if status == 0:
            left = 0
            break
        if not rows:
            raise RuntimeError(f"{name} does not start:\n{text[-2000:]}")
        left -= time.time() - (folder / f"{stem}.began").stat().st_mtime
        deaths.append(_death(text, status))
        seed += 1
    crashes = [_told(json.loads(line)) for line in found.read_text().splitlines()] if found.exists() else []
    return {
        "seconds": round(seconds - max(left, 0)),
        "executions": executions,
        "edges": edges,
        "inputs": reached,
        "crashes": [*crashes, *deaths],
    }


def _death(text: str, status: int) -> dict[str, Any]:
    kinds = {"out-of-memory": "out of memory", "timeout after": "no end", "deadly signal": "a signal"}
    what = next((said for mark, said in kinds.items() if mark in text), f"exit status {status}")
    written = re.findall(r"Test unit written to (\S+)", text)
    row: dict[str, Any] = {"parser": None, "what": what, "where": "", "said": ""}
    if written and Path(written[-1]).exists():
        data = Path(written[-1]).read_bytes()
        row |= {"parser": data[0] if data else None, "input": base64.b64encode(data).decode()}
    return _told(row)


def _told(row: dict[str, Any]) -> dict[str, Any]:
    """As it is published: no paths of this machine, and only short inputs."""
    said = re.sub(r"(/[\w.-]+){2,}", "*", row["said"])
    data = row.get("input", "")
    return row | {"said": said, "input": data if len(data) <= LONGEST_SHOWN else f"{len(data) * 3 // 4} bytes"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="of each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time")
    parser.add_argument("--only", action="append", choices=NAMES, help="these targets")
    parser.add_argument("--keep", type=Path, help="folder for what is found: inputs, logs")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument(
        "--take", type=Path, nargs="+", help="fuzz nothing: put the targets of these results into --out"
    )
    options = parser.parse_args()
    if options.take:
        for path in options.take:
            for target, result in read_json(path)["targets"].items():
                _add(options.out, target, result)
        return
    with tempfile.TemporaryDirectory(prefix="quintet-fuzz-") as name:
        material, folder = Path(name) / "material", options.keep or Path(name) / "found"
        material.mkdir()
        folder.mkdir(parents=True, exist_ok=True)
        folder = folder.resolve()
        ending = in_child(make_material, material, seconds=300)
        if ending.kind != "done":
            raise SystemExit(f"the material could not be made: {ending.what} {ending.detail}")
        lock, failed = Lock(), list[str]()

        def work(target: str) -> None:
            began = time.strftime("%Y-%m-%d")
            result = fuzz(target, material, folder, 60 * options.minutes, options.seed)
            print(f"{target}: {result['executions']:,} executions, {len(result['crashes'])} crashes", flush=True)
            if options.out:
                with lock:
                    _add(options.out, target, {"date": began, **result})

        with ThreadPoolExecutor(options.jobs) as pool:
            for done in [pool.submit(work, target) for target in options.only or NAMES]:
                if error := done.exception():
                    failed.append(str(error))
    if failed:
        raise SystemExit("\n".join(failed))


def _add(out: Path, target: str, result: dict[str, Any]) -> None:
    results = (read_json(out)["targets"] if out.exists() else {}) | {target: result}
    ordered = {name: results[name] for name in NAMES if name in results}
    write_json(out, provenance() | {"processors": os.cpu_count(), "targets": ordered})


if __name__ == "__main__":
    main()
