"""Importing Parquet files and tar shards against a plain copy of their bytes, and the memory of a million rows.

    python -m benchmarks.measure.importing                                     # 0.8 GB of images, 1,000,000 rows
    python -m benchmarks.measure.importing --images 400 --rows 20000 --rounds 1 --out /tmp/importing.json

The images are random bytes of the size of COCO's photographs. The plain copy of the bytes, which an import is compared
with, is a copy of the same images as files of their own (`shutil.copytree`), because that is what an import has to
write; a copy of the Parquet files or shards as they are stands beside it. Imports and copies take turns. All of them
end when the bytes are on the disk (`sync`), in a process of their own; medians count. Nothing is removed before the
last round: a file system looks for inodes that were not in use a moment ago, so files are made several times more
slowly where thousands were removed in the last minutes. The memory is that of the process. Writes
benchmarks/results/importing.json.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from quintet.evaluation.result import provenance
from quintet.files import write_json

RESULTS = Path(__file__).parents[1] / "results"
MEAN_BYTES = 160_000  # of a photograph of COCO
TINY_BYTES = 300
SHARD = 1000  # images
WANTED_SHARE, WANTED_MEBIBYTES = 0.7, 1024
KINDS = {"parquet": "parquet", "tar": "webdataset"}

# Each in a process of its own: its memory is its own, and nothing is warm but the files.
WORK = """
import json, os, shutil, sys, time
kind, source, out = sys.argv[1:4]
if kind == "copy":
    work = lambda: shutil.copytree(source, out, copy_function=shutil.copyfile)
else:
    from quintet.data.formats import import_corpus
    import pyarrow.parquet
    work = lambda: import_corpus(kind, source, out)
os.sync()
began = time.perf_counter()
work()
os.sync()
seconds = time.perf_counter() - began
with open("/proc/self/status") as file:  # the peak that getrusage gives begins with that of the parent
    peak = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
print(json.dumps({"seconds": seconds, "mebibytes": peak / 1024}))
"""


def timed(kind: str, source: Path, out: Path) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", WORK, kind, source, out], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def write_sources(folder: Path, images: int, size: int, kinds: tuple[str, ...]) -> None:
    """Shards of random images with a caption each: FOLDER/parquet, FOLDER/tar and FOLDER/files."""
    chance = np.random.default_rng(0)
    for kind in kinds:
        (folder / kind).mkdir(parents=True)
    schema = pyarrow.schema(
        {
            "image": pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()}),
            "caption": pyarrow.string(),
            "image_id": pyarrow.string(),
        }
    )
    for first in range(0, images, SHARD):
        rows = []
        for number in range(first, min(first + SHARD, images)):
            data = b"\xff\xd8\xff\xe0" + chance.bytes(int(size * chance.uniform(0.5, 1.5)))
            rows.append((f"{first // SHARD:04}/{number:08}", data, f"What is to be seen on photograph {number}."))
        name = f"train-{first // SHARD:05}"
        if "parquet" in kinds:
            structs = [{"bytes": data, "path": None} for _, data, _ in rows]
            columns = {"image": structs, "caption": [row[2] for row in rows], "image_id": [row[0] for row in rows]}
            table = pyarrow.table(columns, schema=schema)
            pyarrow.parquet.write_table(table, folder / "parquet" / f"{name}.parquet", row_group_size=100)
        if "tar" in kinds:
            _write_tar(folder / "tar" / f"{name}.tar", rows)
        if "files" in kinds:
            (folder / "files" / f"{first // SHARD:04}").mkdir()
            for key, data, _ in rows:
                (folder / "files" / f"{key}.jpg").write_bytes(data)


def _write_tar(path: Path, rows: list[tuple[str, bytes, str]]) -> None:
    with tarfile.open(path, "w") as tar:
        for key, data, text in rows:
            for suffix, content in ((".jpg", data), (".txt", text.encode())):
                member = tarfile.TarInfo(key + suffix)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def speed(folder: Path, images: int, rounds: int) -> list[dict[str, Any]]:
    write_sources(folder, images, MEAN_BYTES, ("parquet", "tar", "files"))
    tasks = [("copy files", "copy", "files")]
    for kind, format in KINDS.items():
        tasks += [(f"copy {kind}", "copy", kind), (f"import {kind}", format, kind)]
    found: dict[str, list[dict[str, float]]] = {name: [] for name, _, _ in tasks}
    for number in range(rounds):
        for name, task, source in tasks:
            found[name].append(timed(task, folder / source, folder / f"{name} {number}"))
    files = median(row["seconds"] for row in found["copy files"])
    rows = []
    for kind in KINDS:
        size = sum(path.stat().st_size for path in (folder / kind).iterdir())
        seconds = median(row["seconds"] for row in found[f"import {kind}"])
        copied = median(row["seconds"] for row in found[f"copy {kind}"])
        rows.append(
            {
                "source": kind,
                "megabytes": size / 1e6,
                "import_seconds": seconds,
                "copy_seconds": files,
                "copy_of_shards_seconds": copied,
                "share_of_copy": files / seconds,
                "share_of_copy_of_shards": copied / seconds,
                "mebibytes": max(row["mebibytes"] for row in found[f"import {kind}"]),
                "rounds": {
                    name: [row["seconds"] for row in found[name]] for name in found if name.endswith((kind, "files"))
                },
            }
        )
    return rows


def memory(folder: Path, rows: int) -> list[dict[str, Any]]:
    found = []
    for kind, format in KINDS.items():
        write_sources(folder / "many", rows, TINY_BYTES, (kind,))
        made = timed(format, folder / "many" / kind, folder / "out")
        found.append({"source": kind, "rows": rows, **made})
        for each in ("many", "out"):
            shutil.rmtree(folder / each)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=5000, help="of the size of photographs; 6,250 are 1 GB")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of tiny images, for the memory")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to write; default: the system's folder for such files")
    parser.add_argument("--out", type=Path, default=RESULTS / "importing.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        speeds = speed(Path(folder) / "photographs", arguments.images, arguments.rounds)
        for row in speeds:
            print(
                f"{row['source']}: {row['share_of_copy']:.0%} of the speed of a plain copy, {row['mebibytes']:.0f} MiB"
            )
        memories = memory(Path(folder), arguments.rows)
        for row in memories:
            print(f"{row['source']}: {row['rows']:,} rows in {row['seconds']:.0f} s, {row['mebibytes']:.0f} MiB")
    content = {
        "format": "quintet-importing",
        "images": arguments.images,
        "wanted_share": WANTED_SHARE,
        "wanted_mebibytes": WANTED_MEBIBYTES,
        "speed": speeds,
        "memory": memories,
        "provenance": provenance(),
    }
    write_json(arguments.out, content)


if __name__ == "__main__":
    main()
