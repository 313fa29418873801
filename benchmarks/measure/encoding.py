"""Photos per second when an index is built, against the bare image tower on prepared tensors.

    python -m benchmarks.measure.encoding                                   # 200 JPEGs of 12 megapixels, quintet-small
    python -m benchmarks.measure.encoding --size 1024x768 --count 400 --out benchmarks/results/encoding_1mp_cpu.json
    python -m benchmarks.measure.encoding --images ~/Images --device cuda --batch-size 128

The index reads files, hashes, decodes, reads EXIF data, resizes, runs tower and heads, and writes codes and the
table of items. The bare tower runs alone, on a tensor, with the threads of torch. Both take turns as often as
`--rounds` says; medians count, and the share is the median of the rounds' shares. Writes
benchmarks/results/encoding_DEVICE.json.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import ExifTags, Image

from quintet.backbones.extractor import FeatureExtractor
from quintet.evaluation.result import provenance
from quintet.files import write_json
from quintet.runs.devices import pick_device
from quintet.runs.run import load
from quintet.search.indexing import build_index

RESULTS = Path(__file__).parents[1] / "results"
TWELVE_MEGAPIXELS = (4032, 3024)
# Noise of each width with its strength: photographs have the more detail, the coarser it is. Strengths were chosen so
# that a JPEG of 12 megapixels has about 2.5 MB, as phones write them.
OCTAVES = ((8, 60), (32, 40), (128, 22), (512, 12), (2016, 7))
DRAWN = 8  # the others are these, shifted


def photographs(folder: Path, count: int, size: tuple[int, int], seed: int = 0) -> None:
    """JPEGs that take as long to decode as photographs of their size, with the EXIF data of a camera."""
    width, height = size
    chance = np.random.default_rng(seed)
    drawn = [_noise(chance, size) for _ in range(min(count, DRAWN))]
    for number in range(count):
        exif = Image.Exif()
        exif[ExifTags.Base.Make], exif[ExifTags.Base.Model] = "Camera", "One"
        exif[ExifTags.Base.DateTime] = f"{2000 + number % 25}:06:01 12:00:00"
        moved = np.roll(drawn[number % DRAWN], (chance.integers(height), chance.integers(width)), axis=(0, 1))
        Image.fromarray(moved).save(folder / f"{number:05}.jpg", quality=85, exif=exif)


def _noise(chance: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    """(height, width, 3) uint8."""
    total = np.full((size[1], size[0], 3), 128, np.float32)
    for wide, strength in OCTAVES:
        coarse = chance.normal(0, strength, (3, wide * 3 // 4, wide)).astype(np.float32)
        for channel, values in enumerate(coarse):
            total[..., channel] += np.asarray(Image.fromarray(values).resize(size, Image.Resampling.BICUBIC))
    return total.clip(0, 255).astype(np.uint8)


def bare_tower(extractor: FeatureExtractor, batch_size: int, count: int) -> float:
    """Images a second of the tower alone."""
    pixels = torch.randn(batch_size, 3, *extractor.preprocess.size, device=extractor.device)
    extractor.features(pixels)  # warm up
    batches = max(1, count // batch_size)
    began = time.perf_counter()
    for _ in range(batches):
        extractor.features(pixels)
    return batches * batch_size / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", default="quintet-small", help="a run on features of a tower")
    parser.add_argument("--images", type=Path, help="a folder of your own instead of generated photographs")
    parser.add_argument("--size", default="x".join(map(str, TWELVE_MEGAPIXELS)), help="of generated photographs")
    parser.add_argument("--count", type=int, default=200, help="generated photographs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = str(pick_device(arguments.device))
    width, height = map(int, arguments.size.split("x"))
    options: dict[str, Any] = {"device": device, "batch_size": arguments.batch_size, "workers": arguments.workers}
    run = load(arguments.run, device=device)
    assert isinstance(run.view, FeatureExtractor), f"{arguments.run} does not read features of a tower"
    rounds = []
    with tempfile.TemporaryDirectory() as name:
        folder, images = Path(name), arguments.images
        if images is None:
            images = folder / "images"
            images.mkdir()
            photographs(images, arguments.count, (width, height))
            print(f"{arguments.count} photographs", flush=True)
        sizes = [path.stat().st_size for path in images.rglob("*") if path.is_file()]
        for number in range(arguments.rounds):
            bare = bare_tower(run.view, arguments.batch_size, 4 * arguments.batch_size)
            report = build_index(run, images, folder / f"index-{number}", **options)
            ours = report.encoded / report.seconds
            rounds.append({"index": ours, "bare_tower": bare, "share": ours / bare, "load": os.getloadavg()[0]})
            print(f"index {ours:.1f} photos/s, bare tower {bare:.1f} images/s: {100 * ours / bare:.0f} %", flush=True)
    found = {
        "benchmark": "encoding",
        "run": run.name,
        "tower": run.view.name,
        "images": report.encoded,
        "generated": arguments.images is None,
        "seed": 0,
        "image_size": (width, height) if arguments.images is None else None,
        "mean_file_megabytes": float(np.mean(sizes)) / 1e6,
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else "cpu",
        "batch_size": arguments.batch_size,
        "workers": arguments.workers,
        "index_images_per_second": median(each["index"] for each in rounds),
        "bare_tower_images_per_second": median(each["bare_tower"] for each in rounds),
        "share_of_bare_tower": median(each["share"] for each in rounds),
        "wanted_share": 0.6,
        "rounds": rounds,
        "provenance": provenance(),
    }
    write_json(arguments.out or RESULTS / f"encoding_{device.partition(':')[0]}.json", found)


if __name__ == "__main__":
    main()
