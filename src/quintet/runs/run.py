"""`Run`: a trained matcher with its tokenizer and its view of images. `load` opens one.

>>> run = load("quintet-small", device="cpu")
>>> texts = run.encode_texts(["a dog in the snow", "two people on a beach"])
>>> len(texts), run.matcher.training
(2, False)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

import torch
from PIL.Image import Image as PILImage
from torch import Tensor

from quintet.backbones.extractor import FeatureExtractor, same_tower
from quintet.codes import Codes
from quintet.data.batches import ImageBatch, TextBatch
from quintet.data.corpus import Corpus, Image, Split, Text
from quintet.data.feature_store import FeatureStore
from quintet.data.images import open_image
from quintet.data.loading import (
    FeatureImages,
    ImageSource,
    PixelImages,
    TokenizedTexts,
    batches_ahead,
    image_batches,
    text_batches,
)
from quintet.data.tokenizers import Tokenizer, load_tokenizer, text_batch
from quintet.errors import ArgumentError, QuintetError, RecipeError, RunError
from quintet.files import read_json
from quintet.models import MODELS, create_model
from quintet.protocols import Matcher, evaluation_mode, preprocess_of
from quintet.runs.checkpoint import load_tensors, load_weights
from quintet.runs.devices import cores_for_decoding, full_precision, pick_device
from quintet.runs.run_folder import file_checksum, find_weights, locate, read_head

ImageFile: TypeAlias = str | os.PathLike[str] | PILImage
Progress: TypeAlias = Callable[[int, int | None], None]  # done, and in all (None: not known beforehand)

IMAGES_AT_ONCE, TEXTS_AT_ONCE = 32, 128
SCORED_AT_ONCE = (1024, 4096)  # images and texts: 16 MB of scores; matchers bound what they need besides
WORKERS = 4  # threads that decode images


class ImageView(Protocol):
    """How a run looks at an image: what it does to the pixels, and the batch it makes of them."""

    @property
    def preprocess(self) -> Callable[[PILImage], Tensor]:
        """An RGB image -> (3, height, width). Threads may call it."""
        ...

    def batch(self, pixels: Tensor, sizes: Sequence[tuple[int, int]]) -> ImageBatch:
        """(n, 3, height, width) of images that had these (width, height)."""
        ...

    def to(self, device: torch.device | str) -> ImageView: ...


class PixelView:
    """The view of a matcher with an image tower of its own."""

    def __init__(self, preprocess: Callable[[PILImage], Tensor]) -> None:
        self.preprocess = preprocess

    def batch(self, pixels: Tensor, sizes: Sequence[tuple[int, int]]) -> ImageBatch:
        return ImageBatch(pixels=pixels)

    def to(self, device: torch.device | str) -> PixelView:
        return self


class Run:
    """A trained matcher with its tokenizer and its view of images; `quintet.load` opens one.

    `encode_images` and `encode_texts` take what people have (files, PIL images, strings) or prepared batches, and give
    `Codes` on the CPU, in the order of the input. `score` compares them. Nothing here computes gradients; `matcher` is
    the `nn.Module` for those who want them.

    >>> from PIL import Image
    >>> run = load("quintet-small", device="cpu")
    >>> images = run.encode_images([Image.new("RGB", (64, 48), colour) for colour in ("green", "blue")])
    >>> scores = run.score(images, run.encode_texts(["green grass", "the blue sky", "a dog"]))
    >>> tuple(scores.shape), scores.argmax(0).tolist()[:2]
    ((2, 3), [0, 1])
    """

    def __init__(
        self,
        *,
        folder: Path,
        name: str,
        matcher: Matcher,
        model: dict[str, Any],
        tokenizer: Tokenizer | None,
        image_input: dict[str, Any],
        default_corpus: Path | None,
        weights_checksum: str,
        device: torch.device,
        tower_weights: Path | str | None = None,
    ) -> None:
        """Use `quintet.load`."""
        self.folder = folder
        self.name = name
        self.matcher = matcher  # in evaluation mode
        self.model = model  # {"name": ..., "arguments": ...} of `quintet.create_model`
        self.tokenizer = tokenizer
        self.image_input = image_input  # {"kind": "pixels"} or {"kind": "features", "name": ..., "tower": ...}
        self.default_corpus = default_corpus  # the one it was trained on
        self.weights_checksum = weights_checksum
        self.device = device
        self._tower_weights = tower_weights
        self._view: ImageView | None = None

    def __repr__(self) -> str:
        images = "pixels" if self.image_input["kind"] == "pixels" else f"features {self.image_input['name']!r}"
        texts = "token ids" if self.tokenizer is None else f"{type(self.tokenizer).__name__}"
        return f"<Run {self.name!r}: {self.model['name']}, images: {images}, texts: {texts}, on {self.device}>"

    def to(self, device: torch.device | str) -> Run:
        """Move the matcher, and the image tower if it is loaded. Returns this run."""
        self.device = pick_device(str(device))
        self.matcher.to(self.device)
        if self._view is not None:
            self._view.to(self.device)
        return self

    @property
    def view(self) -> ImageView:
        """How this run looks at an image. An image tower of its own is loaded when this is first asked for.

        Assign one to share a tower between runs of the same features.
        """
        if self._view is None:
            self._view = self._open_view()
        return self._view

    @view.setter
    def view(self, view: ImageView) -> None:
        self._view = view.to(self.device)

    @property
    def preprocess(self) -> Callable[[PILImage], Tensor]:
        """An RGB image -> (3, height, width), as the run's image tower wants it."""
        return self.view.preprocess

    def _open_view(self) -> ImageView:
        if self.image_input["kind"] == "pixels":
            return PixelView(preprocess_of(self.matcher))
        tower = self.image_input.get("tower")
        if not tower or "checksum" not in tower:
            raise RunError(
                f"run {self.name!r} reads the features {self.image_input['name']!r}, which were imported: the image "
                "tower that made them is not known, so none can be made of a new image; give an ImageBatch of such "
                "fragments, or use a corpus that has the features (encode_split)"
            )
        try:
            return FeatureExtractor.from_state(tower, weights=self._tower_weights, device=self.device)
        except RunError:
            raise
        except QuintetError as error:
            raise RunError(
                f"the image tower of run {self.name!r} cannot be loaded: {error} "
                "(if the file was moved, say where: quintet.load(..., tower_weights=FILE))"
            ) from None

    def encode_images(
        self,
        images: ImageFile | ImageBatch | Iterable[ImageFile] | Iterable[ImageBatch],
        *,
        batch_size: int = IMAGES_AT_ONCE,
        workers: int = WORKERS,
        progress: bool | Progress = False,
        keep: torch.device | str = "cpu",
    ) -> Codes:
        """Encode images: paths, PIL images, both mixed, or prepared batches; a single one is a batch of one.

        Any iterable will do; files are read in `workers` threads, a few batches ahead, upright and as RGB. A prepared
        `ImageBatch` is encoded as it is, whatever its size. Runs that read features of an image tower run that tower.

        `progress=True` draws a bar; a function is called with (done, total), where the total of a generator is None.
        `keep`: the device of the Codes.
        """
        single = isinstance(images, str | os.PathLike | PILImage | ImageBatch)
        items = cast(Iterable[ImageFile] | Iterable[ImageBatch], [images] if single else images)
        first, items, total = _look(items, "image")
        batches: Iterable[ImageBatch]
        if isinstance(first, ImageBatch):
            batches = _batches_only(cast(Iterable[ImageBatch], items), ImageBatch)
        else:
            batches = self._read(cast(Iterable[ImageFile], items), _positive(batch_size), workers)
        with reported(progress, f"images with {self.name}", total) as report:
            return self._encode(map(self._checked_images, batches), self.matcher.encode_images, report, keep)

    def encode_texts(
        self,
        texts: str | TextBatch | Iterable[str] | Iterable[TextBatch],
        *,
        batch_size: int = TEXTS_AT_ONCE,
        progress: bool | Progress = False,
        keep: torch.device | str = "cpu",
    ) -> Codes:
        """Encode texts: strings, or prepared batches; a single one is a batch of one.

        A text without words is an error. Words that the tokenizer does not know count as unknown words.
        `progress` and `keep` are those of `encode_images`.
        """
        items = cast(Iterable[str] | Iterable[TextBatch], [texts] if isinstance(texts, str | TextBatch) else texts)
        first, items, total = _look(items, "text")
        batches: Iterable[TextBatch]
        if isinstance(first, TextBatch):
            batches = _batches_only(cast(Iterable[TextBatch], items), TextBatch)
        else:
            batches = self._tokenized(cast(Iterable[str], items), _positive(batch_size))
        with reported(progress, f"texts with {self.name}", total) as report:
            return self._encode(map(self._checked_texts, batches), self.matcher.encode_texts, report, keep)

    def score(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        """(n_images, n_texts) float32 on the CPU: every image against every text, block by block."""
        _check_codes(image_codes, text_codes)
        scores = torch.empty(len(image_codes), len(text_codes))
        with self._inference():
            for images in _slices(len(image_codes), SCORED_AT_ONCE[0]):
                part = image_codes[images].to(self.device)
                for texts in _slices(len(text_codes), SCORED_AT_ONCE[1]):
                    scores[images, texts] = self.matcher.score(part, text_codes[texts].to(self.device)).float().cpu()
        return scores

    def score_pairs(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        """(n,) float32 on the CPU: image i against text i."""
        _check_codes(image_codes, text_codes)
        if len(image_codes) != len(text_codes):
            raise ArgumentError(
                f"score_pairs compares image i with text i, but there are {len(image_codes)} images and "
                f"{len(text_codes)} texts; `score` compares all with all"
            )
        scores = torch.empty(len(image_codes))
        with self._inference():
            for rows in _slices(len(scores), SCORED_AT_ONCE[1]):
                pair = image_codes[rows].to(self.device), text_codes[rows].to(self.device)
                scores[rows] = self.matcher.score_pairs(*pair).float().cpu()
        return scores

    def encode_split(
        self,
        corpus: Corpus,
        split: Split | str,
        *,
        batch_size: int = TEXTS_AT_ONCE,
        progress: bool | Progress = False,
        keep: torch.device | str = "cpu",
    ) -> tuple[Codes, Codes]:
        """The codes of all images and of all texts of a split, from the corpus's features or image files."""
        split = corpus.split(split) if isinstance(split, str) else split
        images, texts = len(split.images), len(split.texts)
        with reported(progress, f"{split.name} with {self.name}", images + texts) as report:
            image_codes = self.encode_images(
                self.image_batches(corpus, split.images, batch_size),
                progress=lambda done, _: report(done, images + texts),
                keep=keep,
            )
            text_codes = self.encode_texts(
                self.text_batches(split.texts, batch_size),
                progress=lambda done, _: report(images + done, images + texts),
                keep=keep,
            )
        return image_codes, text_codes

    def image_source(self, corpus: Corpus) -> ImageSource:
        """Where this run gets the images of a corpus from: its features, or its image files."""
        if self.image_input["kind"] == "pixels":
            return PixelImages(corpus, self.preprocess)
        name = self.image_input["name"]
        folder = corpus.root / "features" / str(name)
        if not (folder / "manifest.json").is_file():
            raise RunError(
                f"this matcher reads the features {name!r}, which corpus {corpus.name!r} does not have; "
                f"make them with `quintet features {corpus.root} --name {name}` and the same backbone"
            )
        store = FeatureStore(folder)
        wanted, made_by = self.image_input.get("tower"), store.manifest.get("tower")
        if not same_tower(wanted, made_by):
            raise RunError(
                f"the features in {folder} come from another tower or setting than the ones this matcher was trained "
                f"on: {made_by} instead of {wanted}"
            )
        return FeatureImages(store)

    def image_batches(
        self, corpus: Corpus, images: Sequence[Image], batch_size: int = TEXTS_AT_ONCE
    ) -> Iterator[ImageBatch]:
        """Images of a corpus as the matcher takes them, in order."""
        return image_batches(self.image_source(corpus), images, batch_size)

    def text_batches(self, texts: Sequence[Text], batch_size: int = TEXTS_AT_ONCE) -> Iterator[TextBatch]:
        """Texts of a corpus as the matcher takes them, in order."""
        return text_batches(TokenizedTexts(self._required_tokenizer(), texts), batch_size)

    def _encode(
        self,
        batches: Iterable[Any],
        encode: Callable[[Any], Codes],
        report: Progress,
        keep: torch.device | str,
    ) -> Codes:
        parts: list[Codes] = []
        done = 0
        with self._inference(), cores_for_decoding(self.device):
            for batch in batches:
                parts.append(encode(batch.to(self.device)).to(keep))
                done += len(batch)
                report(done, None)
        return Codes.cat(parts) if len(parts) > 1 else parts[0]

    @contextmanager
    def _inference(self) -> Iterator[None]:
        with torch.no_grad(), evaluation_mode(self.matcher), full_precision(self.device):
            yield

    def _read(self, images: Iterable[ImageFile], batch_size: int, workers: int) -> Iterator[ImageBatch]:
        view = self.view

        def prepare(image: Path | PILImage) -> tuple[Tensor, tuple[int, int]]:
            upright = image if isinstance(image, PILImage) else open_image(image)
            return view.preprocess(upright), upright.size

        for _, prepared in batches_ahead(_openable(images), prepare, batch_size, _positive(workers, "workers")):
            pixels, sizes = zip(*prepared, strict=True)
            yield view.batch(torch.stack(pixels), sizes)  # (n, 3, height, width) -> fragments (n, L, d), or as it is

    def _tokenized(self, texts: Iterable[str], batch_size: int) -> Iterator[TextBatch]:
        tokenizer = self._required_tokenizer()
        numbered = enumerate(texts)
        while some := list(islice(numbered, batch_size)):
            for number, text in some:
                if not isinstance(text, str):
                    raise ArgumentError(
                        f"encode_texts takes strings or a TextBatch, but item {number} is a {_kind(text)}"
                    )
                if not text.strip():
                    raise ArgumentError(f"text {number} is empty; say in a few words what the image should show")
            yield text_batch(tokenizer, [text for _, text in some])

    def _required_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise RunError(
                f"run {self.folder} has no tokenizer, so it takes token ids only (a TextBatch); "
                "give `quintet convert` its vocabulary with --vocab"
            )
        return self.tokenizer

    def _checked_images(self, batch: ImageBatch) -> ImageBatch:
        wanted = self.matcher.image_input
        if getattr(batch, wanted) is None:
            raise ArgumentError(f"run {self.name!r} takes {wanted}, but this ImageBatch has none")
        dim = self.model["arguments"].get("image_dim")
        if batch.fragments is not None and dim is not None and batch.fragments.shape[2] != dim:
            raise ArgumentError(
                f"run {self.name!r} takes fragments of {dim} numbers, but this ImageBatch has "
                f"{batch.fragments.shape[2]}: they are features of another image tower"
            )
        return batch

    def _checked_texts(self, batch: TextBatch) -> TextBatch:
        size = self.model["arguments"].get("vocabulary_size")
        if size is not None and batch.tokens.device.type == "cpu" and len(batch) and int(batch.tokens.max()) >= size:
            raise ArgumentError(
                f"run {self.name!r} has {size} token ids, but this TextBatch holds {int(batch.tokens.max())}; "
                "it was made with another tokenizer"
            )
        return batch


def load(
    name_or_path: Path | str,
    *,
    stage: str | None = None,
    device: torch.device | str = "auto",
    tower_weights: Path | str | None = None,
) -> Run:
    """Open a finished run, or with `stage` the selected weights of one of its stages (also of an unfinished run).

    - `name_or_path`: a run folder, the name of a run that comes with Quintet (`quintet-small`), or the path of a
      stage's folder or of a weights file, which names run and stage at once.
    - `device`: "cpu", "cuda", "cuda:1" ...; "auto" takes a GPU where there is one.
    - `tower_weights`: where the weights file of the run's image tower is, if it was moved since the features were made.

    >>> load("quintet-small", device="cpu")
    <Run 'quintet-small': heads, images: features 'efficientnet-lite0', texts: WordPiece, on cpu>
    """
    folder, stage = locate(name_or_path, stage)
    head = read_head(folder)
    weights = find_weights(folder, stage)
    model = read_json(folder / "model.json")
    try:
        matcher = create_model(model["name"], **without_start_weights(model))
    except RecipeError as error:
        raise RunError(f"run {folder} holds a matcher that this Quintet cannot make: {error}") from None
    state, _ = load_tensors(weights)
    load_weights(matcher, state, weights)
    tokenizer = folder / "tokenizer.json"
    place = pick_device(str(device))
    return Run(
        folder=folder,
        name=head["name"],
        matcher=matcher.to(place).eval(),
        model=model,
        tokenizer=load_tokenizer(tokenizer) if tokenizer.is_file() else None,
        image_input=read_json(folder / "images.json"),
        default_corpus=Path(head["corpus"]) if head.get("corpus") else None,
        weights_checksum=file_checksum(weights),
        device=place,
        tower_weights=tower_weights,
    )


def without_start_weights(model: dict[str, Any]) -> dict[str, Any]:
    """The matcher's arguments without the files its towers started from: the run's own weights replace them."""
    start = {"tower_weights": None, "tower_pretrained": False, "text_pretrained": False}
    known = MODELS.parameters(model["name"]) if model["name"] in MODELS.entries else {}
    return model["arguments"] | {key: value for key, value in start.items() if key in known}


def open_run(folder: Path | str, *, stage: str | None = None, device: torch.device | str = "cpu") -> Run:
    """`load`, on the CPU unless told otherwise."""
    return load(folder, stage=stage, device=device)


Thing = Any


def _look(items: Iterable[Thing], kind: str) -> tuple[Thing, Iterable[Thing], int | None]:
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


def _openable(images: Iterable[ImageFile]) -> Iterator[Path | PILImage]:
    for number, image in enumerate(images):
        if isinstance(image, PILImage):
            yield open_image(image, name=f"image {number}")  # here: two threads must not decode one PIL image
        elif isinstance(image, str | os.PathLike):
            yield Path(image)
        else:
            raise ArgumentError(_expected("image", image, f" (item {number})"))


def _batches_only(batches: Iterable[Thing], kind: type) -> Iterator[Thing]:
    for number, batch in enumerate(batches):
        if not isinstance(batch, kind):
            raise ArgumentError(f"item {number} is a {_kind(batch)} among prepared {kind.__name__}es; give one kind")
        yield batch


def _positive(number: int, name: str = "batch_size") -> int:
    if number < 1:
        raise ArgumentError(f"{name} must be at least 1, got {number}")
    return number


def _check_codes(image_codes: object, text_codes: object) -> None:
    for codes, kind in ((image_codes, "image"), (text_codes, "text")):
        if not isinstance(codes, Codes):
            raise ArgumentError(f"scores are of Codes; encode these {kind}s first (encode_{kind}s): got {_kind(codes)}")
    assert isinstance(image_codes, Codes)
    assert isinstance(text_codes, Codes)
    for part in ("embedding", "fragments"):
        one, other = getattr(image_codes, part), getattr(text_codes, part)
        if one is not None and other is not None and one.shape[-1] != other.shape[-1]:
            raise ArgumentError(
                f"the images' {part} have {one.shape[-1]} numbers and the texts' {other.shape[-1]}: some of these "
                "Codes are of another run"
            )


def _slices(rows: int, size: int) -> Iterator[slice]:
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


@contextmanager
def reported(progress: bool | Callable[[int, Any], None], description: str, total: int | None) -> Iterator[Progress]:
    """A function that is told how many are done; the total it is given, if any, goes before the one known here."""
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
