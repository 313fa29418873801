"""The same images and captions in several layouts, for the tests of imports."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from PIL import Image

SPLITS = {"train": (0, 4), "val": (4, 6)}  # the numbers of their images
STRUCT = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])


def jpeg(number: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (40 * number % 256, 0, 90)).save(buffer, "JPEG")
    return buffer.getvalue()


def captions(number: int) -> list[str]:
    return [f"Caption {at} of image {number}." for at in range(2 + number % 2)]


def caption_id(number: int, at: int) -> int:
    return 100 * number + at


def write_parquet(path: Path, columns: dict[str, Any], group: int | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=group)
    return path


def images(numbers: range) -> pyarrow.Array:
    return pyarrow.array([{"bytes": jpeg(number), "path": f"{number}.jpg"} for number in numbers], STRUCT)


def as_parquet(folder: Path, group: int | None = None) -> Path:
    for split, numbers in SPLITS.items():
        rows = range(*numbers)
        write_parquet(
            folder / f"{split}-00000-of-00001.parquet",
            {
                "image": images(rows),
                "sentences": [
                    [{"raw": text, "sentid": caption_id(n, at)} for at, text in enumerate(captions(n))] for n in rows
                ],
                "cocoid": [10 + number for number in rows],
            },
            group,
        )
    return folder


def as_shards(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, numbers in SPLITS.items():
        with tarfile.open(folder / f"{split}-000.tar", "w") as tar:
            for number in range(*numbers):
                for suffix, data in (("jpg", jpeg(number)), ("txt", "\n".join(captions(number)).encode())):
                    member = tarfile.TarInfo(f"{10 + number}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return folder


def as_coco(folder: Path, year: int = 2017) -> Path:
    (folder / "annotations").mkdir(parents=True)
    for split, numbers in SPLITS.items():
        (folder / f"{split}{year}").mkdir()
        rows = range(*numbers)
        for number in rows:
            (folder / f"{split}{year}" / f"{number:012d}.jpg").write_bytes(jpeg(number))
        content = {
            "images": [{"id": 10 + number, "file_name": f"{number:012d}.jpg"} for number in rows],
            "annotations": [
                {"id": caption_id(number, at), "image_id": 10 + number, "caption": text}
                for at in range(3)  # as in COCO's files, the captions of an image are not beside each other
                for number in rows
                for text in captions(number)[at : at + 1]
            ],
        }
        (folder / "annotations" / f"captions_{split}{year}.json").write_text(json.dumps(content))
    return folder
