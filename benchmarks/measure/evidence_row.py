"""One row of the grid of docs/evidence.md: train a run or mine with one, measure it, write its result file."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.grids.evidence_grid import FILTERS, HELD_OUT, Row, list_lengths
from quintet.data.corpus import Corpus, Split
from quintet.data.negatives import NegativeLists
from quintet.data.scenes.generate import SPLITS, make_scenes, scenes
from quintet.data.scenes.scene import Scene
from quintet.data.scenes.truth import Truth
from quintet.evaluation.metrics import CUTS, metrics_of_ranks
from quintet.evaluation.ranks import Ranks, count_ranks
from quintet.evaluation.result import provenance
from quintet.evaluation.scoring import Member, member_scores
from quintet.features.extract import extract_features
from quintet.files import read_json, read_jsonl, write_json
from quintet.mining.mine import mine_codes
from quintet.report.analysis.cross_retrieval import cross_retrieval_histogram
from quintet.runs.run import Run, load
from quintet.training.logs import Silent
from quintet.training.recipe import parse_recipe
from quintet.training.stages import resume_run, train_recipe

GRIDS = {"cells": 6, "mean": 1}  # of EfficientNet-Lite0's features: 6 x 6 cells, or the mean of the whole image


@dataclass(frozen=True)
class Setup:
    """Where things are, and on what device rows are made."""

    work: Path  # corpora, runs and lists
    results: Path
    device: str = "cpu"
    graphs: bool = False
    overrides: tuple[str, ...] = ()

    def corpus(self, row: Row) -> Path:
        return self.work / row.corpus

    def run(self, row_id: str) -> Path:
        return self.work / "runs" / row_id

    def lists(self, row_id: str) -> Path:
        return self.work / "lists" / row_id

    def result(self, row_id: str) -> Path:
        return self.results / f"{row_id}.json"

    def made(self, row: Row) -> bool:
        """Whether what other rows need of this one is there."""
        return (self.lists(row.id) if row.recipe is None else self.run(row.id)).joinpath("evidence.json").is_file()


# The corpus


def prepare(setup: Setup, todo: Sequence[Row], workers: int) -> None:
    """Draw the corpora and make their features, as far as they are not there.

    The first scenes are the same however many there are, so a larger corpus serves the rows of smaller ones.
    """
    for name, (dev, test) in HELD_OUT.items():
        served, folder = [row for row in todo if row.corpus == name], setup.work / name
        if not served:
            continue
        train = max(row.facts["size"] for row in served)
        drawn = len(Corpus.open(folder).splits["train"]) if (folder / "corpus.json").is_file() else 0
        if drawn < train:
            make_scenes(folder, train=train, dev=dev, test=test, workers=workers, overwrite=True)
        recipes = [row.recipe for row in served if row.recipe is not None]
        for features in sorted({recipe["data"]["features"] for recipe in recipes} - {None}):
            extract_features(
                folder,
                "efficientnet-lite0",
                name=features,
                grid=GRIDS[features],
                device=setup.device,
                batch_size=256 if setup.device.startswith("cuda") else 32,
                workers=workers,
            )


@lru_cache(maxsize=2)
def opened(folder: Path) -> Corpus:
    return Corpus.open(folder)


@lru_cache(maxsize=2)
def scenes_of(train: int, dev: int, test: int) -> dict[str, list[Scene]]:
    """The scenes of each split, in order; no scene occurs twice, so they are made in the order of the corpus."""
    seen: set[Scene] = set()
    sizes = {"train": train, "dev": dev, "test": test}
    return {split: [scene for scene, _ in scenes(0, key, sizes[split], seen)] for key, split in enumerate(SPLITS)}


def truth_of(corpus: Corpus, split: Split) -> Truth:
    """Which texts of a split are true of which of its images."""
    sizes = {name: len(corpus.splits[name]) for name in SPLITS}
    made = scenes_of(**sizes)[split.name]
    return Truth(made[: len(split.images)], [text.text for text in split.texts])


@lru_cache(maxsize=2)
def test_truth(folder: Path) -> np.ndarray:
    """(images, texts) bool of the test split."""
    corpus = opened(folder)
    split = corpus.split("test")
    return truth_of(corpus, split).table()


# Rows


def make_row(row: Row, setup: Setup) -> str:
    """Make the row unless it is there; returns a line about it."""
    began = time.monotonic()
    described = {
        "benchmark": "evidence",
        "part": row.part,
        "name": row.name,
        "seed": row.seed,
        "facts": row.facts,
        "needs": list(row.needs),
        "command": f"python -m benchmarks.measure.evidence --only {row.id}",
    }
    if row.recipe is None:
        found, line = _mine(row, setup)
        folder = setup.lists(row.id)
    else:
        found, line = _train(row, setup)
        folder = setup.run(row.id)
    on_gpu = setup.device.startswith("cuda")
    content = {
        **described,
        **found,
        "device": torch.cuda.get_device_name() if on_gpu else "CPU",
        "wall_seconds": round(time.monotonic() - began, 1),
        "provenance": provenance(),
    }
    write_json(setup.result(row.id), content)
    write_json(folder / "evidence.json", {"row": row.id})
    return line


def _recipe(row: Row, setup: Setup) -> dict[str, Any]:
    """The row's recipe, with the folders of other rows."""
    content = json.loads(json.dumps(row.recipe))
    content["seed"] = row.seed
    content["data"]["corpus"] = str(setup.corpus(row))
    content["data"]["keep"] = "device" if setup.device.startswith("cuda") else "auto"
    for stage in content["stages"]:
        stage["graphs"] = setup.graphs
        if stage.get("init", "").startswith("@"):
            stage["init"] = str(setup.run(stage["init"][1:]))
        if "negatives" in stage:
            mined, _, kind = stage["negatives"]["from"][1:].partition("/")
            stage["negatives"]["from"] = str(setup.lists(mined) / kind)
    return content


class _Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        if message not in self.notes and "candidates; all of them are drawn" not in message:
            self.notes.append(message)


def _train(row: Row, setup: Setup) -> tuple[dict[str, Any], str]:
    folder, heard = setup.run(row.id), _Notes()
    began = time.monotonic()
    if not (folder / "run.json").is_file():
        train_recipe(parse_recipe(_recipe(row, setup), setup.overrides), folder, device=setup.device, display=heard)
    else:
        resume_run(folder, device=setup.device, display=heard)
    seconds = time.monotonic() - began
    run = load(folder, device=setup.device)
    curves = {}
    for path in sorted((folder / "stages").glob("*/log.jsonl")):
        lines = [line for line in read_jsonl(path) if line["kind"] == "validation"]
        curves[path.parent.name] = {
            "epoch": [line["epoch"] for line in lines],
            "rsum": [round(line["rsum"], 2) for line in lines],
            "seconds": round(sum(line["seconds"] for line in lines), 2),
            **read_json(path.with_name("done.json")),
        }
    last = list(curves.values())[-1]
    found = {
        "recipe": row.recipe,
        "steps": sum(stage["steps"] for stage in curves.values()),
        "training_seconds": round(seconds, 2),
        "stages": curves,
        "dev": last["metrics"],
        "notes": heard.notes,
        "parameters": sum(p.numel() for p in run.matcher.parameters()),
        **measure([run], setup.corpus(row), setup.device),
    }
    rsum = found["test"]["rsum"]
    return found, f"dev {last['metrics']['rsum']:.1f}, test {rsum:.1f} in {found['steps']} steps, {seconds:.0f} s"


def measure(runs: Sequence[Run], folder: Path, device: str) -> dict[str, Any]:
    """Recalls on the test split: by the corpus's own pairs, and by what is true of an image."""
    corpus = opened(folder)
    split = corpus.split("test")
    members = [Member.encode(run, corpus, split, keep=device) for run in runs]
    score = member_scores(members, device)
    ranks = count_ranks(score, split.image_groups, split.text_groups)
    with torch.no_grad():
        scores = score(slice(0, len(split.images)), slice(0, len(split.texts))).float()  # (images, texts)
    crossed = cross_retrieval_histogram({"run": ranks})
    return {
        "test": {name: round(value, 4) for name, value in metrics_of_ranks(ranks).items()},
        "test_true": true_recalls(scores, torch.from_numpy(test_truth(folder)).to(scores.device)),
        "hits": hits(ranks),
        "cross_retrieval": dict(zip(crossed["intervals"], crossed["counts"]["run"], strict=True)),
    }


def true_recalls(scores: torch.Tensor, true: torch.Tensor) -> dict[str, float]:
    """Recall at 1, 5, 10 where every text that is true of an image is right, and every image that a text is true of."""
    found = {}
    for way, table, right in (("i2t", scores, true), ("t2i", scores.T, true.T)):
        best = table.masked_fill(~right, -torch.inf).max(dim=1, keepdim=True).values
        rank = ((table >= best) & ~right).sum(dim=1)
        found |= {f"{way}_r{cut}": round(100 * (rank < cut).float().mean().item(), 4) for cut in CUTS}
    return found | {"rsum": round(sum(found.values()), 4)}


def hits(ranks: Ranks) -> dict[str, str]:
    """One digit for each group: how many of its queries are hit at 1, 5 and 10, counted together (base 16).

    Groups are in the split's order; rsum is 100 times the digits' sum over the number of queries.
    """
    found = {}
    for way in ("i2t", "t2i"):
        queries = getattr(ranks, way)
        hit = (queries.best[:, None] < np.array(CUTS)).sum(axis=1)  # (queries,)
        _, unit = np.unique(queries.groups, return_inverse=True)
        found[way] = "".join(f"{int(count):x}" for count in np.bincount(unit, weights=hit))
    return found


# Mining


def _mine(row: Row, setup: Setup) -> tuple[dict[str, Any], str]:
    run = load(setup.run(row.needs[0]), device=setup.device)
    corpus = opened(setup.corpus(row))
    split = corpus.split("train")
    split = split.take_groups(range(min(row.facts["size"], len(split.groups))))
    tops = {"top_texts": row.facts["top_texts"], "top_images": row.facts["top_images"]}
    began = time.monotonic()
    images, texts = run.encode_split(corpus, split, batch_size=512, keep=setup.device)
    encoded = time.monotonic()
    source = {"name": run.name, "weights": run.weights_checksum}
    lists = mine_codes(run.matcher, images, texts, split, **tops, device=setup.device, source=source)
    mined = time.monotonic()
    positives = own_scores(run, images, texts, split)
    truth = truth_of(corpus, split)
    true_texts = looked_up(truth, np.arange(len(split.images))[:, None], lists.texts)
    true_images = looked_up(truth, lists.images, np.arange(len(split.texts))[:, None])
    found: dict[str, Any] = {
        "training_pairs": len(split.texts),
        "seconds": {"encoding": round(encoded - began, 2), "mining": round(mined - encoded, 2)},
        "images_a_text_is_true_of": spread(truth.images_of_text()),
        "false_by_rank": {
            "texts": [round(float(value), 4) for value in true_texts.mean(axis=0)],
            "images": [round(float(value), 4) for value in true_images.mean(axis=0)],
        },
        "filters": {},
    }
    for name in FILTERS:
        keep_texts, keep_images = kept(name, lists, positives, split, true_texts, true_images)
        length = list_lengths(row.facts["size"], 4.0)
        made, facts = [], {}
        for side, rows, scores, keep, true, top in (
            ("texts", lists.texts, lists.text_scores, keep_texts, true_texts, length[0]),
            ("images", lists.images, lists.image_scores, keep_images, true_images, length[1]),
        ):
            chosen, empty = first_kept(keep, top)
            made += [np.where(chosen >= 0, np.take_along_axis(rows, np.maximum(chosen, 0), 1), -1)]
            made += [np.where(chosen >= 0, np.take_along_axis(scores, np.maximum(chosen, 0), 1), -np.inf)]
            at = list_lengths(row.facts["size"])[side == "images"]
            drawn_true = np.take_along_axis(true, np.maximum(chosen[:, :at], 0), 1)[chosen[:, :at] >= 0]
            facts[side] = {
                "true_in_list": round(float(drawn_true.mean()), 4),  # of what is drawn from, the share that is true
                "true_kept": round(float(keep[true].mean()), 4) if true.any() else None,
                "wrong_kept": round(float(keep[~true].mean()), 4) if (~true).any() else None,
                "empty": int(empty.sum()),
            }
        found["filters"][name] = facts
        manifest = {name: lists.manifest[name] for name in ("split", "split_checksum", "matcher", "options")}
        NegativeLists(*made, manifest=manifest | {"filter": name}).save(setup.lists(row.id) / name)
    plain = found["filters"]["plain"]
    return (
        found,
        f"{plain['texts']['true_in_list']:.0%} of texts and {plain['images']['true_in_list']:.0%} of images are true",
    )


def spread(counts: np.ndarray) -> dict[str, float]:
    return {
        "mean": round(float(counts.mean()), 2),
        **{f"p{at}": float(np.percentile(counts, at)) for at in (25, 50, 75, 90)},
        "above_5": round(float((counts > 5).mean()), 4),
    }


def own_scores(run: Run, images: Any, texts: Any, split: Split) -> np.ndarray:
    """(texts,) the score of each text with its own image."""
    rows = torch.tensor([int(own[0]) for own in split.images_of_text])
    with torch.no_grad():
        parts = [
            run.matcher.score_pairs(images[rows[at : at + 4096]], texts[at : at + 4096])
            for at in range(0, len(rows), 4096)
        ]
    return torch.cat(parts).float().cpu().numpy()


def looked_up(truth: Truth, images: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """Bool like both broadcast: is the text true of the image?"""
    images, texts = np.broadcast_arrays(images, texts)
    pairs = zip(images.ravel().tolist(), texts.ravel().tolist(), strict=True)
    return np.fromiter((truth.is_true(*pair) for pair in pairs), bool, images.size).reshape(images.shape)


def kept(
    name: str,
    lists: NegativeLists,
    positives: np.ndarray,
    split: Split,
    true_texts: np.ndarray,
    true_images: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Which candidates of the lists a filter keeps, for texts and for images."""
    kind, _, value = name.partition("-")
    if kind == "plain":
        return np.ones_like(true_texts), np.ones_like(true_images)
    if kind == "truth":
        return ~true_texts, ~true_images
    best = np.full(len(split.images), -np.inf, np.float32)  # of each image, over its own texts
    owners = np.array([int(own[0]) for own in split.images_of_text])
    np.maximum.at(best, owners, positives)
    number = np.float32(value)
    caps = (lambda score: score * number) if kind == "share" else (lambda score: score - number)
    keep_texts = lists.text_scores <= caps(best)[:, None]
    keep_images = lists.image_scores <= caps(positives)[:, None]
    if kind == "both":
        keep_texts &= lists.text_scores <= caps(positives)[lists.texts]
        keep_images &= lists.image_scores <= caps(best)[lists.images]
    return keep_texts, keep_images


def first_kept(keep: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """(n, top) positions of the first kept candidates, -1 behind the last, and which lists would have been empty.

    An empty list gets its last candidate, the least hard one: every anchor needs a negative.

    >>> first_kept(np.array([[False, True, True], [False, False, False]]), 2)[0].tolist()
    [[1, 2], [2, -1]]
    """
    empty = ~keep.any(axis=1)
    keep = keep.copy()
    keep[empty, -1] = True
    order = np.argsort(~keep, axis=1, kind="stable")[:, :top]
    return np.where(np.take_along_axis(keep, order, 1), order, -1), empty
