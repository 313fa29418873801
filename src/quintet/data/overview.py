"""What is in a corpus: `describe` counts, `check_files` compares features with their checksums, `contact_sheet` draws
images with their captions.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as PILImage
from PIL import ImageDraw, ImageFont

from quintet.data.corpus import Corpus, Image, Split
from quintet.data.dictionary import Dictionary, vector_coverage
from quintet.data.feature_store import HEADER, FeatureStore, WordFeatures
from quintet.data.images import open_image, thumbnail
from quintet.data.vocabulary import SPECIAL_TOKENS, WordVocabulary, split_words
from quintet.errors import CorpusError, ImageError, QuintetError
from quintet.files import atomic_write, user_path

QUANTILES = {"min": 0.0, "5%": 0.05, "median": 0.5, "95%": 0.95, "max": 1.0}
EXAMPLES = 5
SIDE, GAP, LINE, LINES, COLUMNS = 160, 12, 14, 3, 6  # of a contact sheet: pixels, lines of a caption, images in a row
FORMATS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG"}
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def describe(
    corpus: Corpus,
    *,
    split: str | None = None,
    check_images: bool = False,
    word_vectors: Path | str | None = None,
    min_count: int | None = None,
    case: bool = False,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Facts about a corpus, or about one split of it, that JSON can hold.

    With `word_vectors` (a file) or `min_count` they have what is left of the texts of each split when only the words
    of the training texts that have a vector, and are as frequent, are kept: Dual-Path's dictionary, with `case`.

    With `check_images` every image is decoded and its file hashed: unreadable ones and exact copies are listed.
    `progress` is then called with the number of images done.
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
        "duplicate_texts": _duplicate_texts(chosen),
        "features": _features(corpus),
        "notes": corpus.notes,
    }
    if word_vectors is not None or min_count is not None:
        facts["dictionary"] = _dictionary(corpus, chosen, word_vectors, min_count or 1, case)
    if check_images:
        images = {image.id: image for part in chosen for image in part.images}
        facts["image_files"] = _check_images(corpus, images.values(), progress)
    return facts


def _describe_split(split: Split) -> dict[str, Any]:
    words = [split_words(text.text) for text in split.texts]
    per_image = Counter(len(texts) for texts in split.texts_of_image)
    vocabulary = {word for text in words for word in text}
    return {
        "groups": len(split.groups),
        "images": len(split.images),
        "texts": len(split.texts),
        "images_by_number_of_texts": {str(number): per_image[number] for number in sorted(per_image)},
        "words_in_a_text": _quantiles([len(text) for text in words]),
        "vocabulary": len(vocabulary),
    }


def _dictionary(
    corpus: Corpus, splits: list[Split], word_vectors: Path | str | None, min_count: int, case: bool
) -> dict[str, Any]:
    texts = [text.text for text in corpus.split("train").texts]
    vocabulary = WordVocabulary.build(texts, min_count=min_count, case=case, drop_unknown=True)
    coverage = None
    if word_vectors is not None:
        coverage, found = vector_coverage(user_path(word_vectors), vocabulary, texts)
        vocabulary = vocabulary.only(found)
    kept = {part.name: Dictionary.of(vocabulary, [text.text for text in part.texts]) for part in splits}
    return {
        "words": len(vocabulary) - len(SPECIAL_TOKENS),
        "vectors": None if coverage is None else asdict(coverage),
        "splits": {
            name: {"words_in_a_text": part.kept, "words_written": part.written, "texts_without": part.without}
            for name, part in kept.items()
        },
    }


def _quantiles(lengths: list[int]) -> dict[str, int]:
    if not lengths:
        return {}
    values = np.quantile(lengths, list(QUANTILES.values()), method="lower")
    return {name: int(value) for name, value in zip(QUANTILES, values, strict=True)}


def _shared_groups(splits: dict[str, list[str]]) -> dict[str, int]:
    """How many groups two splits have in common: `test` may be inside `testall`; `train` must not share with `test`."""
    names = list(splits)
    shared = {
        f"{one} & {other}": len(set(splits[one]) & set(splits[other]))
        for index, one in enumerate(names)
        for other in names[index + 1 :]
    }
    return {pair: count for pair, count in shared.items() if count}


def _duplicate_texts(splits: Iterable[Split]) -> dict[str, Any]:
    """Texts that describe several groups word for word: such pairs count as wrong though they are not."""
    groups: dict[str, set[str]] = defaultdict(set)
    for split in splits:
        for text in split.texts:
            groups[text.text].add(text.group)
    repeated = {text: len(found) for text, found in groups.items() if len(found) > 1}
    often = sorted(repeated, key=lambda text: (-repeated[text], text))
    return {
        "texts": len(repeated),
        "examples": [{"text": text, "groups": repeated[text]} for text in often[:EXAMPLES]],
    }


def _features(corpus: Corpus) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for manifest in sorted((corpus.root / "features").glob("*/manifest.json")):
        try:
            store = FeatureStore(manifest.parent)
        except QuintetError as error:
            facts[manifest.parent.name] = {"error": str(error)}
            continue
        missing = sum(image.id not in store for image in corpus.images)
        facts[manifest.parent.name] = {
            "images": len(store),
            "images_without": missing,
            "fragments": store.fragments,
            "dim": store.dim,
        }
    return facts


def _check_images(corpus: Corpus, images: Iterable[Image], progress: Callable[[int], None] | None) -> dict[str, Any]:
    unreadable, by_hash, checked = [], defaultdict(list), 0
    for image in images:
        if image.path is None:
            continue
        checked += 1
        path = corpus.image_path(image)
        try:
            open_image(path)
            by_hash[_digest(path)].append(image.id)
        except ImageError as error:
            unreadable.append({"image": image.id, "reason": str(error)})
        if progress is not None:
            progress(checked)
    copies = [ids for ids in by_hash.values() if len(ids) > 1]
    return {"checked": checked, "unreadable": unreadable, "copies": copies}


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def check_files(corpus: Corpus, progress: Callable[[int, int], None] | None = None) -> dict[str, str | None]:
    """What is wrong with each folder of features and of kept word features, or None: arrays are read whole.

    They are compared with their checksums, and no value may be NaN or infinite. The tables were compared when the
    corpus was opened. `progress` is called with the images of one folder that are done, and all of them.
    """
    found: dict[str, str | None] = {}
    for manifest in sorted(path for kind in ("features", "texts") for path in corpus.root.glob(f"{kind}/*/{HEADER}")):
        folder = manifest.parent
        name = folder.relative_to(corpus.root).as_posix()
        try:
            if folder.parent.name == "features":
                FeatureStore(folder).check(progress)
            else:
                WordFeatures(folder).check()
            found[name] = None
        except QuintetError as error:
            found[name] = str(error)
    return found


def contact_sheet(
    corpus: Corpus, path: Path | str, count: int = 24, split: str | None = None, overwrite: bool = True
) -> None:
    """Draw `count` images, spread evenly over the corpus (or a split), into a JPEG or PNG file.

    An image that cannot be read is a grey box with the reason. Without `overwrite` a file at `path` is kept.
    """
    path = user_path(path)
    if path.suffix.lower() not in FORMATS:
        raise CorpusError(f"{path}: a contact sheet is a .jpg or .png file")
    if os.path.lexists(path) and not overwrite:
        raise CorpusError(f"{path} exists; choose another file, or allow overwriting it")
    images = corpus.images if split is None else corpus.split(split).images
    captions = {text.image or text.group: text.text for text in reversed(corpus.texts)}  # the first one wins
    count = min(count, len(images))
    if count < 1:
        raise CorpusError(f"corpus {corpus.name!r}: no images to draw")
    chosen = [images[index * len(images) // count] for index in range(count)]
    columns = min(COLUMNS, count)
    width, height = SIDE + GAP, SIDE + GAP + LINE * LINES + 4
    sheet = PILImage.new("RGB", (columns * width + GAP, -(-count // columns) * height + GAP), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=11)
    for index, image in enumerate(chosen):
        left, top = GAP + index % columns * width, GAP + index // columns * height
        try:
            small = thumbnail(corpus.image_path(image), SIDE, name=image.id)
            sheet.paste(small, (left + (SIDE - small.width) // 2, top + (SIDE - small.height) // 2))
        except (ImageError, CorpusError) as error:
            draw.rectangle((left, top, left + SIDE, top + SIDE), fill="lightgrey")
            _write(draw, str(error), left + 4, top + 4, 10, font)
        caption = captions.get(image.id) or captions.get(image.group, "")
        _write(draw, caption, left, top + SIDE + 3, LINES, font)
    with atomic_write(path) as temporary:
        sheet.save(temporary, FORMATS[path.suffix.lower()], quality=88)


def _write(draw: ImageDraw.ImageDraw, text: str, left: int, top: int, lines: int, font: Font) -> None:
    for number, line in enumerate(_wrap(draw, text, SIDE - 8, lines, font)):
        draw.text((left, top + number * LINE), line, fill="black", font=font)


def _wrap(draw: ImageDraw.ImageDraw, text: str, width: int, lines: int, font: Font) -> list[str]:
    """At most `lines` lines that fit; what does not is cut with an ellipsis."""
    words = [part for word in text.split()[:100] for part in _pieces(word)]
    wrapped = [""]
    for word in words:
        longer = f"{wrapped[-1]} {word}".strip()
        if draw.textlength(longer, font=font) <= width:
            wrapped[-1] = longer
        elif len(wrapped) == lines:
            wrapped[-1] += "…"
            break
        else:
            wrapped.append(word)
    return wrapped


def _pieces(word: str, size: int = 20) -> list[str]:
    return [word[start : start + size] for start in range(0, len(word), size)]
