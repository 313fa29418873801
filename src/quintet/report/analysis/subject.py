"""What is analysed: a trained run on a split. Each quantity is computed once, when first asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from quintet.codes import Codes
from quintet.data.corpus import Corpus, Split
from quintet.errors import QuintetError
from quintet.evaluation.evaluator import encode_split
from quintet.evaluation.ranks import BLOCK, Ranks, count_ranks
from quintet.evaluation.scoring import Member, member_scores, whole_tiles
from quintet.runs.run import Run, open_run
from quintet.runs.run_folder import locate

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Options:
    """How an analysis looks at its subjects; none of them changes what was trained."""

    seed: int = 0  # of everything that is drawn at random
    bins: int = 200  # of the similarity distributions
    images: int = 100  # in the correlation map
    samples: int = 200  # right pairs whose words are removed one by one
    examples: int = 6  # texts that are drawn
    batch_size: int = 128  # of the batches whose online negatives are ranked
    batches: int = 50  # how many of these
    block: int = 1024  # images and texts scored at a time


@dataclass(frozen=True)
class Finding:
    """Numbers as JSON values, and figures by the name of their file."""

    numbers: dict[str, Any]
    figures: dict[str, Figure] = field(default_factory=dict)


class Subject:
    """A run (or a stage of one), a split of a corpus, and what the run makes of it."""

    def __init__(
        self,
        run: Run,
        corpus: Corpus,
        split: Split,
        *,
        name: str,
        stage: str | None = None,
        device: torch.device,
        batch_size: int = 128,
    ) -> None:
        self.run, self.corpus, self.split = run, corpus, split
        self.name, self.stage, self.device, self.batch_size = name, stage, device, batch_size

    @property
    def label(self) -> str:
        return self.name if self.stage is None else f"{self.name}, stage {self.stage}"

    @cached_property
    def member(self) -> Member:
        images = self.run.image_batches(self.corpus, self.split.images, self.batch_size)
        texts = self.run.text_batches(self.split.texts, self.batch_size)
        return Member(
            self.run.matcher, *encode_split(self.run.matcher, images, texts, self.split, self.device), name=self.label
        )

    @property
    def image_codes(self) -> Codes:
        return self.member.image_codes

    @cached_property
    def ranks(self) -> Ranks:
        """Of the whole split: every query against everything."""
        scores = member_scores([self.member], self.device)
        return count_ranks(scores, self.split.image_groups, self.split.text_groups, whole_tiles(BLOCK))


def open_subjects(
    runs: Sequence[Path], corpus: Corpus, split: str, *, device: torch.device, batch_size: int = 128
) -> list[Subject]:
    """The runs, or stages of runs, under names that tell them apart."""
    places = [locate(run) for run in runs]
    if len(set(places)) < len(places):
        raise QuintetError(f"a run is named twice: {', '.join(map(str, runs))}; name different runs or stages")
    opened = [open_run(folder, stage=stage, device=device) for folder, stage in places]
    chosen = corpus.split(split)
    names = distinct_names({folder: run.name for (folder, _), run in zip(places, opened, strict=True)})
    return [
        Subject(run, corpus, chosen, name=names[folder], stage=stage, device=device, batch_size=batch_size)
        for run, (folder, stage) in zip(opened, places, strict=True)
    ]


def distinct_names(names: Mapping[Path, str]) -> dict[Path, str]:
    """The names of runs; where they do not tell them apart the names of their folders, else the whole paths.

    >>> distinct_names({Path("runs/seed0"): "vse", Path("runs/seed1"): "vse"})
    {PosixPath('runs/seed0'): 'seed0', PosixPath('runs/seed1'): 'seed1'}
    """
    for named in (dict(names), {folder: folder.resolve().name for folder in names}):
        if len(set(named.values())) == len(named):
            return named
    return {folder: str(folder) for folder in names}
