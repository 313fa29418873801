"""What `quintet evaluate --expert-annotations` measures and prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from quintet.data.corpus import Split
    from quintet.evaluation.human_agreement import Agreement
    from quintet.evaluation.scoring import Member


def agreements(
    annotations: Path,
    split: Split,
    teams: Mapping[str, Sequence[Member]],
    resamples: int,
    seed: int,
    device: torch.device,
) -> dict[str, Agreement]:
    """The agreement of each single model or ensemble with the experts."""
    from quintet.evaluation.human_agreement import human_agreement, judged_pairs, pair_scores, read_expert_annotations

    pairs = judged_pairs(read_expert_annotations(annotations), split)
    return {
        name: human_agreement(pair_scores(team, pairs, device), pairs, resamples, seed) for name, team in teams.items()
    }


def agreement_line(name: str, found: Agreement) -> str:
    """
    >>> from quintet.evaluation.human_agreement import Agreement
    >>> agreement_line("first", Agreement(0.4123, (0.39, 0.43), 5664, 16992, 158))
    'first: Kendall tau-c 0.412 (0.390 to 0.430) with 16,992 judgements of 5,664 pairs'
    """
    interval = "" if found.interval is None else f" ({found.interval[0]:.3f} to {found.interval[1]:.3f})"
    what = f"{found.judgements:,} judgements of {found.pairs:,} pairs"
    return f"{name}: Kendall tau-c {found.tau_c:.3f}{interval} with {what}"
