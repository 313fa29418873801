"""Scores of one matcher or of an ensemble, block by block; the Codes stay on their device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass

import torch
from torch import Tensor

from quintet.codes import Codes
from quintet.data.corpus import Corpus, Split
from quintet.errors import QuintetError
from quintet.evaluation.ranks import ScoreBlock
from quintet.protocols import Matcher
from quintet.runs.devices import full_precision
from quintet.runs.encoding import Progress
from quintet.runs.run import Run

# Matrix products of different shapes round differently, so a matcher is always asked for tiles of this one shape (the
# last ones filled up): scores, and with them ranks, are then the same bits whatever the block size. A GPU is asked for
# more at once.
TILE = (64, 256)
GPU_TILE = (256, 1024)
EMBEDDING_TILE = (1024, 1024)  # on a CPU, for matchers without fragments, or what holds a smaller split


@dataclass(frozen=True)
class Member:
    """One matcher of an ensemble (or the only one), with what it keeps of the split's images and texts."""

    matcher: Matcher
    image_codes: Codes
    text_codes: Codes
    name: str = ""

    @staticmethod
    def encode(
        run: Run,
        corpus: Corpus,
        split: Split,
        *,
        name: str | None = None,
        batch_size: int = 128,
        progress: bool | Progress = False,
        keep: torch.device | str = "cpu",
    ) -> Member:
        """A run with its codes of a split. `name`: by default the run's; `keep`: the device of the codes."""
        codes = run.encode_split(corpus, split, batch_size=batch_size, progress=progress, keep=keep)
        return Member(run.matcher, *codes, name=run.name if name is None else name)


def member_scores(members: Sequence[Member], device: torch.device | str | None = None) -> ScoreBlock:
    """A function that scores a block of images against a block of texts: the mean of the members' scores, float32.

    Each block of codes is moved to `device` (default: where the first member's image codes are); the matchers must be
    there already.
    """
    if not members:
        raise QuintetError("there is no matcher to evaluate")
    sizes = {(len(member.image_codes), len(member.text_codes)) for member in members}
    if len(sizes) > 1:
        raise QuintetError(f"the members of an ensemble must have coded the same images and texts, got {sorted(sizes)}")
    target = torch.device(device) if device is not None else members[0].image_codes.device
    tiles = [tile_of(member.image_codes, member.text_codes, target) for member in members]

    def score_block(images: slice, texts: slice) -> Tensor:
        total: Tensor | None = None
        with torch.no_grad(), full_precision(target):
            for member, tile in zip(members, tiles, strict=True):
                codes = member.image_codes[images].to(target), member.text_codes[texts].to(target)
                scores = score_in_tiles(member.matcher, *codes, tile)
                total = scores if total is None else total + scores
        assert total is not None
        return total / len(members) if len(members) > 1 else total

    return score_block


def tile_of(images: Codes, texts: Codes, device: torch.device) -> tuple[int, int]:
    """The shape of the tiles that a matcher of these codes is asked for: a property of the split, not of the block."""
    if device.type == "cuda":
        return GPU_TILE
    if images.fragments is not None or texts.fragments is not None:
        return TILE
    return embedding_tile(images, texts, EMBEDDING_TILE)


def embedding_tile(images: Sized, texts: Sized, largest: tuple[int, int]) -> tuple[int, int]:
    """The largest tile, or what holds a smaller split in multiples of 64."""
    rows, columns = (64 * -(-len(codes) // 64) for codes in (images, texts))
    return min(largest[0], rows), min(largest[1], columns)


def blocks_of(
    members: Sequence[Member], block: int | tuple[int, int], device: torch.device | str | None = None
) -> tuple[int, int]:
    """The block size rounded up to whole tiles, and to a tile of every member."""
    target = torch.device(device) if device is not None else members[0].image_codes.device
    sizes = whole_tiles(block)
    if target.type == "cuda":
        return sizes
    tiles = [tile_of(member.image_codes, member.text_codes, target) for member in members]
    return max([sizes[0], *(tile[0] for tile in tiles)]), max([sizes[1], *(tile[1] for tile in tiles)])


def whole_tiles(block: int | tuple[int, int]) -> tuple[int, int]:
    """The block size rounded up to whole tiles.

    >>> whole_tiles(100)
    (128, 256)
    """
    sizes = (block, block) if isinstance(block, int) else block
    if min(sizes) < 1:
        raise QuintetError(f"blocks must hold at least one image and one text, got {block}")
    return -(-sizes[0] // TILE[0]) * TILE[0], -(-sizes[1] // TILE[1]) * TILE[1]


def score_in_tiles(matcher: Matcher, image_codes: Codes, text_codes: Codes, tile: tuple[int, int] = TILE) -> Tensor:
    """(n_images, n_texts) float32, asked of the matcher in tiles of one shape."""
    if (len(image_codes), len(text_codes)) == tile:  # as the whole blocks of embeddings
        return _scored(matcher, image_codes, text_codes, tile).float()
    scores = torch.empty(len(image_codes), len(text_codes), device=image_codes.device)
    text_tiles = list(_tiles(text_codes, tile[1]))
    for images, image_tile in _tiles(image_codes, tile[0]):
        for texts, text_tile in text_tiles:
            part = _scored(matcher, image_tile, text_tile, tile)
            scores[images, texts] = part[: images.stop - images.start, : texts.stop - texts.start].float()
    return scores


def _scored(matcher: Matcher, images: Codes, texts: Codes, tile: tuple[int, int]) -> Tensor:
    part = matcher.score(images, texts)
    if part.shape != tile:
        asked = f"{tile[0]} images and {tile[1]} texts"
        raise QuintetError(f"{type(matcher).__name__}.score returned shape {tuple(part.shape)} for {asked}")
    return part


def _tiles(codes: Codes, size: int) -> Iterator[tuple[slice, Codes]]:
    """Tiles of `size` rows each; the last repeats its last row until it is full."""
    for start in range(0, len(codes), size):
        stop = min(start + size, len(codes))
        full = stop - start == size
        rows = None if full else torch.arange(start, start + size, device=codes.device).clamp_(max=stop - 1)
        yield slice(start, stop), codes[start:stop] if rows is None else codes[rows]
