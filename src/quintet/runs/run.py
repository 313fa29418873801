"""`Run`: a trained matcher with its tokenizer and its view of images. `load` opens one.

>>> run = load("quintet-small", device="cpu")
>>> texts = run.encode_texts(["a dog in the snow", "two people on a beach"])
>>> len(texts), run.matcher.training
(2, False)
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image as PILImage
from torch import Tensor

from quintet.backbones.preprocess import Preprocess
from quintet.backbones.tower import same_tower
from quintet.codes import Codes
from quintet.data.batches import ImageBatch, TextBatch
from quintet.data.corpus import Corpus, Image, Split, Text, as_corpus
from quintet.data.feature_store import FeatureStore
from quintet.data.loading import FeatureImages, ImageSource, PixelImages, TokenizedTexts, image_batches, text_batches
from quintet.data.pretrained import PREFIX, dual_encoder_files, is_pretrained
from quintet.data.tokenizers import Tokenizer, load_tokenizer
from quintet.errors import ArgumentError, QuintetError, RecipeError, RunError
from quintet.models import MODELS
from quintet.models.size_limit import build_within
from quintet.protocols import Matcher, preprocess_of
from quintet.runs.checkpoint import load_tensors, load_weights
from quintet.runs.devices import pick_device
from quintet.runs.encoding import (
    ImageFile,
    ImageView,
    PixelView,
    Progress,
    batches_only,
    encode_batches,
    inference,
    look_ahead,
    positive,
    read_batches,
    reported,
    token_batches,
)
from quintet.runs.run_folder import (
    check_file,
    find_weights,
    locate,
    pretrained_name,
    read_checksums,
    read_head,
    read_image_input,
    read_model,
    verify_files,
)

IMAGES_AT_ONCE, TEXTS_AT_ONCE = 32, 128
SCORED_AT_ONCE = (1024, 4096)  # images and texts: 16 MB of scores; matchers bound what they need besides
WORKERS = 4  # threads that decode images
MOST_TIMES, SPARE = 4, 2**26  # a matcher may be so many times as large as its weights file, and so many bytes more


class Run:
    """A trained matcher with its tokenizer and its view of images; `quintet.load` opens one.

    `encode_images` and `encode_texts` take what people have (files, PIL images, strings) or prepared batches, and give
    `Codes` on the CPU, in the order of the input. `score` compares them. Nothing here computes gradients; `matcher` is
    the `nn.Module` for those who want them.

    >>> from PIL import Image
    >>> run = load("quintet-small", device="cpu")
    >>> images = run.encode_images([Image.new("RGB", (64, 48), colour) for colour in ("green", "blue")])
    >>> scores = run.score(images, run.encode_texts(["green grass", "the blue sky", "a dog"]))
    >>> tuple(scores.shape)
    (2, 3)
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
        notes: Sequence[str] = (),
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
        self.notes = tuple(notes)  # settings of its training that never took effect
        self._tower_weights = tower_weights
        self._view: ImageView | None = None

    def __repr__(self) -> str:
        images = "pixels" if self.image_input["kind"] == "pixels" else f"features {self.image_input['name']!r}"
        texts = "token ids" if self.tokenizer is None else f"{type(self.tokenizer).__name__}"
        return f"<Run {self.name!r}: {self.model['name']}, images: {images}, texts: {texts}, on {self.device}>"

    def to(self, device: torch.device | str) -> Run:
        """Move the matcher, and the image tower if it is loaded. Returns this run."""
        self.device = pick_device(device)
        self.matcher.to(self.device)
        if self._view is not None:
            self._view.to(self.device)
        return self

    def parts(self) -> dict[str, Any]:
        """What its folder holds, or would hold, of matcher and tokenizer, without paths of this machine."""
        arguments = {key: value for key, value in self.model["arguments"].items() if key != "source"}
        return {
            "model.json": self.model | {"arguments": arguments},
            "tokenizer.json": self._required_tokenizer().state(),
        }

    @property
    def view(self) -> ImageView:
        """From images to what the matcher encodes. The image tower behind features is loaded at the first use.

        Assign the view of another run on the same features to share its tower.
        """
        if self._view is None:
            self._view = self._open_view()
        return self._view

    @view.setter
    def view(self, view: ImageView) -> None:
        self._view = view.to(self.device)

    @property
    def preprocess(self) -> Preprocess:
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
        from quintet.backbones.extractor import FeatureExtractor  # needed only where new images are encoded

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
        images: ImageFile | ImageBatch | Iterable[ImageFile | ImageBatch],
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
        items: Any = [images] if single else images
        first, items, total = look_ahead(items, "image")
        if isinstance(first, ImageBatch):
            batches = batches_only(items, ImageBatch)
        else:
            sizes = positive(batch_size), positive(workers, "workers")
            batches = read_batches(items, self.view, self.device, *sizes)
        return self._encode(map(self._checked_images, batches), total, "images", progress, keep)

    def encode_texts(
        self,
        texts: str | TextBatch | Iterable[str | TextBatch],
        *,
        batch_size: int = TEXTS_AT_ONCE,
        progress: bool | Progress = False,
        keep: torch.device | str = "cpu",
    ) -> Codes:
        """Encode texts: strings, or prepared batches; a single one is a batch of one.

        A text without words is an error. Words that the tokenizer does not know count as unknown words.
        `progress` and `keep` are those of `encode_images`.
        """
        items: Any = [texts] if isinstance(texts, str | TextBatch) else texts
        first, items, total = look_ahead(items, "text")
        if isinstance(first, TextBatch):
            batches = batches_only(items, TextBatch)
        else:
            batches = token_batches(items, self._required_tokenizer(), positive(batch_size))
        return self._encode(map(self._checked_texts, batches), total, "texts", progress, keep)

    def score(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        """(n_images, n_texts) float32 on the CPU: every image against every text, block by block."""
        _check_codes(image_codes, text_codes)
        scores = torch.empty(len(image_codes), len(text_codes))
        with inference(self.matcher, self.device):
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
        with inference(self.matcher, self.device):
            for rows in _slices(len(scores), SCORED_AT_ONCE[1]):
                pair = image_codes[rows].to(self.device), text_codes[rows].to(self.device)
                scores[rows] = self.matcher.score_pairs(*pair).float().cpu()
        return scores

    def encode_split(
        self,
        corpus: Corpus | Path | str,
        split: Split | str,
        *,
        batch_size: int = TEXTS_AT_ONCE,
        progress: bool | Progress = False,
        keep: torch.device | str = "cpu",
    ) -> tuple[Codes, Codes]:
        """The codes of all images and of all texts of a split, from the corpus's features or image files."""
        corpus = as_corpus(corpus)
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
                f"make them with `quintet features {corpus.root} --name {name}{self._how()}`"
            )
        store = FeatureStore(folder)
        wanted, made_by = self.image_input.get("tower"), store.manifest.get("tower")
        if not same_tower(wanted, made_by):
            raise RunError(
                f"the features in {folder} come from another tower or setting than the ones this matcher was trained "
                f"on: {made_by} instead of {wanted}"
            )
        return FeatureImages(store)

    def _how(self) -> str:
        """The options of `quintet features` that make this run's features, as far as they are known."""
        tower = self.image_input.get("tower") or {}
        if "grid" not in tower:
            return " --backbone ..."
        rows, columns = tower["grid"]
        crop = "" if tower["preprocess"]["crop"] == "squeeze" else f" --crop {tower['preprocess']['crop']}"
        return f" --backbone {tower['name']} --grid {rows}x{columns}{crop}"

    def image_batches(
        self, corpus: Corpus, images: Sequence[Image], batch_size: int = TEXTS_AT_ONCE
    ) -> Iterator[ImageBatch]:
        """Images of a corpus as the matcher takes them, in order; files are read in threads, a few batches ahead."""
        if self.image_input["kind"] == "pixels":
            files = [corpus.image_path(image) for image in images]
            return read_batches(files, self.view, self.device, positive(batch_size), WORKERS)
        return image_batches(self.image_source(corpus), images, positive(batch_size))

    def text_batches(self, texts: Sequence[Text], batch_size: int = TEXTS_AT_ONCE) -> Iterator[TextBatch]:
        """Texts of a corpus as the matcher takes them, in order."""
        return text_batches(TokenizedTexts(self._required_tokenizer(), texts), positive(batch_size))

    def _encode(
        self,
        batches: Iterable[ImageBatch] | Iterable[TextBatch],
        total: int | None,
        kind: str,
        progress: bool | Progress,
        keep: torch.device | str,
    ) -> Codes:
        with reported(progress, f"{kind} with {self.name}", total) as report:
            return encode_batches(
                self.matcher, batches, self.device, pick_device(str(keep)), lambda done: report(done, None)
            )

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
      stage's folder or of a weights file, which names run and stage at once; or `hf:FOLDER` or `hf:HUB_NAME`, a dual
      encoder of transformers (CLIP, SigLIP ...); or `hub:OWNER/NAME`, a run on the hub.
    - `device`: "cpu", "cuda", "cuda:1" ...; "auto" takes a GPU where there is one.
    - `tower_weights`: where the weights file of the run's image tower is, if it was moved since the features were made.

    >>> load("quintet-small", device="cpu")
    <Run 'quintet-small': heads, images: features 'efficientnet-lite2-efficientnet-lite0', texts: WordPiece, on cpu>
    """
    if not isinstance(name_or_path, str | os.PathLike):
        raise ArgumentError(f"load takes the path or the name of a run, not a {type(name_or_path).__name__}")
    folder, stage = locate(name_or_path, stage)
    if is_pretrained(folder):
        return _load_pretrained(folder, pick_device(device))
    head = read_head(folder)
    weights = find_weights(folder, stage)
    opened_on = pick_device(device)
    verify_files(folder, ("model.json", "images.json", "tokenizer.json"))
    weights_checksum = check_file(folder, str(weights.relative_to(folder)), read_checksums(folder))
    model = read_model(folder)
    state, _ = load_tensors(weights)
    try:
        limit = MOST_TIMES * weights.stat().st_size + SPARE
        matcher = build_within(MODELS, model["name"], without_start_weights(model), limit)
    except RecipeError as error:
        raise RunError(f"run {folder} holds a matcher that this Quintet cannot make: {error}") from None
    load_weights(matcher, state, weights)
    return Run(
        folder=folder,
        name=head["name"],
        matcher=matcher.to(opened_on).eval(),
        model=model,
        tokenizer=read_tokenizer(folder),
        image_input=read_image_input(folder),
        default_corpus=Path(head["corpus"]) if head.get("corpus") else None,
        weights_checksum=head.get("made_from") or weights_checksum,
        device=opened_on,
        tower_weights=tower_weights,
        notes=[note for stage in head.get("stages", {}).values() for note in stage.get("without_effect", ())],
    )


def _load_pretrained(name: Path, device: torch.device) -> Run:
    """A dual encoder of transformers as it was published, opened as a run."""
    from quintet.models.clip import dual_encoder_facts, load_text_side  # with transformers, which takes seconds

    files = dual_encoder_files(name)
    tokenizer = load_text_side(files)
    arguments = {"source": f"{PREFIX}{files.folder}", **dual_encoder_facts(files, tokenizer)}
    limit = MOST_TIMES * sum(path.stat().st_size for path in files.weights) + SPARE
    matcher: Matcher = build_within(MODELS, "clip", arguments, limit)
    return Run(
        folder=name,
        name=pretrained_name(name),
        matcher=matcher.to(device).eval(),
        model={"name": "clip", "arguments": arguments},
        tokenizer=tokenizer,
        image_input={"kind": "pixels"},
        default_corpus=None,
        weights_checksum=files.identity(),
        device=device,
    )


def read_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer of a run folder, if it has one."""
    path = folder / "tokenizer.json"
    if not os.path.lexists(path):
        return None
    try:
        return load_tokenizer(path)
    except QuintetError as error:
        raise RunError(f"the tokenizer of run {folder} cannot be read: {error}") from None
    except Exception as error:  # noqa: BLE001  # whatever the tokenizers' library raises for a damaged vocabulary
        raise RunError(f"{path} is damaged: {error}") from None


def without_start_weights(model: dict[str, Any]) -> dict[str, Any]:
    """The matcher's arguments without the files its towers started from: the run's own weights replace them."""
    start = {"tower_weights": None, "tower_pretrained": False, "text_pretrained": False, "pretrained": False}
    known = MODELS.parameters(model["name"]) if model["name"] in MODELS.entries else {}
    return model["arguments"] | {key: value for key, value in start.items() if key in known}


def as_run(run: Run | Path | str, *, stage: str | None = None, device: torch.device | str | None = None) -> Run:
    """A run, or what `load` takes. `device`: by default an opened run stays where it is, and a name means "auto"."""
    if not isinstance(run, Run):
        return load(run, stage=stage, device="auto" if device is None else device)
    if stage is not None:
        raise RunError(f"run {run.name!r} is open already; name stage {stage!r} when you load it")
    return run if device is None else run.to(device)


def _check_codes(image_codes: object, text_codes: object) -> None:
    for codes, kind in ((image_codes, "image"), (text_codes, "text")):
        if not isinstance(codes, Codes):
            raise ArgumentError(
                f"scores are of Codes; encode these {kind}s first (encode_{kind}s): got {type(codes).__name__}"
            )
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
