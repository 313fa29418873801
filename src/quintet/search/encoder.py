"""Images and texts to codes, by the runs of an index: one, or several that search together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from quintet.backbones.extractor import FeatureExtractor
from quintet.backbones.preprocess import Preprocess
from quintet.codes import Codes
from quintet.data.batches import ImageBatch
from quintet.data.tokenizers import Tokenizer, text_batch
from quintet.errors import QuintetError
from quintet.protocols import preprocess_of
from quintet.runs.devices import pick_device
from quintet.runs.run import Run, open_run
from quintet.search.errors import SearchError
from quintet.search.towers import kept_tower

if TYPE_CHECKING:
    from PIL.Image import Image as PILImage

TEXTS_AT_ONCE = 128


class View(Protocol):
    """How some of the runs look at an image."""

    def prepare(self, image: PILImage) -> Tensor:
        """(3, height, width); called in threads."""
        ...

    def batch(self, pixels: Tensor, sizes: Sequence[tuple[int, int]]) -> ImageBatch:
        """(n, 3, height, width) of images of these (width, height)."""
        ...


class PixelView:
    """A matcher with an image tower of its own."""

    def __init__(self, preprocess: Preprocess) -> None:
        self.prepare = preprocess

    def batch(self, pixels: Tensor, sizes: Sequence[tuple[int, int]]) -> ImageBatch:
        return ImageBatch(pixels=pixels)


class FeatureView:
    """Matchers of features: the tower that made those they were trained on."""

    def __init__(self, extractor: FeatureExtractor) -> None:
        self.extractor = extractor
        self.prepare = extractor.preprocess

    def batch(self, pixels: Tensor, sizes: Sequence[tuple[int, int]]) -> ImageBatch:
        features = torch.from_numpy(self.extractor.features(pixels))  # (n, L, d)
        return ImageBatch(fragments=features, boxes=torch.from_numpy(self.extractor.boxes(sizes)))


@dataclass(frozen=True)
class Prepared:
    """A decoded image as every view wants it."""

    views: tuple[Tensor, ...]
    size: tuple[int, int]  # width, height


class Encoder:
    """The runs of an index. `encode_*` give one `Codes` for each run, in their order, on the CPU."""

    def __init__(self, runs: Sequence[Run], *, device: str = "auto", towers: Path | None = None) -> None:
        """`towers`: where an index keeps the weights of image towers; None looks where the features came from."""
        if not runs:
            raise SearchError("an index needs at least one run")
        self.device = pick_device(device)
        self.runs = list(runs)
        self.tokenizers = [_tokenizer(run) for run in runs]
        for run in runs:
            run.matcher.to(self.device).eval()
        self.views: list[View] = []
        self._view_of = self._open_views(towers)

    @staticmethod
    def open(folders: Sequence[Path], *, device: str = "auto", towers: Path | None = None) -> Encoder:
        return Encoder([open_run(folder) for folder in folders], device=device, towers=towers)

    def _open_views(self, towers: Path | None) -> list[int | QuintetError]:
        """For each run its view, or why new images cannot be shown to it. Runs of the same features share one."""
        shared: dict[str, int | QuintetError] = {}
        found: list[int | QuintetError] = []
        for run in self.runs:
            if run.image_input["kind"] == "pixels":
                self.views.append(PixelView(preprocess_of(run.matcher)))
                found.append(len(self.views) - 1)
                continue
            key = json.dumps(run.image_input.get("tower"), sort_keys=True)
            if key not in shared:
                try:
                    self.views.append(FeatureView(_extractor(run, towers, str(self.device))))
                    shared[key] = len(self.views) - 1
                except QuintetError as error:  # an index of a corpus that has its features needs no tower
                    shared[key] = error
            found.append(shared[key])
        return found

    @property
    def sees_images(self) -> bool:
        """Whether every run can be shown new images."""
        return all(isinstance(view, int) for view in self._view_of)

    def require_views(self) -> None:
        """Raise unless every run can be shown new images."""
        for run, view in zip(self.runs, self._view_of, strict=True):
            if isinstance(view, QuintetError):
                raise SearchError(f"run {run.name!r} cannot be shown new images: {view}")

    def prepare(self, image: PILImage) -> Prepared:
        return Prepared(tuple(view.prepare(image) for view in self.views), image.size)

    def encode_pictures(self, images: Sequence[Prepared]) -> list[Codes]:
        self.require_views()
        sizes = [image.size for image in images]
        batches = [
            view.batch(torch.stack([image.views[number] for image in images]), sizes)
            for number, view in enumerate(self.views)
        ]
        return self.encode_batches([batches[view] for view in self._view_of if isinstance(view, int)])

    @torch.inference_mode()
    def encode_batches(self, batches: Sequence[ImageBatch]) -> list[Codes]:
        """From one batch of the same images for each run."""
        return [
            run.matcher.encode_images(batch.to(self.device)).to("cpu")
            for run, batch in zip(self.runs, batches, strict=True)
        ]

    @torch.inference_mode()
    def encode_texts(self, texts: Sequence[str]) -> list[Codes]:
        found = []
        for run, tokenizer in zip(self.runs, self.tokenizers, strict=True):
            parts = [
                run.matcher.encode_texts(text_batch(tokenizer, texts[start : start + TEXTS_AT_ONCE]).to(self.device))
                for start in range(0, len(texts), TEXTS_AT_ONCE)
            ]
            found.append(Codes.cat([part.to("cpu") for part in parts]))
        return found

    def fingerprint(self, precision: str) -> str:
        """Which codes it makes: weights and towers, in order. Codes of another fingerprint mean nothing beside them."""
        facts = [[run.weights_checksum, _without_place(run.image_input), precision] for run in self.runs]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _tokenizer(run: Run) -> Tokenizer:
    if run.tokenizer is None:
        raise SearchError(
            f"run {run.folder} has no tokenizer, so texts mean nothing to it; "
            "give `quintet convert` its vocabulary with --vocab"
        )
    return run.tokenizer


def _extractor(run: Run, towers: Path | None, device: str) -> FeatureExtractor:
    tower = run.image_input.get("tower")
    if not tower:
        raise SearchError(f"its features {run.image_input.get('name')!r} were imported, by a tower that is not known")
    if towers is None:
        return FeatureExtractor.from_state(tower, device=pick_device(device))
    state, weights = kept_tower(towers, tower)
    return FeatureExtractor.from_state(state, weights=weights, device=pick_device(device))


def _without_place(image_input: dict[str, Any]) -> dict[str, Any]:
    tower = image_input.get("tower") or {}
    return {"kind": image_input["kind"], "tower": {key: tower[key] for key in sorted(tower) if key != "weights"}}
