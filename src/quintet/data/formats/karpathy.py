"""Karpathy's JSON files: {"images": [{"filename", "split", "sentences": [{"raw": ...}, ...], "imgid"}, ...]}.

COCO's rows also have "filepath" (train2014 or val2014) and "cocoid"; its sentences' "sentid" is COCO's caption id.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quintet.data.corpus import Corpus
from quintet.data.formats.assembly import IMAGE_FOLDERS, Entry, Notes, assemble, given_or_found, split_name, value_of
from quintet.errors import CorpusError, suggest
from quintet.files import read_json

RESTVAL = ("train", "drop", "keep")
OPTIONS = {
    "images": "the folder of images; COCO's holds train2014 and val2014",
    "restval": "COCO's 30,504 `restval` images: train (joined to the training split, as published results do), "
    "drop, or keep (a split of their own)",
    "max_captions": "keep the first N captions of an image (COCO has 5 to 7, published results use 5)",
    "strict": "true: a missing image or an empty caption is an error instead of a note",
}


def read(
    source: Path,
    *,
    images: Path | None = None,
    restval: str = "train",
    max_captions: int | None = None,
    strict: bool = False,
) -> Corpus:
    if restval not in RESTVAL:
        raise CorpusError(f"restval={restval}: {suggest(restval, RESTVAL)}")
    folder = source if source.is_dir() else source.parent
    path = given_or_found(
        None if source.is_dir() else source, folder, ("dataset_*.json", "*.json"), "JSON file", "SOURCE"
    )
    rows = read_json(path)
    if not isinstance(rows, dict) or not isinstance(rows.get("images"), list):
        raise CorpusError(f"{path}: expected an object with a list `images`; is it one of Karpathy's dataset_*.json?")
    # COCO's folders carry their own names (train2014, val2014), which the file names.
    coco = any(isinstance(row, dict) and "filepath" in row for row in rows["images"])
    usual = (*IMAGE_FOLDERS, ".") if coco else IMAGE_FOLDERS
    root = given_or_found(images, folder, usual, "folder of images", "images")
    notes = Notes(strict)
    entries = _entries(rows["images"], path, root, restval, max_captions, notes)
    name = str(rows.get("dataset") or path.stem.removeprefix("dataset_"))
    return assemble(name, entries, notes, splits=("train", "dev", "test"))


def _entries(
    rows: list[Any], path: Path, root: Path, restval: str, max_captions: int | None, notes: Notes
) -> Iterator[Entry]:
    target_of = {"train": "train", "keep": "restval"}
    joined = 0
    for number, row in enumerate(rows):
        where = f"{path}: images[{number}]"
        file, split, sentences = (
            value_of(row, key, kind, where) for key, kind in (("filename", str), ("split", str), ("sentences", list))
        )
        texts = [value_of(text, "raw", str, f"{where}.sentences[{at}]") for at, text in enumerate(sentences)]
        facts = [
            {"caption_id": value_of(text, "sentid", int, f"{where}.sentences[{at}]")} if "sentid" in text else {}
            for at, text in enumerate(sentences)
        ]
        folder = value_of(row, "filepath", str, where) if "filepath" in row else ""
        joined += split == "restval" and restval == "train"
        target = target_of.get(restval) if split == "restval" else split_name(split)
        if target is None:
            notes.leave_out("images of split 'restval'", file)
            continue
        extra: dict[str, Any] = {key: row[key] for key in ("imgid", "cocoid") if key in row}
        id_ = str(value_of(row, "cocoid", int | str, where)) if "cocoid" in row else file
        kept = slice(max_captions)
        yield Entry(id_, texts[kept], target, root / folder / file, extra=extra, caption_facts=facts[kept])
    if joined:
        notes.say(f"{joined} images of split 'restval' were joined to 'train'")
