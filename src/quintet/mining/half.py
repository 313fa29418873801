"""The fast way for embeddings: one product in half precision, float32 decisions, and a proof that nothing was missed.

1. A random sample of candidates gives every anchor a *floor* that a little more than h candidates should reach,
   whatever the distribution of scores is.
2. The score matrix is made block by block in half precision. Of each block only the scores that reach the floor of
   their row or of their column are kept: one look at a block serves both directions.
3. What can be among the best h, given how far rounding can move a score (`Products.error`), gets its float32 score, and
   these decide.
4. A list is *proven* when its last float32 score is above the floor by more than rounding can do: whatever stayed below
   the floor is worse. The few anchors for which this fails are scored again in float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from quintet.mining.exact import Caps, Direction, ExactSweep
from quintet.mining.exclude import Exclusions
from quintet.mining.filter import Collector
from quintet.mining.legs import Legs
from quintet.mining.rounded import Products, floor_in
from quintet.mining.toplists import ENTRY_BYTES, line_key


@dataclass(frozen=True)
class Sample:
    """`size` candidates drawn at random; an anchor's floor is the score of the one of rank `rank`."""

    size: int
    rank: int
    candidates: int  # it was drawn from

    @staticmethod
    def plan(candidates: int, wanted: int, most: int) -> Sample:
        """So that fewer than `wanted` candidates reach the floor for one anchor in some ten thousand."""
        size = max(1, min(most, candidates // 2))
        expected = wanted * size / candidates
        return Sample(size, math.ceil(expected + 3.5 * math.sqrt(expected) + 4), candidates)

    @property
    def reaching(self) -> float:
        """How many candidates reach the floor of an anchor, on average."""
        return self.rank * self.candidates / self.size

    @property
    def useful(self) -> bool:
        return self.rank <= self.size // 4

    def rows(self, device: torch.device) -> Tensor:
        """The same for every process and every time. Not in order: neighbours are of one kind in a corpus."""
        return torch.randperm(self.candidates, generator=torch.Generator().manual_seed(0))[: self.size].to(device)


@dataclass(frozen=True)
class HalfShape:
    images: int  # of a stripe
    texts: int  # of a block
    capacity: int  # candidates of a stripe
    pending: int  # candidates for texts that wait to be merged


class HalfSweep:
    """Stripe after stripe of images against all texts; `of_texts` fills as they go by."""

    def __init__(
        self,
        products: Products,
        exclusions: Exclusions,
        exact: ExactSweep,
        of_texts: Direction,
        caps: Caps | None,
        shape: HalfShape,
        samples: tuple[Sample, Sample],
        top_texts: int,
        guess: Tensor | None = None,
        legs: Legs | None = None,
    ) -> None:
        self.legs = legs or Legs()
        self.products, self.exclusions, self.exact, self.of_texts = products, exclusions, exact, of_texts
        self.caps, self.shape, self.top_texts = caps, shape, top_texts
        self.device = products.images.device
        self.collector = Collector(shape.capacity, self.device, products.kernels)
        self.text_sample, self.image_sample = samples
        self.sampled_texts = products.texts.rounded(self.text_sample.rows(products.texts.source.device))
        self.guess = self._text_floors() if guess is None else guess.to(self.device)  # (n_texts,)
        self.floor = self.guess
        self._pending: list[tuple[Tensor, Tensor, Tensor]] = []
        self._buffer: Tensor | None = None

    def _text_floors(self) -> Tensor:
        sampled = self.products.images.rounded(self.image_sample.rows(self.products.images.source.device))
        step = max(1, self.shape.images * self.shape.texts // self.image_sample.size)
        total = len(self.products.texts)
        floors = []
        for start in range(0, total, step):
            rows = slice(start, min(start + step, total))
            lines = self.products.texts.rounded(rows)
            floors.append(self._sampled(lines, sampled, self.image_sample.rank, self.of_texts.caps_of(rows)))
        return torch.cat(floors)

    def _sampled(self, lines: Tensor, sampled: Tensor, rank: int, caps: Tensor | None) -> Tensor:
        """(n,): for each line its score with the candidate of rank `rank` in the sample, or a little less."""
        with self.legs("sample"):
            return self._rank_in_sample(lines, sampled, rank, caps)

    def _rank_in_sample(self, lines: Tensor, sampled: Tensor, rank: int, caps: Tensor | None) -> Tensor:
        scores = self.products.block(lines, sampled)  # (n, m)
        if caps is not None:
            highest = (caps + self.products.error(caps)) * self.products.scale
            scores = scores.masked_fill(scores.float() > highest[:, None], -torch.inf)
        group = 1
        while group < 32 and scores.shape[1] // (2 * group) >= 16 * rank:
            group *= 2
        # The maxima of small groups stand for all: one quick pass, and two of the best seldom meet in one group.
        whole = scores.shape[1] // group * group
        maxima = scores[:, :whole].unflatten(1, (-1, group)).amax(dim=2) if group > 1 else scores  # (n, m / group)
        return maxima.topk(rank, dim=1).values[:, -1].float() / self.products.scale

    def stripe(self, images: slice) -> Direction:
        """The lists of these images, finished; what they mean for the texts is merged by and by."""
        caps = None if self.caps is None else self.caps.images[images]
        of_images = Direction.make(images.stop - images.start, self.top_texts, self.device, caps)
        lines = self.products.images.rounded(images)
        guess = self._guess_of_images(lines, of_images)
        found = self._collect(lines, guess)
        if found is None:
            self.exact.run(images, slice(0, len(self.products.texts)), of_images, self.of_texts)
            return of_images
        image, text, score = found
        with self.legs("split"):
            wanted = ~self.exclusions.hits(image + images.start, text)
            chosen = wanted & (score >= self.floor[text])
            self._pending.append((text[chosen], image[chosen] + images.start, score[chosen]))
            chosen = wanted & (score >= guess[image])
            image, text, score = image[chosen], text[chosen], score[chosen]
        self._merge(of_images, image, text, score, images.start, flipped=False)
        if sum(len(part[0]) for part in self._pending) > self.shape.pending:
            self.merge_texts()
        weak = self.weak(of_images, guess)
        if len(weak):
            with self.legs("redo"):
                self._redo_images(weak, images.start, of_images)
        return of_images

    def _guess_of_images(self, lines: Tensor, of_images: Direction) -> Tensor:
        step = max(1, self.shape.images * self.shape.texts // self.text_sample.size)
        floors = []
        for start in range(0, len(lines), step):
            rows = slice(start, min(start + step, len(lines)))
            caps = of_images.caps_of(rows)
            floors.append(self._sampled(lines[rows], self.sampled_texts, self.text_sample.rank, caps))
        return torch.cat(floors)

    def _collect(self, lines: Tensor, guess: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        products, total = self.products, len(self.products.texts)
        dtype = torch.float32 if self.device.type == "cpu" else products.images.dtype
        row_floor = floor_in(dtype, guess * products.scale)
        column_floor = floor_in(dtype, self.floor * products.scale)
        if self._buffer is None and dtype != torch.float32:
            self._buffer = torch.empty(self.shape.images * self.shape.texts, dtype=dtype, device=self.device)
        self.collector.start()
        for start in range(0, total, self.shape.texts):
            stop = min(start + self.shape.texts, total)
            size = len(lines) * (stop - start)
            out = None if self._buffer is None else self._buffer[:size].view(len(lines), stop - start)
            with self.legs("product"):
                scores = products.block(lines, products.texts.rounded(slice(start, stop)), out)  # (a, b)
            with self.legs("filter"):
                self.collector.add(scores, row_floor, column_floor[start:stop], start)
        found = self.collector.take()
        return None if found is None else (found[0], found[1], found[2] / products.scale)

    def merge_texts(self) -> None:
        """Bring the texts' lists up to date, and raise the floors to what is known by now."""
        if not self._pending:
            return
        text, image, score = (torch.cat(parts) for parts in zip(*self._pending, strict=True))
        self._pending = []
        self._merge(self.of_texts, text, image, score, 0, flipped=True)
        self.raise_floors()

    def raise_floors(self) -> None:
        last = self.of_texts.lists.last
        self.floor = torch.maximum(self.floor, last - self.products.error(last).nan_to_num(posinf=0.0))

    def _merge(self, into: Direction, line: Tensor, other: Tensor, score: Tensor, first: int, *, flipped: bool) -> None:
        """Approximate candidates -> those that can matter -> float32 -> lists. Line 0 is row `first`."""
        sure = None if into.caps is None else into.caps - self.products.error(into.caps)
        with self.legs("cut"):
            near = self._near_top(line, score, len(into.lists), into.lists.keep, sure)
            line, other = line[near], other[near]
        row = line + first
        with self.legs("rescore"):
            score = self.products.pairs(*((other, row) if flipped else (row, other)))
        stays = into.drop_above(line, score)
        if stays is not None:
            line, other, score = line[stays], other[stays], score[stays]
        with self.legs("merge"):
            into.lists.merge(line, other, score, self.shape.capacity)

    def _near_top(self, line: Tensor, score: Tensor, lines: int, keep: int, sure: Tensor | None) -> Tensor:
        """Places of the candidates whose float32 score can be among their line's best `keep`.

        The k-th approximate score of a line is at most one error from a float32 score that k candidates reach, and a
        candidate that reaches that is at most one more below. Where there are caps, only candidates that are `sure` to
        stay count towards the k.
        """
        counted = score if sure is None else torch.where(score <= sure[line], score, -torch.inf)
        order = torch.argsort(line_key(line, counted))
        counts = torch.bincount(line, minlength=lines)
        at = (counts.cumsum(0) - counts + keep - 1).clamp(max=max(len(order) - 1, 0))
        if not len(order):
            return order
        last = torch.where(counts >= keep, counted[order[at]], -torch.inf)  # (lines,)
        least = torch.where(torch.isfinite(last), last - 2 * self.products.error(last), -torch.inf)
        return (score >= least[line]).nonzero().squeeze(1)

    def weak(self, direction: Direction, guess: Tensor) -> Tensor:
        """The lines whose lists are not proven."""
        return (~(direction.lists.last > guess + self.products.error(guess))).nonzero().squeeze(1)

    def _redo_images(self, weak: Tensor, first: int, of_images: Direction) -> None:
        again = Direction.make(len(weak), self.top_texts, self.device, of_images.caps_of(weak))
        self.exact.run((weak + first).cpu(), slice(0, len(self.products.texts)), again, None)
        of_images.replace(weak, again)

    def redo_texts(self, weak: Tensor) -> None:
        """Score these texts against all images in float32, and replace their lists."""
        for lines in weak.split(self.exact.shape[1]):
            again = Direction.make(len(lines), self.of_texts.lists.keep, self.device, self.of_texts.caps_of(lines))
            self.exact.run(slice(0, len(self.products.images)), lines.cpu(), None, again)
            self.of_texts.replace(lines, again)


def half_shape(memory: int, images: int, texts: int, samples: tuple[Sample, Sample]) -> HalfShape:
    """Sizes that keep the work within `memory` bytes."""
    of_image, of_text = samples[0].reaching, samples[1].reaching * texts / images  # candidates an image brings
    entries = max(memory // 2 // ENTRY_BYTES, 2**12)
    rows = int(min(entries / 4 / (of_image + of_text), images, 16384))
    rows = max(1, rows // 256 * 256 or rows)
    columns = int(min(memory // 4 // (4 * rows), texts, 2**29 // rows))
    columns = max(1, columns // 256 * 256 or columns)
    capacity = min(entries, int(4 * rows * (of_image + of_text)) + 2**16)  # a stripe with far more is a strange one
    return HalfShape(rows, columns, capacity, pending=entries)
