"""`Run`: a trained matcher with its tokenizer and preprocessing, read from and written to a run folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import quintet
from quintet.data.batches import ImageBatch, TextBatch
from quintet.data.corpus import Corpus, Image, Text
from quintet.data.feature_store import FeatureStore
from quintet.data.loading import FeatureImages, ImageSource, PixelImages, TokenizedTexts, image_batches, text_batches
from quintet.data.tokenizers import Tokenizer, load_tokenizer
from quintet.errors import RecipeError, RunError
from quintet.files import read_json, write_json
from quintet.models import MODELS, create_model
from quintet.runs.checkpoint import load_tensors, save_tensors
from quintet.runs.run_folder import FORMAT, VERSION, file_checksum, find_weights, locate, read_head


@dataclass(frozen=True)
class Run:
    """A trained matcher with all that is needed to feed it."""

    folder: Path
    name: str
    matcher: Any  # a Matcher, in evaluation mode
    tokenizer: Tokenizer | None
    image_input: dict[str, Any]
    default_corpus: Path | None
    weights_checksum: str

    def image_source(self, corpus: Corpus) -> ImageSource:
        """Where this matcher gets the images of a corpus from: its features, or its pixels."""
        return open_image_source(corpus, self.image_input, self.matcher)

    def image_batches(self, corpus: Corpus, images: Sequence[Image], batch_size: int = 128) -> Iterator[ImageBatch]:
        return image_batches(self.image_source(corpus), images, batch_size)

    def text_batches(self, texts: Sequence[Text], batch_size: int = 128) -> Iterator[TextBatch]:
        if self.tokenizer is None:
            raise RunError(
                f"run {self.folder} has no tokenizer, so it takes token ids only; "
                "give `quintet convert` its vocabulary with --vocab"
            )
        return text_batches(TokenizedTexts(self.tokenizer, texts), batch_size)


def open_image_source(corpus: Corpus, image_input: dict[str, Any], matcher: Any) -> ImageSource:
    if image_input["kind"] == "pixels":
        return PixelImages(corpus, matcher.preprocess)
    folder = corpus.root / "features" / str(image_input["name"])
    if not (folder / "manifest.json").is_file():
        raise RunError(
            f"this matcher reads the features {image_input['name']!r}, which corpus {corpus.name!r} does not have; "
            f"make them with `quintet features {corpus.root} --name {image_input['name']}` and the same backbone"
        )
    store = FeatureStore(folder)
    expected = image_input.get("tower")
    if expected and store.manifest.get("tower") and store.manifest["tower"] != expected:
        raise RunError(
            f"the features in {folder} come from another tower or setting than the ones this matcher was trained on: "
            f"{store.manifest['tower']} instead of {expected}"
        )
    return FeatureImages(store)


def start_run(
    folder: Path,
    *,
    name: str,
    model: dict[str, Any],
    tokenizer: Tokenizer | None,
    image_input: dict[str, Any],
    corpus: Path | None = None,
    splits: dict[str, str] | None = None,
) -> None:
    """Write what is known before the first step; `splits` are checksums of what it trains and selects on."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "model.json", model)
    write_json(folder / "images.json", image_input)
    if tokenizer is not None:
        write_json(folder / "tokenizer.json", tokenizer.state())
    _write_head(folder, name, "training", corpus, splits)


def finish_run(folder: Path, state_dict: dict[str, Tensor], facts: dict[str, Any] | None = None) -> None:
    """Write the final weights and mark the run complete, in this order."""
    head = read_json(folder / "run.json")
    save_tensors(folder / "weights.safetensors", state_dict, {"run": head["name"], "quintet": quintet.__version__})
    write_json(folder / "run.json", head | {"status": "complete"} | (facts or {}))


def write_run(
    folder: Path,
    *,
    name: str,
    model: dict[str, Any],
    state_dict: dict[str, Tensor],
    tokenizer: Tokenizer | None,
    image_input: dict[str, Any],
    facts: dict[str, Any] | None = None,
) -> None:
    """A complete run from weights that were trained elsewhere. `facts` are added to run.json (origin, notes)."""
    if (folder / "run.json").exists():
        raise RunError(f"{folder} is a run already; choose another folder or remove it first")
    start_run(folder, name=name, model=model, tokenizer=tokenizer, image_input=image_input)
    finish_run(folder, state_dict, facts)


def _write_head(folder: Path, name: str, status: str, corpus: Path | None, splits: dict[str, str] | None) -> None:
    head = {
        "format": FORMAT,
        "version": VERSION,
        "quintet": quintet.__version__,
        "name": name,
        "status": status,
        "corpus": None if corpus is None else str(corpus.resolve()),
        "splits": splits,
    }
    write_json(folder / "run.json", head)


def open_run(folder: Path | str, *, stage: str | None = None, device: torch.device | str = "cpu") -> Run:
    """Open a finished run, or with `stage` the selected weights of one of its stages (also of an unfinished run).

    The path of a stage's folder, or of a weights file, names run and stage at once (see `locate`).
    """
    folder, stage = locate(folder, stage)
    head = read_head(folder)
    weights = find_weights(folder, stage)
    model = read_json(folder / "model.json")
    try:
        matcher = create_model(model["name"], **without_start_weights(model))
    except RecipeError as error:
        raise RunError(f"run {folder} holds a matcher that this Quintet cannot make: {error}") from None
    state, _ = load_tensors(weights)
    load_weights(matcher, state, weights)
    tokenizer = folder / "tokenizer.json"
    return Run(
        folder=folder,
        name=head["name"],
        matcher=matcher.to(device).eval(),
        tokenizer=load_tokenizer(tokenizer) if tokenizer.is_file() else None,
        image_input=read_json(folder / "images.json"),
        default_corpus=Path(head["corpus"]) if head.get("corpus") else None,
        weights_checksum=file_checksum(weights),
    )


def without_start_weights(model: dict[str, Any]) -> dict[str, Any]:
    """The matcher's arguments without the files its towers started from: the run's own weights replace them."""
    start = {"tower_weights": None, "tower_pretrained": False, "text_pretrained": False}
    known = MODELS.parameters(model["name"]) if model["name"] in MODELS.entries else {}
    return model["arguments"] | {key: value for key, value in start.items() if key in known}


def load_weights(matcher: nn.Module, state: dict[str, Tensor], where: Path) -> None:
    try:
        matcher.load_state_dict(state)
    except RuntimeError as error:
        raise RunError(f"the weights in {where} do not fit the matcher: {error}") from None


def load(folder: Path | str, *, stage: str | None = None, device: torch.device | str = "cpu") -> Any:
    """The trained matcher of a run, in evaluation mode.

    `m = quintet.load("runs/mine"); m.score(m.encode_images(...), m.encode_texts(...))`
    """
    return open_run(folder, stage=stage, device=device).matcher
