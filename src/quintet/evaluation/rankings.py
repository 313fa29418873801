"""Results of other programs, measured by the same counting: embeddings with ids, and run files of TREC.

`npy:FOLDER` has images.npy (n, d) with images.txt (an id a line), and texts.npy with texts.txt. `trec:FILE` has lines
QUERY Q0 DOCUMENT RANK SCORE TAG, where a query is an image and its documents are texts, or the reverse; scores decide,
and a candidate that a query does not list comes after all that it does, tied with the others.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor

from quintet.codes import Codes
from quintet.data.arrays import open_array
from quintet.data.corpus import Corpus, Split
from quintet.data.formats.assembly import read_lines
from quintet.errors import CorpusError, QuintetError
from quintet.evaluation.metrics import DIRECTIONS
from quintet.evaluation.ranks import ScoreBlock
from quintet.evaluation.relevance import plain_id
from quintet.evaluation.scoring import Member
from quintet.files import user_path, write_output
from quintet.scores import dot_score_pairs, dot_scores

EMBEDDINGS, RUN_FILE = "npy:", "trec:"
REMEDY = "write it again with numpy.save"
LARGEST_SCORE = 3e38  # a float32
TAG = "quintet-output"  # the last column of what is written: a file of Quintet's own may be replaced


class DotProduct(torch.nn.Module):
    """A matcher of ready embeddings."""

    image_input: Literal["fragments", "pixels"] = "fragments"

    def encode_images(self, images: Any) -> Codes:
        raise QuintetError("these are embeddings without a model: nothing else can be encoded")

    encode_texts = encode_images

    def score(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        return dot_scores(image_codes, text_codes)

    def score_pairs(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        return dot_score_pairs(image_codes, text_codes)


def given_results(run: object) -> bool:
    """Whether a run is the results of another program: `npy:FOLDER` or `trec:FILE`."""
    return str(run).startswith((EMBEDDINGS, RUN_FILE)) if isinstance(run, str | Path) else False


def read_embeddings(name: str, corpus: Corpus, split: Split) -> Member:
    """The embeddings of a split's images and texts, in its order; those of other splits are passed over."""
    folder = user_path(name.removeprefix(EMBEDDINGS))
    if not folder.is_dir():
        raise CorpusError(f"{folder} is not a folder with images.npy, images.txt, texts.npy and texts.txt")
    sides: tuple[tuple[str, Sequence[Any], Sequence[Any]], ...] = (
        ("images", corpus.images, split.images),
        ("texts", corpus.texts, split.texts),
    )
    found = [
        _embeddings(folder, kind, {row.id for row in all_}, [row.id for row in rows], corpus)
        for kind, all_, rows in sides
    ]
    if found[0].shape[1] != found[1].shape[1]:
        raise CorpusError(f"{folder}: images have {found[0].shape[1]} dimensions and texts {found[1].shape[1]}")
    images, texts = (Codes(embedding=torch.from_numpy(rows)) for rows in found)
    return Member(DotProduct(), images, texts, name=folder.name)


def _embeddings(folder: Path, kind: str, known: set[str], wanted: Sequence[str], corpus: Corpus) -> np.ndarray:
    path, names = folder / f"{kind}.npy", folder / f"{kind}.txt"
    stored = open_array(path, REMEDY)
    ids = [line for line in read_lines(names) if line]
    if stored.ndim != 2 or len(stored) != len(ids) or not stored.shape[1]:
        raise CorpusError(f"{path} has shape {stored.shape}, but {names} has {len(ids):,} ids: one row an id is needed")
    row_of = {id_: row for row, id_ in enumerate(ids)}
    if len(row_of) < len(ids):
        twice = next(id_ for row, id_ in enumerate(ids) if row_of[id_] != row)
        raise CorpusError(f"{names}: {len(ids) - len(row_of):,} ids occur more than once, first {twice!r:.80}")
    _refuse_unknown(names, [id_ for id_ in ids if id_ not in known], corpus)
    missing = [id_ for id_ in wanted if id_ not in row_of]
    if missing:
        raise CorpusError(
            f"{names} lacks {len(missing):,} of {len(wanted):,} {kind} of the split, first {missing[0]!r:.80}"
        )
    rows = np.array(stored[[row_of[id_] for id_ in wanted]], np.float32)
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        raise CorpusError(f"{path}: {len(bad):,} rows hold NaN or infinity, first that of {wanted[bad[0]]!r:.80}")
    return rows


def _refuse_unknown(path: Path, unknown: Sequence[str], corpus: Corpus) -> None:
    if unknown:
        raise CorpusError(
            f"{path}: {len(unknown):,} ids are not of corpus {corpus.name!r}, first {unknown[0]!r:.80}; "
            "its ids are those of images.jsonl and texts.jsonl"
        )


@dataclass(frozen=True)
class RunFile:
    """The lists of a TREC run file, as sparse rows: for images as queries, and for texts."""

    name: str
    shape: tuple[int, int]  # images and texts of the split
    starts: tuple[np.ndarray, np.ndarray]  # (queries + 1,) of each direction
    candidates: tuple[np.ndarray, np.ndarray]
    scores: tuple[np.ndarray, np.ndarray]  # float32

    def score_block(self, side: int) -> ScoreBlock:
        """The scores of one direction, minus infinity where a query does not list a candidate. (images, texts)"""

        def score(images: slice, texts: slice) -> Tensor:
            rows, columns = (texts, images) if side else (images, texts)
            block = np.full((rows.stop - rows.start, columns.stop - columns.start), -np.inf, np.float32)
            low, high = self.starts[side][rows.start], self.starts[side][rows.stop]
            candidate = self.candidates[side][low:high]
            row = np.repeat(np.arange(len(block)), np.diff(self.starts[side][rows.start : rows.stop + 1]))
            inside = (candidate >= columns.start) & (candidate < columns.stop)
            block[row[inside], candidate[inside] - columns.start] = self.scores[side][low:high][inside]
            found = torch.from_numpy(block)
            return found.T if side else found

        return score

    def lengths(self, side: int) -> np.ndarray:
        """(queries,) how many candidates each lists."""
        return np.diff(self.starts[side])

    def notes(self) -> list[str]:
        """What the lists lack."""
        told = []
        for side, (way, words) in enumerate(zip(DIRECTIONS, ("images", "texts"), strict=True)):
            lengths, others = self.lengths(side), self.shape[1 - side]
            none, short = int((lengths == 0).sum()), int(((lengths > 0) & (lengths < others)).sum())
            if none:
                told.append(f"{way}: {none:,} of {len(lengths):,} {words} have no list; they count as never right")
            if short:
                told.append(
                    f"{way}: {short:,} lists are shorter than the {others:,} candidates; what they leave out comes "
                    "last, so medr and meanr are the worst possible ones"
                )
        return told


def read_run_file(name: str, corpus: Corpus, split: Split) -> RunFile:
    """The lists of a split's queries; those of other splits, and candidates of other splits, are passed over."""
    path = user_path(name.removeprefix(RUN_FILE))
    known = {image.id for image in corpus.images}, {text.id for text in corpus.texts}
    own = [image.id for image in split.images], [text.id for text in split.texts]
    row_of = [{id_: at for at, id_ in enumerate(ids)} for ids in own]
    found: list[tuple[array[Any], array[Any], array[Any]]] = [(array("q"), array("q"), array("f")) for _ in DIRECTIONS]
    unknown: dict[str, None] = {}
    plain: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), 1):
        cells = line.split()
        if not cells:
            continue
        score = _number(cells[4]) if len(cells) == 6 else None
        if score is None:
            raise CorpusError(f"{path}, line {number}: expected QUERY Q0 DOCUMENT RANK SCORE TAG, found {line[:80]!r}")
        query, document = (
            plain.get(cell) or plain.setdefault(cell, plain_id(cell, known)) for cell in (cells[0], cells[2])
        )
        if query in known[0] and document in known[1]:
            side = 0
        elif query in known[1] and document in known[0]:
            side = 1
        else:
            unknown |= {id_: None for id_ in (query, document) if id_ not in known[0] and id_ not in known[1]}
            if not unknown:
                raise CorpusError(f"{path}, line {number}: {query!r:.80} and {document!r:.80} are of one kind")
            continue
        row, column = row_of[side].get(query), row_of[1 - side].get(document)
        if row is not None and column is not None:
            for values, value in zip(found[side], (row, column, score), strict=True):
                values.append(value)
    _refuse_unknown(path, list(unknown), corpus)
    if not any(len(queries) for queries, _, _ in found):
        raise CorpusError(f"{path} has no list of split {split.name!r}")
    sides = [_sparse(path, *found[side], own[side], len(own[1 - side])) for side in (0, 1)]
    starts, candidates, scores = zip(*sides, strict=True)
    return RunFile(path.name, (len(split.images), len(split.texts)), starts, candidates, scores)


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if abs(value) <= LARGEST_SCORE else None  # NaN is not


def _sparse(
    path: Path, query: Any, candidate: Any, score: Any, ids: Sequence[str], candidates: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    of, at, values = np.asarray(query, np.int64), np.asarray(candidate, np.int64), np.asarray(score, np.float32)
    order = np.argsort(of * candidates + at, kind="stable")
    of, at, values = of[order], at[order], values[order]
    twice = np.flatnonzero((of[1:] == of[:-1]) & (at[1:] == at[:-1]))
    if len(twice):
        raise CorpusError(
            f"{path}: {len(twice):,} candidates are listed twice by a query, first of {ids[of[twice[0]]]!r:.80}"
        )
    return np.searchsorted(of, np.arange(len(ids) + 1)), at, values


def write_run_file(
    path: Path | str,
    split: Split,
    score_block: ScoreBlock,
    depth: int | None = None,
    block: tuple[int, int] = (1024, 1024),
) -> None:
    """Both directions as one TREC run file, the best `depth` candidates of every query (None: all).

    Among equal scores wrong candidates go first, as they count; scores have the digits that make them the same float32.
    """
    if depth is not None and depth < 1:
        raise QuintetError(f"lists hold at least one candidate, got {depth}")
    images, texts = [_token(image.id) for image in split.images], [_token(text.id) for text in split.texts]
    sides = (
        (images, texts, split.image_groups, split.text_groups, block[0]),
        (texts, images, split.text_groups, split.image_groups, block[1]),
    )
    with write_output(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for side, (queries, documents, own, other, step) in enumerate(sides):
            for start in range(0, len(queries), step):
                rows = slice(start, min(start + step, len(queries)))
                parts = []
                for at in range(0, len(documents), block[1 - side]):
                    columns = slice(at, min(at + block[1 - side], len(documents)))
                    part = score_block(columns, rows).T if side else score_block(rows, columns)
                    parts.append(part.float().cpu().numpy())
                scores = np.concatenate(parts, axis=1)  # (queries, documents)
                for line, query in zip(scores, range(rows.start, rows.stop), strict=True):
                    right = other == own[query]
                    first = np.lexsort((right, -line))[:depth]
                    file.writelines(
                        f"{queries[query]} Q0 {documents[document]} {rank} {_shortest(line[document])} {TAG}\n"
                        for rank, document in enumerate(first.tolist(), 1)
                    )


def _shortest(value: np.float32) -> str:
    """The fewest digits that are read as the same float32."""
    return np.format_float_scientific(value, trim="-") if np.isfinite(value) else str(value)


def _token(id_: str) -> str:
    """An id without white space, which `plain_id` reads."""
    return "".join(quote(letter, safe="") if letter.isspace() or letter == "%" else letter for letter in id_)
