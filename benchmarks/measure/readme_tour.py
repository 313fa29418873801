"""How long the commands of the README take that train and compare methods, on this computer.

    python -m benchmarks.measure.readme_tour

They are run as they are printed, one after the other, in an empty folder. Writes benchmarks/results/readme_tour.json;
run `python -m benchmarks.pages.readme_page` then.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from quintet.evaluation.result import provenance
from quintet.files import write_json

RESULTS = Path(__file__).parents[1] / "results"
# What the README prints: each command, and what it is for.
TOUR = {
    "quintet data import scenes - corpora/scenes": "generated images with five captions each; no download",
    "quintet features corpora/scenes": "features of a pretrained image tower",
    "quintet train vse-scenes --corpus corpora/scenes -o runs/vse": "VSE++, from pixels",
    "quintet train demo-scenes --corpus corpora/scenes -o runs/scan": "SCAN, mining, SCAN again",
    "quintet evaluate runs/scan --compare runs/vse": "R@K with intervals, and a paired test",
}


def seconds(command: str, folder: Path) -> float:
    start = time.perf_counter()
    words = [sys.executable, "-m", "quintet", *shlex.split(command)[1:]]
    subprocess.run(words, cwd=folder, check=True, stdout=sys.stderr)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "readme_tour.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = {command: round(seconds(command, Path(folder)), 1) for command in TOUR}
    content = {"benchmark": "readme_tour", "cores": os.cpu_count(), "seconds": found, "provenance": provenance()}
    write_json(arguments.out, content)


if __name__ == "__main__":
    main()
