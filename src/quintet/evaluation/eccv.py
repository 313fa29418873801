"""ECCV Caption and CxC: captions and images of COCO's test split that people found to match, beside the original pairs.

COCO counts one image for a caption and five captions for an image, although others fit as well. ECCV Caption (Chun et
al. 2022) has human-verified positives of 1,261 images and 1,332 captions, and is measured by mAP@R, R-Precision and
R@1. CxC (Parekh et al. 2021) has positives of all 5,000 images and 24,972 captions, and is measured by recalls. Both
come with the package `eccv_caption` as JSON files from COCO's ids to lists of them.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from quintet.data.corpus import Split
from quintet.errors import QuintetError
from quintet.evaluation.relevance import Relevance, make_judged
from quintet.files import read_json, user_path

TITLES = {"eccv": "ECCV Caption", "cxc": "CxC"}
MEASURES = {"eccv": ("map_at_r", "rprecision", "r1"), "cxc": ("r1", "r5", "r10")}
REMEDY = (
    "take the test split of COCO, imported with its caption ids: `quintet data import karpathy dataset_coco.json ...`"
)
ABSENT = 0.05  # of the positives may be captions that the split lacks: ECCV Caption has two such
Pairs = dict[str, list[int]]


def coco_relevance(kind: str, split: Split, folder: Path | str | None = None) -> Relevance:
    """`kind`: "eccv" or "cxc". `folder`: JSON files named as those of the package, by default the package's own.

    Captions are matched by COCO's caption id (the field `caption_id` of a text), and images by their captions.
    """
    files = _folder() if folder is None else user_path(folder)
    title = TITLES[kind]
    own = {int(caption): images for caption, images in _read(files / "original_caption_to_image.json").items()}
    text_of = _captions(split, own, title)
    image_of = _images(split, own, text_of, title)
    extra = sum(text.extra.get("caption_id") not in own for text in split.texts)
    text_of |= {
        text.extra["caption_id"]: row
        for row, text in enumerate(split.texts)
        if isinstance(text.extra.get("caption_id"), int)  # sixth and seventh captions, two of which are positives
    }
    sides, absent = [], []
    for i2t, name, rows, columns in (
        (True, f"{kind}_image_to_caption.json", image_of, text_of),
        (False, f"{kind}_caption_to_image.json", text_of, image_of),
    ):
        found = _read(files / name)
        unknown = [int(query) for query in found if int(query) not in rows]
        lost = [
            (rows.get(int(query), 0), id_) for query, each in found.items() for id_ in set(each) if id_ not in columns
        ]
        if unknown or len(lost) > ABSENT * sum(map(len, found.values())):
            unknown += [id_ for _, id_ in lost]
            raise QuintetError(
                f"{files / name} names {len(unknown):,} ids that are not of COCO's test split, first {min(unknown)}"
            )
        absent.append(np.array([row for row, _ in lost], np.int64))
        pairs = [
            (rows[int(query)], columns[id_]) for query, each in found.items() for id_ in set(each) if id_ in columns
        ]
        sides.append(make_judged(i2t, [query for query, _ in pairs], [candidate for _, candidate in pairs]))
    notes = (
        [f"{extra:,} captions of the split are not among {title}'s {len(own):,}; they are candidates"] if extra else []
    )
    count = sum(map(len, absent))
    notes += [f"{count:,} positives of {title} are not in the split; they count as never found"] if count else []
    return Relevance(kind, title, (sides[0], sides[1]), MEASURES[kind], tuple(notes), (absent[0], absent[1]))


def _folder() -> Path:
    found = find_spec("eccv_caption")  # its code is not imported
    if found is None or found.origin is None:
        raise QuintetError(
            "ECCV Caption and CxC are data of the package eccv_caption: `pip install 'quintet-retrieval[eccv]'`, or "
            "name a folder with its JSON files"
        )
    return Path(found.origin).parent / "data"


def _read(path: Path) -> Pairs:
    found = read_json(path)
    if not isinstance(found, dict) or not all(
        key.isascii()
        and key.isdigit()
        and len(key) < 19
        and isinstance(ids, list)
        and ids
        and all(type(id_) is int for id_ in ids)
        for key, ids in found.items()
    ):
        raise QuintetError(f"{path}: expected an object from COCO's ids to lists of ids")
    return found


def _captions(split: Split, own: dict[int, list[int]], title: str) -> dict[int, int]:
    """COCO's caption id -> row of the split."""
    text_of: dict[int, int] = {}
    for row, text in enumerate(split.texts):
        id_ = text.extra.get("caption_id")
        if isinstance(id_, int) and id_ in own:
            if id_ in text_of:
                raise QuintetError(f"{title}: two texts of split {split.name!r} have the caption id {id_}")
            text_of[id_] = row
    without = sum("caption_id" not in text.extra for text in split.texts)
    if without == len(split.texts):
        raise QuintetError(
            f"{title}: the texts of split {split.name!r} have no COCO caption ids (`caption_id`); {REMEDY}"
        )
    missing = [id_ for id_ in own if id_ not in text_of]
    if missing:
        raise QuintetError(
            f"{title}: split {split.name!r} is not COCO's test split of 5,000 images: {len(missing):,} of its "
            f"{len(own):,} captions are missing, first caption id {missing[0]}; {REMEDY}"
        )
    return text_of


def _images(split: Split, own: dict[int, list[int]], text_of: dict[int, int], title: str) -> dict[int, int]:
    """COCO's image id -> row of the split: the image of its captions."""
    image_of: dict[int, int] = {}
    for caption, (image, *_) in own.items():
        rows = split.images_of_text[text_of[caption]]
        if len(rows) != 1 or image_of.setdefault(image, int(rows[0])) != int(rows[0]):
            raise QuintetError(f"{title}: the captions of COCO's image {image} are not of one image in the split")
    if len(set(image_of.values())) < len(image_of) or len(image_of) < len(split.images):
        raise QuintetError(
            f"{title}: split {split.name!r} has {len(split.images):,} images, and COCO's test split has "
            f"{len(image_of):,}, each with captions of its own; {REMEDY}"
        )
    return image_of
