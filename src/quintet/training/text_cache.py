"""The outputs of a frozen text encoder, computed once for a split and read from CORPUS/texts ever after."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from quintet import distributed
from quintet.backbones.weights import weights_checksum
from quintet.data.corpus import Split
from quintet.data.feature_store import WordFeatures, write_word_features
from quintet.data.loading import TokenizedTexts, text_batches
from quintet.data.tokenizers import Tokenizer
from quintet.errors import RecipeError
from quintet.protocols import HasFrozenText, Matcher, TextEncoder, module_of
from quintet.training.build import TrainingData, texts_of
from quintet.training.recipe_models import AugmentRecipe

BATCH = 256


def split_sentences(
    data: TrainingData,
    split: Split,
    tokenizer: Tokenizer,
    matcher: Matcher,
    device: torch.device,
    views: AugmentRecipe | None = None,
) -> TokenizedTexts:
    """The texts of a split; with the matcher's word features where the recipe keeps them (`data.text_cache`)."""
    sentences = texts_of(tokenizer, split, views)
    if data.text_cache == "none":
        return sentences
    encoder = matcher.frozen_text_encoder() if isinstance(matcher, HasFrozenText) else None
    if encoder is None:
        raise RecipeError(
            f"data.text_cache={data.text_cache} keeps the outputs of a frozen text encoder, and this matcher has none "
            "(or its dropout is on, so that they change); leave it out"
        )
    key = _fingerprint(encoder, tokenizer, split, data.text_cache)
    folder = data.corpus.root / "texts" / f"{split.name}-{key[:16]}"
    if distributed.is_main() and not (folder / "manifest.json").is_file():
        _write(folder, sentences, encoder, data.text_cache, key, device)
    distributed.barrier()
    sentences.features = WordFeatures(folder)
    return sentences


def _fingerprint(encoder: TextEncoder, tokenizer: Tokenizer, split: Split, dtype: str) -> str:
    """Different as soon as any feature could be: other weights, other word pieces, other texts, another type."""
    digest = hashlib.sha256(f"{weights_checksum(module_of(encoder))} {dtype}\n".encode())
    digest.update(json.dumps(tokenizer.state(), sort_keys=True).encode())
    for text in split.texts:
        digest.update(json.dumps([text.id, text.text]).encode())
    return digest.hexdigest()


@torch.no_grad()
def _write(
    folder: Path, sentences: TokenizedTexts, encoder: TextEncoder, dtype: str, key: str, device: torch.device
) -> None:
    def parts() -> Iterator[np.ndarray]:
        for batch in text_batches(sentences, BATCH):
            words = encoder(batch.tokens.to(device), batch.lengths.to(device))  # (n, L, dim)
            yield words.float().cpu()[batch.real()].numpy()  # (words of the batch, dim)

    facts = {"encoder": encoder.name, "fingerprint": key}
    with torch.autocast(device.type, enabled=False):
        write_word_features(
            folder,
            sentences.lengths(),
            parts(),
            dim=encoder.dim,
            dtype=dtype,
            facts=facts,
        )
