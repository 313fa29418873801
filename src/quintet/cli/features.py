"""`quintet features`."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from quintet.cli.progress import work_bar
from quintet.errors import QuintetError

if TYPE_CHECKING:
    from quintet.features.extract import ExtractReport

SHOWN = 20  # skipped images that are printed; all are in skipped.json


class Dtype(StrEnum):
    FLOAT16 = "float16"
    FLOAT32 = "float32"


class Crop(StrEnum):
    SQUEEZE = "squeeze"
    CENTER = "center"


def features_command(
    corpus: Path = typer.Argument(..., help="A corpus folder, as `quintet data import` makes it."),
    backbone: str = typer.Option(
        "efficientnet-lite0",
        help="Image tower: efficientnet-lite0/1/2, resnet18/50/152, resnet50-v1, vgg19, hf:FOLDER_OR_NAME, timm:NAME; "
        "A+B for two of them, their channels side by side.",
    ),
    weights: Path | None = typer.Option(
        None, help="Its weights (.pth, .safetensors); efficientnet-lite0, hf: and timm: bring their own."
    ),
    name: str | None = typer.Option(None, help="The folder under CORPUS/features; the backbone's name unless given."),
    grid: str = typer.Option("6", help="Cells an image is cut into: 6 for 6 x 6, or 4x8 for 4 rows of 8."),
    crop: Crop = typer.Option(
        Crop.SQUEEZE, help="squeeze: the whole image, its aspect changed; center: the middle, the edges lost."
    ),
    batch_size: int = typer.Option(16, min=1, help="Images the tower sees at once; a GPU likes more."),
    dtype: Dtype = typer.Option(Dtype.FLOAT16, help="How features are kept; float16 takes half the room."),
    device: str = typer.Option("auto", help="cpu, cuda, cuda:1 ...; auto takes a GPU where there is one."),
    workers: int = typer.Option(4, min=1, help="Threads that decode images."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace features made with other settings."),
    as_json: bool = typer.Option(False, "--json", help="Print a report as JSON and nothing else."),
) -> None:
    """Compute what a pretrained image tower sees in each image, once, for training to read from disk.

    `quintet features corpora/flickr8k` writes `corpora/flickr8k/features/efficientnet-lite0`: for every image a grid
    of 6 x 6 cells, each with a feature vector and its box.

    Stopped or killed, the same command goes on where it was. Damaged images are listed and left out.
    """
    from quintet.data.corpus import Corpus
    from quintet.features.extract import extract_features

    console = Console(stderr=True, quiet=as_json)
    with work_bar(console, backbone, "pictures") as progress:
        report = extract_features(
            Corpus.open(corpus),
            backbone,
            name=name,
            weights=weights,
            grid=_grid(grid),
            crop=crop.value,
            batch_size=batch_size,
            dtype=dtype.value,
            device=device,
            workers=workers,
            overwrite=overwrite,
            progress=progress,
        )
    if as_json:
        print(json.dumps(_as_json(report), ensure_ascii=False))
    else:
        _print(report, console)


def _grid(text: str) -> tuple[int, int]:
    """
    >>> _grid("6"), _grid("4x8")
    ((6, 6), (4, 8))
    """
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.strip().isdecimal() and 1 <= int(side) <= 64 for side in sides):
        raise QuintetError(f"--grid {text!r}: write 6 for 6 x 6 cells, or 4x8 for 4 rows of 8; at most 64 a side")
    rows, columns = int(sides[0]), int(sides[-1])
    return rows, columns


def _as_json(report: ExtractReport) -> dict[str, object]:
    return {
        "folder": str(report.folder),
        "pictures": report.images,
        "written": report.written,
        "resumed": report.resumed,
        "seconds": round(report.seconds, 3),
        "per_second": round(report.per_second, 2),
        "skipped": [{"id": entry.id, "reason": entry.reason} for entry in report.skipped],
    }


def _print(report: ExtractReport, console: Console) -> None:
    done = report.images - report.resumed
    for entry in report.skipped[:SHOWN]:
        console.print(f"skipped {entry.id}: {entry.reason}", markup=False, highlight=False, soft_wrap=True)
    if len(report.skipped) > SHOWN:
        console.print(
            f"... and {len(report.skipped) - SHOWN} more, see {report.folder / 'skipped.json'}", highlight=False
        )
    if not done:
        console.print(
            f"{report.folder} was complete already; --overwrite makes it anew", highlight=False, soft_wrap=True
        )
        return
    resumed = f", {report.resumed} were done before" if report.resumed else ""
    console.print(
        f"{report.folder}: features of {report.written} images, {len(report.skipped)} skipped{resumed}; "
        f"{report.per_second:.1f} images/s",
        highlight=False,
        soft_wrap=True,
    )
