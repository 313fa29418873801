"""The runs of an index: one, or several that search together, and what each of them is for."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from quintet.backbones.create import FAMILIES, create_tower
from quintet.backbones.extractor import FeatureExtractor
from quintet.codes import Codes
from quintet.data.batches import ImageBatch
from quintet.data.pretrained import is_pretrained
from quintet.data.tokenizers import Tokenizer
from quintet.errors import QuintetError
from quintet.files import LARGEST_JSON, atomic_write, file_checksum, read_bytes, write_json
from quintet.protocols import Matcher
from quintet.runs.checkpoint import save_tensors
from quintet.runs.devices import pick_device
from quintet.runs.run import ImageView, Run, load
from quintet.runs.run_folder import FORMAT as RUN_FORMAT
from quintet.runs.run_folder import read_head
from quintet.search import SearchError, StaleIndex
from quintet.search.chance import random_texts
from quintet.search.index_folder import CHECKSUM, RUN_FILES, TOWER_FILES, IndexRun, Manifest
from quintet.search.items import Kind
from quintet.search.text_codes import TextCodes
from quintet.search.vectors import CodeFiles

if TYPE_CHECKING:
    from PIL.Image import Image as PILImage

AT_ONCE = 512  # items whose fragments are in memory at a time


@dataclass(frozen=True)
class Prepared:
    """A decoded image as every view wants it."""

    views: tuple[Tensor, ...]
    size: tuple[int, int]  # width, height


class Encoder:
    """The runs of an index. `encode_*` give one `Codes` for each run, in their order, on the CPU."""

    def __init__(self, runs: Sequence[Run], *, device: torch.device | str = "auto", towers: Path | None = None) -> None:
        """`towers`: where an index keeps the weights of image towers; None looks where the features came from."""
        if not runs:
            raise SearchError("an index needs at least one run")
        self.device = pick_device(device)
        self.runs = [run.to(self.device) for run in runs]
        self.tokenizers = [_tokenizer(run) for run in runs]
        self.queries = TextCodes(self._encode_each, _bytes_of)
        self._towers, self._lock = towers, threading.Lock()
        self._opened: tuple[list[ImageView], list[int | QuintetError]] | None = None

    @property
    def views(self) -> list[ImageView]:
        """How the runs are shown new images: opened when they are first needed, which is not for a text."""
        return self._open_views()[0]

    @property
    def _view_of(self) -> list[int | QuintetError]:
        """For each run its view, or why new images cannot be shown to it."""
        return self._open_views()[1]

    def _open_views(self) -> tuple[list[ImageView], list[int | QuintetError]]:
        with self._lock:
            if self._opened is None:
                self._opened = self._opened_views(self._towers)
            return self._opened

    def _opened_views(self, towers: Path | None) -> tuple[list[ImageView], list[int | QuintetError]]:
        """Runs of the same features share a view."""
        views: list[ImageView] = []
        shared: dict[str, int | QuintetError] = {}
        found: list[int | QuintetError] = []
        for run in self.runs:
            tower = run.image_input.get("tower")
            key = json.dumps(tower, sort_keys=True) if tower else run.weights_checksum
            if key not in shared:
                try:
                    if towers is not None and tower:
                        state, weights = kept_tower(towers, tower)
                        run.view = FeatureExtractor.from_state(state, weights=weights, device=self.device)
                    views.append(run.view)
                    shared[key] = len(views) - 1
                except QuintetError as error:  # an index of a corpus that has its features needs no tower
                    shared[key] = error
            view = shared[key]
            if isinstance(view, int):
                run.view = views[view]
            found.append(view)
        return views, found

    @property
    def sees_images(self) -> bool:
        """Whether every run can be shown new images."""
        return all(isinstance(view, int) for view in self._view_of)

    def travelling(self) -> list[Run]:
        """The runs with their image towers, for a process that has no files of theirs."""
        self._open_views()
        return self.runs

    def require_views(self) -> None:
        """Raise unless every run can be shown new images."""
        for run, view in zip(self.runs, self._view_of, strict=True):
            if isinstance(view, QuintetError):
                raise SearchError(f"run {run.name!r} cannot be shown new images: {view}")

    def least(self, width: int, height: int) -> tuple[int, int]:
        """The smallest size that every view needs an image of this size at (`quintet.data.images.open_image`)."""
        sizes = [(1, 1), *(view.preprocess.least(width, height) for view in self.views)]
        return max(size[0] for size in sizes), max(size[1] for size in sizes)

    def prepare(self, image: PILImage, size: tuple[int, int] | None = None) -> Prepared:
        """`size`: of the image before it was decoded at less than its size. Threads may call it."""
        return Prepared(tuple(view.preprocess(image) for view in self.views), size or image.size)

    def encode_images(self, images: Sequence[Prepared]) -> list[Codes]:
        self.require_views()
        sizes = [image.size for image in images]
        batches = [
            view.batch(torch.stack([image.views[number] for image in images]), sizes)  # (n, 3, height, width)
            for number, view in enumerate(self.views)
        ]
        return self.encode_batches([batches[view] for view in self._view_of if isinstance(view, int)])

    def encode_batches(self, batches: Sequence[ImageBatch]) -> list[Codes]:
        """From one batch of the same images for each run."""
        return [run.encode_images(batch) for run, batch in zip(self.runs, batches, strict=True)]

    def encode_texts(self, texts: Sequence[str]) -> list[Codes]:
        return [run.encode_texts(texts) for run in self.runs]

    def _encode_each(self, texts: Sequence[str]) -> list[list[Codes]]:
        """For each text one `Codes` for each run."""
        encoded = self.encode_texts(texts)
        return [[_row(codes, number) for codes in encoded] for number in range(len(texts))]

    def random_texts(self, first: Sequence[int]) -> np.ndarray:
        """(t, dim): the vectors of random texts for the first stage (`quintet.search.chance`); t may be 0."""
        texts = random_texts(self.tokenizers[first[0]].plain_words())
        return query_vectors(self.encode_texts(texts or ["a"]), first).numpy()[: len(texts)]

    def fingerprint(self, precision: str) -> str:
        """Which codes it makes: weights and towers, in order. Codes of another fingerprint mean nothing beside them."""
        facts = [[run.weights_checksum, _without_path(run.image_input), precision] for run in self.runs]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _row(codes: Codes, number: int) -> Codes:
    """A copy of one row, without the padding that others of its batch needed."""
    row = codes[number]
    if row.fragments is None or row.mask is None:
        return row.map(torch.clone)
    length = int(row.mask[0].nonzero().max()) + 1 if row.mask.any() else 0
    embedding = row.embedding
    parts = {name: part[:, :length] for name, part in row.tensors().items() if name != "embedding"}
    return Codes(embedding=embedding, **parts).map(torch.clone)


def _bytes_of(codes: Sequence[Codes]) -> int:
    return sum(tensor.nbytes for code in codes for tensor in code.tensors().values())


def _tokenizer(run: Run) -> Tokenizer:
    if run.tokenizer is None:
        raise SearchError(
            f"run {run.folder} has no tokenizer, so texts mean nothing to it; "
            "give `quintet convert` its vocabulary with --vocab"
        )
    return run.tokenizer


def _without_path(image_input: dict[str, Any]) -> dict[str, Any]:
    tower = image_input.get("tower") or {}
    return {"kind": image_input["kind"], "tower": {key: tower[key] for key in sorted(tower) if key != "weights"}}


@dataclass(frozen=True)
class Roles:
    first: tuple[int, ...]  # runs whose embeddings, as an ensemble, choose candidates; none: every item is scored
    rerank: tuple[int, ...]  # runs whose mean score re-ranks them; none: nothing does
    dim: int  # of the first stage's vectors


def assign_roles(encoder: Encoder, main: int, rerank: Sequence[int]) -> Roles:
    """`main`: so many runs, from the first on, are the index's own; `rerank`: those asked to re-rank, if any.

    Embeddings of the own runs are the first stage. Where nothing was asked for and some of them have fragments (SCAN,
    BFAN, MMCA), their mean score re-ranks; where none of them has an embedding, that is the only stage there is.
    """
    codes = encoder.encode_texts(["a"])
    first = tuple(number for number in range(main) if codes[number].embedding is not None)
    if rerank and not first:
        raise SearchError(
            f"run {encoder.runs[0].name!r} gives no embedding, so it cannot choose candidates for another to re-rank; "
            "name an embedding matcher first (VSE++, VSRN, HREM, MMCA), or leave the re-ranking run out"
        )
    if not rerank and any(codes[number].fragments is not None for number in range(main)):
        rerank = range(main)
    dim = first_vectors(codes, first).shape[1] if first else 0
    return Roles(first, tuple(rerank), dim)


def first_vectors(codes: Sequence[Codes] | Mapping[int, Codes], first: Sequence[int]) -> Tensor:
    """(n, d1 + d2 + ...): the embeddings of an ensemble side by side, as items are compared."""
    return torch.cat([part for number in first if (part := codes[number].embedding) is not None], dim=1).float()


def query_vectors(codes: Sequence[Codes] | Mapping[int, Codes], first: Sequence[int]) -> Tensor:
    """(n, d1 + d2 + ...): as queries are compared, so that a dot product is the mean of the members' scores."""
    return first_vectors(codes, first) / len(first)


@torch.no_grad()
def score_rows(
    matchers: Mapping[int, Matcher], files: CodeFiles, rows: np.ndarray, queries: Mapping[int, Codes], kind: Kind
) -> Tensor:
    """(n,): the mean score of an ensemble for one query and these rows of a kind, as `quintet evaluate` takes it.

    Rows are scored in blocks of one size: all items of an index give, bit for bit, what scoring everything gives.
    """
    parts = []
    for start in range(0, len(rows), AT_ONCE):
        some = rows[start : start + AT_ONCE]
        scores = [
            _score_block(matcher, files.codes(member, some), queries[member], kind)
            for member, matcher in matchers.items()
        ]
        parts.append(torch.stack(scores).mean(dim=0))  # (members, n) -> (n,)
    return torch.cat(parts)


def _score_block(matcher: Matcher, items: Codes, query: Codes, kind: Kind) -> Tensor:
    device = next(matcher.parameters()).device
    items, query = items.to(device), query.to(device)
    scores = matcher.score(items, query)[:, 0] if kind == "image" else matcher.score(query, items)[0]  # (n,)
    return scores.float().cpu()


# The runs and towers that an index keeps


def open_encoder(index: Path, manifest: Manifest, device: torch.device | str) -> Encoder:
    """The runs that an index keeps."""
    runs = []
    for run in manifest.runs:
        try:
            opened = load(index / "runs" / run.weights, device="cpu")
        except QuintetError as error:
            raise StaleIndex(f"{error}; build the index again") from None
        if opened.weights_checksum != run.weights:
            raise StaleIndex(
                f"the weights in {index / 'runs' / run.weights} are not those the index was built with; "
                "build it again with --overwrite"
            )
        runs.append(opened)
    return Encoder(runs, device=device, towers=index / "towers")


def keep_run(index: Path, run: Run, known: Mapping[str, str]) -> dict[str, str]:
    """Copy what searching needs of a run into the index, unless it is there already; checksums of the files by path.

    `known`: checksums of the files that are there already. A model of transformers becomes a run folder here.
    """
    kept, folder = index / "runs" / run.weights_checksum, run.folder
    # Without paths of the machine it was trained on: an index may be given away.
    head = read_head(folder) | {"format": RUN_FORMAT, "status": "complete", "corpus": None}
    tower = run.image_input.get("tower")
    images = run.image_input | ({"tower": tower | {"weights": None}} if tower else {})
    written: dict[str, Any] = {"run.json": head, "images.json": images}
    if is_pretrained(folder):
        written |= {"run.json": head | {"made_from": run.weights_checksum}, **run.parts()}
    found = {name: f"{json.dumps(value, ensure_ascii=False, indent=2)}\n".encode() for name, value in written.items()}
    for name in {"model.json", "tokenizer.json"} - found.keys():
        found[name] = read_bytes(folder / name, LARGEST_JSON)
    for name, content in found.items():
        if not (kept / name).is_file() or read_bytes(kept / name, LARGEST_JSON) != content:
            with atomic_write(kept / name) as temporary:
                temporary.write_bytes(content)
    if is_pretrained(folder):
        if not is_intact(kept / "weights.safetensors", known.get(f"runs/{kept.name}/weights.safetensors")):
            save_tensors(kept / "weights.safetensors", run.matcher.state_dict(), {"run": run.name})
    elif not is_intact(kept / "weights.safetensors", run.weights_checksum):
        files = [folder / "weights.safetensors", *folder.glob("stages/*/selected.safetensors")]
        weights = next((file for file in files if is_intact(file, run.weights_checksum)), None)
        if weights is None:
            raise SearchError(f"the weights of run {folder} have changed since it was opened; open it again")
        with atomic_write(kept / "weights.safetensors") as temporary:
            shutil.copyfile(weights, temporary)
    return {f"runs/{kept.name}/{name}": file_checksum(kept / name) for name in (*found, "weights.safetensors")}


def kept_names(runs: Iterable[Run]) -> list[str]:
    """The files that `keep_run` and `keep_tower` may write, by their paths in the index."""
    names = []
    for run in runs:
        names += [f"runs/{run.weights_checksum}/{name}" for name in RUN_FILES]
        names += _tower_names(run.image_input.get("tower"))
    return names


def _tower_names(state: dict[str, Any] | None) -> list[str]:
    """Empty where it is not known which tower it was. The first is the weights."""
    if not state or not CHECKSUM.fullmatch(str(state.get("checksum"))):
        return []
    names = TOWER_FILES if str(state["name"]).startswith("hf:") else TOWER_FILES[:1]
    return [f"towers/{state['checksum']}/{name}" for name in names]


def is_intact(path: Path, checksum: str | None) -> bool:
    return path.is_file() and file_checksum(path) == checksum


def describe_run(run: Run) -> IndexRun:
    return IndexRun(run.name, str(run.model["name"]), run.weights_checksum)


def keep_tower(index: Path, state: dict[str, Any] | None, known: Mapping[str, str]) -> dict[str, str]:
    """Keep a tower's weights in the index, unless it is not known which tower it was; checksums of the files by path.

    `state`: as `FeatureExtractor.state` gives it. `known`: checksums of the files that are there already.
    """
    names = _tower_names(state)
    if not state or not names:
        return {}
    kept, name = index / "towers" / str(state["checksum"]), str(state["name"])
    if not all(is_intact(index / each, known.get(each)) for each in names):
        tower = create_tower(name, state["weights"])
        if name.startswith("hf:"):
            _keep_description(kept, name.removeprefix("hf:"))
        family = any(name.startswith(prefix) for prefix in FAMILIES)
        model: Any = tower.model if family else tower
        save_tensors(kept / "tower.safetensors", model.state_dict(), {"tower": name})
    return {each: file_checksum(index / each) for each in names}


def kept_tower(folder: Path, state: dict[str, Any]) -> tuple[dict[str, Any], Path]:
    """What `FeatureExtractor.from_state` takes to make the tower from the index's own files."""
    kept = folder / str(state.get("checksum"))
    weights = kept / "tower.safetensors"
    if not weights.is_file():
        raise StaleIndex(f"{weights} is missing, the weights of the image tower; build the index again")
    name = str(state["name"])
    return state | {"name": f"hf:{kept}" if name.startswith("hf:") else name}, weights


def _keep_description(kept: Path, name: str) -> None:
    """What transformers needs besides the weights: the shape of the model, and how it wants its images."""
    from transformers import AutoConfig
    from transformers.image_processing_base import ImageProcessingMixin

    source = str(Path(name).expanduser()) if Path(name).expanduser().is_dir() else name
    AutoConfig.from_pretrained(source).save_pretrained(kept)
    write_json(kept / "preprocessor_config.json", ImageProcessingMixin.get_image_processor_dict(source)[0])
