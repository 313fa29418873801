"""Encoding with the matcher `clip` against bare transformers: the same model, batches and precision, in turn.

    python -m benchmarks.measure.clip_encoding --threads 2
    python -m benchmarks.measure.clip_encoding --device cuda --batches 50

The model has the sizes of CLIP ViT-B/32 and random weights: time does not depend on training. Four comparisons:
prepared pixels, prepared token ids, image files from disk (bare: the model's own processor, then the model), and
strings (bare: the model's own tokenizer, then the model). Each is repeated, ours and bare in turn, and who begins
changes with every turn. A share is the median over the turns of bare time over ours: of elapsed time, and of the CPU
time of this process, which other programs on the machine disturb least.
Writes benchmarks/results/clip_encoding_DEVICE.json.
"""

from __future__ import annotations

import argparse
import os
import string
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.measure.encoding import photographs
from quintet.data.batches import ImageBatch, TextBatch
from quintet.evaluation.result import provenance
from quintet.files import write_json
from quintet.runs.devices import pick_device
from quintet.runs.run import Run, load

RESULTS = Path(__file__).parents[1] / "results"
VOCABULARY = 49_408


def make_model(folder: Path) -> None:
    """Save a model of the sizes of CLIP ViT-B/32, with a small vocabulary of letters for its tokenizer."""
    letters = [*string.ascii_lowercase, *(f"{letter}</w>" for letter in string.ascii_lowercase)]
    pieces = [*letters, "<|startoftext|>", "<|endoftext|>"]
    tokenizer = transformers.CLIPTokenizer(
        vocab={piece: id_ for id_, piece in enumerate(pieces)}, merges=[], model_max_length=77
    )
    ends = {"bos_token_id": len(pieces) - 2, "eos_token_id": len(pieces) - 1, "pad_token_id": len(pieces) - 1}
    torch.manual_seed(0)
    config = transformers.CLIPConfig(text_config={"vocab_size": VOCABULARY, **ends}, vision_config={"patch_size": 32})
    transformers.CLIPModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    module = transformers.models.clip
    processor = getattr(module, "CLIPImageProcessorPil", None) or transformers.CLIPImageProcessor
    processor().save_pretrained(folder)


def captions(count: int, chance: np.random.Generator) -> list[str]:
    """Texts of 10 to 50 letters, each of which is a token."""
    letters = np.array([*string.ascii_lowercase])
    return ["".join(chance.choice(letters, chance.integers(10, 51))) for _ in range(count)]


def in_turn(ours: Callable[[], Any], bare: Callable[[], Any], repeats: int, device: torch.device) -> dict[str, Any]:
    """Median seconds of each, and the medians of what one turn after the other gives."""
    seconds: dict[str, list[tuple[float, float]]] = {"ours": [], "bare": []}
    ways = [("ours", ours), ("bare", bare)]
    for turn in range(repeats + 1):  # the first warms up
        for name, work in ways if turn % 2 else reversed(ways):
            elapsed, cpu = time.perf_counter(), time.process_time()
            work()
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds[name].append((time.perf_counter() - elapsed, time.process_time() - cpu))
    mine, theirs = np.array(seconds["ours"][1:]), np.array(seconds["bare"][1:])  # (turns, 2): elapsed, of the CPU
    share = np.median(theirs / mine, axis=0)
    medians = {"ours": np.median(mine, axis=0), "bare": np.median(theirs, axis=0)}
    return {
        "seconds": {name: float(value[0]) for name, value in medians.items()},
        "cpu_seconds": {name: float(value[1]) for name, value in medians.items()},
        "share_of_bare": float(share[0]),
        "share_of_bare_by_cpu_time": float(share[1]),
        "turns": {"ours": mine.tolist(), "bare": theirs.tolist()},
    }


def measure(run: Run, folder: Path, size: int, batches: int, repeats: int) -> dict[str, Any]:
    name, device = str(folder / "model"), run.device
    model: Any = transformers.CLIPModel.from_pretrained(name).to(device).eval()
    processor, tokenizer = (
        kind.from_pretrained(name) for kind in (transformers.AutoImageProcessor, transformers.AutoTokenizer)
    )
    chance = np.random.default_rng(0)
    pixels = [torch.randn(size, 3, 224, 224) for _ in range(batches)]
    strings = [captions(size, chance) for _ in range(batches)]
    prepared = [tokenizer(some, padding=True, return_tensors="pt") for some in strings]
    ids = [TextBatch(each.input_ids, each.attention_mask.sum(dim=1)) for each in prepared]
    files = sorted((folder / "images").iterdir())
    few = [files[start : start + size] for start in range(0, len(files), size)]

    def images_of(given: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for some in given:
                model.get_image_features(pixel_values=some.to(device))

    def texts_of(given: list[Any]) -> None:
        with torch.no_grad():
            for some in given:
                model.get_text_features(**some.to(device))

    def files_of() -> None:
        from transformers.image_utils import load_image

        for some in few:
            images_of([processor([load_image(str(path)) for path in some], return_tensors="pt").pixel_values])

    def full_length() -> None:
        for some in strings:
            texts_of([tokenizer(some, padding="max_length", return_tensors="pt")])

    return {
        "pixels": in_turn(
            lambda: run.encode_images([ImageBatch(pixels=some) for some in pixels]),
            lambda: images_of(pixels),
            repeats,
            device,
        ),
        "token_ids": in_turn(lambda: run.encode_texts(ids), lambda: texts_of(prepared), repeats, device),
        "image_files": in_turn(lambda: run.encode_images(files, batch_size=size), files_of, repeats, device),
        "strings_padded_to_77_by_transformers": in_turn(
            lambda: run.encode_texts([text for some in strings for text in some], batch_size=size),
            full_length,
            repeats,
            device,
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = pick_device(arguments.device)
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model")
        (folder / "images").mkdir()
        photographs(folder / "images", arguments.batch_size * arguments.batches, (1024, 768))
        run = load(f"hf:{folder / 'model'}", device=device)
        found = measure(run, folder, arguments.batch_size, arguments.batches, arguments.repeats)
    for kind, numbers in found.items():
        print(f"{kind}: {100 * numbers['share_of_bare_by_cpu_time']:.1f} % of bare transformers by CPU time")
    settings = {key: getattr(arguments, key) for key in ("threads", "batch_size", "batches", "repeats")}
    content = {
        "benchmark": "clip_encoding",
        "model": "CLIP ViT-B/32 with random weights, float32",
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        **settings,
        "load": os.getloadavg()[0],
        "transformers": transformers.__version__,
        "results": found,
        "provenance": provenance(),
    }
    write_json(arguments.out or RESULTS / f"clip_encoding_{device.type}.json", content)


if __name__ == "__main__":
    main()
