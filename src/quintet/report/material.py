"""What a report measures of its runs and ensembles: metrics, human agreement, speed, special samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from quintet.data.corpus import Corpus, Split
from quintet.evaluation.evaluator import evaluate_members
from quintet.evaluation.human_agreement import (
    Agreement,
    human_agreement,
    judged_pairs,
    pair_scores,
    read_expert_annotations,
)
from quintet.evaluation.result import Result
from quintet.evaluation.scoring import blocks_of, member_scores
from quintet.evaluation.special_samples import negative_means, special_samples
from quintet.report.analysis import Options, Subject
from quintet.report.analysis.speed import pairs_per_second


@dataclass(frozen=True)
class Settings:
    """Settings of a report."""

    title: str = "Retrieval report"
    photographs: bool = False  # show images and texts of the corpus on the page
    annotations: Path | None = None  # Flickr8k's ExpertAnnotations.txt
    bootstrap: int = 1_000
    examples: int = 6  # queries in each gallery
    analysis: Options = field(default_factory=Options)


@dataclass(frozen=True)
class Material:
    """Runs, ensembles of them and settings; each quantity is measured once, when first asked for."""

    subjects: Sequence[Subject]  # single models
    ensembles: Mapping[str, Sequence[Subject]]
    settings: Settings

    @property
    def first(self) -> Subject:
        return self.subjects[0]

    @property
    def corpus(self) -> Corpus:
        return self.first.corpus

    @property
    def split(self) -> Split:
        return self.first.split

    @cached_property
    def single_results(self) -> dict[str, Result]:
        return {subject.label: self._evaluate([subject]) for subject in self.subjects}

    @cached_property
    def ensemble_results(self) -> dict[str, Result]:
        return {name: self._evaluate(team) for name, team in self.ensembles.items()}

    def _evaluate(self, team: Sequence[Subject]) -> Result:
        members = [subject.member for subject in team]
        options = self.settings.analysis
        return evaluate_members(
            members, self.split, block=options.block, bootstrap=self.settings.bootstrap, seed=options.seed,
            device=self.first.device,
        )  # fmt: skip

    @cached_property
    def agreements(self) -> dict[str, Agreement]:
        """Agreement with human judgements by name of run or ensemble; empty without annotations."""
        if self.settings.annotations is None:
            return {}
        pairs = judged_pairs(read_expert_annotations(self.settings.annotations), self.split)
        teams = {subject.label: [subject] for subject in self.subjects} | dict(self.ensembles)
        return {
            name: human_agreement(
                pair_scores([subject.member for subject in team], pairs, self.first.device), pairs,
                self.settings.bootstrap, self.settings.analysis.seed,
            )
            for name, team in teams.items()
        }  # fmt: skip

    @cached_property
    def speeds(self) -> dict[str, float]:
        """Pairs per second that each run scores, from codes that are already computed."""
        return {subject.label: pairs_per_second(subject.member, subject.device) for subject in self.subjects}

    @cached_property
    def special(self) -> list[dict[str, Any]]:
        """R@1 of hard and infrequent queries, chosen by the first run."""
        scores = member_scores([self.first.member], self.first.device)
        block = blocks_of([self.first.member], self.settings.analysis.block, self.first.device)
        means = negative_means(scores, self.split.image_groups, self.split.text_groups, block)
        return special_samples({subject.label: subject.ranks for subject in self.subjects}, *means)
