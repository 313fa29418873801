"""The data of a recipe: its splits, where images come from, and texts as token ids or kept word features."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from quintet import distributed
from quintet.backbones.tower import same_tower
from quintet.backbones.weights import weights_checksum
from quintet.data.corpus import Corpus, Split, split_checksum
from quintet.data.feature_store import FeatureStore, WordFeatures, has_word_features, write_word_features
from quintet.data.loading import FeatureImages, ImageSource, PixelImages, TokenizedTexts, text_batches
from quintet.data.tokenizers import Tokenizer
from quintet.errors import CorpusError, RecipeError
from quintet.protocols import HasFrozenText, Matcher, TextEncoder, module_of, preprocess_of
from quintet.runs.run_folder import is_run, locate, read_image_input
from quintet.training.logs import Display
from quintet.training.recipe_models import AugmentRecipe, DataRecipe, Recipe

if TYPE_CHECKING:
    from quintet.data.resident import ImageMemory, ResidentFeatures

VALIDATION = "dev"  # the split that selects epochs, unless a recipe names another
BATCH = 256  # texts given to a frozen encoder at a time


@dataclass(frozen=True)
class TrainingData:
    """The splits of a recipe and the source of their images."""

    corpus: Corpus
    train: Split
    validation: Split
    store: FeatureStore | None
    text_cache: str = "none"  # or the dtype in which the outputs of a frozen text encoder are kept in CORPUS/texts
    resident: ResidentFeatures | None = None  # the features of the store in the device's memory
    images: ImageMemory | None = None  # decoded images in the device's memory, for a matcher of pixels

    def checksums(self) -> dict[str, str]:
        """Checksums of the splits: a run is only resumed on the data it was started on."""
        return {"train": split_checksum(self.train), "validation": split_checksum(self.validation)}

    def image_input(self) -> dict[str, Any]:
        """The content of the run's images.json."""
        if self.store is None:
            return {"kind": "pixels"}
        return {"kind": "features", "name": self.store.folder.name, "tower": self.store.manifest.get("tower")}

    def image_source(self, matcher: Matcher, views: AugmentRecipe | None = None) -> ImageSource:
        """Where the matcher's images come from. `views`: random views of them, for training."""
        if self.store is not None:
            source = FeatureImages(self.store) if self.resident is None else self.resident
            if views is None or not views.regions:
                return source
            from quintet.data.augment import FewerRegions

            return FewerRegions(source, views.regions)
        changed = views is not None and (views.crop != "none" or views.flip)
        preprocess = preprocess_of(matcher)
        if self.images is not None:
            if views is None or not changed:
                return self.images.plain(preprocess)
            return self.images.random(preprocess, views.crop, views.flip)
        change = None
        if views is not None and changed:
            from quintet.data.augment import pixel_augmentation

            scale = (views.smallest, 1.0)
            change = pixel_augmentation(preprocess, crop=views.crop, flip=views.flip, scale=scale)
        return PixelImages(self.corpus, preprocess, change)


def open_data(recipe: Recipe, note: Callable[[str], None]) -> TrainingData:
    """Open the corpus and check, before anything is trained, that it holds everything the recipe needs."""
    data = recipe.data
    if data.corpus is None:
        raise RecipeError(f"recipe {recipe.name!r} names no corpus; add --corpus FOLDER (or data.corpus=FOLDER)")
    corpus = Corpus.open(data.corpus)
    train = corpus.split(data.train)
    if data.validation == VALIDATION and not corpus.splits.get(VALIDATION):
        train, validation = _held_out(train, note)
    else:
        validation = corpus.split(data.validation)
    shared = set(train.groups) & {*validation.groups, *corpus.splits.get(data.test, ())}
    if shared:
        raise CorpusError(
            f"{len(shared)} groups are in the training split and in validation or test, first {sorted(shared)[0]!r}; "
            "training and evaluation data must be disjoint"
        )
    if set(validation.groups) & set(corpus.splits.get(data.test, ())):
        raise CorpusError(
            f"split {data.validation!r}, which selects epochs, shares groups with the test split "
            f"{data.test!r}; choose others with data.validation and data.test"
        )
    if data.limit is not None:
        train = train.take_groups(range(min(data.limit, len(train.groups))))
    store = None
    if data.features is not None:
        store = FeatureStore(corpus.root / "features" / data.features)
        store.require([image.id for image in validation.images])  # the validation split stays complete
        missing = {image.id for image in train.images if image.id not in store}
        if missing:
            note(
                f"{len(missing)} of {len(train.images)} training images have no features and are left out, "
                f"first {min(missing)!r}"
            )
            train = train.without_images(missing)
    return TrainingData(corpus, train, validation, store, data.text_cache)


def _held_out(train: Split, note: Callable[[str], None]) -> tuple[Split, Split]:
    """A tenth of the training groups, by a hash of their names, for a corpus without a validation split."""
    if len(train.groups) < 2:
        raise CorpusError("the corpus has one training image and no validation split; epochs are selected on others")
    order = sorted(range(len(train.groups)), key=lambda code: hashlib.sha256(train.groups[code].encode()).digest())
    held = sorted(order[: max(1, len(order) // 10)])
    note(
        f"the corpus has no split {VALIDATION!r}: {len(held)} of its {len(order)} training groups are held out to "
        "select the epoch"
    )
    return train.take_groups(sorted(set(order) - set(held))), replace(train.take_groups(held), name=VALIDATION)


def prepare_features(recipe: Recipe, device: torch.device, display: Display) -> None:
    """Where the first stage starts from a run on features, the corpus must have them of the same tower.

    What the corpus lacks is extracted, so that fine-tuning a run is one command.
    """
    data, start = recipe.data, recipe.stages[0].init
    if data.corpus is None or data.features is None or not is_run(start):
        return
    tower = read_image_input(locate(start)[0]).get("tower") or {}
    folder = Path(data.corpus) / "features" / data.features
    if (folder / "manifest.json").is_file():
        if not same_tower(tower, FeatureStore(folder).manifest.get("tower")):
            raise RecipeError(
                f"the features in {folder} come from another tower or setting than those of {start}; move them away, "
                "and training makes its own"
            )
        return
    if "checksum" not in tower:
        return
    display.info(f"the corpus has no features {data.features}; they are made with the image tower of {start}")
    if distributed.is_main():
        from quintet.features.extract import extract_features  # where they are there, nothing of it is needed

        report = extract_features(
            data.corpus,
            tower["name"],
            weights=tower["weights"],
            name=data.features,
            grid=(tower["grid"][0], tower["grid"][1]),
            crop=tower["preprocess"]["crop"],
            device=device,
        )
        display.info(f"features of {report.written} of {report.images} images in {folder}")
    distributed.barrier()
    if not (folder / "manifest.json").is_file():
        raise CorpusError(f"the first node made the features, and this one does not see {folder}; copy the folder here")


def keep_inputs(data: TrainingData, recipe: DataRecipe, device: torch.device) -> TrainingData:
    """The data with its features in the device's memory, if the recipe asks for that or they fit easily.

    Decoded images are kept only if the recipe asks for it, because random views are then cut from smaller copies.
    """
    if recipe.keep == "disk":
        return data
    if recipe.workers:
        if recipe.keep == "device":
            raise RecipeError("data.keep: device needs data.workers: 0; workers cannot read the device's memory")
        return data
    if recipe.keep == "auto" and (data.store is None or device.type == "cpu"):
        return data
    from quintet.data.resident import ImageMemory, ResidentFeatures, check_fits, fits_on

    ids = [image.id for split in (data.train, data.validation) for image in split.images]
    if data.store is None:
        check_fits(device, len(ids))
        return replace(data, images=ImageMemory(data.corpus, device))
    if recipe.keep == "auto" and not fits_on(device, data.store, len(ids)):
        return data
    return replace(data, resident=ResidentFeatures(data.store, ids, device))


def texts_of(tokenizer: Tokenizer, split: Split, views: AugmentRecipe | None = None) -> TokenizedTexts:
    """The texts of a split as token ids. `views`: random changes of the texts, for training."""
    change = None
    if views is not None and views.words:
        from quintet.data.augment import ChangedWords

        change = ChangedWords(tokenizer.kinds(), views.words)
    return TokenizedTexts(tokenizer, split.texts, change=change)


def split_texts(
    data: TrainingData,
    split: Split,
    tokenizer: Tokenizer,
    matcher: Matcher,
    device: torch.device,
    views: AugmentRecipe | None = None,
) -> TokenizedTexts:
    """The texts of a split, with kept word features of a frozen text encoder if the recipe says so.

    `data.text_cache` computes the encoder's outputs once for a split and reads them from CORPUS/texts from then on.
    """
    texts = texts_of(tokenizer, split, views)
    if data.text_cache == "none":
        return texts
    encoder = matcher.frozen_text_encoder() if isinstance(matcher, HasFrozenText) else None
    if encoder is None:
        raise RecipeError(
            f"data.text_cache={data.text_cache} keeps the outputs of a frozen text encoder, and this matcher has none "
            "(or its dropout is on, so that they change); leave it out"
        )
    key = _fingerprint(encoder, tokenizer, split, data.text_cache)
    folder = data.corpus.root / "texts" / f"{split.name}-{key[:16]}"
    if distributed.is_main() and not has_word_features(folder):
        _write(folder, texts, encoder, data.text_cache, key, device)
    distributed.barrier()
    if not has_word_features(folder):
        raise CorpusError(f"the first node made the outputs of the text encoder; copy its {folder} to this node")
    texts.features = WordFeatures(folder)
    return texts


def _fingerprint(encoder: TextEncoder, tokenizer: Tokenizer, split: Split, dtype: str) -> str:
    """A checksum of everything the features depend on: the encoder's weights, the tokenizer, the texts, the dtype."""
    digest = hashlib.sha256(f"{weights_checksum(module_of(encoder))} {dtype}\n".encode())
    digest.update(json.dumps(tokenizer.state(), sort_keys=True).encode())
    for text in split.texts:
        digest.update(json.dumps([text.id, text.text]).encode())
    return digest.hexdigest()


@torch.no_grad()
def _write(
    folder: Path, texts: TokenizedTexts, encoder: TextEncoder, dtype: str, key: str, device: torch.device
) -> None:
    def parts() -> Iterator[np.ndarray]:
        for batch in text_batches(texts, BATCH):
            words = encoder(batch.tokens.to(device), batch.lengths.to(device))  # (n, L, dim)
            yield words.float().cpu()[batch.real()].numpy()  # (words of the batch, dim)

    facts = {"encoder": encoder.name, "fingerprint": key}
    with torch.autocast(device.type, enabled=False):
        write_word_features(
            folder,
            texts.lengths(),
            parts(),
            dim=encoder.dim,
            dtype=dtype,
            facts=facts,
        )
