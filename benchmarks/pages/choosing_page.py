"""The measured parts of docs/choosing.md, between their markers, from files under benchmarks/results.

python -m benchmarks.pages.choosing_page
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.pages.generated_part import fill
from benchmarks.pages.plain_table import table
from benchmarks.pages.results_claims import CLAIMS
from benchmarks.pages.results_compare import compare, pairs_of_grid, read_results
from quintet.files import read_json, write_text

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/results"
PAGE = ROOT / "docs/choosing.md"
# recipe of benchmarks/measure/accuracy_speed.py -> title, page, what an image and a text become
METHODS = {
    "heads-flickr8k matcher.text=hf:sentence-transformers/all-MiniLM-L6-v2": (
        "Heads over frozen towers", "heads", "a vector each",
    ),
    "aoq-vse-flickr8k": ("VSE++", "vse", "a vector each"),
    "aoq-vsrn-flickr8k": ("VSRN", "vsrn", "a vector each"),
    "hrem-fusion-flickr8k": ("HREM", "hrem", "a vector each"),
    "aoq-scan-flickr8k": ("SCAN", "scan", "regions and words"),
    "aoq-bfan-flickr8k": ("BFAN", "bfan", "regions and words"),
    "mmca-flickr8k": ("MMCA", "mmca", "a vector each, and the pair together"),
}  # fmt: skip


def methods() -> str:
    """Accuracy and the two costs of a search: encoding a text, and scoring it against every image."""
    found = read_json(RESULTS / "accuracy_speed_flickr8k_cpu.json")
    sizes = found["settings"]
    rows = []
    for row in sorted((row for row in found["rows"] if row["recipe"] in METHODS), key=_rsum, reverse=True):
        title, page, kind = METHODS[row["recipe"]]
        text = 1000 * row["encode_texts_seconds"] / sizes["texts"]
        thousand = 1000 * row["score_seconds"] / sizes["texts"] * (1000 / sizes["images"])
        score = f"{thousand:.2f}" if thousand < 0.1 else f"{thousand:.1f}"
        rows.append((f"[{title}](methods/{page}.md)", kind, f"{_rsum(row):.1f}", f"{text:.1f}", score))
    columns = ("method", "an image and a text become", "rsum", "a text, ms", "scores of a text and 1,000 images, ms")
    threads = found["provenance"]["machine"]["threads"]
    return (
        f"{table(columns, rows)}\n\nFlickr8k, features of a frozen image tower; rsum is the mean over seeds, at "
        f"most 600, without mined negatives. Times: {threads} processor cores, batches of a whole split "
        f"({sizes['images']:,} images, {sizes['texts']:,} texts), "
        "`benchmarks/results/accuracy_speed_flickr8k_cpu.json`."
    )


def _rsum(row: dict[str, Any]) -> float:
    """The mean over the seeds that are measured today."""
    name = row["accuracy"]["files"][0].partition("-seed")[0]
    files = (RESULTS / "flickr8k").glob(f"{name}-seed*.json")
    return statistics.fmean(read_json(file)["metrics"]["rsum"] for file in files)


def second_stage() -> str:
    """What re-ranking gains and costs."""
    quality = read_json(RESULTS / "rerank_quality.json")
    rows = [
        (one["candidates"] or "none", *(f"{one[key]:.1f}" for key in ("r1", "r5", "r10")), f"{one['p50_ms']:.1f}")
        for one in quality["depths"]
    ]
    columns = ("re-ranked", "R@1", "R@5", "R@10", "a search, ms")
    names = " and ".join(run["matcher"].upper() for run in quality["index"]["runs"])
    return (
        f"{table(columns, rows)}\n\n{quality['depths'][0]['queries']} texts of {quality['corpus']}, {names}, two "
        "processor cores (`benchmarks/results/rerank_quality.json`)."
    )


def clip() -> str:
    """What an image and a text cost with CLIP."""
    found = read_json(RESULTS / "clip_encoding_cpu.json")
    items = found["batch_size"] * found["batches"]
    image, text = (1000 * found["results"][key]["seconds"]["ours"] / items for key in ("pixels", "token_ids"))
    small = read_json(RESULTS / "encoding_cpu.json")
    width, height = small["image_size"]
    return (
        f"A CLIP ViT-B/32 needs {image:.0f} ms for an image and {text:.0f} ms for a text on {found['threads']} "
        "processor cores, without decoding (`benchmarks/results/clip_encoding_cpu.json`). `quintet-small` indexes "
        f"{small['index_images_per_second']:.0f} photos of {width} x {height} pixels a second on two, decoding "
        "included (`benchmarks/results/encoding_cpu.json`)."
    )


def mined() -> str:
    """Whether mined negatives help a contrastive model, as far as it is measured."""
    from benchmarks.grids.catalogue import grid_rows

    rows, results = grid_rows("clip"), read_results(RESULTS / "clip")
    done = sum(row.seed in results.get(row.name, {}) for row in rows)
    if not done:
        return "Not measured yet ([the page](results-clip.md))."
    lines = []
    for claim in CLAIMS:
        if pairs := pairs_of_grid(rows, claim.pairs):
            mean, above, *_, verdict = compare(results, pairs, claim.by_overlap).cells()
            lines.append((claim.title, mean, above, verdict))
    shown = table(("claim", "difference in rsum", "above 0", "verdict"), lines)
    return f"{shown}\n\n{done} of {len(rows)} rows of the grid are measured; [all numbers](results-clip.md)."


PARTS: dict[str, Callable[[], str]] = {"methods": methods, "second-stage": second_stage, "clip": clip, "mined": mined}


def page(text: str) -> str:
    for part, content in PARTS.items():
        text = fill(PAGE, text, part, content())
    return text


if __name__ == "__main__":
    write_text(PAGE, page(PAGE.read_text(encoding="utf-8")))
