"""From a recipe to the things it names. Configuration ends here: what is built takes plain arguments."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quintet.backbones.text_encoder import text_encoder_config
from quintet.data.augment import ChangedWords, FewerRegions, pixel_augmentation
from quintet.data.corpus import Corpus, Split, split_checksum
from quintet.data.feature_store import FeatureStore
from quintet.data.loading import FeatureImages, ImageSource, PixelImages, TokenizedTexts
from quintet.data.resident import ImageMemory, ResidentFeatures, check_fits, fits_on
from quintet.data.tokenizers import Tokenizer
from quintet.data.vocabulary import WordVocabulary
from quintet.data.word_vectors import initial_embedding, words_with_vectors
from quintet.data.wordpiece import WordPiece
from quintet.errors import CorpusError, RecipeError
from quintet.losses import OBJECTIVES
from quintet.losses.step import Progress, Step, Term
from quintet.models import MODELS
from quintet.protocols import (
    HasEmbedding,
    KeepsRegions,
    Matcher,
    Phased,
    UsesCategories,
    UsesTextPool,
    preprocess_of,
)
from quintet.training.recipe_models import AugmentRecipe, DataRecipe, Recipe, StageRecipe, TokenizerRecipe


@dataclass(frozen=True)
class TrainingData:
    """The splits of a recipe, and where their images come from."""

    corpus: Corpus
    train: Split
    validation: Split
    store: FeatureStore | None
    text_cache: str = "none"  # or the type in which a frozen text encoder's outputs are kept under CORPUS/texts
    resident: ResidentFeatures | None = None  # the store's features, where they wait in the device's memory
    images: ImageMemory | None = None  # of a matcher that reads pixels, where they are decoded once

    def checksums(self) -> dict[str, str]:
        """What the splits were, for a run that is resumed."""
        return {"train": split_checksum(self.train), "validation": split_checksum(self.validation)}

    def image_input(self) -> dict[str, Any]:
        """What a run has to know about its images."""
        if self.store is None:
            return {"kind": "pixels"}
        return {"kind": "features", "name": self.store.folder.name, "tower": self.store.manifest.get("tower")}

    def image_source(self, matcher: Matcher, views: AugmentRecipe | None = None) -> ImageSource:
        """`views`: random views of the images, for training."""
        if self.store is not None:
            source = FeatureImages(self.store) if self.resident is None else self.resident
            return FewerRegions(source, views.regions) if views is not None and views.regions else source
        changed = views is not None and (views.crop != "none" or views.flip)
        preprocess = preprocess_of(matcher)
        if self.images is not None:
            if views is None or not changed:
                return self.images.plain(preprocess)
            return self.images.random(preprocess, views.crop, views.flip)
        change = None
        if views is not None and changed:
            change = pixel_augmentation(preprocess, crop=views.crop, flip=views.flip)
        return PixelImages(self.corpus, preprocess, change)


def open_data(recipe: Recipe, note: Callable[[str], None]) -> TrainingData:
    """Open the corpus and check that everything the recipe needs is there, before anything is trained."""
    data = recipe.data
    if data.corpus is None:
        raise RecipeError(f"recipe {recipe.name!r} names no corpus; add --corpus FOLDER (or data.corpus=FOLDER)")
    corpus = Corpus.open(data.corpus)
    train, validation = corpus.split(data.train), corpus.split(data.validation)
    shared = set(train.groups) & {*validation.groups, *corpus.splits.get(data.test, ())}
    if shared:
        raise CorpusError(
            f"{len(shared)} groups are in the training split and in validation or test, first {sorted(shared)[0]!r}; "
            "what is measured must not be trained on"
        )
    if set(validation.groups) & set(corpus.splits.get(data.test, ())):
        raise CorpusError(
            f"split {data.validation!r}, on which epochs are selected, shares groups with the test split "
            f"{data.test!r}; name others with data.validation and data.test"
        )
    if data.limit is not None:
        train = train.take_groups(range(min(data.limit, len(train.groups))))
    store = None
    if data.features is not None:
        store = FeatureStore(corpus.root / "features" / data.features)
        store.require([image.id for image in validation.images])  # what is measured stays whole
        lacking = {image.id for image in train.images if image.id not in store}
        if lacking:
            note(
                f"{len(lacking)} of {len(train.images)} training images have no features and are left out, "
                f"first {min(lacking)!r}"
            )
            train = train.without_images(lacking)
    return TrainingData(corpus, train, validation, store, data.text_cache)


def keep_inputs(data: TrainingData, recipe: DataRecipe, device: torch.device) -> TrainingData:
    """The same data, its features moved into the device's memory where the recipe asks for it or they fit easily.

    Images are kept only where the recipe asks for it: their views are then cut from smaller copies.
    """
    if recipe.keep == "disk":
        return data
    if recipe.workers:
        if recipe.keep == "device":
            raise RecipeError("data.keep: device goes without data.workers; other processes cannot read that memory")
        return data
    ids = [image.id for split in (data.train, data.validation) for image in split.images]
    if data.store is None:
        if recipe.keep == "auto":
            return data
        check_fits(device, len(ids))
        return replace(data, images=ImageMemory(data.corpus, device))
    if recipe.keep == "auto" and not fits_on(device, data.store, len(ids)):
        return data
    return replace(data, resident=ResidentFeatures(data.store, ids, device))


def build_tokenizer(recipe: TokenizerRecipe, train: Split) -> Tokenizer:
    """From files, or from the texts of the training split alone."""
    sentences = [text.text for text in train.texts]
    if recipe.kind == "wordpiece":
        return (
            WordPiece.load(recipe.source, recipe.longest)
            if recipe.source
            else WordPiece.train(sentences, recipe.size, recipe.longest)
        )
    settings: dict[str, Any] = {
        "special_tokens": recipe.marks,
        "max_length": recipe.longest,
        "drop_unknown": recipe.unknown == "drop",
    }
    if recipe.vocabulary is not None:
        return WordVocabulary.load_scan_json(recipe.vocabulary, case=recipe.case, **settings)
    vocabulary = WordVocabulary.build(sentences, min_count=recipe.min_count, case=recipe.case, **settings)
    if recipe.vectors_only and recipe.word_vectors is not None:
        return vocabulary.only(words_with_vectors(recipe.word_vectors, vocabulary))
    return vocabulary


def complete_model(recipe: Recipe, data: TrainingData, tokenizer: Tokenizer) -> dict[str, Any]:
    """The matcher's name and all of its arguments, those the data decides filled in: what model.json holds."""
    facts: dict[str, Any] = {"vocabulary_size": len(tokenizer)}
    if data.store is not None:
        facts["image_dim"] = data.store.dim
    text = recipe.matcher.arguments.get("text")
    if isinstance(text, str) and text.startswith("hf:"):
        facts["text_config"] = text_encoder_config(text.removeprefix("hf:"))  # so that the run opens without its folder
    name = recipe.matcher.name
    return {"name": name, "arguments": MODELS.complete(name, recipe.matcher.arguments, facts)}


def build_matcher(model: dict[str, Any], recipe: TokenizerRecipe, tokenizer: Tokenizer, seed: int) -> Matcher:
    """A fresh matcher, with pretrained word vectors where the recipe names a file."""
    matcher: Matcher = MODELS.create(model["name"], **model["arguments"])
    if recipe.word_vectors is not None and recipe.vectors_start:
        if not isinstance(tokenizer, WordVocabulary):
            raise RecipeError("word_vectors go with a word vocabulary, not with word pieces")
        table = _word_embedding(matcher, len(tokenizer))
        vectors, _ = initial_embedding(tokenizer, recipe.word_vectors, table.embedding_dim, seed)
        with torch.no_grad():
            table.weight.copy_(vectors)
    return matcher


def _word_embedding(matcher: Matcher, size: int) -> nn.Embedding:
    tables = [part for part in matcher.modules() if isinstance(part, nn.Embedding) and part.num_embeddings == size]
    if len(tables) != 1:
        raise RecipeError(
            f"word_vectors need a matcher with one table of {size} word embeddings; this one has {len(tables)}"
        )
    return tables[0]


class Objectives(nn.Module):
    """The losses of a stage; terms are named `loss.term`."""

    def __init__(self, parts: dict[str, nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(parts)

    def forward(self, step: Step) -> dict[str, Term]:
        return {f"{name}.{term}": value for name, part in self.parts.items() for term, value in part(step).items()}

    @property
    def without_phase(self) -> list[str]:
        """The losses that do not say how their computation changes over time, and so are never recorded."""
        return [name for name, part in self.parts.items() if not isinstance(part, Phased)]

    def phase(self, progress: Progress) -> Hashable:
        """The phases of all losses. While they are the same, a step computes the same function."""
        return tuple(part.phase(progress) for part in self.parts.values() if isinstance(part, Phased))

    @property
    def pool_size(self) -> int:
        """How many texts beside the batch the losses choose from."""
        return max((part.pool_size for part in self.parts.values() if isinstance(part, UsesTextPool)), default=0)

    @property
    def categorised(self) -> list[UsesCategories]:
        """The losses that classify pseudo-categories."""
        parts = [part for part in self.parts.values() if isinstance(part, UsesCategories)]
        return [part for part in parts if part.categories is not None]


def build_objective(stage: StageRecipe, matcher: Matcher, tokenizer: Tokenizer, data: TrainingData) -> Objectives:
    facts: dict[str, Any] = {"vocabulary_size": len(tokenizer), "groups": len(data.train.groups)}
    if isinstance(matcher, HasEmbedding):
        facts["embed_dim"] = matcher.embed_dim
    if isinstance(matcher, KeepsRegions):
        facts["region_dim"] = matcher.region_dim
    return Objectives(
        {
            name: OBJECTIVES.create(name, **OBJECTIVES.complete(name, arguments, facts))
            for name, arguments in stage.loss.items()
        }
    )


def texts_of(tokenizer: Tokenizer, split: Split, views: AugmentRecipe | None = None) -> TokenizedTexts:
    """`views`: random changes of the texts, for training."""
    change = ChangedWords(tokenizer.kinds(), views.words) if views is not None and views.words else None
    return TokenizedTexts(tokenizer, split.texts, change=change)


def initial_weights(stage: StageRecipe, previous: Path | None) -> dict[str, Tensor] | None:
    """The weights a stage starts from; None: fresh ones."""
    from quintet.runs.checkpoint import load_tensors
    from quintet.runs.run import open_run

    if stage.init == "scratch":
        return None
    if stage.init == "previous":
        if previous is None:
            raise RecipeError(f"stage {stage.name!r} starts from the previous stage, but it is the first")
        return load_tensors(previous)[0]
    return open_run(stage.init).matcher.state_dict()
