"""COCO's own files: captions_train2017.json, captions_val2017.json (or 2014) and the folders train2017, val2017.

{"images": [{"id", "file_name"}], "annotations": [{"id", "image_id", "caption"}]}: an annotation's id is the caption id.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from quintet.data.corpus import Corpus
from quintet.data.formats.assembly import Entry, Notes, assemble, given_or_found, split_name, value_of
from quintet.data.formats.karpathy import RESTVAL
from quintet.errors import CorpusError, suggest
from quintet.files import read_json

NAMES = ("captions_*.json", "annotations/captions_*.json")
FOLDERS = (".", "images", "..", "../images")  # where train2017 and its like may lie, from the file's folder
OPTIONS = {
    "images": "the folder that holds train2017, val2017 and so on, or the images themselves",
    "karpathy": "Karpathy's dataset_coco.json: his splits and his order of the captions (2014)",
    "restval": "of Karpathy's splits, `restval`: train (joined to the training split), drop, or keep",
    "val": "the split that val2017 or val2014 becomes: dev or test",
    "max_captions": "keep the first N captions of an image (COCO has 5 to 7, published results use 5)",
    "strict": "true: a missing image or an empty caption is an error instead of a note",
}


def read(
    source: Path,
    *,
    images: Path | None = None,
    karpathy: Path | None = None,
    restval: str = "train",
    val: str = "dev",
    max_captions: int | None = None,
    strict: bool = False,
) -> Corpus:
    for name, value, known in (("restval", restval, RESTVAL), ("val", val, ("dev", "test"))):
        if value not in known:
            raise CorpusError(f"{name}={value}: {suggest(value, known)}")
    paths = [source] if source.is_file() else [path for pattern in NAMES for path in sorted(source.glob(pattern))]
    if not paths:
        raise CorpusError(f"no captions_*.json in {source} or its folder annotations")
    notes = Notes(strict)
    order = None if karpathy is None else _karpathy_order(karpathy, source)
    entries: list[Entry] = []
    for path in paths:
        entries += _entries(path, images, order, restval, val, max_captions, notes)
    return assemble("coco", entries, notes, splits=("train", "dev", "test"))


def _entries(
    path: Path,
    images: Path | None,
    order: dict[int, tuple[str, list[int]]] | None,
    restval: str,
    val: str,
    max_captions: int | None,
    notes: Notes,
) -> Iterator[Entry]:
    content = read_json(path)
    part = path.stem.removeprefix("captions_")  # train2017
    split = {"dev": val}.get(split_name(part.rstrip("0123456789")), split_name(part.rstrip("0123456789")))
    captions: dict[int, list[tuple[int, str]]] = {}
    for number, row in enumerate(value_of(content, "annotations", list, str(path))):
        where = f"{path}: annotations[{number}]"
        captions.setdefault(value_of(row, "image_id", int, where), []).append(
            (value_of(row, "id", int, where), value_of(row, "caption", str, where))
        )
    root = _root(path, images, part)
    for number, row in enumerate(value_of(content, "images", list, str(path))):
        where = f"{path}: images[{number}]"
        id_, file = value_of(row, "id", int, where), value_of(row, "file_name", str, where)
        target, found = split, captions.pop(id_, [])
        if order is not None:
            if id_ not in order:
                notes.leave_out("images that are in none of Karpathy's splits", file)
                continue
            target, numbers = order[id_]
            rank = {caption: at for at, caption in enumerate(numbers)}
            found.sort(key=lambda caption: rank.get(caption[0], len(rank)))
            if target == "restval" and restval == "drop":
                notes.leave_out("images of split 'restval'", file)
                continue
            target = "train" if target == "restval" and restval == "train" else target
        found = found[:max_captions]
        facts = [{"caption_id": caption_id} for caption_id, _ in found]
        texts = [text for _, text in found]
        yield Entry(str(id_), texts, target, root / file, extra={"cocoid": id_}, caption_facts=facts)
    if captions:
        raise CorpusError(
            f"{path}: caption {next(iter(captions.values()))[0][0]} is of image {next(iter(captions))}, "
            "which the file does not have"
        )


def _root(path: Path, images: Path | None, part: str) -> Path:
    """The folder with the images of a file."""
    if images is None:
        return given_or_found(
            None, path.parent, [f"{folder}/{part}" for folder in FOLDERS], "folder of images", "images"
        )
    folder = given_or_found(images, path.parent, (), "folder of images", "images")
    return folder / part if (folder / part).is_dir() else folder


def _karpathy_order(given: Path, source: Path) -> dict[int, tuple[str, list[int]]]:
    """COCO's image id -> Karpathy's split, and the ids of its captions in his order."""
    path = given_or_found(given, source if source.is_dir() else source.parent, (), "JSON file", "karpathy")
    order = {}
    for number, row in enumerate(value_of(read_json(path), "images", list, str(path))):
        where = f"{path}: images[{number}]"
        sentences = value_of(row, "sentences", list, where)
        numbers = [value_of(text, "sentid", int, f"{where}.sentences[{at}]") for at, text in enumerate(sentences)]
        order[value_of(row, "cocoid", int, where)] = (split_name(value_of(row, "split", str, where)), numbers)
    return order
