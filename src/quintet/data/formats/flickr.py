"""Flickr8k and Flickr30k as distributed: a token file, lists of images for each split, a folder of images.

Flickr8k.token.txt           1000268201_693b08cb0e.jpg#0 TAB a caption
Flickr_8k.trainImages.txt    an image's file name (with or without .jpg) on each line
"""

from __future__ import annotations

import re
from pathlib import Path

from quintet.data.corpus import Corpus
from quintet.data.formats.assembly import IMAGE_FOLDERS, Entry, Notes, assemble, given_or_found, read_lines
from quintet.errors import CorpusError

TOKENS = (
    "Flickr8k.token.txt",
    "Flickr30k.token.txt",
    "results_20130124.token",
    "results*.token",
    "*.token",
    "*.token.txt",
)
LISTS = {
    "train": ("Flickr_*k.trainImages.txt", "*trainImages.txt", "*train.txt"),
    "dev": ("Flickr_*k.devImages.txt", "*devImages.txt", "*val.txt", "*dev.txt"),
    "test": ("Flickr_*k.testImages.txt", "*testImages.txt", "*test.txt"),
}
OPTIONS = {
    "tokens": "the token file, where it has an unusual name",
    "images": "the folder of images",
    "train": "the list of training images",
    "dev": "the list of validation images",
    "test": "the list of test images",
    "rest": "true: images in no list are training images (Dual-Path's split of Flickr30k, by Flickr8k's lists)",
    "strict": "true: a missing image or an empty caption is an error instead of a note",
}


def read(
    source: Path,
    *,
    tokens: Path | None = None,
    images: Path | None = None,
    train: Path | None = None,
    dev: Path | None = None,
    test: Path | None = None,
    rest: bool = False,
    strict: bool = False,
) -> Corpus:
    if rest and train is not None:
        raise CorpusError("rest=true makes the training split of the images in no list; leave train out")
    notes = Notes(strict)
    folder = source if source.is_dir() else source.parent
    token_file = source if source.is_file() else given_or_found(tokens, folder, TOKENS, "token file", "tokens")
    image_folder = given_or_found(images, folder, IMAGE_FOLDERS, "folder of images", "images")
    captions = _read_captions(token_file)
    lists = {
        split: read_lines(given_or_found(given, folder, LISTS[split], f"list of {split} images", split))
        for split, given in (("train", train), ("dev", dev), ("test", test))
        if split != "train" or not rest
    }
    if rest:
        listed = {Path(name).stem for names in lists.values() for name in names}
        lists["train"] = [image for image in captions if Path(image).stem not in listed]
    entries = _entries(lists, captions, image_folder, notes)
    return assemble(folder.resolve().name, entries, notes, splits=tuple(LISTS))


def _read_captions(path: Path) -> dict[str, dict[int, str]]:
    """Image -> number -> caption."""
    captions: dict[str, dict[int, str]] = {}
    for number, line in enumerate(read_lines(path), 1):
        if not line:
            continue
        key, _, caption = line.partition("\t")
        image, _, text = key.rpartition("#")
        if not image or not re.fullmatch("[0-9]{1,9}", text):
            raise CorpusError(f"{path}, line {number}: expected IMAGE#NUMBER TAB CAPTION, found {line[:60]!r}")
        if int(text) in captions.setdefault(image, {}):
            raise CorpusError(f"{path}, line {number}: the id {key!r} occurs a second time; ids must be unique")
        captions[image][int(text)] = caption
    return captions


def _entries(
    lists: dict[str, list[str]], captions: dict[str, dict[int, str]], images: Path, notes: Notes
) -> list[Entry]:
    by_stem = {Path(image).stem: image for image in captions}  # some lists leave out the .jpg
    split_of: dict[str, str] = {}
    entries = []
    for split, names in lists.items():
        for name in filter(None, names):
            image = name if name in captions else by_stem.get(name)
            if image is None:
                notes.skip(f"images of split {split!r} without a caption in the token file", name)
                continue
            if image in split_of:
                raise CorpusError(
                    f"image {image!r} is listed twice, in split {split_of[image]!r} and in split {split!r}"
                )
            split_of[image] = split
            numbers = sorted(captions[image])
            texts = [captions[image][number] for number in numbers]
            entries.append(Entry(image, texts, split, images / image, numbers=numbers))
    for image in captions:
        if image not in split_of:
            notes.leave_out("images of the token file that are in no split", image)
    return entries
