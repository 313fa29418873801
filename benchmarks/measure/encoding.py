"""Images per second when an index is built, against the bare image tower on prepared pixels.

    python -m benchmarks.measure.encoding                                   # efficientnet-lite0, generated photographs
    python -m benchmarks.measure.encoding --images ~/Images --device cuda --batch-size 128

The index reads files, hashes, decodes, resizes, runs the tower and a matcher on its features, and writes codes and the
table of items. The bare tower runs alone on a tensor. Both run on the same device with the same batch size, in one run.
Writes benchmarks/results/encoding_DEVICE.json.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from quintet.backbones.extractor import FeatureExtractor
from quintet.data.vocabulary import WordVocabulary
from quintet.evaluation.result import provenance
from quintet.files import write_json
from quintet.models import create_model
from quintet.runs.checkpoint import write_run
from quintet.runs.devices import pick_device
from quintet.search.indexing import build_index

RESULTS = Path(__file__).parents[1] / "results"
PHOTOGRAPH = (1024, 768)  # pixels of a generated image


def generate(folder: Path, count: int) -> None:
    """JPEGs of smooth noise: they take as long to decode as photographs of their size."""
    chance = np.random.default_rng(0)
    for number in range(count):
        small = Image.fromarray(chance.integers(0, 256, (96, 128, 3), dtype=np.uint8))
        small.resize(PHOTOGRAPH, Image.Resampling.BICUBIC).save(folder / f"{number:05}.jpg", quality=90)


def make_run(folder: Path, tower: str) -> None:
    """An untrained VSE++ on features of the tower: time does not depend on training."""
    extractor = FeatureExtractor.create(tower)
    vocabulary = WordVocabulary.build(["a dog"], min_count=1)
    sizes = {"image_dim": extractor.dim, "vocabulary_size": len(vocabulary), "embed_dim": 1024}
    write_run(
        folder,
        name="benchmark",
        model={"name": "vse++", "arguments": sizes},
        state_dict=create_model("vse++", **sizes).state_dict(),
        tokenizer=vocabulary,
        image_input={"kind": "features", "name": tower, "tower": extractor.state()},
    )


def bare_tower(tower: str, device: str, batch_size: int, count: int) -> float:
    """Images a second of the tower alone."""
    extractor = FeatureExtractor.create(tower, device=device)
    pixels = torch.randn(batch_size, 3, *extractor.preprocess.size, device=extractor.device)
    extractor.features(pixels)  # warm up
    batches = max(1, count // batch_size)
    began = time.perf_counter()
    for _ in range(batches):
        extractor.features(pixels)
    return batches * batch_size / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tower", default="efficientnet-lite0")
    parser.add_argument("--images", type=Path, help="a folder of your own instead of generated ones")
    parser.add_argument("--count", type=int, default=400, help="generated images")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = str(pick_device(arguments.device))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images = arguments.images
        if images is None:
            images = folder / "images"
            images.mkdir()
            generate(images, arguments.count)
        make_run(folder / "run", arguments.tower)
        options: dict[str, Any] = {"device": device, "batch_size": arguments.batch_size, "workers": arguments.workers}
        report = build_index(folder / "run", [images], folder / "index", **options)
    bare = bare_tower(arguments.tower, device, arguments.batch_size, report.encoded)
    ours = report.encoded / report.seconds
    found = {
        "benchmark": "encoding",
        "tower": arguments.tower,
        "images": report.encoded,
        "generated": arguments.images is None,
        "image_size": PHOTOGRAPH if arguments.images is None else None,
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else "cpu",
        "batch_size": arguments.batch_size,
        "workers": arguments.workers,
        "index_images_per_second": ours,
        "bare_tower_images_per_second": bare,
        "share_of_bare_tower": ours / bare,
        "provenance": provenance(),
    }
    print(f"index {ours:.1f} images/s, bare tower {bare:.1f} images/s: {100 * ours / bare:.0f} %")
    write_json(arguments.out or RESULTS / f"encoding_{device.partition(':')[0]}.json", found)


if __name__ == "__main__":
    main()
