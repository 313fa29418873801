"""What is attacked: a corpus of drawn scenes with features, a trained run, mined lists, two indexes, a recipe.

Made once by a campaign, by the same commands that people use. Attacks work on copies.
"""

from __future__ import annotations

import argparse
import copy
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

import quintet
from benchmarks.torture.attack import digest
from quintet.backbones.create import create_tower
from quintet.data.batches import ImageBatch
from quintet.data.corpus import Corpus
from quintet.data.feature_store import FeatureStore
from quintet.data.negatives import NegativeLists
from quintet.runs.checkpoint import save_tensors
from quintet.search.searcher import Searcher
from quintet.training.recipe import load_recipe

RECIPE: dict[str, Any] = {
    "name": "tiny",
    "data": {"features": "small", "tokenizer": {"min_count": 1}},
    "matcher": {"name": "vse++", "embed_dim": 8, "word_dim": 6, "dropout": 0.1},
    "stages": [
        {
            "name": "online",
            "loss": {"triplet": {"margin": 0.2}},
            "batches": {"size": 6},
            "optimizer": {"name": "adam", "lr": 0.01},
            "epochs": 2,
            "checkpoint_every": 1,
        }
    ],
}
QUERY = "a red circle"


@dataclass(frozen=True)
class Material:
    folder: Path

    def __getattr__(self, name: str) -> Path:
        return self.folder / name.replace("_", "-")

    @property
    def tower(self) -> Path:
        return self.folder / "tower.safetensors"

    @property
    def images(self) -> Path:
        return self.folder / "photos"


def make_material(folder: Path) -> None:
    """Runs in a child: the campaign itself never computes, so that it can fork."""
    made = Material(folder)
    quintet.import_corpus("scenes", "-", made.corpus, train=24, dev=6, test=6, size=48)
    torch.manual_seed(7)
    save_tensors(made.tower, create_tower("small-cnn").state_dict(), {})
    extract(made.corpus, made.tower)
    made.images.mkdir()
    images = sorted(path for path in made.corpus.rglob("*.png"))
    train(made.run, made.corpus)
    mine(made.run, made.corpus, made.lists)
    for number, path in enumerate(images[:12]):
        shutil.copy(path, made.images / f"{number:02}.png")
        if number == 5:
            (made.images / "00.json").write_text('{"caption": "a red circle", "album": "holiday"}')
            index(made.run, made.images, made.index_before)
    index(made.run, made.images, made.index)
    index(made.run, made.images, made.index_faiss, store="faiss")
    made.shards.mkdir()
    with tarfile.open(made.shards / "train-000.tar", "w") as archive:
        for path in images[:3]:
            (made.shards / f"{path.stem}.txt").write_text(QUERY)
            archive.add(path, path.name)
            archive.add(made.shards / f"{path.stem}.txt", f"{path.stem}.txt")
    made.recipe.with_suffix(".yaml").write_text(yaml.safe_dump(recipe(made.corpus)))
    torch.save(checkpoint(), folder / "model_best.pth.tar")


def recipe(corpus: Path, seed: int = 0) -> dict[str, Any]:
    made = copy.deepcopy(RECIPE)
    made["data"]["corpus"] = str(corpus)
    return made | {"seed": seed}


def checkpoint(**changes: Any) -> dict[str, Any]:
    """As the authors of BFAN wrote theirs."""
    torch.manual_seed(0)
    rnn = torch.nn.GRU(4, 6, bidirectional=True)
    image = {"fc.weight": torch.randn(6, 5), "fc.bias": torch.randn(6)}
    text = {"embed.weight": torch.randn(9, 4), **{f"rnn.{k}": v.detach() for k, v in rnn.named_parameters()}}
    options = argparse.Namespace(focal_type="equal", lambda_softmax=20.0)
    return {"epoch": 1, "model": [image, text], "opt": options} | changes


# The commands, small and on the CPU


def extract(corpus: Path, tower: Path, overwrite: bool = False) -> None:
    quintet.extract_features(
        corpus,
        "small-cnn",
        weights=tower,
        name="small",
        grid=2,
        batch_size=4,
        workers=1,
        device="cpu",
        overwrite=overwrite,
    )


def train(out: Path, corpus: Path, seed: int = 0) -> None:
    quintet.train(recipe(corpus, seed), out=out, device="cpu")


def mine(run: Path, corpus: Path, out: Path) -> None:
    quintet.mine(run, corpus, top_texts=20, top_images=5, out=out, device="cpu")


def index(run: Path, images: Path, out: Path, store: str = "exact", **options: Any) -> Any:
    return quintet.build_index(run, images, out, store=store, batch_size=2, workers=1, device="cpu", **options)


# What they made, as a checksum; raises as a person would see it


def read_run(folder: Path) -> str:
    run = quintet.load(folder, device="cpu")
    images = torch.linspace(-1, 1, 2 * 4 * 128).reshape(2, 4, 128)
    codes = (
        run.encode_images(ImageBatch(fragments=images)).embedding,
        run.encode_texts([QUERY, "a small blue square"]).embedding,
    )
    return digest(*(code.numpy() for code in codes if code is not None))


def opened(folder: Path) -> dict[str, Any]:
    return quintet.load(folder, device="cpu").model


def read_corpus(folder: Path) -> str:
    corpus = Corpus.open(folder)
    rows = [(image.id, image.group, image.path) for image in corpus.images]
    texts = [(text.id, text.group, text.text) for text in corpus.texts]
    splits = {name: [image.id for image in corpus.split(name).images] for name in ("train", "dev", "test")}
    return digest(rows, texts, splits)


def read_features(folder: Path) -> str:
    store = FeatureStore(folder)
    values = vars(store.batch(list(store.ids))).values()
    return digest(list(store.ids), *(value.numpy() for value in values if value is not None))


def read_lists(folder: Path, corpus: Path) -> str:
    lists = NegativeLists.open(folder)
    lists.check(Corpus.open(corpus).split("train"))
    arrays = (lists.texts, lists.text_scores, lists.images, lists.image_scores)
    return digest(*(np.ascontiguousarray(array) for array in arrays))


class Found(dict[str, float]):
    """Items and their scores. Equal up to rounding: codes that an index kept were encoded in other batches."""

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, dict)
            and self.keys() == other.keys()
            and all(abs(score - other[item]) < 1e-5 for item, score in self.items())
        )

    def __ne__(self, other: object) -> bool:  # dict has its own
        return not self == other

    __hash__ = None  # type: ignore[assignment]


def read_index(folder: Path) -> Found:
    with Searcher.open(folder, device="cpu") as searcher:
        hits = searcher.search_text([QUERY], k=99)[0]
        return Found({f"{hit.item.path} {sorted(hit.item.metadata.items())}": hit.score for hit in hits})


def read_recipe(path: Path) -> str:
    """Only that it can be read: a recipe is a text that people change."""
    load_recipe(str(path))
    return "read"


Reader = Callable[[Path], Any]
