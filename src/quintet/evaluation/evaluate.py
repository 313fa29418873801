"""Encode a split once, score it block by block, and measure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

import torch

from quintet.codes import Codes
from quintet.data.batches import ImageBatch, TextBatch
from quintet.data.corpus import Split
from quintet.errors import QuintetError
from quintet.evaluation.protocols import chance_of_parts, find_protocol, metrics_of_parts, rank_split
from quintet.evaluation.ranks import BLOCK, Ranks
from quintet.evaluation.result import Result, split_checksum
from quintet.evaluation.scoring import Member, member_scores, whole_tiles
from quintet.evaluation.significance import bootstrap_intervals
from quintet.models.matcher import Matcher, evaluation_mode
from quintet.runs.devices import full_precision

Batch = TypeVar("Batch", ImageBatch, TextBatch)


def encode_split(
    matcher: Matcher,
    image_batches: Iterable[ImageBatch],
    text_batches: Iterable[TextBatch],
    split: Split | None = None,
    device: torch.device | str = "cpu",
    keep: torch.device | str = "cpu",
) -> tuple[Codes, Codes]:
    """The codes of all images and all texts, each encoded once, in evaluation mode and without gradients.

    Batches are moved to `device`, where the matcher must be, and their codes to `keep`. With a `split` the number of
    rows is checked against it.
    """
    with torch.no_grad(), evaluation_mode(matcher), full_precision(torch.device(device)):
        images = _encode(matcher.encode_images, image_batches, device, keep, "image")
        texts = _encode(matcher.encode_texts, text_batches, device, keep, "text")
    if split is not None:
        _check_size(images, texts, split)
    return images, texts


def _encode(
    encode: Callable[[Batch], Codes],
    batches: Iterable[Batch],
    device: torch.device | str,
    keep: torch.device | str,
    kind: str,
) -> Codes:
    parts = [encode(batch.to(device)).to(keep) for batch in batches]
    if not parts:
        raise QuintetError(f"there is no {kind} to encode")
    return Codes.cat(parts)


def _check_size(images: Codes, texts: Codes, split: Split) -> None:
    if (len(images), len(texts)) != (len(split.images), len(split.texts)):
        raise QuintetError(
            f"split {split.name!r} has {len(split.images)} images and {len(split.texts)} texts, but "
            f"{len(images)} and {len(texts)} were encoded; give the batches of the whole split, in its order"
        )


def evaluate_members(
    members: Sequence[Member],
    split: Split,
    protocol: str = "full",
    block: int | tuple[int, int] = BLOCK,
    bootstrap: int = 1_000,
    seed: int = 0,
    device: torch.device | str | None = None,
) -> Result:
    """Measure one matcher, or several as an ensemble (the mean of their scores), on a split.

    `block` bounds the memory (images and texts a block, rounded up to whole tiles) and changes nothing else.
    `bootstrap` is the number of resamples behind the 95 % intervals; 0 leaves them out.
    """
    chosen = find_protocol(protocol)
    for member in members:
        _check_size(member.image_codes, member.text_codes, split)
    score_block = member_scores(members, device)
    with ExitStack() as modes:
        for member in members:
            modes.enter_context(evaluation_mode(member.matcher))
        ranks = rank_split(chosen, split, score_block, whole_tiles(block))
    place = device if device is not None else members[0].image_codes.device
    return Result(
        protocol=chosen.name,
        split=split.name,
        split_checksum=split_checksum(split),
        members=tuple(member.name or type(member.matcher).__name__ for member in members),
        metrics=metrics_of_parts(ranks),
        intervals=bootstrap_intervals(ranks, bootstrap, seed) if bootstrap else {},
        chance=chance_of_parts(ranks),
        counts=_counts(split, ranks),
        settings={"block": list(whole_tiles(block)), "bootstrap": bootstrap, "seed": seed, "device": str(place)},
        ranks=tuple(ranks),
    )


def evaluate_matcher(
    matcher: Matcher,
    image_batches: Iterable[ImageBatch],
    text_batches: Iterable[TextBatch],
    split: Split,
    device: torch.device | str = "cpu",
    name: str = "",
    **options: Any,
) -> Result:
    """`encode_split`, then `evaluate_members` with the remaining options: what validation during training needs."""
    images, texts = encode_split(matcher, image_batches, text_batches, split, device)
    return evaluate_members([Member(matcher, images, texts, name)], split, device=device, **options)


def _counts(split: Split, parts: Sequence[Ranks]) -> dict[str, Any]:
    return {
        "images": len(split.images),
        "texts": len(split.texts),
        "groups": len(split.groups),
        "folds": len(parts),
        "images_a_fold": [len(ranks.image_groups) for ranks in parts],
        "texts_a_fold": [len(ranks.text_groups) for ranks in parts],
        "i2t_queries": sum(len(ranks.i2t) for ranks in parts),
        "t2i_queries": sum(len(ranks.t2i) for ranks in parts),
        "i2t_excluded": sum(ranks.i2t.excluded for ranks in parts),
        "t2i_excluded": sum(ranks.t2i.excluded for ranks in parts),
    }
