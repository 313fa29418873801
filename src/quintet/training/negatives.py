"""The offline negatives of a stage: mined once, before its first step, by an earlier stage or a teacher."""

from __future__ import annotations

from pathlib import Path

import torch

from quintet import processes
from quintet.data.negatives import NegativeLists
from quintet.evaluation.evaluate import encode_split
from quintet.mining.mine import mine
from quintet.training.build import TrainingData
from quintet.training.logs import Display
from quintet.training.recipe import NegativesRecipe
from quintet.training.run import Run, open_run


def stage_negatives(
    recipe: NegativesRecipe,
    *,
    out: Path,
    stages: list[str],
    folder: Path,
    data: TrainingData,
    device: torch.device,
    display: Display,
) -> NegativeLists:
    """Open the lists in `folder`, or mine them first. A mining that was killed goes on where it was."""
    own = recipe.source in stages
    miner = open_run(out, stage=recipe.source, device=device) if own else open_run(recipe.source, device=device)
    lists = folder / "negatives"
    if not (lists / "manifest.json").is_file():
        counts = f"{len(data.train.images)} images and {len(data.train.texts)} texts"
        display.info(f"mining hard negatives of {counts} with {miner.name}")
        found = _mine(miner, recipe, folder / "mining", data, device)
        if processes.is_first():
            found.save(lists)
        processes.barrier()
    opened = NegativeLists.open(lists)
    opened.check(data.train, miner.weights_checksum)
    return opened


def _mine(
    miner: Run, recipe: NegativesRecipe, journal: Path, data: TrainingData, device: torch.device
) -> NegativeLists:
    split = data.train
    images, texts = encode_split(
        miner.matcher,
        miner.image_batches(data.corpus, split.images),
        miner.text_batches(split.texts),
        split,
        device,
        device,
    )
    options = recipe.model_dump(include={"top_texts", "top_images", "exclude_duplicates", "false_negative_margin"})
    source = {"name": miner.name, "weights": miner.weights_checksum}
    return mine(miner.matcher, images, texts, split, device=device, journal=journal, source=source, **options)
