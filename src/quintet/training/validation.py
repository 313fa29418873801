"""How good the matcher is on the validation split, in the middle of training."""

from __future__ import annotations

import torch

from quintet import distributed
from quintet.codes import Codes
from quintet.data.loading import ImageSource, TokenizedTexts, image_batches, text_batches
from quintet.errors import CorpusError, RecipeError, suggest
from quintet.evaluation.evaluator import encode_split, evaluate_members
from quintet.evaluation.metrics import retrieval_metrics
from quintet.evaluation.scoring import Member
from quintet.protocols import Matcher
from quintet.training.build import TrainingData

BATCH = 128


def check_metric(name: str) -> None:
    """Refuse a selection metric that `validate` does not measure."""
    known = retrieval_metrics([[1.0]], [0], [0])
    if name not in known:
        raise RecipeError(f"select: {name!r} is not a metric; {suggest(name, known)}")


def is_better(name: str, value: float, best: float | None) -> bool:
    """Recalls and precisions are better when larger, ranks when smaller; a tie goes to the earlier epoch.

    >>> is_better("rsum", 2.0, 1.0), is_better("i2t_medr", 2.0, 1.0)
    (True, False)
    """
    if best is None:
        return True
    return value < best if name.endswith(("medr", "meanr")) else value > best


def validate(
    matcher: Matcher, data: TrainingData, source: ImageSource, sentences: TokenizedTexts, device: torch.device
) -> dict[str, float]:
    """The metrics of the validation split, whose images `source` has and whose texts `texts` are.

    Each process encodes its share; all of them measure the whole.
    """
    split = data.validation
    if len(split.images) < distributed.world_size():
        raise CorpusError(f"split {split.name!r} has fewer images than there are processes; use fewer processes")
    images = split.images[distributed.share(len(split.images))]
    codes = encode_split(
        matcher,
        image_batches(source, images, BATCH),
        text_batches(sentences, BATCH, distributed.share(len(split.texts))),
        device=device,
        keep=device,
    )
    image_codes, text_codes = (
        _gathered(part, total) for part, total in zip(codes, (len(split.images), len(split.texts)), strict=True)
    )
    return evaluate_members([Member(matcher, image_codes, text_codes)], split, bootstrap=0, device=device).metrics


def _gathered(codes: Codes, total: int) -> Codes:
    with torch.no_grad():
        return distributed.gather_codes(codes, total)
