"""What is in a corpus: counts, lengths, duplicates and whether the pictures can be read."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from quintet.data.contact_sheet import contact_sheet
from quintet.data.corpus import Corpus, Image, Split
from quintet.data.features import FeatureStore
from quintet.data.pictures import open_picture
from quintet.data.words import split_words
from quintet.errors import CorpusError, PictureError

__all__ = ["contact_sheet", "describe"]

QUANTILES = {"min": 0.0, "5%": 0.05, "median": 0.5, "95%": 0.95, "max": 1.0}
EXAMPLES = 5


def describe(
    corpus: Corpus,
    *,
    split: str | None = None,
    check_pictures: bool = False,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Facts about a corpus, or about one split of it, that JSON can hold.

    With `check_pictures` every picture is decoded and its file hashed: unreadable ones and exact copies are listed.
    `progress` is then called with the number of pictures done.
    """
    chosen = [corpus.split(name) for name in ([split] if split is not None else corpus.splits)]
    facts: dict[str, Any] = {
        "name": corpus.name,
        "folder": str(corpus.root),
        "images": len(corpus.images),
        "texts": len(corpus.texts),
        "groups": len({image.group for image in corpus.images}),
        "splits": {part.name: _describe_split(part) for part in chosen},
        "groups_in_several_splits": _shared_groups(corpus.splits),
        "duplicate_sentences": _duplicate_sentences(chosen),
        "features": _features(corpus),
        "notes": corpus.notes,
    }
    if check_pictures:
        images = {image.id: image for part in chosen for image in part.images}
        facts["pictures"] = _check_pictures(corpus, images.values(), progress)
    return facts


def _describe_split(split: Split) -> dict[str, Any]:
    words = [split_words(text.text) for text in split.texts]
    per_image = Counter(len(texts) for texts in split.texts_of_image)
    vocabulary = {word for sentence in words for word in sentence}
    return {
        "groups": len(split.groups),
        "images": len(split.images),
        "texts": len(split.texts),
        "images_by_number_of_texts": {str(number): per_image[number] for number in sorted(per_image)},
        "words_in_a_text": _quantiles([len(sentence) for sentence in words]),
        "vocabulary": len(vocabulary),
    }


def _quantiles(lengths: list[int]) -> dict[str, int]:
    if not lengths:
        return {}
    values = np.quantile(lengths, list(QUANTILES.values()), method="lower")
    return {name: int(value) for name, value in zip(QUANTILES, values, strict=True)}


def _shared_groups(splits: dict[str, list[str]]) -> dict[str, int]:
    """How many groups two splits have in common: `test` inside `testall` is meant so, `train` with `test` never is."""
    names = list(splits)
    shared = {
        f"{one} & {other}": len(set(splits[one]) & set(splits[other]))
        for place, one in enumerate(names)
        for other in names[place + 1 :]
    }
    return {pair: count for pair, count in shared.items() if count}


def _duplicate_sentences(splits: Iterable[Split]) -> dict[str, Any]:
    """Sentences that describe several groups word for word: such pairs count as wrong though they are not."""
    groups: dict[str, set[str]] = defaultdict(set)
    for split in splits:
        for text in split.texts:
            groups[text.text].add(text.group)
    repeated = {text: len(found) for text, found in groups.items() if len(found) > 1}
    often = sorted(repeated, key=lambda text: (-repeated[text], text))
    return {
        "sentences": len(repeated),
        "examples": [{"text": text, "groups": repeated[text]} for text in often[:EXAMPLES]],
    }


def _features(corpus: Corpus) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for manifest in sorted((corpus.root / "features").glob("*/manifest.json")):
        try:
            store = FeatureStore(manifest.parent)
        except CorpusError as error:
            facts[manifest.parent.name] = {"error": str(error)}
            continue
        lacking = sum(image.id not in store for image in corpus.images)
        facts[manifest.parent.name] = {
            "images": len(store),
            "images_without": lacking,
            "fragments": store.fragments,
            "dim": store.dim,
        }
    return facts


def _check_pictures(corpus: Corpus, images: Iterable[Image], progress: Callable[[int], None] | None) -> dict[str, Any]:
    unreadable, by_hash, checked = [], defaultdict(list), 0
    for image in images:
        if image.path is None:
            continue
        checked += 1
        path = corpus.picture(image)
        try:
            open_picture(path)
            by_hash[_digest(path)].append(image.id)
        except PictureError as error:
            unreadable.append({"image": image.id, "reason": str(error)})
        if progress is not None:
            progress(checked)
    copies = [ids for ids in by_hash.values() if len(ids) > 1]
    return {"checked": checked, "unreadable": unreadable, "copies": copies}


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
