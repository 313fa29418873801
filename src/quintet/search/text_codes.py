"""The codes of texts that are searched for: several that wait are encoded in one batch, and the last ones are kept."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from quintet.codes import Codes

KEPT_BYTES = 64 << 20  # some 15,000 texts of a matcher with 1,024 dimensions
TEXTS_AT_ONCE = 64  # in a batch; more would save little, and the first would wait for the last
LONG = 300  # characters: a longer text is encoded alone, as all others of its batch would be padded to it


class TextCodes:
    """Codes of texts, for any number of threads at once; the texts that were asked for last are kept.

    A batch of 64 texts takes a third of the time of 64 texts one by one. One batch is encoded at a time: a text that
    comes meanwhile is a part of the next.
    """

    def __init__(self, encode: Callable[[Sequence[str]], list[Codes]], kept_bytes: int = KEPT_BYTES) -> None:
        """`encode`: from texts to one `Codes` for each run."""
        self._encode, self._room = encode, kept_bytes
        self._kept: OrderedDict[str, tuple[list[Codes], int]] = OrderedDict()  # the last used last; bytes
        self._lock, self._encoding = threading.Lock(), threading.Lock()
        self.batches = self.encoded = 0  # since the index was opened

    def of(self, text: str, waiting: Iterable[str] = ()) -> list[Codes]:
        """For each run the codes of a text; those of texts that are `waiting` are made in the same batch."""
        if (codes := self._find(text)) is not None:
            return codes
        with self._encoding:
            if (codes := self._find(text)) is not None:  # it was in the batch of another thread
                return codes
            texts = list(dict.fromkeys([text, *self._beside(text, waiting)]))[:TEXTS_AT_ONCE]
            encoded = self._encode(texts)
            rows = [[_row(codes, number) for codes in encoded] for number in range(len(texts))]
            with self._lock:
                self.batches, self.encoded = self.batches + 1, self.encoded + len(texts)
                for each, row in zip(texts[::-1], rows[::-1], strict=True):
                    self._keep(each, row)
            return rows[0]

    def _beside(self, text: str, waiting: Iterable[str]) -> Iterator[str]:
        if len(text) <= LONG:
            yield from (each for each in waiting if len(each) <= LONG and each not in self._kept)

    def _find(self, text: str) -> list[Codes] | None:
        with self._lock:
            if text not in self._kept:
                return None
            self._kept.move_to_end(text)
            return self._kept[text][0]

    def _keep(self, text: str, codes: list[Codes]) -> None:
        size = sum(tensor.nbytes for code in codes for tensor in code.tensors().values())
        self._kept[text] = codes, size
        self._room -= size
        while self._room < 0:
            _, (_, freed) = self._kept.popitem(last=False)
            self._room += freed


def _row(codes: Codes, number: int) -> Codes:
    """A copy of one row, without the padding that others of its batch needed."""
    row = codes[number]
    if row.fragments is None or row.mask is None:
        return row.map(torch.clone)
    length = int(row.mask[0].nonzero().max()) + 1 if row.mask.any() else 0
    embedding = row.embedding
    parts = {name: part[:, :length] for name, part in row.tensors().items() if name != "embedding"}
    return Codes(embedding=embedding, **parts).map(torch.clone)
