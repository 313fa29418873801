"""Random reads of features from a file larger than memory: rate and resident memory.

    python -m benchmarks.measure.feature_loading --gigabytes 30 --out benchmarks/results/feature_loading.json

The file is sparse (it takes no disk space), so the rate is that of the mapping and the copying, not of a disk.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from quintet.data.feature_store import FeatureStore, Part, write_manifest
from quintet.evaluation.result import provenance
from quintet.files import write_json

FRAGMENTS, DIM = 36, 2048


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this system does not report the resident set (no VmRSS in /proc/self/status)")


def make_sparse_store(folder: Path, gigabytes: float) -> int:
    rows = int(gigabytes * 2**30 / (FRAGMENTS * DIM * 4))
    with (folder / "features.npy").open("wb") as file:
        np.lib.format.write_array_header_2_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": (rows, FRAGMENTS, DIM)}
        )
        file.truncate(file.tell() + rows * FRAGMENTS * DIM * 4)
    positions = np.stack([np.zeros(rows, np.int64), np.arange(rows)], axis=1)
    write_manifest(
        folder,
        [str(row) for row in range(rows)],
        positions,
        [Part("features.npy")],
        fragments=FRAGMENTS,
        dim=DIM,
        tower={},
    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=30)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        rows = make_sparse_store(Path(name), options.gigabytes)
        store = FeatureStore(name)
        rng = np.random.default_rng(options.seed)
        before, peak, began = resident_bytes(), 0, time.perf_counter()
        for _ in range(options.batches):
            store.batch([str(row) for row in rng.integers(rows, size=options.batch)])
            peak = max(peak, resident_bytes())
        seconds = time.perf_counter() - began
    read = options.batches * options.batch
    result = {
        "benchmark": "feature_loading",
        "file_gigabytes": options.gigabytes,
        "rows_read": read,
        "rows_per_second": round(read / seconds, 1),
        "gigabytes_per_second": round(read * FRAGMENTS * DIM * 4 / seconds / 2**30, 2),
        "resident_before_mb": round(before / 2**20, 1),
        "resident_peak_mb": round(peak / 2**20, 1),
        "seed": options.seed,
        "provenance": provenance(),
    }
    print(json.dumps({key: value for key, value in result.items() if key != "provenance"}, indent=2))
    if options.out:
        write_json(options.out, result)


if __name__ == "__main__":
    main()
