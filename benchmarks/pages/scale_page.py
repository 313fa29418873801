"""The parts of docs/scale.md between their markers: measured scaling, and a model of cost.

    python -m benchmarks.pages.scale_page

Every constant is a number of a result file or of a datasheet, and the page names which.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.pages.generated_part import fill
from benchmarks.pages.plain_table import table

ROOT = Path(__file__).resolve().parents[2]
PAGE, RESULTS = ROOT / "docs/scale.md", ROOT / "benchmarks/results"
HOUR = 3600.0
COLLECTIONS = (1_000_000, 100_000_000, 1_000_000_000)
MINED_IMAGES, MINED_TEXTS = 10_000_000, 50_000_000
DIM, MINED_DIM = 512, 1024  # of the index of `search.json`, and of the mining of `mining_h200.json`
ROW_OF_LISTS = 8  # bytes of an entry of a top list: an int32 row and a float32 score
TOP_TEXTS, TOP_IMAGES = 300, 60  # as `mining_h200.json`
VIT_B32_FLOP = 8.8e9  # a forward pass of ViT-B/32 at 224 pixels: 4.4e9 multiply-adds


@dataclass(frozen=True)
class Constant:
    what: str
    value: float
    unit: str
    source: str


def result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return found


def flop_per_second(mining: dict[str, Any]) -> float:
    """Of whole mining jobs, top lists and all: two floating-point operations for each image, text and dimension."""
    (seconds,) = (min(row["seconds"]) for row in mining["rows"] if row["way"] == "mine, auto")
    return float(2 * mining["images"] * mining["texts"] * mining["dim"] / seconds)


def constants() -> dict[str, Constant]:
    encoding, search = result("encoding_cpu.json"), result("search.json")
    million = search["sizes"][-1]
    threads = encoding["provenance"]["machine"]["threads"]
    return {
        "photo": Constant("a photo", encoding["mean_file_megabytes"] * 1e6, "bytes", "`encoding_cpu.json`"),
        "core": Constant(
            "photos decoded and encoded by quintet-small",
            encoding["index_images_per_second"] / threads,
            "a second and CPU core",
            "`encoding_cpu.json`",
        ),
        "row": Constant(
            f"an item of an index, {DIM} dimensions",
            million["disk_gib"] * 2**30 / million["vectors"],
            "bytes on disk",
            "`search.json`",
        ),
        "cpu": Constant(
            "mining on 2 CPU cores", flop_per_second(result("mining_cpu.json")), "FLOP/s", "`mining_cpu.json`"
        ),
        "gpu": Constant(
            "mining on an H200", flop_per_second(result("mining_h200.json")), "FLOP/s", "`mining_h200.json`"
        ),
        "peak": Constant("H200, dense bfloat16", 989e12, "FLOP/s", "NVIDIA's datasheet of the H200"),
        "memory": Constant("memory of an H200", 141e9, "bytes", "NVIDIA's datasheet of the H200"),
        "disk": Constant("an NVMe disk, reading in order", 7.45e9, "bytes/s", "Samsung's datasheet of the 990 PRO"),
        "network": Constant("25 Gbit Ethernet", 25e9 / 8, "bytes/s", "IEEE 802.3by, without overhead"),
    }


def collection(images: int, at: dict[str, float]) -> dict[str, float]:
    """Bytes, FLOP and hours of indexing so many photos, each way alone."""
    files = images * at["photo"]
    return {
        "files": files,
        "index": images * at["row"],
        "flop": images * VIT_B32_FLOP,
        "network": files / at["network"] / HOUR,
        "disk": files / at["disk"] / HOUR,
        "core": images / at["core"] / HOUR,
        "gpu": images * VIT_B32_FLOP / at["peak"] / HOUR,
    }


def saturates(at: dict[str, float]) -> dict[str, float]:
    """How many cores use up the network or a disk, or equal an H200 at 1 % of its peak; how many vectors fit on it."""
    per_core = at["core"] * at["photo"]
    return {
        "network": at["network"] / per_core,
        "disk": at["disk"] / per_core,
        "cores": 0.01 * at["peak"] / VIT_B32_FLOP / at["core"],
        "vectors": at["memory"] / (4 * DIM),  # float32 vectors that fit
    }


def mining(images: int, texts: int, dim: int, at: dict[str, float]) -> dict[str, float]:
    """Every image against every text."""
    flop = 2.0 * images * texts * dim
    vectors = 2.0 * dim * (images + texts)  # half precision
    # Blocks of images stay on the device, half of its memory, while all texts pass by.
    block = at["memory"] / 2 / (2 * dim)
    passes = -(-images // int(block))
    return {
        "flop": flop,
        "vectors": vectors,
        "lists": float(ROW_OF_LISTS) * (images * TOP_TEXTS + texts * TOP_IMAGES),
        "cpu": flop / at["cpu"] / HOUR,
        "gpu": flop / at["gpu"] / HOUR,
        "bound": flop / at["peak"] / HOUR,
        "passes": float(passes),
        "sent": 2.0 * dim * (images + texts * passes),
        "network": 2.0 * dim * (images + texts * passes) / at["network"] / HOUR,
    }


def constants_part(found: dict[str, Constant]) -> str:
    rows = [(each.what, f"{_number(each.value)} {each.unit}", each.source) for each in found.values()]
    rows.append(("a forward pass of ViT-B/32", f"{VIT_B32_FLOP:.2g} FLOP", "4.4e9 multiply-adds at 224 pixels"))
    return table(("what", "number", "from"), rows)


def model_part(at: dict[str, float]) -> str:
    columns = ("photos", "files", "index", "FLOP of a ViT-B/32", "hours to read: 25 Gbit", "one NVMe disk")
    rows, hours = [], []
    for images in COLLECTIONS:
        one = collection(images, at)
        rows.append(
            (
                f"{images:,}",
                _bytes(one["files"]),
                _bytes(one["index"]),
                f"{one['flop']:.2g}",
                _number(one["network"]),
                _number(one["disk"]),
            )
        )
        hours.append(
            (
                f"{images:,}",
                _number(one["core"]),
                _number(one["core"] / 64),
                _number(one["core"] / 1024),
                _number(one["gpu"]),
            )
        )
    limits = saturates(at)
    return "\n\n".join(
        [
            table(columns, rows),
            table(
                ("hours to encode", "1 CPU core", "64 cores", "1,024 cores", "1 H200 at its peak, ViT-B/32 alone"),
                hours,
            ),
            f"**What saturates first: the processors.** {_number(limits['network'])} cores that encode use up 25 Gbit "
            f"Ethernet, and {_number(limits['disk'])} one NVMe disk; below that, more cores are more photos a second. "
            f"One H200 at 1 % of its peak encodes as many photos with a ViT-B/32 as {_number(limits['cores'])} cores "
            f"with quintet-small, so it waits for the cores that decode. {_number(limits['vectors'])} vectors of {DIM} "
            "float32 numbers fill the memory of an H200. Beyond it, and beyond the memory of one server, the index is "
            "a matter for Milvus or PostgreSQL over several machines.",
        ]
    )


def mining_part(at: dict[str, float]) -> str:
    one = mining(MINED_IMAGES, MINED_TEXTS, MINED_DIM, at)
    rows = [
        ("products", f"{one['flop']:.2g} FLOP"),
        ("vectors, half precision", _bytes(one["vectors"])),
        (f"top lists ({TOP_TEXTS} texts an image, {TOP_IMAGES} images a text)", _bytes(one["lists"])),
        ("hours of 2 CPU cores, as measured", _number(one["cpu"])),
        ("hours of one H200, as measured", _number(one["gpu"])),
        ("hours of one H200 at the peak of its datasheet", _number(one["bound"])),
        ("passes over the texts, half of the device's memory full of images", _number(one["passes"])),
        ("bytes sent to one device", _bytes(one["sent"])),
        ("hours to send them by 25 Gbit Ethernet", _number(one["network"])),
    ]
    return table(("", f"{MINED_IMAGES:,} images x {MINED_TEXTS:,} texts, d = {MINED_DIM}"), rows) + (
        f"\n\n**What saturates first: the device.** It is busy {_number(one['gpu'] / one['network'])} times as long as "
        "the network, so that many devices may share a line. As measured the top lists take most of its time, not the "
        f"products: {100 * one['bound'] / one['gpu']:.0f} % of the peak are reached."
    )


def measured_part() -> str:
    rows = []
    training = result("training_cpu.json")
    for row in training["rows"]:
        per_second = row["pairs_per_second"]
        rows.append(
            (
                f"training {row['matcher']}",
                "pairs",
                per_second["1"],
                per_second["2"],
                row["speedup"]["2"],
                "`training_cpu.json`",
            )
        )
    if (RESULTS / "ray_workers.json").is_file():
        found = result("ray_workers.json")
        one, two = (round(found["photos_per_second"][kind], 1) for kind in ("one_worker", "two_workers"))
        times = round(found["two_workers_of_one"], 2)
        rows.append(("encoding of `quintet index --ray`", "photos", one, two, times, "`ray_workers.json`"))
    return table(("what", "a second", "1 worker", "2 workers", "times", "from"), rows)


def _number(value: float) -> str:
    """
    >>> _number(2.7576e13), _number(6310.4), _number(0.0251)
    ('2.8e+13', '6,310', '0.025')
    """
    return f"{value:,.0f}" if 100 <= value < 1e9 else f"{value:.2g}"


def _bytes(count: float) -> str:
    """
    >>> _bytes(2048.0), _bytes(2.25e12), _bytes(2.25e15)
    ('2.0 kB', '2.2 TB', '2,250 TB')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:,.0f} {unit}" if count >= 100 * size else f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def written(text: str) -> str:
    found = constants()
    at = {name: each.value for name, each in found.items()}
    parts = {
        "measured": measured_part(),
        "constants": constants_part(found),
        "collections": model_part(at),
        "mining": mining_part(at),
    }
    for part, content in parts.items():
        text = fill(PAGE, text, part, content)
    return text


def main() -> None:
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
