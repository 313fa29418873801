"""The codes of texts that are searched for: several that wait are encoded in one batch, and the last ones are kept."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")  # what is kept of a text: one `Codes` for each run, or a vector
KEPT_BYTES = 64 << 20  # some 15,000 texts of a matcher with 1,024 dimensions
TEXTS_AT_ONCE = 64  # in a batch; more would save little, and the first would wait for the last
LONG = 300  # characters: a longer text is encoded alone, as all others of its batch would be padded to it


class TextCodes(Generic[T]):
    """Codes of texts, for any number of threads at once; the texts that were asked for last are kept.

    A batch of 64 texts takes a third of the time of 64 texts one by one. One batch is encoded at a time: a text that
    comes meanwhile is a part of the next.
    """

    def __init__(
        self, encode: Callable[[Sequence[str]], Sequence[T]], size: Callable[[T], int], kept_bytes: int = KEPT_BYTES
    ) -> None:
        """`encode`: from texts to what is kept of each; `size`: its bytes."""
        self._encode, self._size, self._room = encode, size, kept_bytes
        self._kept: OrderedDict[str, tuple[T, int]] = OrderedDict()  # the last used last; bytes
        self._lock, self._encoding = threading.Lock(), threading.Lock()
        self.batches = self.encoded = 0  # since the index was opened

    def __contains__(self, text: str) -> bool:
        return text in self._kept

    def of(self, text: str, waiting: Iterable[str] = ()) -> T:
        """The codes of a text; those of texts that are `waiting` are made in the same batch."""
        if (codes := self._find(text)) is not None:
            return codes
        with self._encoding:
            if (codes := self._find(text)) is not None:  # it was in the batch of another thread
                return codes
            texts = list(dict.fromkeys([text, *self._beside(text, waiting)]))[:TEXTS_AT_ONCE]
            rows = self._encode(texts)
            with self._lock:
                self.batches, self.encoded = self.batches + 1, self.encoded + len(texts)
                for each, row in zip(texts[::-1], rows[::-1], strict=True):
                    self._keep(each, row)
            return rows[0]

    def _beside(self, text: str, waiting: Iterable[str]) -> Iterator[str]:
        if len(text) <= LONG:
            yield from (each for each in waiting if len(each) <= LONG and each not in self._kept)

    def _find(self, text: str) -> T | None:
        with self._lock:
            if text not in self._kept:
                return None
            self._kept.move_to_end(text)
            return self._kept[text][0]

    def _keep(self, text: str, codes: T) -> None:
        size = self._size(codes)
        self._kept[text] = codes, size
        self._room -= size
        while self._room < 0:
            _, (_, freed) = self._kept.popitem(last=False)
            self._room += freed
