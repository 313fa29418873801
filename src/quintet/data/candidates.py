"""Candidate lists that were made elsewhere, as `NegativeLists` of a split: what `negatives.from` of a recipe may name.

- The folder that `quintet mine RUN CORPUS -o LISTS` wrote. It must be of this split: its checksum says so.
- The arrays of AOQ's authors, `i2t_NAME.npy` (n_images, h) with rows of texts and `t2i_NAME.npy` (n_texts, h) with rows
  of images, best first: their folder, or one of the two files. Rows have no ids, so a positive inside a list shows that
  they are rows of another split or order, and is refused. At the end of a list, where the authors' program puts
  positives, it counts as the end.
- A table (CSV, TSV, JSONL, Parquet) whose rows name an image and a text by id. With a column `direction` a row is for
  the list of the image (`i2t`) or of the text (`t2i`), without one for both. The highest `score` goes first, or without
  that column the first row. Positives and repeated rows are left out, with a note.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quintet.data.arrays import open_array
from quintet.data.corpus import Split
from quintet.data.formats.folder import SUFFIXES, read_table
from quintet.data.negatives import FORMAT, HEADER, NegativeLists
from quintet.errors import CorpusError, suggest
from quintet.files import file_checksum, header_format

COLUMNS = {
    "image": ("image", "image_id", "img", "img_id"),
    "text": ("text", "text_id", "caption", "caption_id", "sentence", "sentence_id"),
    "score": ("score", "similarity"),
    "direction": ("direction",),
}
DIRECTIONS = ("i2t", "t2i")  # whose list a row of a table is for: the image's, the text's
ANCHORS = 4096  # whose lists are compared with their positives at a time
REMEDY = "name the file that the authors' program wrote"
Rows = tuple[np.ndarray, np.ndarray]  # (n_images, h_t) and (n_texts, h_i) int32, -1 behind the last
Note = Callable[[str], None]


def names_lists(path: Path) -> bool:
    """Whether a path names candidate lists, finished or not, and no run."""
    if path.is_file():
        return path.suffix in (".npy", *SUFFIXES)
    return (header_format(path / HEADER) or "").startswith(FORMAT) or bool(_author_files(path))


def read_lists(path: Path, split: Split, *, top_texts: int, top_images: int, note: Note) -> NegativeLists:
    """The first `top_texts` and `top_images` of every list, checked against the split.

    `note` is told what was left out. Scores are NaN where the source has none. The manifest has the checksums of the
    files that were read.
    """
    if path.suffix in SUFFIXES and path.is_file():
        lists, files = _of_table(path, split, (top_texts, top_images), note), [path]
    elif path.suffix == ".npy" or header_format(path / HEADER) is None:
        image_rows, text_rows = files = _pair(path, split)
        lists = _of_arrays(image_rows, text_rows, split, (top_texts, top_images), note)
    else:
        lists, files = NegativeLists.open(path), [path / HEADER]
        lists.check(split)
        _refuse_positives(lists, split, path)
    lists.require(split, top_texts, top_images)
    for kind, counts, top in (("images", lists.text_counts, top_texts), ("texts", lists.image_counts, top_images)):
        short = int((counts < top).sum())
        if short:
            note(f"{path}: {short:,} of {len(counts):,} {kind} have fewer than {top} candidates; all of them are drawn")
    mined = {name: lists.manifest[name] for name in ("matcher", "options") if name in lists.manifest}
    imported = {
        "from": str(path.resolve()),
        "top": [top_texts, top_images],
        "files": {file.name: file_checksum(file) for file in files},
    }
    manifest: dict[str, Any] = {"split": split.name, "split_checksum": split.checksum, "imported": imported}
    return NegativeLists(
        np.array(lists.texts[:, :top_texts]),
        np.array(lists.text_scores[:, :top_texts]),
        np.array(lists.images[:, :top_images]),
        np.array(lists.image_scores[:, :top_images]),
        manifest={"matcher": {"name": path.name}} | mined | manifest,
    )


# The authors' arrays


def _author_files(folder: Path) -> list[Path]:
    return sorted(path for way in DIRECTIONS for path in folder.glob(f"{way}_*.npy"))


def _pair(path: Path, split: Split) -> list[Path]:
    """Both files: those of one name, and in a folder with several names those whose sizes are the split's."""
    if path.is_dir():
        names = sorted({file.name.split("_", 1)[1] for file in _author_files(path)})
        pairs = [[path / f"{way}_{name}" for way in DIRECTIONS] for name in names]
        if len(pairs) > 1:
            pairs = [pair for pair in pairs if _sizes(pair) == (len(split.images), len(split.texts))]
        if len(pairs) != 1:
            raise CorpusError(
                f"{path} has the arrays {', '.join(names)}, and {len(pairs)} of them are for the {len(split.images)} "
                f"images and {len(split.texts)} texts of split {split.name!r}; name one file: {path}/i2t_{names[0]}"
            )
        (found,) = pairs
    else:
        way, _, name = path.name.partition("_")
        if way not in DIRECTIONS:
            raise CorpusError(f"{path}: the authors' arrays are called i2t_NAME.npy and t2i_NAME.npy; rename the file")
        found = [path.with_name(f"{way}_{name}") for way in DIRECTIONS]
    for file in found:
        if not file.is_file():
            raise CorpusError(f"{file} is missing: lists of images and of texts are both needed")
    return found


def _sizes(pair: Sequence[Path]) -> tuple[int, ...]:
    return tuple(len(open_array(file, REMEDY, "iu")) for file in pair if file.is_file())


def _of_arrays(image_rows: Path, text_rows: Path, split: Split, tops: tuple[int, int], note: Note) -> NegativeLists:
    sides = (
        (image_rows, split.image_groups, split.text_groups, "images", tops[0]),
        (text_rows, split.text_groups, split.image_groups, "texts", tops[1]),
    )
    tables = [_table_of(*side, split, note) for side in sides]
    return _without_scores(tables[0], tables[1])


def _table_of(
    path: Path, own: np.ndarray, other: np.ndarray, kind: str, top: int, split: Split, note: Note
) -> np.ndarray:
    stored = open_array(path, REMEDY, "iu")
    if stored.ndim != 2 or len(stored) != len(own):
        raise CorpusError(
            f"{path} has shape {stored.shape}, but split {split.name!r} has {len(own)} {kind}; "
            "it was made of another corpus or split"
        )
    rows = np.array(stored[:, :top]).astype(np.int64)
    if rows.size and not (rows.min() >= 0 and rows.max() < len(other)):
        raise CorpusError(f"{path} names row {rows.max()}, and there are {len(other)}; it was made of another split")
    ordered = np.sort(rows, axis=1)
    if (ordered[:, 1:] == ordered[:, :-1]).any():
        raise CorpusError(f"{path} names a row twice in one list; it is no list of candidates")
    positive = other[rows] == own[:, None]
    at_end = np.logical_and.accumulate(positive[:, ::-1], axis=1)[:, ::-1]
    if (positive & ~at_end).any():
        raise CorpusError(
            f"{path}: {int((positive & ~at_end).any(axis=1).sum()):,} of {len(own):,} lists hold positives of their "
            f"anchor, so these are rows of another split or another order than that of split {split.name!r}; "
            "import the corpus as the authors' program had it, or give the candidates by id, in a table"
        )
    if at_end.any():
        note(f"{path}: {int(at_end.sum()):,} positives at the ends of lists were left out")
    return np.where(at_end, -1, rows).astype(np.int32)


def _refuse_positives(lists: NegativeLists, split: Split, path: Path) -> None:
    sides = (
        (lists.texts, split.image_groups, split.text_groups),
        (lists.images, split.text_groups, split.image_groups),
    )
    for table, own, other in sides:
        for start in range(0, len(table), ANCHORS):
            rows = np.asarray(table[start : start + ANCHORS])
            if ((other[rows] == own[start : start + ANCHORS, None]) & (rows >= 0)).any():
                raise CorpusError(f"{path} lists positives of an anchor among its negatives; mine again")


def _without_scores(texts: np.ndarray, images: np.ndarray) -> NegativeLists:
    scores = (np.where(rows >= 0, np.float32(np.nan), np.float32(-np.inf)) for rows in (texts, images))
    return NegativeLists(texts, next(scores), images, next(scores))


# Tables of ids


@dataclass(frozen=True)
class _Pairs:
    """The rows of a table: row numbers of the split, with what orders them."""

    image: np.ndarray
    text: np.ndarray
    score: np.ndarray | None
    direction: np.ndarray | None  # 0 for i2t, 1 for t2i; None: both


def _of_table(path: Path, split: Split, tops: tuple[int, int], note: Note) -> NegativeLists:
    pairs = _read_pairs(path, split)
    positive = split.image_groups[pairs.image] == split.text_groups[pairs.text]
    if positive.any():
        note(f"{path}: {int(positive.sum()):,} rows name an image and a text of one group; they were left out")
    tables: list[tuple[np.ndarray, np.ndarray]] = []
    repeated = 0
    for way, anchors, others, top, count in (
        (0, pairs.image, pairs.text, tops[0], len(split.images)),
        (1, pairs.text, pairs.image, tops[1], len(split.texts)),
    ):
        kept = np.flatnonzero(~positive if pairs.direction is None else ~positive & (pairs.direction == way))
        _, first = np.unique(anchors[kept] * np.int64(2**31) + others[kept], return_index=True)
        repeated += len(kept) - len(first)
        kept = kept[np.sort(first)]
        scores = None if pairs.score is None else pairs.score[kept]
        tables.append(_lists(anchors[kept], others[kept], scores, top, count))
    if repeated:
        note(f"{path}: {repeated:,} rows repeat an earlier one; they were left out")
    (texts, text_scores), (images, image_scores) = tables
    return NegativeLists(texts, text_scores, images, image_scores)


def _lists(
    anchors: np.ndarray, others: np.ndarray, scores: np.ndarray | None, top: int, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """(count, h) rows and scores, h at most `top`; equal scores in the order of the table."""
    order = np.argsort(anchors, kind="stable") if scores is None else np.lexsort((-scores, anchors))
    sizes = np.bincount(anchors, minlength=count)
    within = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    width = min(top, int(sizes.max(initial=0)))
    keep = within < width
    at = anchors[order][keep], within[keep]
    rows, values = np.full((count, width), -1, np.int32), np.full((count, width), -np.inf, np.float32)
    rows[at] = others[order][keep]
    values[at] = np.nan if scores is None else scores[order][keep]
    return rows, values


def _read_pairs(path: Path, split: Split) -> _Pairs:
    known = {
        "image": {image.id: row for row, image in enumerate(split.images)},
        "text": {text.id: row for row, text in enumerate(split.texts)},
    }
    found: dict[str, array[Any]] = {
        "image": array("q"),
        "text": array("q"),
        "score": array("f"),
        "direction": array("b"),
    }
    columns: dict[str, str] = {}
    for number, row in read_table(path):
        columns = columns or _columns(path, row)
        where = f"{path}, row {number}"
        for kind in ("image", "text"):
            id_ = str(row.get(columns[kind])).strip()
            if id_ not in known[kind]:
                raise CorpusError(
                    f"{where}: {kind} {id_!r:.80} is not in split {split.name!r}, whose ids look like "
                    f"{next(iter(known[kind]))!r}; candidates are of the split that is trained on"
                )
            found[kind].append(known[kind][id_])
        if "score" in columns:
            found["score"].append(_number(row.get(columns["score"]), where))
        if "direction" in columns:
            way = str(row.get(columns["direction"])).strip()
            if way not in DIRECTIONS:
                raise CorpusError(f"{where}: direction is i2t (a text for the image's list) or t2i, got {way!r:.40}")
            found["direction"].append(DIRECTIONS.index(way))
    if not columns:
        raise CorpusError(f"{path} has no rows")
    arrays = {name: np.array(values) for name, values in found.items()}
    return _Pairs(
        arrays["image"],
        arrays["text"],
        arrays["score"] if "score" in columns else None,
        arrays["direction"] if "direction" in columns else None,
    )


def _columns(path: Path, row: Mapping[str, Any]) -> dict[str, str]:
    lower = {str(name).lower().strip(): name for name in row}
    found = {}
    for kind, usual in COLUMNS.items():
        known = [lower[name] for name in usual if name in lower]
        if known:
            found[kind] = known[0]
        elif kind in ("image", "text"):
            raise CorpusError(
                f"{path}: no column with the ids of {kind}s among {', '.join(map(str, row))}; call it {kind!r} "
                f"({suggest(kind, lower)})"
            )
    return found


def _number(value: Any, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not np.isfinite(number):
        raise CorpusError(f"{where}: score should be a number, found {value!r:.40}")
    return number
