"""Photographs from elsewhere: does a person's query find the right one among others?

    python -m benchmarks.measure.public_photos quintet-small --corpus corpora/flickr8k --stamps STAMPS --debian UNPACKED

Three sets that had no part in training. Two were looked at when the weight of class names, their number and their
temperature were chosen, so their figures are a little too good: the photographs that come inside packages on PyPI, with
the queries of benchmarks/public_photos.json, and the photographs among Tux Paint's stamps (Debian's
tuxpaint-stamps-default, cut out on white), asked for by their English labels. The third was kept aside until the model
was done: photographs inside packages of Debian 12, with the queries of benchmarks/kept_aside_photos.json
(`apt-get download PACKAGE`, then `dpkg -x FILE UNPACKED`). It is asked twice, among themselves and among the others.

The others are the photographs of the corpus's test split. A rank counts the photographs that score at least as high as
the best right one. Writes benchmarks/results/public_photos.json.
"""

from __future__ import annotations

import argparse
import io
import json
import struct
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from quintet.codes import Codes
from quintet.data.corpus import Corpus
from quintet.evaluation.result import provenance
from quintet.files import write_json
from quintet.runs.run import Run, load

BENCHMARKS = Path(__file__).resolve().parents[1]
NOT_PHOTOGRAPHS = ("cartoon", "symbols", "toys", "chess", "roadsigns", "flags", "planets", "military", "seasonal")
LONGEST_LABEL = 60
SMALLEST_FILE, SMALLEST_SIDE = 2_000, 200  # bytes and pixels of a photograph in a resource file
Photo = Path | io.BytesIO
Asked = tuple[Photo, list[str]]  # a photograph and its queries


def packaged_photos() -> list[tuple[Path, list[str]]]:
    """Those whose package is installed."""
    rows = json.loads((BENCHMARKS / "public_photos.json").read_text(encoding="utf-8"))["photos"]
    found = [(_packaged(row["file"]), row["queries"]) for row in rows]
    return [(path, queries) for path, queries in found if path is not None]


def _packaged(file: str) -> Path | None:
    top, _, rest = file.partition("/")
    if top == "share":
        path = Path(sys.prefix) / file
    else:
        spec = find_spec(top)
        if spec is None or not spec.submodule_search_locations:
            return None
        path = Path(spec.submodule_search_locations[0]) / rest
    return path if path.is_file() else None


def stamps(folder: Path) -> Iterator[Asked]:
    for path in sorted(folder.rglob("*.png")):
        name = path.relative_to(folder).as_posix()
        label = path.with_suffix(".txt")
        if any(word in name for word in NOT_PHOTOGRAPHS) or not label.is_file():
            continue
        text = label.read_text(encoding="utf-8", errors="replace").splitlines()[0].strip(" .!")
        if 0 < len(text) < LONGEST_LABEL:
            yield path, [text]


def kept_aside(unpacked: Path) -> list[Asked]:
    """Those of Debian's packages, which are unpacked in this folder."""
    rows = json.loads((BENCHMARKS / "kept_aside_photos.json").read_text(encoding="utf-8"))["photos"]
    return [(_in_debian(unpacked, row["file"]), row["queries"]) for row in rows]


def _in_debian(unpacked: Path, file: str) -> Photo:
    path, _, place = file.partition("#")
    return io.BytesIO(pictures((unpacked / path).read_bytes())[int(place)]) if place else unpacked / path


def pictures(resources: bytes) -> list[bytes]:
    """The JPEG and WebP images of at least 200 pixels in a Qt resource file: four bytes of length stand before each."""
    found, at = [], 0
    while True:
        starts = [start for mark in (b"\xff\xd8\xff", b"RIFF") if (start := resources.find(mark, at)) >= 4]
        if not starts:
            return found
        start = min(starts)
        (length,) = struct.unpack(">I", resources[start - 4 : start])
        at, data = start + 3, resources[start : start + length]
        if length < SMALLEST_FILE or len(data) < length:
            continue
        try:
            with Image.open(io.BytesIO(data)) as image:
                image.load()
        except OSError:
            continue
        at = start + length
        if min(image.size) >= SMALLEST_SIDE:
            found.append(data)


def on_white(photo: Photo) -> Image.Image:
    image = Image.open(photo).convert("RGBA")
    white = Image.new("RGBA", image.size, "white")
    white.alpha_composite(image)
    return white.convert("RGB")


def ranks(run: Run, photos: Sequence[Asked], others: Codes | None = None) -> dict[str, int]:
    """Of each query, how many photographs score at least as high as the best right one."""
    images = run.encode_images([on_white(photo) for photo, _ in photos])
    if others is not None:
        images = Codes.cat([images, others])
    right: dict[str, list[int]] = {}
    for row, (_, queries) in enumerate(photos):
        for query in queries:
            right.setdefault(query, []).append(row)
    scores = run.score(images, run.encode_texts(list(right))).numpy()  # (images, queries)
    found = {}
    for column, (query, rows) in zip(scores.T, right.items(), strict=True):
        best = column[rows].max()
        found[query] = int((np.delete(column, rows) >= best).sum())
    return found


def recalls(found: dict[str, int]) -> dict[str, float]:
    values = np.array(list(found.values()))
    return {"queries": len(values)} | {f"r{k}": round(100 * float((values < k).mean()), 1) for k in (1, 5, 10)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--stamps", type=Path, help="the folder usr/share/tuxpaint/stamps of the package")
    parser.add_argument("--debian", type=Path, help="the folder in which the packages of kept_aside_photos.json lie")
    parser.add_argument("-o", "--out", type=Path, default=BENCHMARKS / "results" / "public_photos.json")
    options = parser.parse_args()
    run, corpus = load(options.run, device="cpu"), Corpus.open(options.corpus)
    others = run.encode_images([corpus.image_path(image) for image in corpus.split("test").images])
    packaged = packaged_photos()
    found = ranks(run, packaged, others)
    report: dict[str, Any] = {
        "run": run.name,
        "others": len(others),
        "packages": recalls(found) | {"photographs": len(packaged), "ranks": found},
    }
    if options.stamps is not None:
        stamped = list(stamps(options.stamps))
        report["stamps"] = {"photographs": len(stamped)} | recalls(ranks(run, stamped, others))
    if options.debian is not None:
        kept = kept_aside(options.debian)
        found = ranks(run, kept, others)
        report["kept_aside"] = {"photographs": len(kept)} | recalls(found) | {"ranks": found}
        report["kept_aside_alone"] = {"photographs": len(kept)} | recalls(ranks(run, kept))
    write_json(options.out, report | {"device": "CPU", "provenance": provenance()})
    print(json.dumps({key: value for key, value in report.items() if key != "provenance"}, indent=1))


if __name__ == "__main__":
    main()
