"""What a run can be given, made into batches; batches made into Codes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from itertools import chain, islice
from numbers import Integral
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import torch
from PIL.Image import Image as PILImage
from torch import Tensor

from quintet.backbones.preprocess import Preprocess
from quintet.codes import Codes
from quintet.data.batches import ImageBatch, TextBatch
from quintet.data.images import open_image
from quintet.data.loading import batches_ahead
from quintet.data.tokenizers import Tokenizer, cuts, tell_cut, text_batch
from quintet.errors import ArgumentError, QuintetError
from quintet.files import user_path
from quintet.protocols import Matcher, evaluation_mode
from quintet.runs.devices import cores_for_decoding, full_precision

ImageFile: TypeAlias = str | os.PathLike[str] | PILImage
Progress: TypeAlias = Callable[[int, int | None], None]  # done, and in all (None: not known beforehand)
Batch = TypeVar("Batch", ImageBatch, TextBatch)


@contextmanager
def inference(matcher: Matcher, device: torch.device | str) -> Iterator[None]:
    """No gradients, evaluation mode (every module is put back in its mode) and float32 without TF32."""
    with torch.no_grad(), evaluation_mode(matcher), full_precision(torch.device(device)):
        yield


def encode_batches(
    matcher: Matcher,
    batches: Iterable[ImageBatch] | Iterable[TextBatch],
    device: torch.device | str,
    keep: torch.device | str = "cpu",
    report: Callable[[int], None] | None = None,
) -> Codes:
    """The Codes of batches, in order: encoded on `device`, where the matcher is, and moved to `keep`.

    `report` is called with the number of items done after every batch.
    """
    parts: list[Codes] = []
    done = 0
    with inference(matcher, device):
        for batch in batches:
            moved = batch.to(device)
            codes = matcher.encode_images(moved) if isinstance(moved, ImageBatch) else matcher.encode_texts(moved)
            parts.append(codes.to(keep))
            done += len(batch)
            if report is not None:
                report(done)
    if not parts:
        raise QuintetError("there is no batch to encode")
    return Codes.cat(parts) if len(parts) > 1 else parts[0]


class ImageView(Protocol):
    """From images to the batch that a matcher encodes."""

    @property
    def preprocess(self) -> Preprocess:
        """An RGB image -> (3, height, width). Threads may call it."""
        ...

    def batch(self, pixels: Tensor, sizes: Sequence[tuple[int, int]]) -> ImageBatch:
        """(n, 3, height, width) of images that had these (width, height)."""
        ...

    def to(self, device: torch.device | str) -> ImageView: ...


class PixelView:
    """The view of a matcher that reads pixels."""

    def __init__(self, preprocess: Preprocess) -> None:
        self.preprocess = preprocess

    def batch(self, pixels: Tensor, sizes: Sequence[tuple[int, int]]) -> ImageBatch:
        return ImageBatch(pixels=pixels)

    def to(self, device: torch.device | str) -> PixelView:
        return self


def read_batches(
    images: Iterable[ImageFile | ImageBatch], view: ImageView, device: torch.device, batch_size: int, workers: int
) -> Iterator[ImageBatch]:
    """Images as their view makes batches of them, read in threads a few batches ahead."""

    def prepare(image: Path | PILImage) -> tuple[Tensor, tuple[int, int]]:
        upright = image if isinstance(image, PILImage) else open_image(image)
        return view.preprocess(upright), upright.size

    with cores_for_decoding(device):
        for _, prepared in batches_ahead(_openable(images), prepare, batch_size, workers):
            pixels, sizes = zip(*prepared, strict=True)
            yield view.batch(torch.stack(pixels), sizes)  # (n, 3, height, width) -> fragments (n, L, d), or as it is


def token_batches(texts: Iterable[str | TextBatch], tokenizer: Tokenizer, batch_size: int) -> Iterator[TextBatch]:
    """Texts as batches of token ids."""
    numbered = enumerate(texts)
    before, done = cuts(tokenizer), 0
    while some := [_checked_text(number, text) for number, text in islice(numbered, batch_size)]:
        yield text_batch(tokenizer, some)
        done += len(some)
    tell_cut(tokenizer, before, done)


def _checked_text(number: int, text: object) -> str:
    if isinstance(text, TextBatch):
        raise ArgumentError(f"item {number} is a TextBatch among strings; give one kind")
    if not isinstance(text, str):
        raise ArgumentError(_expected("text", text, f" (item {number})"))
    if not text.strip():
        raise ArgumentError(f"text {number} is empty; say in a few words what the image should show")
    return text


def look_ahead(items: Iterable[Any], kind: str) -> tuple[Any, Iterable[Any], int | None]:
    """The first item, all items again, and how many images or texts they are, if that is known."""
    if not isinstance(items, Iterable) or isinstance(items, bytes | dict | Tensor):
        raise ArgumentError(_expected(kind, items))
    total: int | None = len(items) if isinstance(items, Sized) else None
    if isinstance(items, Sequence) and all(isinstance(item, ImageBatch | TextBatch) for item in items):
        total = sum(map(len, items))
    rest = iter(items)
    try:
        first = next(rest)
    except StopIteration:
        raise ArgumentError(f"there is no {kind} to encode") from None
    return first, chain([first], rest), total


def _expected(kind: str, found: object, where: str = "") -> str:
    wanted = "paths, PIL images or an ImageBatch" if kind == "image" else "strings or a TextBatch"
    return f"encode_{kind}s takes {wanted}, not a {_kind(found)}{where}"


def _kind(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}".removeprefix("builtins.")


def _openable(images: Iterable[ImageFile | ImageBatch]) -> Iterator[Path | PILImage]:
    for number, image in enumerate(images):
        if isinstance(image, ImageBatch):
            raise ArgumentError(f"item {number} is an ImageBatch among paths and PIL images; give one kind")
        if isinstance(image, PILImage):
            yield open_image(image, name=f"image {number}")  # here: two threads must not decode one PIL image
        elif isinstance(image, str | os.PathLike):
            yield user_path(image)
        else:
            raise ArgumentError(_expected("image", image, f" (item {number})"))


def batches_only(batches: Iterable[Any], kind: type[Batch]) -> Iterator[Batch]:
    """Prepared batches of one kind."""
    for number, batch in enumerate(batches):
        if not isinstance(batch, kind):
            raise ArgumentError(f"item {number} is a {_kind(batch)} among prepared {kind.__name__}es; give one kind")
        yield batch


def positive(number: int, name: str = "batch_size") -> int:
    """The number, which must be at least 1."""
    if not isinstance(number, Integral) or number < 1:
        raise ArgumentError(f"{name} must be at least 1, and a whole number, got {number!r}")
    return number


@contextmanager
def reported(progress: bool | Callable[[int, Any], None], description: str, total: int | None) -> Iterator[Progress]:
    """A function of (done, total) that draws a bar, calls `progress` or does nothing; None means `total`."""
    if callable(progress):
        function = progress
        yield lambda done, of: function(done, total if of is None else of)
    elif not progress:
        yield lambda done, of: None
    else:
        from rich.progress import Progress as Bar

        with Bar() as bar:
            task = bar.add_task(description, total=total)
            yield lambda done, of: bar.update(task, completed=done, total=total if of is None else of)
