"""The offline negatives of a stage: mined once, before its first step, by an earlier stage or a teacher."""

from __future__ import annotations

from pathlib import Path

import torch

from quintet.data.negatives import NegativeLists
from quintet.mining.run import mine_run
from quintet.training.build import TrainingData
from quintet.training.logs import Display
from quintet.training.recipe_models import NegativesRecipe
from quintet.training.run import open_run


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
    counts = f"{len(data.train.images)} images and {len(data.train.texts)} texts"
    display.info(f"hard negatives of {counts}, mined with {miner.name}")
    lists = mine_run(miner, data.corpus, data.train, folder / "negatives", device=device, **recipe.mining())
    lists.check(data.train, miner.weights_checksum)
    return lists
