"""Analyses of trained runs, one file each: its numbers, its figure, and the function that makes both for runs.

A new analysis is a file with a function `(subjects, options) -> Finding` and a line in `ANALYSES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from quintet.codes import Codes
from quintet.data.corpus import Corpus, Split
from quintet.errors import QuintetError
from quintet.evaluation.ranks import BLOCK, Ranks, count_ranks
from quintet.evaluation.result import provenance
from quintet.evaluation.scoring import Member, member_scores, whole_tiles
from quintet.files import check_output, json_text, output_text
from quintet.registry import Registry
from quintet.report.figures import save_figure
from quintet.runs.run import Run, load
from quintet.runs.run_folder import locate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HERE = "quintet.report.analysis."
ANALYSES = Registry(
    "analysis",
    {
        "distributions": _HERE + "distributions:distributions",
        "correlation": _HERE + "correlation:correlation",
        "attention": _HERE + "attention_maps:attention",
        "words": _HERE + "discriminative_words:words",
        "curves": _HERE + "training_curves:curves",
        "errors": _HERE + "training_curves:errors",
        "hardness": _HERE + "training_curves:hardness",
        "ranks": _HERE + "cross_retrieval:ranks",
        "negatives": _HERE + "hard_negatives:negatives",
        "mined": _HERE + "hard_negatives:mined",
        "timing": _HERE + "loss_timing:timing",
    },
)
OF_SCORES = ("distributions", "ranks", "negatives")  # what is analysed of ensembles, too
ONLY_ON_REQUEST = ("timing",)  # a benchmark: nothing else should run on the machine
FORMAT, VERSION = "quintet-analysis", 1


@dataclass(frozen=True)
class Options:
    """Settings of the analyses; none of them changes what was trained."""

    seed: int = 0  # of all random draws
    bins: int = 200  # of the similarity distributions
    images: int = 100  # in the correlation map
    samples: int = 200  # positive pairs whose words are removed one by one
    examples: int = 6  # texts that are drawn
    batch_size: int = 128  # of the batches whose online negatives are ranked
    batches: int = 50  # how many of these
    block: int = 1024  # images and texts scored at a time


@dataclass(frozen=True)
class Finding:
    """The result of an analysis: numbers as JSON values, and figures by file name."""

    numbers: dict[str, Any]
    figures: dict[str, Figure] = field(default_factory=dict)


class Subject:
    """A run (or a stage of one) on a split of a corpus; codes and ranks are computed once, when first asked for."""

    def __init__(
        self,
        run: Run,
        corpus: Corpus,
        split: Split,
        *,
        name: str,
        stage: str | None = None,
        batch_size: int = 128,
    ) -> None:
        self.run, self.corpus, self.split = run, corpus, split
        self.name, self.stage, self.batch_size = name, stage, batch_size

    @property
    def label(self) -> str:
        return self.name if self.stage is None else f"{self.name}, stage {self.stage}"

    @property
    def device(self) -> torch.device:
        return self.run.device

    @cached_property
    def member(self) -> Member:
        codes = self.run.encode_split(self.corpus, self.split, batch_size=self.batch_size)
        return Member(self.run.matcher, *codes, name=self.label)

    @property
    def members(self) -> list[Member]:
        return [self.member]

    @property
    def parts(self) -> list[Subject]:
        return [self]

    @property
    def image_codes(self) -> Codes:
        return self.member.image_codes

    @cached_property
    def ranks(self) -> Ranks:
        """Every query ranked against the whole split."""
        scores = member_scores(self.members, self.device)
        return count_ranks(scores, self.split.image_groups, self.split.text_groups, whole_tiles(BLOCK))


class Ensemble(Subject):
    """Runs whose scores are averaged, as one subject of the analyses in `OF_SCORES`. `run` is that of the first."""

    def __init__(self, parts: Sequence[Subject]) -> None:
        first = parts[0]
        name = " + ".join(one.label for one in parts)
        super().__init__(first.run, first.corpus, first.split, name=name, batch_size=first.batch_size)
        self._parts = list(parts)

    @property
    def members(self) -> list[Member]:
        return [one.member for one in self._parts]

    @property
    def parts(self) -> list[Subject]:
        return self._parts


def open_subjects(
    runs: Sequence[Path], corpus: Corpus, split: str, *, device: torch.device, batch_size: int = 128
) -> list[Subject]:
    """Open runs, or stages of runs, under names that tell them apart."""
    located = [locate(run) for run in runs]
    if len(set(located)) < len(located):
        raise QuintetError(f"a run is named twice: {', '.join(map(str, runs))}; name different runs or stages")
    opened = [load(folder, stage=stage, device=device) for folder, stage in located]
    chosen = corpus.split(split)
    names = distinct_names({folder: run.name for (folder, _), run in zip(located, opened, strict=True)})
    return [
        Subject(run, corpus, chosen, name=names[folder], stage=stage, batch_size=batch_size)
        for run, (folder, stage) in zip(opened, located, strict=True)
    ]


def distinct_names(names: Mapping[Path, str]) -> dict[Path, str]:
    """The names of runs; if two are equal, the names of their folders; if two of these are equal, the paths.

    >>> distinct_names({Path("runs/seed0"): "vse", Path("runs/seed1"): "vse"})
    {PosixPath('runs/seed0'): 'seed0', PosixPath('runs/seed1'): 'seed1'}
    """
    for named in (dict(names), {folder: folder.resolve().name for folder in names}):
        if len(set(named.values())) == len(named):
            return named
    return {folder: str(folder) for folder in names}


def analyse(
    subjects: Sequence[Subject],
    out: Path | str,
    kinds: Sequence[str] | None = None,
    *,
    options: Options | None = None,
    formats: Sequence[str] = ("svg",),
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Write OUT/KIND.json and the figures of each kind; return the contents of the JSON files by kind.

    Without `kinds`, every analysis that applies to these runs is made, and the others have a `reason` instead of
    numbers. Kinds that are named must apply.
    """
    chosen = list(dict.fromkeys(kinds)) if kinds else [name for name in ANALYSES.entries if name not in ONLY_ON_REQUEST]
    makers = {kind: ANALYSES.builder(kind) for kind in chosen}  # an unknown kind fails before anything is encoded
    for kind in makers:
        check_output(Path(out) / f"{kind}.json")
    found: dict[str, Any] = {}
    for kind, make in makers.items():
        if progress is not None:
            progress(kind)
        try:
            fitting = [one for one in subjects if kind in OF_SCORES or not isinstance(one, Ensemble)]
            finding = make(fitting, options or Options())
        except QuintetError as error:
            if kinds:
                raise
            found[kind] = {"reason": str(error)}
            continue
        found[kind] = _write(Path(out), kind, finding, subjects, formats)
    return found


def _write(
    out: Path, kind: str, finding: Finding, subjects: Sequence[Subject], formats: Sequence[str]
) -> dict[str, Any]:
    figures = [
        path.name for name, figure in finding.figures.items() for path in save_figure(figure, out / name, formats)
    ]
    split = subjects[0].split
    content = {
        "format": FORMAT,
        "version": VERSION,
        "kind": kind,
        "corpus": subjects[0].corpus.name,
        "split": split.name,
        "split_checksum": split.checksum,
        **finding.numbers,
        "figures": figures,
        "provenance": provenance()
        | {"runs": [{"name": one.label, "weights_sha256": one.run.weights_checksum} for one in _runs(subjects)]},
    }
    output_text(out / f"{kind}.json", json_text(content))
    return content


def _runs(subjects: Sequence[Subject]) -> list[Subject]:
    """The runs that are analysed, alone or in an ensemble, each once."""
    return list(dict.fromkeys(part for one in subjects for part in one.parts))
