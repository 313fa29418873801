"""What `quintet evaluate --hard-samples` measures and prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from quintet.errors import QuintetError

if TYPE_CHECKING:
    import torch

    from quintet.data.corpus import Split
    from quintet.evaluation.result import Result
    from quintet.evaluation.scoring import Member


def hard_samples(
    results: Mapping[str, Result], teams: Mapping[str, Sequence[Member]], split: Split, device: torch.device
) -> dict[str, Any]:
    """R@1 of all results on hard and infrequent queries; the last one, which the others are compared with, chooses."""
    from quintet.evaluation.scoring import member_scores
    from quintet.evaluation.special_samples import negative_means, special_samples

    *_, last = results
    if len(results[last].ranks) > 1:
        raise QuintetError("--hard-samples needs a protocol without folds: use --protocol full")
    scores = member_scores(teams[last], device)
    means = negative_means(scores, split.image_groups, split.text_groups, tuple(results[last].settings["block"]))
    ranks = {name: result.ranks[0] for name, result in results.items()}
    return {"chosen_by": last, "rows": special_samples(ranks, *means)}


def hard_samples_table(found: Mapping[str, Any]) -> Table:
    title = f"R@1 on hard and infrequent queries, chosen by {escape(found['chosen_by'])}"
    table = Table(title=title, box=None, header_style="bold", padding=(0, 1, 0, 0), title_justify="left")
    for heading in ("", "per cent", "", "image to text", "text to image"):
        table.add_column(heading, justify="right" if heading else "left")
    for row in found["rows"]:
        recalls = (f"{row['i2t_r1']:.1f}", f"{row['t2i_r1']:.1f}")
        table.add_row(row["samples"], str(row["percent"]), escape(row["run"]), *recalls)
    return table
