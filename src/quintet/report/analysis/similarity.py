"""Similarity distributions and correlation maps (Dual-Path, sections IV-B and IV-C)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from quintet.data.corpus import Image
from quintet.evaluation.correlation import (
    choose_images,
    code_features,
    correlation_map,
    find_tower,
    input_features,
    map_summary,
)
from quintet.evaluation.distributions import split_similarities
from quintet.files import read_json
from quintet.models import create_model
from quintet.report.analysis.subject import Finding, Options, Subject
from quintet.report.figures import draw_correlations, draw_similarities


def distributions(subjects: Sequence[Subject], options: Options) -> Finding:
    """How similar right and wrong pairs are, and the overlap indicator S (Dual-Path, Eq. 10)."""
    found = {
        subject.label: split_similarities(
            [subject.member], subject.split, bins=options.bins, block=options.block, device=subject.device
        )
        for subject in subjects
    }
    figure = draw_similarities({label: (one.edges, *one.densities) for label, one in found.items()})
    return Finding({"runs": {label: one.to_json() for label, one in found.items()}}, {"distributions": figure})


def correlation(subjects: Sequence[Subject], options: Options) -> Finding:
    """Pearson's correlation of the features of different images, before and after training (Dual-Path, Fig. 4)."""
    pictures = choose_images(subjects[0].split, options.images, options.seed)
    maps: dict[str, np.ndarray] = {}
    for subject in subjects:
        before = correlation_map(_before(subject, pictures))
        if not any(np.array_equal(before, known) for known in maps.values()):  # runs may start from the same features
            maps[f"before {subject.name}"] = before
        maps[subject.label] = correlation_map(_after(subject, pictures))
    numbers = {label: map_summary(found) for label, found in maps.items()}
    figure = draw_correlations(maps)
    return Finding({"pictures": [picture.id for picture in pictures], "maps": numbers}, {"correlation": figure})


def _after(subject: Subject, pictures: Sequence[Image]) -> np.ndarray:
    """(n, d): what the matcher keeps of the images."""
    row_of = {image.id: row for row, image in enumerate(subject.split.images)}
    codes = subject.image_codes[[row_of[picture.id] for picture in pictures]]
    return code_features(codes).float().cpu().numpy()


def _before(subject: Subject, pictures: Sequence[Image]) -> np.ndarray:
    """(n, d): stored features as they are; for a matcher of pixels, the features of its tower as training found it."""
    tower = None
    if subject.run.image_input["kind"] == "pixels":
        model = read_json(subject.run.folder / "model.json")
        with torch.random.fork_rng(devices=[]):  # a tower without published weights starts random
            torch.manual_seed(0)
            tower = find_tower(create_model(model["name"], **model["arguments"])).to(subject.device).eval()
    batches = subject.run.image_batches(subject.corpus, pictures, subject.batch_size)
    found = [input_features(batch.to(subject.device), tower).float().cpu() for batch in batches]
    return torch.cat(found).numpy()
