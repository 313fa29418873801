"""`quintet features`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from quintet.cli.options import (
    COMPUTE,
    OUTPUT,
    DeviceOption,
    JsonOption,
    RayGpusOption,
    RayOption,
    RayWorkersOption,
    WorkersOption,
)
from quintet.cli.progress import work_bar
from quintet.cli.resume import says_how_to_go_on
from quintet.cli.terminal import print_json

if TYPE_CHECKING:
    from quintet.features.extract import ExtractReport

SHOWN = 20  # skipped images to print; skipped.json has all


class Dtype(StrEnum):
    FLOAT16 = "float16"
    FLOAT32 = "float32"


class Crop(StrEnum):
    SQUEEZE = "squeeze"
    CENTER = "center"


def features_command(
    corpus: Annotated[Path, typer.Argument(metavar="CORPUS", help="Corpus folder, from `quintet data import`.")],
    backbone: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Image backbone: efficientnet-lite0, -lite1, -lite2, resnet18, resnet50, resnet152, "
            "resnet50-v1, vgg16, vgg19, hf:FOLDER_OR_NAME, timm:NAME; A+B concatenates the channels of two.",
        ),
    ] = "efficientnet-lite0",
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Weights of the backbone (.pth or .safetensors); efficientnet-lite0, hf: and timm: have their own.",
        ),
    ] = None,
    grid: Annotated[
        str, typer.Option(metavar="N|ROWSxCOLUMNS", help="Grid of each image: 6 for 6 x 6 cells, 4x8 for 4 rows of 8.")
    ] = "6",
    crop: Annotated[
        Crop,
        typer.Option(
            metavar="squeeze|center",
            help="squeeze: resize the whole image to a square; center: crop the middle square.",
        ),
    ] = Crop.SQUEEZE,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Output folder under CORPUS/features; default: the name of the backbone.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    dtype: Annotated[
        Dtype,
        typer.Option(metavar="float16|float32", help="Number format of the stored features.", rich_help_panel=OUTPUT),
    ] = Dtype.FLOAT16,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace features made with other settings.", rich_help_panel=OUTPUT),
    ] = False,
    as_json: JsonOption = False,
    batch_size: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Images per batch of the backbone.", rich_help_panel=COMPUTE),
    ] = 16,
    workers: WorkersOption = 4,
    device: DeviceOption = "auto",
    ray: RayOption = None,
    ray_workers: RayWorkersOption = None,
    ray_gpus: RayGpusOption = 0.0,
) -> None:
    """Extract image features with a pretrained backbone, for training.

    `quintet features corpora/flickr8k` writes `corpora/flickr8k/features/efficientnet-lite0`: for each image a grid of
    6 x 6 cells, each with a feature vector and its box.

    An extraction that was stopped is continued by the same command. Damaged images are listed and left out.
    """
    from quintet.data.corpus import Corpus

    opened = Corpus.open(corpus)

    from quintet.features.extract import extract_features

    console = Console(stderr=True, quiet=as_json)
    with says_how_to_go_on(console), work_bar(console, backbone, "images") as progress:
        report = extract_features(
            opened,
            backbone,
            name=name,
            weights=weights,
            grid=grid,
            crop=crop.value,
            batch_size=batch_size,
            dtype=dtype.value,
            device=device,
            workers=workers,
            overwrite=overwrite,
            progress=progress,
            ray=ray,
            ray_workers=ray_workers,
            ray_gpus=ray_gpus,
        )
    if as_json:
        print_json(_as_json(report))
    else:
        _print(report, console)


def _as_json(report: ExtractReport) -> dict[str, object]:
    return {
        "folder": str(report.folder),
        "images": report.images,
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
            f"... and {len(report.skipped) - SHOWN} more, see {report.folder / 'skipped.json'}",
            highlight=False,
            markup=False,
        )
    if not done:
        said = f"{report.folder} is complete; --overwrite extracts it again"
        console.print(said, markup=False, highlight=False, soft_wrap=True)
        return
    resumed = f", {report.resumed} of them from an earlier run" if report.resumed else ""
    console.print(
        f"{report.folder}: features of {report.written} images, {len(report.skipped)} skipped{resumed}; "
        f"{report.per_second:.1f} images/s",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
