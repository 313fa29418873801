"""Attention of single pairs: words over regions and, where a matcher stacks both, all four blocks (MMCA, Fig. 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from quintet.errors import QuintetError
from quintet.protocols import ShowsAttention, ShowsJointAttention
from quintet.report.analysis import Finding, Options, Subject
from quintet.report.figures import drawing, new_panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Numbers


@dataclass(frozen=True)
class AttentionBlocks:
    """The attention of one image and one text, by block: rows look at columns. Regions are numbered from 1."""

    words: tuple[str, ...]
    regions: int
    blocks: Mapping[str, np.ndarray]

    def labels(self, block: str) -> tuple[list[str], list[str]]:
        """Of the rows and of the columns."""
        sides = {"words": list(self.words), "regions": [str(number + 1) for number in range(self.regions)]}
        rows, columns = block.split(" to ")
        return sides[rows], sides[columns]


def attention_blocks(subject: Subject, image: int, text: int) -> AttentionBlocks:
    """Of an image and a text of the split, by row.

    A matcher that stacks regions and words (MMCA) has four blocks, mean over its heads: "words to regions" and "regions
    to words" across the modalities, "words to words" and "regions to regions" within them; a row sums to one over both
    of its blocks. Others have the block in which their attention goes.
    """
    tokenizer, matcher = subject.run.tokenizer, subject.run.matcher
    if tokenizer is None:
        raise QuintetError(f"run {subject.run.folder} has no tokenizer, so its tokens cannot be named")
    words = tuple(tokenizer.tokens(subject.split.texts[text].text))
    images, texts = subject.image_codes[image].to(subject.device), subject.member.text_codes[text].to(subject.device)
    if isinstance(matcher, ShowsJointAttention):
        joint = matcher.joint_attention(images, texts).float().cpu().numpy()  # (k + m, k + m)
        k = int(images.real().sum())
        sides = {"regions": slice(k), "words": slice(k, None)}
        blocks = {f"{row} to {column}": joint[sides[row], sides[column]] for row in sides for column in sides}
        return AttentionBlocks(words[: len(joint) - k], k, blocks)
    assert isinstance(matcher, ShowsAttention)
    found = matcher.attention(images, texts)
    weights = found.weights.float().cpu().numpy()  # (words, regions)
    block = {"words to regions": weights} if found.direction == "t2i" else {"regions to words": weights.T}
    return AttentionBlocks(words[: len(weights)], weights.shape[1], block)


# The figure


@drawing
def draw_attention(found: AttentionBlocks, title: str) -> Figure:
    """One panel a block; dark cells have large weights. Each panel has a scale of its own."""
    longest = max(len(found.words), found.regions)
    size = (2.2 + 0.2 * longest, 1.6 + 0.2 * longest)
    figure, panels = new_panels(title, len(found.blocks), columns=2, size=size)
    for axes, (block, weights) in zip(panels, found.blocks.items(), strict=True):
        rows, columns = found.labels(block)
        axes.imshow(weights, cmap="Blues", vmin=0, vmax=max(float(weights.max()), 1e-12), aspect="auto")
        axes.set_xticks(range(len(columns)), columns, rotation=90, fontsize=7)
        axes.set_yticks(range(len(rows)), rows, fontsize=7)
        axes.set(title=block)
        axes.grid(visible=False)
    return figure


# The analysis


def attention(subjects: Sequence[Subject], options: Options) -> Finding:
    """Attention maps of some positive pairs: words over regions, and within each modality where a matcher has that."""
    numbers: dict[str, Any] = {}
    figures: dict[str, Figure] = {}
    for subject in subjects:
        if not isinstance(subject.run.matcher, ShowsAttention | ShowsJointAttention):
            continue
        rows = numbers.setdefault(subject.label, [])
        for text in _choose(subject, options):
            image = int(subject.split.images_of_text[text][0])
            found = attention_blocks(subject, image, text)
            pair = {"image": subject.split.images[image].id, "text": subject.split.texts[text].id}
            blocks = {block: weights.round(6).tolist() for block, weights in found.blocks.items()}
            rows.append(pair | {"words": list(found.words), "blocks": blocks})
            # Figures that show whole texts have names with "words" first.
            figures[f"words-attention-{len(figures) + 1}"] = draw_attention(
                found, f"Attention: {subject.label}, text {pair['text']}, image {pair['image']}"
            )
    if not numbers:
        raise QuintetError(f"no matcher of {', '.join(one.label for one in subjects)} has attention to show")
    return Finding({"runs": numbers}, figures)


def _choose(subject: Subject, options: Options) -> list[int]:
    """Rows of random texts that have an image."""
    rng = np.random.default_rng(options.seed)
    paired = [row for row, images in enumerate(subject.split.images_of_text) if len(images)]
    return rng.permutation(paired)[: options.examples].tolist()
