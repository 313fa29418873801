"""Offline hard negatives over a whole split (AOQ, section 3.2): every image against every text that is not its own, and
the reverse, exact.

`mine` takes a run and a corpus, `mine_codes` a matcher and codes at hand.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet import distributed
from quintet.cluster import Cluster
from quintet.codes import Codes
from quintet.data.corpus import Corpus, Split, as_corpus, split_checksum
from quintet.data.negatives import NegativeLists
from quintet.errors import QuintetError
from quintet.files import user_path
from quintet.locks import folder_lock
from quintet.mining.block_mining import Lists, mine_blocks
from quintet.mining.block_scores import HALVES, Precision, TileScores, float32_sums, make_scores
from quintet.mining.exclude import Exclusions
from quintet.mining.journal import VERSION, Journal, remove_journal
from quintet.mining.sweep import Sweep, caps_of
from quintet.protocols import Matcher, evaluation_mode
from quintet.runs.encoding import Progress, reported
from quintet.runs.run import Run, as_run
from quintet.runs.run_folder import default_corpus

CPU_MEMORY = 2**30
ENCODED_AT_ONCE = 128  # images or texts; always, since codes of batches of other sizes differ in their last bits
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
RANKS = (1, 10, 100)


def mine(
    run: Run | Path | str,
    corpus: Corpus | Path | str | None = None,
    *,
    split: Split | str = "train",
    top_texts: int = 300,
    top_images: int = 60,
    out: Path | str | None = None,
    exclude_duplicates: bool = False,
    false_negative_margin: float | None = None,
    precision: Precision = "auto",
    memory: int | None = None,
    stage: str | None = None,
    device: torch.device | str | None = None,
    progress: bool | Progress = False,
    approximate: bool = False,
    ray: str | None = None,
    ray_workers: int | None = None,
    ray_gpus: float = 0.0,
) -> NegativeLists:
    """The hardest negatives of a whole split: for every image texts, for every text images. What `quintet mine` calls.

    - `run`: what `quintet.load` gives, or what it takes, with `stage` the selected weights of that stage.
    - `corpus`: a corpus or its folder; by default the one the run was trained on.
    - `out`: folder for the lists. Mining that was stopped or killed goes on where it was when it is called again, and
      finished lists of the same weights, split and options are opened. One process tree at a time mines into a folder.
      None: nothing is written.
    - `memory`: bytes of working memory beside codes and lists (default: half of a GPU's free memory, 1 GiB on a CPU).
    - `device`: by default where the run is; a run given by name goes to a GPU where there is one.
    - `progress`: draws a bar; a function is called with the pairs that are compared and the pairs in all.
    - `approximate`: compare each embedding with the cells of a FAISS index that are near it, and score what is found
      exactly. The recall is measured on a sample; it is in the manifest, under "computed".
    - `ray`: a Ray cluster whose workers encode and mine blocks (auto, local, ray://HOST:PORT). Codes are read from
      files beside `out`, which must be at the same path on every node, as the corpus must be; no process has all of
      them in its memory. `ray_workers`: how many, by default one a CPU. `ray_gpus`: GPUs of each, 0.5 for two on one.
    - The other options are those of `mine_codes`.

    Under torchrun encoding and mining are shared out, every process gets the lists and the first one writes them.

    >>> import quintet, tempfile
    >>> corpus = quintet.import_corpus("scenes", "-", tempfile.mkdtemp(), train=4, dev=1, test=1)  # generated images
    >>> _ = quintet.extract_features(corpus, "efficientnet-lite2+efficientnet-lite0", grid=1, device="cpu")
    >>> lists = mine("quintet-small", corpus, top_texts=7, top_images=2, device="cpu")
    >>> lists.texts.shape, lists.images.shape  # rows of the split, hardest first
    ((4, 7), (20, 2))
    """
    cluster = Cluster.of(ray, ray_workers, ray_gpus, device)
    by_blocks = approximate or cluster is not None
    if by_blocks and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise QuintetError("torchrun and Ray (or approximate mining) do not go together; start `quintet mine` alone")
    options: dict[str, Any] = {
        "top_texts": top_texts,
        "top_images": top_images,
        "exclude_duplicates": exclude_duplicates,
        "false_negative_margin": false_negative_margin,
    } | ({"approximate": True} if approximate else {})
    _check_options(options, precision)
    run = as_run(run, stage=stage, device=device if cluster is None else "cpu")
    with distributed.process_group(run.device), ExitStack() as stack:
        corpus = as_corpus(corpus if corpus is not None else default_corpus([run.folder]))
        split = corpus.split(split) if isinstance(split, str) else split
        journal = None
        if out is not None:
            out = user_path(out)
            finished = _finished(out, run, split, options)
            missing = torch.tensor(int(finished is None), device=run.device)
            if finished is not None and not distributed.all_reduce_max(missing):  # for all processes
                return finished
            journal = _journal(out, run, split, options | ({"blocks": True} if by_blocks else {}))
            if distributed.is_main():
                stack.enter_context(folder_lock(out, "mining negatives"))
            distributed.barrier()
        shown = progress if callable(progress) else progress and distributed.is_main()
        source = {"name": run.name, "weights": run.weights_checksum}
        if by_blocks:
            folder = journal or Path(stack.enter_context(TemporaryDirectory(prefix="quintet-mining-")))
            report = stack.enter_context(reported(shown, f"mining {split.name}", len(split.images) * len(split.texts)))
            lists = _mine_blocks(run, corpus, split, options, folder, cluster, precision, memory, source, report)
        else:
            codes = encode_shared(run, corpus, split)
            with reported(shown, f"mining {split.name}", len(split.images) * len(split.texts)) as report:
                lists = mine_codes(
                    run.matcher,
                    *codes,
                    split,
                    **options,
                    precision=precision,
                    memory=memory,
                    device=run.device,
                    journal=journal,
                    progress=report,
                    source=source,
                )
        if out is not None:
            if distributed.is_main():
                lists.save(out)
                for old in _journals(out):  # also those of mining that was given up
                    remove_journal(old)
            distributed.barrier()
        return lists


def mine_codes(
    matcher: Matcher,
    image_codes: Codes,
    text_codes: Codes,
    split: Split,
    *,
    top_texts: int = 300,
    top_images: int = 60,
    exclude_duplicates: bool = False,
    false_negative_margin: float | None = None,
    precision: Precision = "auto",
    memory: int | None = None,
    device: torch.device | str | None = None,
    journal: Path | None = None,
    progress: Progress | None = None,
    source: Mapping[str, str] | None = None,
    tile: tuple[int, int] | None = None,
) -> NegativeLists:
    """For every image of the split its `top_texts` hardest texts, for every text its `top_images` hardest images.

    Harder is a higher score; among equal scores the lower row goes first. Pairs of one group are never negatives.
    `exclude_duplicates` also leaves out, for an image, texts equal to one of its own, and for a text, images that own
    an equal text. `false_negative_margin` leaves out candidates that score more than the anchor's best positive plus
    the margin (0: whatever beats every positive; -0.1: whatever comes within 0.1 of the best).

    `precision` says how blocks of scores are computed ("auto", "float32", "float16", "bfloat16"); float32 scores
    decide in any case (see `make_scores`). With a `journal` folder, mining that was killed goes on where it was.
    `source` names the matcher in the manifest: {"name": ..., "weights": its checksum}. `tile` is the shape of the
    blocks that the matcher scores at once.
    """
    began = time.monotonic()
    options = {
        "top_texts": top_texts,
        "top_images": top_images,
        "exclude_duplicates": exclude_duplicates,
        "false_negative_margin": false_negative_margin,
    }
    _check_options(options, precision)
    if (len(image_codes), len(text_codes)) != (len(split.images), len(split.texts)):
        raise QuintetError(
            f"split {split.name!r} has {len(split.images)} images and {len(split.texts)} texts, but there are codes of "
            f"{len(image_codes)} and {len(text_codes)}; encode the whole split, in its order"
        )
    where = torch.device(device) if device is not None else image_codes.device
    memory = memory if memory is not None else _default_memory(where)
    exclusions = Exclusions(split, exclude_duplicates)
    with torch.no_grad(), evaluation_mode(matcher), float32_sums():
        scores = make_scores(matcher, image_codes, text_codes, where, precision, memory, tile)
        name = dict(source or {"name": type(matcher).__name__, "weights": scores.fingerprint()})
        settings = options | {
            "split": split_checksum(split),
            "matcher": name,
            "codes": None if source else scores.fingerprint(),
            "precision": precision,
        }
        book = None if journal is None else Journal(journal, settings)
        mining = _Mining(scores, exclusions, options, memory, book, progress)
        mining.run()
    found = mining.of_images, mining.of_texts, mining.positives, mining.exclusions
    computed = {
        "precision": scores.precision,
        "device": str(where),
        "processes": distributed.world_size(),
        "scored_again": {"images": mining.sweep.redone[0], "texts": mining.sweep.redone[1]},
    }
    return _as_lists(split, *found, name, options, computed, began)


def _mine_blocks(
    run: Run,
    corpus: Corpus,
    split: Split,
    options: dict[str, Any],
    folder: Path,
    cluster: Cluster | None,
    precision: Precision,
    memory: int | None,
    source: dict[str, str],
    progress: Progress,
) -> NegativeLists:
    began = time.monotonic()
    settings = options | {
        "split": split_checksum(split),
        "matcher": source,
        "precision": precision,
        "images": run.image_input.get("name"),
    }
    mined = mine_blocks(
        run,
        corpus,
        split,
        options,
        Journal(folder, settings),
        cluster=cluster,
        precision=precision,
        memory=memory,
        progress=progress,
    )
    computed = {"precision": precision, "device": str(run.device) if cluster is None else cluster.device}
    found = mined.of_images, mined.of_texts, mined.positives, mined.exclusions
    return _as_lists(split, *found, source, options, computed | mined.facts, began)


def _as_lists(
    split: Split,
    of_images: Lists,
    of_texts: Lists,
    positives: np.ndarray,
    exclusions: Exclusions,
    matcher: dict[str, str],
    options: dict[str, Any],
    computed: dict[str, Any],
    began: float,
) -> NegativeLists:
    """`of_images`, `of_texts`: rows, scores, number above the caps."""
    excluded = exclusions.counts()
    if options["false_negative_margin"] is not None:
        excluded["texts_above_false_negative_threshold"] = int(of_images[2].sum())
        excluded["images_above_false_negative_threshold"] = int(of_texts[2].sum())
    return NegativeLists(
        of_images[0],
        of_images[1],
        of_texts[0],
        of_texts[1],
        manifest={
            "split": split.name,
            "split_checksum": split_checksum(split),
            "matcher": matcher,
            "options": options,
            "computed": computed,
            "excluded": excluded,
            "lists": {"texts": _counts(of_images[0]), "images": _counts(of_texts[0])},
            "quantiles": summarise(positives, of_images[1], of_texts[1]),
            "seconds": round(time.monotonic() - began, 3),
        },
    )


class _Mining:
    """One mining: its sweep, the lists so far and the journal. `of_images`: rows, scores, number above the caps."""

    def __init__(
        self,
        scores: TileScores,
        exclusions: Exclusions,
        options: dict[str, Any],
        memory: int,
        journal: Journal | None,
        progress: Progress | None,
    ) -> None:
        self.scores, self.exclusions, self.memory, self.journal = scores, exclusions, memory, journal
        self._progress, self._done = progress, 0
        lengths = options["top_texts"], options["top_images"]
        image, text = exclusions.positives()
        known = None if journal is None else journal.kept("beginning")
        self.positives = scores.pairs(image, text) if known is None else known["positives"]
        if known is None and journal is not None and distributed.is_main():
            journal.keep("beginning", {"positives": self.positives})
        margin = options["false_negative_margin"]
        caps = (
            caps_of(image, self.positives, scores.sizes[0], margin),
            caps_of(text, self.positives, scores.sizes[1], margin),
        )
        self.sweep = Sweep(scores, exclusions, lengths, caps, memory, self._count)
        # Zero where another process works: the sum over processes is everybody's.
        self.of_images, self.of_texts = (
            (np.zeros((size, length), np.int32), np.zeros((size, length), np.float32), np.zeros(size, np.int32))
            for size, length in zip(scores.sizes, lengths, strict=True)
        )

    def _count(self, pairs: int) -> None:
        self._done += pairs
        if self._progress is not None:
            self._progress(self._done, self.scores.sizes[0] * self.scores.sizes[1])

    def run(self) -> None:
        process, processes = distributed.rank(), distributed.world_size()
        images, height = self.scores.sizes[0], self.sweep.height
        if self.journal is not None:
            for start, stop in self.journal.finished[process::processes]:
                self._take_finished(start, stop, self.journal.read(start, stop))
            to_do = self.journal.to_do(images, height)
        else:
            to_do = [slice(start, min(start + height, images)) for start in range(0, images, height)]
        for stripe in to_do[process::processes]:
            self._stripe(stripe)
        of_texts = self.sweep.of_texts
        of_texts.lists.gather(self.memory)
        of_texts.above.copy_(distributed.all_reduce_sum(of_texts.above))
        own = distributed.share(len(of_texts.lists))
        rows, scores = self.sweep.finish(of_texts, own)
        self._keep(self.of_texts, own, rows, scores, of_texts.above[own])
        for array in (*self.of_images, *self.of_texts):
            _add_up(array, self.scores.device, self.memory)
        self.sweep.redone = distributed.all_reduce_sum(
            torch.tensor(self.sweep.redone, device=self.scores.device)
        ).tolist()

    def _keep(self, lists: tuple[np.ndarray, ...], lines: slice, *found: Tensor) -> None:
        for array, part in zip(lists, found, strict=True):
            array[lines] = part.cpu().numpy()

    def _stripe(self, images: slice) -> None:
        of_texts = self.sweep.of_texts
        before = of_texts.above.clone()
        self._keep(self.of_images, images, *self.sweep.stripe(images))
        if self.journal is None:
            return
        rows, scores = of_texts.lists.rows, of_texts.lists.scores
        new = (rows >= images.start) & (rows < images.stop) & (scores > -torch.inf)
        arrays = {
            "texts": self.of_images[0][images],
            "text_scores": self.of_images[1][images],
            "text": new.nonzero()[:, 0].int().cpu().numpy(),
            "image": rows[new].cpu().numpy(),
            "score": scores[new].cpu().numpy(),
            "above_images": self.of_images[2][images],
            "above_texts": (of_texts.above - before).cpu().numpy(),
        }
        self.journal.write(images, arrays)

    def _take_finished(self, start: int, stop: int, arrays: dict[str, np.ndarray]) -> None:
        self.of_images[0][start:stop], self.of_images[1][start:stop] = arrays["texts"], arrays["text_scores"]
        text, image, score = (
            torch.from_numpy(arrays[name]).to(self.scores.device) for name in ("text", "image", "score")
        )
        self.sweep.of_texts.lists.add_entries(text.long(), image, score)
        self.of_images[2][start:stop] = arrays["above_images"]
        self.sweep.of_texts.above += torch.from_numpy(arrays["above_texts"]).to(self.scores.device)
        self._count((stop - start) * self.scores.sizes[1])


def _check_options(options: Mapping[str, Any], precision: str) -> None:
    top_texts, top_images, margin = (options[n] for n in ("top_texts", "top_images", "false_negative_margin"))
    if min(top_texts, top_images) < 1:
        raise QuintetError(f"lists need at least one entry, got {top_texts} texts and {top_images} images")
    if precision not in ("auto", "float32", *HALVES):
        raise QuintetError(f"precision {precision!r} is not known; choose auto, float32, float16 or bfloat16")
    if margin is not None and not np.isfinite(margin):
        raise QuintetError(f"the false-negative margin must be a number, got {margin}")


def _add_up(array: np.ndarray, device: torch.device, memory: int) -> None:
    """In place: the sum over processes."""
    if distributed.world_size() == 1:
        return
    step = max(1, memory // 4 // max(1, array[:1].nbytes))
    for start in range(0, len(array), step):
        part = torch.from_numpy(array[start : start + step])
        part.copy_(distributed.all_reduce_sum(part.to(device)))


def _default_memory(device: torch.device) -> int:
    """Half of what is free on a GPU, a fixed modest share of a computer's memory."""
    return torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else CPU_MEMORY


def _finished(out: Path, run: Run, split: Split, options: dict[str, Any]) -> NegativeLists | None:
    lists = NegativeLists.find(out)
    if lists is None:
        return None
    wanted = (split_checksum(split), run.weights_checksum, options)
    known = lists.manifest
    if wanted != (known.get("split_checksum"), known.get("matcher", {}).get("weights"), known.get("options")):
        return None
    if distributed.is_main() and _journals(out):  # mining was killed after it had written the lists
        with suppress(QuintetError), folder_lock(out, "removing what mining left over"):
            for old in _journals(out):
                remove_journal(old)
    return lists


def _journal(out: Path, run: Run, split: Split, options: dict[str, Any]) -> Path:
    """Beside the lists, with a name of its own for each way of mining: an abandoned one is in nobody's way."""
    way = json.dumps([VERSION, split_checksum(split), run.weights_checksum, options], sort_keys=True)
    return out.parent / f".{out.name}.mining-{hashlib.sha256(way.encode()).hexdigest()[:12]}"


def _journals(out: Path) -> list[Path]:
    own = re.compile(re.escape(f".{out.name}.mining-") + "[0-9a-f]{12}")
    return [path for path in out.parent.iterdir() if own.fullmatch(path.name)]


def encode_shared(run: Run, corpus: Corpus, split: Split) -> tuple[Codes, Codes]:
    """The codes of a split, on every process, each of which encodes its share of whole batches.

    The batches are always the same ones, so the codes are the same bits however many processes encode.
    """
    processes = distributed.world_size()
    keep = torch.device("cpu") if processes == 1 else run.device
    parts = {"images": _share(len(split.images)), "texts": _share(len(split.texts))}
    own = {side: of_process[distributed.rank()] for side, of_process in parts.items()}
    # A process without a share encodes one item all the same: the others need to know what codes look like.
    image_rows = split.images[own["images"]] or split.images[:1]
    text_rows = split.texts[own["texts"]] or split.texts[:1]
    images = run.encode_images(run.image_batches(corpus, image_rows, ENCODED_AT_ONCE), keep=keep)
    texts = run.encode_texts(run.text_batches(text_rows, ENCODED_AT_ONCE), keep=keep)
    if processes == 1:
        return images, texts
    return _together(images, parts["images"]), _together(texts, parts["texts"])


def _share(items: int) -> list[slice]:
    batches = -(-items // ENCODED_AT_ONCE)
    shares = (distributed.share(batches, process) for process in range(distributed.world_size()))
    return [slice(share.start * ENCODED_AT_ONCE, min(share.stop * ENCODED_AT_ONCE, items)) for share in shares]


def _together(codes: Codes, parts: list[slice]) -> Codes:
    sizes = [max(0, part.stop - part.start) for part in parts]
    longest = max(sizes)
    rows = torch.arange(longest, device=codes.device).clamp(max=len(codes) - 1)  # filled up, so that all are alike
    gathered = distributed.gather_codes(codes[rows], longest * len(parts))
    kept = torch.cat([torch.arange(size) + number * longest for number, size in enumerate(sizes)])
    return gathered[kept.to(codes.device)]


def summarise(positives: np.ndarray, text_scores: np.ndarray, image_scores: np.ndarray) -> dict[str, Any]:
    """Score quantiles of the positive pairs, and over all anchors of the negatives at ranks 1, 10, 100 and last."""
    return {
        "at": list(QUANTILES),
        "positives": _quantiles(positives),
        "texts": _by_rank(text_scores),
        "images": _by_rank(image_scores),
    }


def _quantiles(values: np.ndarray) -> list[float] | None:
    """The values at `QUANTILES` (of the sorted values, no interpolation); None of nothing."""
    values = np.sort(values)
    if not len(values):
        return None
    return [float(values[round(q * (len(values) - 1))]) for q in QUANTILES]


def _by_rank(scores: np.ndarray) -> dict[str, list[float] | None]:
    found = {str(rank): scores[:, rank - 1] for rank in RANKS if rank <= scores.shape[1]}
    counts = (scores > -np.inf).sum(axis=1)
    filled = np.flatnonzero(counts)
    found["last"] = scores[filled, counts[filled] - 1]
    return {rank: _quantiles(column[column > -np.inf]) for rank, column in found.items()}


def _counts(rows: np.ndarray) -> dict[str, int]:
    """How many anchors there are, and how many have a list that is not full, or nothing at all."""
    return {"anchors": len(rows), "not_full": int((rows[:, -1] < 0).sum()), "empty": int((rows[:, 0] < 0).sum())}
