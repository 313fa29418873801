"""Pearson's correlation of the features of different images, before and after training (Dual-Path, Fig. 4).

Before training the features come from the pretrained image tower, afterwards from the matcher. The lower the
correlation of different images, the better the features tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from quintet.backbones.tower import ImageTower
from quintet.codes import Codes
from quintet.data.batches import ImageBatch
from quintet.data.corpus import Image, Split
from quintet.errors import QuintetError
from quintet.files import read_json
from quintet.models import create_model
from quintet.protocols import Matcher
from quintet.report.analysis import Finding, Options, Subject
from quintet.report.figures import drawing, new_panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

IMAGES = 100


# Numbers


def correlation_map(features: ArrayLike) -> np.ndarray:
    """(n, n): Pearson's correlation of every two rows of (n, d) features.

    >>> correlation_map([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [3.0, 2.0, 1.0]]).round(6).tolist()
    [[1.0, 1.0, -1.0], [1.0, 1.0, -1.0], [-1.0, -1.0, 1.0]]
    """
    rows = np.asarray(features, dtype=np.float64)
    centred = rows - rows.mean(axis=1, keepdims=True)
    norms = np.linalg.norm(centred, axis=1, keepdims=True)
    constant = np.flatnonzero(norms[:, 0] == 0)
    if constant.size:
        raise QuintetError(f"the features of image {constant[0]} are all equal: their correlation is undefined")
    centred /= norms
    return centred @ centred.T  # (n, d) -> (n, n)


def map_summary(correlations: np.ndarray) -> dict[str, float]:
    """Over all pairs of different images: the mean, mean absolute and largest correlation.

    >>> map_summary(np.array([[1.0, -0.5], [-0.5, 1.0]]))
    {'images': 2, 'mean': -0.5, 'mean_absolute': 0.5, 'largest': -0.5}
    """
    others = correlations[~np.eye(len(correlations), dtype=bool)]
    if not others.size:
        raise QuintetError("a correlation map needs at least two images")
    return {
        "images": len(correlations),
        "mean": float(others.mean()),
        "mean_absolute": float(np.abs(others).mean()),
        "largest": float(others.max()),
    }


def choose_images(split: Split, count: int = IMAGES, seed: int = 0) -> list[Image]:
    """`count` random images of different groups, in the order of the split; one per group if there are fewer groups."""
    rng = np.random.default_rng(seed)
    groups = np.sort(rng.choice(len(split.groups), min(count, len(split.groups)), replace=False))
    return [split.images[split.images_of_group[group][0]] for group in groups]


def code_features(codes: Codes) -> Tensor:
    """(n, d): the embeddings; for codes of fragments, the mean of the real fragments."""
    if codes.embedding is not None:
        return codes.embedding
    assert codes.fragments is not None  # Codes have one of the two
    return _mean(codes.fragments, codes.mask)


def input_features(images: ImageBatch, tower: ImageTower | None = None) -> Tensor:
    """(n, d): the features of the pretrained tower, averaged over the grid or over the regions.

    A batch of stored features needs no `tower`; a batch of pixels does.
    """
    if images.fragments is not None:
        return _mean(images.fragments, images.mask)
    if tower is None:
        raise ValueError("a batch of pixels needs the image tower")
    assert images.pixels is not None  # an ImageBatch has one of the two
    with torch.no_grad():
        return tower.pooled(images.pixels)


def find_tower(matcher: Matcher) -> ImageTower:
    """The image tower of a matcher that reads pixels."""
    tower = next((part for part in matcher.modules() if isinstance(part, ImageTower)), None)
    if tower is None:
        raise QuintetError(f"{type(matcher).__name__} reads pixels, but no image tower was found in it")
    return tower


def _mean(fragments: Tensor, mask: Tensor | None) -> Tensor:
    """Mean over the real fragments: (n, L, d), (n, L) -> (n, d)."""
    if mask is None:
        return fragments.mean(1)
    weights = mask.to(fragments.dtype)[..., None]  # (n, L, 1)
    return (fragments * weights).sum(1) / weights.sum(1).clamp(min=1)


# The figure


@drawing
def draw_correlations(maps: Mapping[str, ArrayLike], title: str = "Correlation of image features") -> Figure:
    """One map (n, n) per panel, with one colour scale from -1 to 1; the title has the mean over different images."""
    figure, panels = new_panels(title, len(maps), size=(5.6, 5.0))
    shown = None
    for axes, (name, values) in zip(panels, maps.items(), strict=True):
        correlations = np.asarray(values)
        others = correlations[~np.eye(len(correlations), dtype=bool)]
        shown = axes.imshow(correlations, cmap="PuOr", vmin=-1, vmax=1, interpolation="nearest")
        axes.set(title=f"{name}: mean {others.mean():.3f}", xlabel="image", ylabel="image")
        axes.grid(visible=False)
    if shown is not None:
        figure.colorbar(shown, ax=panels, label="Pearson's correlation", shrink=0.8)
    return figure


# The analysis


def correlation(subjects: Sequence[Subject], options: Options) -> Finding:
    """Pearson's correlation of the features of different images, before and after training (Dual-Path, Fig. 4)."""
    images = choose_images(subjects[0].split, options.images, options.seed)
    maps: dict[str, np.ndarray] = {}
    for subject in subjects:
        before = correlation_map(_before(subject, images))
        if not any(np.array_equal(before, known) for known in maps.values()):  # runs may start from the same features
            maps[f"before {subject.name}"] = before
        maps[subject.label] = correlation_map(_after(subject, images))
    numbers = {label: map_summary(found) for label, found in maps.items()}
    figure = draw_correlations(maps)
    return Finding({"images": [image.id for image in images], "maps": numbers}, {"correlation": figure})


def _after(subject: Subject, images: Sequence[Image]) -> np.ndarray:
    """(n, d): features from the codes of the trained matcher."""
    row_of = {image.id: row for row, image in enumerate(subject.split.images)}
    codes = subject.image_codes[[row_of[image.id] for image in images]]
    return code_features(codes).float().cpu().numpy()


def _before(subject: Subject, images: Sequence[Image]) -> np.ndarray:
    """(n, d): the stored features; for a matcher that reads pixels, the features of its tower before training."""
    tower = None
    if subject.run.image_input["kind"] == "pixels":
        model = read_json(subject.run.folder / "model.json")
        with torch.random.fork_rng(devices=[]):  # a tower without published weights starts random
            torch.manual_seed(0)
            tower = find_tower(create_model(model["name"], **model["arguments"])).to(subject.device).eval()
    batches = subject.run.image_batches(subject.corpus, images, subject.batch_size)
    found = [input_features(batch.to(subject.device), tower).float().cpu() for batch in batches]
    return torch.cat(found).numpy()
