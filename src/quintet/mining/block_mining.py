"""Mining of splits that fit no memory: blocks of images x blocks of texts, on the workers of a cluster or one by one.

Everything is in the journal's folder, and a block costs one task:

    codes-texts-000004096.safetensors   codes of the rows from 4096 on, mapped by whoever needs some of them
    positives-00000-00002.npz           scores of the positive pairs of a block
    lists-images-00000.npz              the best texts so far for the images of a stripe, and which blocks are in them

The lists of a block are what `Sweep` finds in it: the best of the block, in the one order of finished lists (higher
score, then lower row). The best of two such lists are the best of both, so what is left at the end is exact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.cluster import Cluster, Pool, Task, worker_pool
from quintet.codes import Codes
from quintet.data.corpus import Corpus, Split
from quintet.errors import QuintetError
from quintet.mining.approximate import approximate_lists
from quintet.mining.block_scores import Precision, Side, best_tile, float32_sums, make_scores
from quintet.mining.exclude import Exclusions
from quintet.mining.journal import Journal
from quintet.mining.sweep import Sweep, caps_of, ordered
from quintet.protocols import Matcher, evaluation_mode
from quintet.runs.run import Run

SIDES: tuple[Side, Side] = ("images", "texts")
ENCODED_AT_ONCE = 128  # images or texts, as `mine` encodes them
CHUNK = {"images": 1024, "texts": 4096}  # codes of a file; whole batches
BLOCK = {"cpu": (8192, 32_768), "cuda": (65_536, 262_144)}  # images and texts of a block at most
MEMORY = 2**30
SAMPLE = 256  # anchors of each side whose lists are also mined exactly, to measure the recall of approximate ones
Lists = tuple[np.ndarray, np.ndarray, np.ndarray]  # (n, h) rows, (n, h) scores, (n,) how many were above the cap


@dataclass(frozen=True)
class Mined:
    of_images: Lists
    of_texts: Lists
    positives: np.ndarray  # (p,) scores of the pairs of one group
    exclusions: Exclusions
    facts: dict[str, Any]  # for the manifest


@dataclass(frozen=True)
class EncodeTask(Task):
    """Images or texts of a corpus, from a row on."""

    side: Side = "images"
    start: int = 0


@dataclass(frozen=True)
class BlockTask(Task):
    """What to find in a block: the scores of pairs, or lists."""

    at: tuple[int, int] = (0, 0)  # number of the stripe of images, and of the block of texts
    rows: tuple[np.ndarray, np.ndarray] = (np.empty(0, int), np.empty(0, int))  # of images and of texts, ascending
    files: tuple[CodeStore, CodeStore] | None = None
    tile: tuple[int, int] = (1, 1)
    pairs: tuple[np.ndarray, np.ndarray] | None = None  # positions in `rows`; None: lists are wanted
    exclusions: Exclusions | None = None  # of these rows
    caps: tuple[Tensor, Tensor] | None = None
    lengths: tuple[int, int] = (1, 1)
    approximate: bool = False


@dataclass(frozen=True)
class CodeStore:
    """The codes of one side in files. `longest`, `masked`: of all fragments, so that no block is padded otherwise."""

    folder: Path
    side: Side
    size: int
    chunk: int  # rows of a file
    longest: int = 0
    masked: bool = False

    def file(self, start: int) -> Path:
        return self.folder / f"codes-{self.side}-{start:09d}.safetensors"

    @property
    def starts(self) -> range:
        return range(0, self.size, self.chunk)

    def complete(self) -> CodeStore:
        """With what is known once all files are there."""
        longest, masked, lengths = 0, False, set()
        for start in self.starts:
            codes = Codes.load(self.file(start))
            if codes.fragments is not None:
                lengths.add(codes.fragments.shape[1])
                longest, masked = max(lengths), masked or codes.mask is not None or len(lengths) > 1
        return replace(self, longest=longest, masked=masked)

    def read(self, rows: np.ndarray) -> Codes:
        """Ascending rows."""
        parts, chunk = [], self.chunk
        for start in range(int(rows[0]) // chunk * chunk, int(rows[-1]) + 1, chunk):
            low, high = np.searchsorted(rows, (start, start + chunk))
            if high > low:
                codes = Codes.load(self.file(start))
                own = rows[low:high] - start
                whole = own[-1] - own[0] == len(own) - 1
                parts.append(codes[int(own[0]) : int(own[-1]) + 1] if whole else codes[torch.from_numpy(own)])
        codes = Codes.cat(parts)
        return codes.pad_fragments(self.longest) if self.masked else codes

    def row_bytes(self) -> int:
        tensors = Codes.load(self.file(0)).tensors().values()
        return max(1, sum(tensor.nbytes for tensor in tensors) // min(self.size, self.chunk))


class MiningWorker:
    """Encodes parts of a corpus, and finds lists in blocks."""

    def __init__(
        self, run: Run | None, matcher: Matcher, corpus: Corpus | None, precision: Precision, memory: int, device: str
    ) -> None:
        """`corpus`: without rows, it says where features and images are."""
        self.run, self.corpus = None if run is None else run.to(device), corpus
        self.matcher = matcher if self.run is None else self.run.matcher
        self.precision, self.memory, self.device = precision, memory, torch.device(device)
        self._read: dict[Side, tuple[bytes, Codes]] = {}

    def work(self, task: EncodeTask | BlockTask) -> Any:
        if isinstance(task, EncodeTask):
            return self._encode(task)
        with torch.no_grad(), evaluation_mode(self.matcher), float32_sums():
            return self._block(task)

    def _encode(self, task: EncodeTask) -> Codes:
        for position, why in task.lost.items():
            raise QuintetError(
                f"image {task.items[position].id!r} kills the process that reads it ({why}); leave it out of the corpus"
            )
        assert self.run is not None
        assert self.corpus is not None
        if task.side == "images":
            return self.run.encode_images(self.run.image_batches(self.corpus, task.items, ENCODED_AT_ONCE))
        return self.run.encode_texts(self.run.text_batches(task.items, ENCODED_AT_ONCE))

    def _block(self, task: BlockTask) -> Any:
        codes = self._codes(task, 0), self._codes(task, 1)
        if task.approximate:
            assert task.exclusions is not None
            assert task.caps is not None
            found = approximate_lists(*codes, task.exclusions, task.lengths, task.caps)
            return tuple(self._in_split(task, number, *lists) for number, lists in enumerate(found))
        scores = make_scores(self.matcher, *codes, self.device, self.precision, self.memory, task.tile)
        scores.first = int(task.rows[0][0]), int(task.rows[1][0])
        if task.pairs is not None:
            return scores.pairs(*task.pairs)
        assert task.exclusions is not None
        assert task.caps is not None
        sweep = Sweep(scores, task.exclusions, task.lengths, task.caps, self.memory, lambda pairs: None)
        stripes = [
            sweep.stripe(slice(start, min(start + sweep.height, len(codes[0]))))
            for start in range(0, len(codes[0]), sweep.height)
        ]
        of_images = tuple(torch.cat(parts) for parts in zip(*stripes, strict=True))
        of_texts = *sweep.finish(sweep.of_texts, slice(0, len(codes[1]))), sweep.of_texts.above
        return tuple(self._in_split(task, number, *lists) for number, lists in enumerate((of_images, of_texts)))

    @staticmethod
    def _in_split(task: BlockTask, number: int, rows: Tensor, scores: Tensor, above: Tensor) -> Lists:
        """Rows of the split instead of the block's."""
        found = rows.cpu().numpy()
        candidates = np.where(found < 0, -1, task.rows[1 - number][found]).astype(np.int32)
        return candidates, scores.cpu().numpy(), above.cpu().numpy()

    def _codes(self, task: BlockTask, number: int) -> Codes:
        """The last block of each side stays in memory: the next task often wants it again."""
        assert task.files is not None
        side, rows, files = SIDES[number], task.rows[number], task.files[number]
        known, codes = self._read.get(side, (b"", None))
        if codes is None or known != rows.tobytes():
            self._read.pop(side, None)
            try:
                codes = files.read(rows)
            except QuintetError as error:
                raise QuintetError(
                    f"a worker cannot read the codes: {error}; the folder of the lists must be at the same path on "
                    "every node"
                ) from None
            self._read[side] = rows.tobytes(), codes
        return codes


class BlockMining:
    """One mining by blocks: what is done is in the journal."""

    def __init__(
        self,
        pool: Pool,
        journal: Journal,
        split: Split,
        options: Mapping[str, Any],
        *,
        memory: int,
        device: str,
        progress: Callable[[int, int | None], None],
    ) -> None:
        self.pool, self.journal, self.split, self.options = pool, journal, split, options
        self.memory, self.device, self.progress = memory, device, progress
        self.approximate = bool(options.get("approximate"))
        self.sizes = len(split.images), len(split.texts)
        self.lengths = options["top_texts"], options["top_images"]
        self.exclusions = Exclusions(split, options["exclude_duplicates"])
        stores = [
            CodeStore(journal.folder, side, size, CHUNK[side]) for side, size in zip(SIDES, self.sizes, strict=True)
        ]
        self.files = stores[0], stores[1]

    def encode(self) -> None:
        """The codes that are not in files yet."""
        rows: tuple[Sequence[Any], Sequence[Any]] = (self.split.images, self.split.texts)
        tasks = (
            EncodeTask(part[start : start + files.chunk], side=files.side, start=start)
            for files, part in zip(self.files, rows, strict=True)
            for start in files.starts
            if not files.file(start).is_file()
        )
        for task, codes in self.pool.map(tasks):
            codes.save(self.files[SIDES.index(task.side)].file(task.start))

    def run(self) -> Mined:
        self.files = self.files[0].complete(), self.files[1].complete()
        fragments = any(files.longest for files in self.files)
        self.tile = best_tile(self.device.partition(":")[0], fragments, self.sizes)
        self.height, self.width = self._block_shape()
        positives = self._positives()
        image, text = self.exclusions.positives()
        margin = self.options["false_negative_margin"]
        self.caps = (
            caps_of(image, positives, self.sizes[0], margin),
            caps_of(text, positives, self.sizes[1], margin),
        )
        self._lists()
        found = self._assembled(0), self._assembled(1)
        facts: dict[str, Any] = {"blocks": {"images": self.height, "texts": self.width}}
        if self.approximate:
            facts["recall"] = self._recall(found)
        return Mined(*found, positives, self.exclusions, facts)

    def _block_shape(self) -> tuple[int, int]:
        """As begun; else what a quarter of the memory holds of each side's codes, in whole tiles."""
        known = self.journal.kept("division")
        if known is not None:
            return int(known["height"]), int(known["width"])
        most = BLOCK["cpu" if self.device == "cpu" else "cuda"]
        height, width = (
            max(1, min(self.memory // 4 // files.row_bytes(), largest) // side) * side
            for files, largest, side in zip(self.files, most, self.tile, strict=True)
        )
        self.journal.keep("division", {"height": np.array(height), "width": np.array(width)})
        return height, width

    def _blocks(self) -> Iterator[tuple[int, int]]:
        down, across = (-(-size // of) for size, of in zip(self.sizes, self._shape, strict=True))
        return itertools.product(range(down), range(across))

    @property
    def _shape(self) -> tuple[int, int]:
        return self.height, self.width

    def _rows(self, side: int, number: int) -> np.ndarray:
        size = self._shape[side]
        return np.arange(number * size, min((number + 1) * size, self.sizes[side]))

    def _task(self, at: tuple[int, int], **more: Any) -> BlockTask:
        rows = self._rows(0, at[0]), self._rows(1, at[1])
        return BlockTask(at=at, rows=rows, files=self.files, tile=self.tile, **more)

    def _positives(self) -> np.ndarray:
        """(p,) scores of all pairs of one group, in the order of `Exclusions.positives`."""
        image, text = self.exclusions.positives()
        across = -(-self.sizes[1] // self.width)
        block = image // self.height * across + text // self.width
        order = np.argsort(block, kind="stable")
        cuts = np.flatnonzero(np.diff(block[order])) + 1
        scores = np.empty(len(image), np.float32)
        tasks, where = [], {}
        for pairs in np.split(order, cuts) if len(order) else []:
            at = divmod(int(block[pairs[0]]), across)
            where[at] = pairs
            known = self.journal.kept(_positives_name(at))
            if known is not None:
                scores[pairs] = known["scores"]
            else:
                tasks.append(at)
        made = (
            self._task(at, pairs=(image[where[at]] - at[0] * self.height, text[where[at]] - at[1] * self.width))
            for at in tasks
        )
        for task, found in self.pool.map(made):
            self.journal.keep(_positives_name(task.at), {"scores": found})
            scores[where[task.at]] = found
        return scores

    def _lists(self) -> None:
        done = {side: self._merged(side) for side in (0, 1)}
        total, pairs = math.prod(self.sizes), 0
        todo = []
        for at in self._blocks():
            if at[1] in done[0].get(at[0], ()) and at[0] in done[1].get(at[1], ()):
                pairs += len(self._rows(0, at[0])) * len(self._rows(1, at[1]))
            else:
                todo.append(at)
        self.progress(pairs, total)
        for task, found in self.pool.map(self._list_task(at) for at in todo):
            for side in (0, 1):
                self._merge(side, task.at[side], task.at[1 - side], found[side])
            pairs += len(task.rows[0]) * len(task.rows[1])
            self.progress(pairs, total)

    def _list_task(self, at: tuple[int, int]) -> BlockTask:
        return self._with_lists(self._task(at, approximate=self.approximate))

    def _with_lists(self, task: BlockTask) -> BlockTask:
        caps = tuple(cap[torch.from_numpy(rows)] for cap, rows in zip(self.caps, task.rows, strict=True))
        return replace(task, exclusions=self.exclusions.of(*task.rows), caps=(caps[0], caps[1]), lengths=self.lengths)

    def _merged(self, side: int) -> dict[int, set[int]]:
        """For each stripe which blocks its lists have."""
        found = {}
        for number in range(-(-self.sizes[side] // self._shape[side])):
            known = self.journal.kept(_lists_name(side, number))
            if known is not None:
                found[number] = set(known["merged"].tolist())
        return found

    def _merge(self, side: int, number: int, block: int, found: Lists) -> None:
        """Killed between two sides, a block is mined again and goes where it is not yet."""
        known = self.journal.kept(_lists_name(side, number))
        rows, scores, above = found
        merged = [block]
        if known is not None:
            if block in known["merged"]:
                return
            rows, scores = merge_lists((known["rows"], rows), (known["scores"], scores))
            above = known["above"] + above
            merged += known["merged"].tolist()
        arrays = {"rows": rows, "scores": scores, "above": above, "merged": np.array(merged)}
        self.journal.keep(_lists_name(side, number), arrays)

    def _assembled(self, side: int) -> Lists:
        """All lists of a side, in mapped files."""
        shape = self.sizes[side], self.lengths[side]
        types: list[tuple[str, tuple[int, ...], type]]
        types = [("rows", shape, np.int32), ("scores", shape, np.float32), ("above", shape[:1], np.int64)]
        arrays = [
            np.lib.format.open_memmap(self.journal.folder / f"all-{SIDES[side]}-{name}.npy", "w+", dtype, of)
            for name, of, dtype in types
        ]
        for number in range(-(-shape[0] // self._shape[side])):
            known = self.journal.kept(_lists_name(side, number))
            assert known is not None
            rows = self._rows(side, number)
            for array, (name, _, _) in zip(arrays, types, strict=True):
                array[rows[0] : rows[-1] + 1] = known[name]
        return arrays[0], arrays[1], arrays[2]

    def _recall(self, found: tuple[Lists, Lists]) -> dict[str, float]:
        """The share of the entries of exact lists that approximate ones have: of texts, of images, over a sample."""
        shares: dict[str, float] = {}
        for side in (0, 1):
            anchors = np.unique(np.linspace(0, self.sizes[side] - 1, min(SAMPLE, self.sizes[side])).astype(np.int64))
            tasks = (
                self._with_lists(BlockTask(rows=rows, files=self.files, tile=self.tile))
                for block in range(-(-self.sizes[1 - side] // self._shape[1 - side]))
                for rows in [(anchors, self._rows(1, block)) if side == 0 else (self._rows(0, block), anchors)]
            )
            exact: tuple[np.ndarray, np.ndarray] | None = None
            for _, lists in self.pool.map(tasks):
                part = lists[side][:2]
                exact = part if exact is None else merge_lists((exact[0], part[0]), (exact[1], part[1]))
            assert exact is not None
            hits = sum(
                len(np.intersect1d(one[one >= 0], other[other >= 0]))
                for one, other in zip(exact[0], found[side][0][anchors], strict=True)
            )
            shares[SIDES[1 - side]] = round(hits / max(1, int((exact[0] >= 0).sum())), 4)
        return shares


def merge_lists(rows: Sequence[np.ndarray], scores: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The best of several finished lists of the same anchors: (n, h) rows and scores.

    >>> one, other = np.array([[4, 7]]), np.array([[2, -1]])
    >>> rows, scores = merge_lists((one, other), (np.array([[3.0, 1.0]]), np.array([[3.0, -np.inf]])))
    >>> rows.tolist(), scores.tolist()
    ([[2, 4]], [[3.0, 3.0]])
    """
    length = rows[0].shape[1]
    both = [torch.from_numpy(np.concatenate(parts, axis=1)) for parts in (rows, scores)]
    best = ordered(both[0], both[1], length)
    return best[0].numpy(), best[1].numpy()


def _positives_name(at: tuple[int, int]) -> str:
    return f"positives-{at[0]:05d}-{at[1]:05d}"


def _lists_name(side: int, number: int) -> str:
    return f"lists-{SIDES[side]}-{number:05d}"


def mine_blocks(
    run: Run,
    corpus: Corpus,
    split: Split,
    options: Mapping[str, Any],
    journal: Journal,
    *,
    cluster: Cluster | None,
    precision: Precision,
    memory: int | None,
    progress: Callable[[int, int | None], None],
) -> Mined:
    """Encode a split and mine it, with what the journal has of both."""
    device = str(run.device) if cluster is None else cluster.device
    bytes_ = memory if memory is not None else MEMORY
    where = Corpus(corpus.name, [], [], {}, corpus.root)
    with ExitStack() as stack:
        made_by = MiningWorker, run, run.matcher, where, precision, bytes_, device
        pool = stack.enter_context(worker_pool(cluster, *made_by))
        mining = BlockMining(pool, journal, split, options, memory=bytes_, device=device, progress=progress)
        mining.encode()
        return mining.run()
