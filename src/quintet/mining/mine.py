"""Offline hard negatives over a whole split (AOQ, section 3.2): every image against every text that is not its own, and
the reverse, exact, from one pass over the score matrix, which never exists as a whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from quintet import distributed
from quintet.codes import Codes
from quintet.data.corpus import Split, split_checksum
from quintet.data.negatives import NegativeLists
from quintet.errors import QuintetError
from quintet.mining.exact import Direction
from quintet.mining.exclude import Exclusions
from quintet.mining.gather import gather_lists, gather_rows
from quintet.mining.half import HalfSweep
from quintet.mining.journal import Journal
from quintet.mining.plan import (
    HALVES,
    FloatSweep,
    Precision,
    Tuning,
    default_memory,
    make_caps,
    make_products,
    make_samples,
    make_sweep,
    positive_scores,
)
from quintet.mining.rounded import float32_sums
from quintet.mining.source import Source
from quintet.mining.summary import list_counts, summarise
from quintet.protocols import Matcher, evaluation_mode

Progress = Callable[[int, int], None]  # pairs done, pairs in all


def mine(
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
    memory_bytes: int | None = None,
    device: torch.device | str | None = None,
    journal: Path | None = None,
    progress: Progress | None = None,
    source: Mapping[str, str] | None = None,
    tuning: Tuning | None = None,
) -> NegativeLists:
    """For every image of the split its `top_texts` hardest texts, for every text its `top_images` hardest images.

    Harder is a higher score; among equal scores the lower row goes first. Pairs of one group are never negatives.
    `exclude_duplicates` also leaves out, for an image, texts with the same text as one of its own, and for a text,
    images that own its text. `false_negative_margin` leaves out candidates that score more than the anchor's best
    positive plus the margin (0: whatever beats every positive; -0.1: whatever comes within 0.1 of the best).

    `precision` says how blocks are computed; float32 scores decide in any case. "auto" is float16 for embeddings on a
    GPU, else float32. `memory_bytes` bounds the working memory beside the codes and the lists themselves (default:
    half of a GPU's free memory, 1 GiB on a CPU). With a `journal` folder, a mining that was killed goes on where it
    was. Under torchrun the stripes are shared out and every process gets the whole lists. `source` names the matcher in
    the manifest: {"name": ..., "weights": its checksum}.
    """
    began = time.monotonic()
    tuning = tuning or Tuning()
    _check(image_codes, text_codes, split, top_texts, top_images, precision, false_negative_margin)
    place = torch.device(device) if device is not None else image_codes.device
    memory = memory_bytes if memory_bytes is not None else default_memory(place)
    options = {
        "top_texts": top_texts,
        "top_images": top_images,
        "exclude_duplicates": exclude_duplicates,
        "false_negative_margin": false_negative_margin,
    }
    scores = Source(matcher, image_codes, text_codes, place, tuning.tile)
    least = 64 * scores.tile[0] * scores.tile[1]
    if memory < least:
        raise QuintetError(
            f"mining on {place.type} needs at least {least} bytes of working memory, {memory} were allowed"
        )
    name = dict(source or {"name": type(matcher).__name__, "weights": scores.fingerprint()})
    settings = {
        **options,
        "split": split_checksum(split),
        "matcher": name,
        "codes": None if source else scores.fingerprint(),
        "precision": precision,
    }
    book = None if journal is None else Journal(journal, settings)
    with torch.no_grad(), evaluation_mode(matcher), float32_sums():
        work = _Mining(
            scores, Exclusions(split, exclude_duplicates), options, precision, memory, tuning, book, progress
        )
        work.run()
    text_rows, text_scores = work.rows, work.scores
    image_rows, image_scores = (t.cpu().numpy() for t in (work.of_texts.lists.rows, work.of_texts.lists.scores))
    manifest = {
        "split": split.name,
        "split_checksum": split_checksum(split),
        "matcher": name,
        "options": options,
        "computed": {"precision": work.precision, "device": str(place), "processes": distributed.world_size()},
        "excluded": work.excluded(),
        "lists": {"texts": list_counts(text_rows), "images": list_counts(image_rows)},
        "quantiles": summarise(work.positives[2], text_scores, image_scores),
        "seconds": round(time.monotonic() - began, 3),
    }
    return NegativeLists(text_rows, text_scores, image_rows, image_scores, manifest)


def _check(
    images: Codes, texts: Codes, split: Split, top_texts: int, top_images: int, precision: str, margin: float | None
) -> None:
    if (len(images), len(texts)) != (len(split.images), len(split.texts)):
        raise QuintetError(
            f"split {split.name!r} has {len(split.images)} images and {len(split.texts)} texts, but there are codes of "
            f"{len(images)} and {len(texts)}; encode the whole split, in its order"
        )
    if min(top_texts, top_images) < 1:
        raise QuintetError(f"lists need at least one place, got {top_texts} texts and {top_images} images")
    if precision not in ("auto", "float32", *HALVES):
        raise QuintetError(f"precision {precision!r} is not known; choose auto, float32, float16 or bfloat16")
    if margin is not None and not np.isfinite(margin):
        raise QuintetError(f"the false-negative margin must be a number, got {margin}")


class _Mining:
    """One mining: its sweep, its results so far and its journal."""

    def __init__(
        self,
        source: Source,
        exclusions: Exclusions,
        options: dict[str, Any],
        precision: Precision,
        memory: int,
        tuning: Tuning,
        journal: Journal | None,
        progress: Progress | None,
    ) -> None:
        self.source, self.exclusions = source, exclusions
        self.memory, self.journal = memory, journal
        self._progress, self._done = progress, 0
        sizes = len(source.image_codes), len(source.text_codes)
        self.total = sizes[0] * sizes[1]
        tops = options["top_texts"], options["top_images"]
        samples = make_samples(exclusions, tops, tuning)
        products = make_products(source, precision, samples, memory, tuning)
        known = (journal.kept("beginning") if journal is not None else None) or {}
        if "positives" in known:
            self.positives = known["pair_image"], known["pair_text"], known["positives"]
        else:
            self.positives = positive_scores(source, products, exclusions)
        margin = options["false_negative_margin"]
        caps = None if margin is None else make_caps(self.positives, sizes, margin)
        guess = torch.from_numpy(known["guess"]) if "guess" in known else None
        self.sweep, self.height = make_sweep(
            source, exclusions, products, samples, caps, tops, memory, tuning, guess, self._count
        )
        self.of_texts: Direction = self.sweep.of_texts
        self.precision = "float32" if products is None else str(products.images.dtype).removeprefix("torch.")
        self._remember(known)
        self.rows = np.zeros((sizes[0], tops[0]), np.int32)  # zero where another process works
        self.scores = np.zeros((sizes[0], tops[0]), np.float32)
        self.above = None if caps is None else np.zeros(sizes[0], np.int64)

    def _remember(self, known: dict[str, np.ndarray]) -> None:
        """What a resumed mining must not make anew: it would cost time, and floors have to be the same."""
        if self.journal is None or known or not distributed.is_main():
            return
        arrays = dict(zip(("pair_image", "pair_text", "positives"), self.positives, strict=True))
        if isinstance(self.sweep, HalfSweep):
            arrays["guess"] = self.sweep.guess.cpu().numpy()
        self.journal.keep("beginning", arrays)

    def _count(self, pairs: int) -> None:
        self._done += pairs
        if self._progress is not None:
            self._progress(self._done, self.total)

    def run(self) -> None:
        mine, everyone = distributed.rank(), distributed.world_size()
        if self.journal is not None:
            for start, stop in self.journal.finished[mine::everyone]:
                self._take_finished(start, stop, self.journal.read(start, stop))
            to_do = self.journal.to_do(len(self.rows), self.height)
        else:
            to_do = [slice(at, min(at + self.height, len(self.rows))) for at in range(0, len(self.rows), self.height)]
        for stripe in to_do[mine::everyone]:
            self._stripe(stripe)
        self.sweep.merge_texts()
        gather_rows(
            [self.rows, self.scores, *([] if self.above is None else [self.above])], self.source.device, self.memory
        )
        gather_lists(self.of_texts, self.memory)
        if isinstance(self.sweep, HalfSweep):
            weak = self.sweep.weak(self.of_texts, self.sweep.guess)
            if len(weak):
                self.sweep.redo_texts(weak)

    def _stripe(self, images: slice) -> None:
        before = None if self.journal is None or self.of_texts.above is None else self.of_texts.above.clone()
        of_images = self.sweep.stripe(images)
        torch.from_numpy(self.rows[images]).copy_(of_images.lists.rows)
        torch.from_numpy(self.scores[images]).copy_(of_images.lists.scores)
        if self.above is not None and of_images.above is not None:
            self.above[images] = of_images.above.cpu().numpy()
        if self.journal is not None:
            self.sweep.merge_texts()
            self._write_stripe(self.journal, images, before)
        if not isinstance(self.sweep, FloatSweep):
            self._count((images.stop - images.start) * len(self.of_texts.lists))

    def _write_stripe(self, journal: Journal, images: slice, before: torch.Tensor | None) -> None:
        lists = self.of_texts.lists
        text, place = ((lists.rows >= images.start) & (lists.rows < images.stop)).nonzero(as_tuple=True)
        arrays = {
            "texts": self.rows[images],
            "text_scores": self.scores[images],
            "text": text.int().cpu().numpy(),
            "image": lists.rows[text, place].cpu().numpy(),
            "score": lists.scores[text, place].cpu().numpy(),
        }
        if self.above is not None and self.of_texts.above is not None and before is not None:
            arrays |= {"above_images": self.above[images], "above_texts": (self.of_texts.above - before).cpu().numpy()}
        journal.write(images, arrays)

    def _take_finished(self, start: int, stop: int, arrays: dict[str, np.ndarray]) -> None:
        self.rows[start:stop], self.scores[start:stop] = arrays["texts"], arrays["text_scores"]
        text, image, score = (
            torch.from_numpy(arrays[name]).to(self.source.device) for name in ("text", "image", "score")
        )
        self.of_texts.lists.merge(text.long(), image, score, self.memory // 256)
        if self.above is not None:
            self.above[start:stop] = arrays["above_images"]
            self.of_texts.count_above(torch.from_numpy(arrays["above_texts"]))
        if isinstance(self.sweep, HalfSweep):
            self.sweep.raise_floors()
        self._count((stop - start) * len(self.of_texts.lists))

    def excluded(self) -> dict[str, int]:
        """Pairs that are in no list, and why."""
        counts = self.exclusions.counts()
        if self.above is not None and self.of_texts.above is not None:
            counts["texts_above_false_negative_threshold"] = int(self.above.sum())
            counts["images_above_false_negative_threshold"] = int(self.of_texts.above.sum())
        return counts
