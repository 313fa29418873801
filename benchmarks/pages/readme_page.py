"""The measured parts of README.md, between their markers, from files under benchmarks/results.

python -m benchmarks.pages.readme_page
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure.readme_tour import TOUR
from benchmarks.pages.generated_part import fill
from benchmarks.pages.plain_table import table
from benchmarks.pages.results_compare import read_results
from benchmarks.pages.results_tables import mean_rsum, with_spread
from quintet.files import read_json, write_text

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/results"
PAGE = ROOT / "README.md"
TOWER = "EfficientNet-Lite0"
WAYS = ("i2t", "t2i")
COLUMNS = ("method", "an image and a text become", "i2t R@1", "t2i R@1", "rsum")
# title, page, what an image and a text become, grid and row
METHODS = (
    ("Heads over frozen towers", "heads", "a vector each", "flickr8k", "heads"),
    ("VSE++", "vse", "a vector each", "flickr8k", "vse-avg-online"),
    ("VSE++ with AOQ", "aoq", "a vector each", "flickr8k", "vse-avg-adap-off-quin"),
    ("VSE-infinity", "vse", "a vector each, pooled by GPO", "flickr8k", "vse-gpo-online"),
    ("SCAN", "scan", "regions and words that attend to each other", "flickr8k", "scan-t2i-online"),
    ("SCAN with AOQ", "aoq", "regions and words that attend to each other", "flickr8k", "scan-t2i-adap-off-quin"),
    ("BFAN", "bfan", "regions and words that attend to each other", "flickr8k", "bfan-equal-online"),
    ("BFAN with AOQ", "aoq", "regions and words that attend to each other", "flickr8k", "bfan-equal-adap-off-quin"),
    ("VSRN", "vsrn", "a vector each, after reasoning among regions", "flickr8k", "vsrn-online"),
    ("MMCA", "mmca", "a vector each, and joint attention of the pair", "flickr8k", "mmca"),
    ("HREM", "hrem", "a vector each, trained with relations among the batch", "flickr8k", "hrem-fusion"),
    ("Dual-Path", "dual-path", "a vector each, trained with the instance loss", "small", "dual-path-full"),
)


def methods() -> str:
    """The table of methods, best first, and what it was measured on."""
    grids = {grid: read_results(RESULTS / grid) for grid in ("flickr8k", "small")}
    found = [(method, list(grids[method[3]][method[4]].values())) for method in METHODS]
    found.sort(key=lambda each: mean_rsum(each[1]), reverse=True)
    rows = []
    for (title, page, kind, _, _), seeds in found:
        contents = [result.content for result in seeds]
        assert {(content["tower"], content["kind"]) for content in contents} == {(TOWER, "single")}, title
        recalls = [f"{statistics.fmean(content['metrics'][f'{way}_r1'] for content in contents):.1f}" for way in WAYS]
        rows.append((f"[{title}](docs/methods/{page}.md)", kind, *recalls, with_spread(each.rsum for each in seeds)))
    first = found[0][1][0].content
    (seeds_each,) = {len(seeds) for _, seeds in found}
    images, texts = (first["counts"][key] for key in ("images", "texts"))
    shipped = read_json(RESULTS / "quintet-small.json")["metrics"]["rsum"]
    about = (
        f"Flickr8k, test split: {images:,} images, {texts:,} captions. Single models, mean and standard deviation over "
        f"{seeds_each} seeds, features of a frozen {TOWER}. i2t: the captions of an image are ranked. t2i: the image "
        "of a caption is ranked. rsum: the sum of R@1, R@5 and R@10 in both directions, at most 600; chance is "
        f"{first['chance']['rsum']:.1f}. quintet-small, heads over two towers with class names, has {shipped:.1f}."
    )
    return f"{table(COLUMNS, rows)}\n\n{about}"


def photos() -> str:
    measured = read_json(RESULTS / "encoding_cpu.json")
    rate = measured["index_images_per_second"]
    width, height = measured["image_size"]
    threads = measured["provenance"]["machine"]["threads"]
    search = read_json(RESULTS / "search.json")["sizes"][0]
    found = read_json(RESULTS / "public_photos.json")
    alone, among = found["kept_aside_alone"], found["kept_aside"]
    vectors, median = search["vectors"], search["index"]["p50_ms"]  # the benchmark's text encoder is a small one
    return (
        f"Indexing takes {10_000 / rate / 60:.0f} minutes for 10,000 photos on {threads} CPU cores "
        f"({rate:.0f} photos of {width} x {height} pixels a second). "
        f"Once a text is encoded, the best of {vectors:,} photos are found in {median:.1f} ms. "
        f"Of {alone['queries']} queries for {alone['photographs']} photos that had no part in training, "
        f"{alone['r10']:.0f} % find the right one among the first ten; {among['r10']:.0f} % with {found['others']:,} "
        "other photos added."
    )


def tour() -> str:
    """The commands that train and compare methods, each with its time."""
    measured = read_json(RESULTS / "readme_tour.json")
    width = max(map(len, TOUR))
    lines = [f"{command:{width}}  # {what}; {_time(measured['seconds'][command])}" for command, what in TOUR.items()]
    about = f"The times are those of {measured['cores']} idle CPU cores. A GPU is used where there is one."
    return "\n".join(("```", *lines, "```")) + f"\n\n{about}"


def _time(seconds: float) -> str:
    """As it is said: in tens of seconds, then in halves of minutes."""
    if seconds < 55:
        return f"{max(10 * round(seconds / 10), 10)} s"
    return f"{max(1, round(seconds / 30) / 2):g} min"


PARTS: dict[str, Callable[[], str]] = {"photos": photos, "tour": tour, "methods": methods}


def page(text: str) -> str:
    for part, content in PARTS.items():
        if part != "tour" or (RESULTS / "readme_tour.json").exists():  # else its times are not measured yet
            text = fill(PAGE, text, part, content())
    return text


if __name__ == "__main__":
    write_text(PAGE, page(PAGE.read_text(encoding="utf-8")))
