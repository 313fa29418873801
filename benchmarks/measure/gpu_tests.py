"""Run the tests that need a GPU, and write their outcome to a result file: continuous integration has no GPU.

python -m benchmarks.measure.gpu_tests --out benchmarks/results/gpu_tests_h200.json
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import torch

from quintet.evaluation.result import provenance
from quintet.files import write_json

ROOT = Path(__file__).resolve().parents[2]


def outcomes(report: Path) -> dict[str, str]:
    """Test name -> passed, failed, error or skipped."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        state = next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed")
        found[f"{case.get('classname')}::{case.get('name')}"] = "failed" if state == "failure" else state
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        # Only the files that have such tests: others may need packages that the machine with the GPU lacks.
        files = sorted(
            str(path) for path in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in path.read_text("utf-8")
        )
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", *files, f"--junitxml={report}"]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        tests = outcomes(report)
    counts = {state: list(tests.values()).count(state) for state in sorted(set(tests.values()))}
    write_json(
        options.out,
        {"device": torch.cuda.get_device_name(), "provenance": provenance(), "counts": counts, "tests": tests},
    )
    sys.exit(code)


if __name__ == "__main__":
    main()
