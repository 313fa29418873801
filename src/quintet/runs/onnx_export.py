"""The two towers of an embedding matcher as ONNX files, checked against torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.backbones.extractor import FeatureExtractor, pool_grid
from quintet.backbones.onnx_text import OnnxText
from quintet.backbones.preprocess import PatchPreprocess
from quintet.data.batches import ImageBatch, TextBatch
from quintet.errors import QuintetError
from quintet.files import atomic_write, begin_folder, check_folder, read_json, write_json
from quintet.layers.text import unpacked
from quintet.protocols import HasFrozenText, Matcher, ReadsPixels
from quintet.runs.run import Run
from quintet.scores import embedding_of

FORMAT, HEADER = "quintet-onnx", "towers.json"
OWN_FILES = ("images.onnx", "texts.onnx", "tokenizer.json")
OPSET = 17
TOLERANCE = 1e-4  # of a unit vector's channels, between onnxruntime and torch
REGIONS, WORDS = 36, 12  # of the example that is traced; both are free in the file
EMBEDDING = {"embedding": {0: "n"}}  # what comes out
# Writes a module as an ONNX file: the module, an example of its input, the free axes of input and output, the path.
Export = Callable[[nn.Module, Sequence[Tensor], dict[str, dict[int, str]], dict[str, dict[int, str]], Path], None]
TEXTS = {0: "n", 1: "words"}


@dataclass(frozen=True)
class ExportReport:
    folder: Path
    files: dict[str, Path]  # "images", "texts"
    difference: dict[str, float]  # the largest between onnxruntime and torch, on batches of other sizes


class ImageTowerOfFragments(nn.Module):
    def __init__(self, matcher: Matcher) -> None:
        super().__init__()
        self.matcher = matcher

    def forward(self, fragments: Tensor, real: Tensor) -> Tensor:
        return embedding_of(self.matcher.encode_images(ImageBatch(fragments=fragments, mask=real)))


class ImageTowerOfPixels(nn.Module):
    def __init__(self, matcher: Matcher) -> None:
        super().__init__()
        self.matcher = matcher

    def forward(self, pixels: Tensor) -> Tensor:
        return embedding_of(self.matcher.encode_images(ImageBatch(pixels=pixels)))


class ImageTowerWithFeatures(nn.Module):
    """From pixels through the frozen tower and its cells, which the matcher's features were made with."""

    def __init__(self, matcher: Matcher, extractor: FeatureExtractor) -> None:
        super().__init__()
        self.matcher, self.tower = matcher, extractor.tower
        with torch.no_grad():
            height, width = self.tower(torch.zeros(1, 3, *extractor.preprocess.size)).shape[2:]
        # Averaging cells as two products: ONNX has no adaptive pooling for sizes that do not divide.
        self.rows = pool_grid(torch.eye(height)[None, :, :, None], (extractor.grid[0], 1))[0]  # (rows, height)
        self.columns = pool_grid(torch.eye(width)[None, :, :, None], (extractor.grid[1], 1))[0]  # (columns, width)

    def forward(self, pixels: Tensor) -> Tensor:
        cells = self.rows @ self.tower(pixels) @ self.columns.t()  # (n, dim, rows, columns)
        cells = cells.flatten(2).transpose(1, 2)  # (n, L, dim)
        real = torch.ones_like(cells[..., 0], dtype=torch.bool)
        return embedding_of(self.matcher.encode_images(ImageBatch(fragments=cells, mask=real)))


class TextTower(nn.Module):
    def __init__(self, matcher: Matcher) -> None:
        super().__init__()
        self.matcher = matcher

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        return embedding_of(self.matcher.encode_texts(TextBatch(tokens, lengths)))


class PlainAttention(nn.Module):
    """`nn.MultiheadAttention`, batch first, in operations whose sizes stay free when exported."""

    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        self.num_heads = attention.num_heads
        self.batch_first, self._qkv_same_embed_dim = attention.batch_first, True  # torch's encoder layers look at these
        self.weight, self.bias = attention.in_proj_weight, attention.in_proj_bias
        self.out = attention.out_proj

    def forward(
        self, x: Tensor, keys: Tensor, values: Tensor, *, key_padding_mask: Tensor | None = None, **_: Any
    ) -> tuple[Tensor, None]:
        """(n, L, d), twice (n, M, d) -> (n, L, d). `key_padding_mask` is additive, as the encoder layer makes it."""
        layers = zip((x, keys, values), self.weight.chunk(3), self.bias.chunk(3), strict=True)
        query, key, value = (
            F.linear(given, weight, bias).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # (n, h, L, d / h)
            for given, weight, bias in layers
        )
        logits = query @ key.transpose(2, 3) / query.shape[-1] ** 0.5  # (n, h, L, M)
        if key_padding_mask is not None:
            logits = logits + key_padding_mask[:, None, None]
        return self.out((logits.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)), None


class PlainStandard(nn.Module):
    """`nn.BatchNorm1d` without gain and bias, in operations that need no size to be exported."""

    def __init__(self, norm: nn.BatchNorm1d) -> None:
        super().__init__()
        assert norm.running_mean is not None
        assert norm.running_var is not None
        self.mean, self.std = norm.running_mean, (norm.running_var + norm.eps).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


def export_onnx(run: Run, folder: Path) -> ExportReport:
    """Write `images.onnx`, `texts.onnx` and `towers.json` (what goes in and comes out); raise unless both agree with
    torch, also on batches of other sizes than the one they were traced with."""
    _require_packages()
    check_folder(folder, HEADER, FORMAT, OWN_FILES)
    _require_embeddings(run.matcher)
    matcher = run.matcher.to("cpu").eval()
    extractor = _extractor(run)
    files, difference, inputs = {name: folder / f"{name}.onnx" for name in ("images", "texts")}, {}, {}
    with ExitStack() as stack:  # no file appears before all are right
        for name, path in files.items():
            tower, axes = _tower(matcher, name, extractor)
            given = [_example(matcher, run, name, n, more) for n, more in ((2, 0), (3, 2), (1, -1))]
            with torch.no_grad():
                tower(*given[0])  # what is read from files at the first use must not be traced
            temporary = stack.enter_context(atomic_write(path))
            if name == "texts" and is_over_onnx(matcher):
                export_over_onnx(matcher, given[0], temporary, _export)
            else:
                _export(_tower(_exportable(matcher), name, extractor)[0], given[0], axes, EMBEDDING, temporary)
            difference[name] = max(_difference(tower, each, axes, temporary) for each in given)
            if not difference[name] <= TOLERANCE:  # NaN too
                raise QuintetError(
                    f"the exported tower of {name} differs from torch by {difference[name]:.2g} (at most "
                    f"{TOLERANCE:g} is rounding); this matcher cannot be exported"
                )
            inputs[name] = {key: list(free.values()) for key, free in axes.items()}
        begin_folder(folder, HEADER, FORMAT, OWN_FILES)
    if run.tokenizer is not None:
        write_json(folder / "tokenizer.json", run.tokenizer.state())
    write_json(folder / HEADER, _description(run, inputs, difference))
    return ExportReport(folder, files, difference)


def _require_packages() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise QuintetError(
            f"exporting needs onnx and onnxruntime: `pip install 'quintet-retrieval[onnx]'` ({error})"
        ) from None


def _require_embeddings(matcher: Matcher) -> None:
    if isinstance(matcher, ReadsPixels) and isinstance(matcher.preprocess, PatchPreprocess):
        raise QuintetError("this matcher takes patches of images of any shape; only towers of one size can be exported")
    with torch.no_grad():
        probe = matcher.encode_texts(TextBatch.from_ids([[0]]).to(next(matcher.parameters()).device))
    if probe.embedding is None or probe.fragments is not None:
        raise QuintetError(
            f"{type(matcher).__name__} compares fragments instead of one vector an image and one a text; only the "
            "towers of embedding matchers can be exported (VSE++, VSRN, HREM, Dual-Path, heads)"
        )


def _exportable(matcher: Matcher) -> Matcher:
    """A copy of layers that keep their sizes free."""
    copy = deepcopy(matcher)
    for module in list(copy.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.MultiheadAttention):
                setattr(module, name, PlainAttention(child))
            if isinstance(child, nn.BatchNorm1d) and not child.affine:
                setattr(module, name, PlainStandard(child))
    return copy


def _extractor(run: Run) -> FeatureExtractor | None:
    """The image tower behind the run's features, so that its file takes pixels; None where it is not known."""
    if run.image_input["kind"] == "pixels" or not _takes_pixels(run):
        return None
    view = run.view
    assert isinstance(view, FeatureExtractor)
    return view.to("cpu")


def _tower(
    matcher: Matcher, name: str, extractor: FeatureExtractor | None
) -> tuple[nn.Module, dict[str, dict[int, str]]]:
    """A tower, and the names of its inputs with their free axes."""
    if name == "texts":
        return TextTower(matcher).eval(), {"tokens": {0: "n", 1: "words"}, "lengths": {0: "n"}}
    if matcher.image_input == "pixels":
        return ImageTowerOfPixels(matcher).eval(), {"pixels": {0: "n"}}
    if extractor is not None:
        return ImageTowerWithFeatures(matcher, extractor).eval(), {"pixels": {0: "n"}}
    free = {0: "n", 1: "regions"}
    return ImageTowerOfFragments(matcher).eval(), {"fragments": free, "real": free}


def _example(matcher: Matcher, run: Run, name: str, n: int, more: int) -> tuple[Tensor, ...]:
    """Random input of n items; the last one is shorter than the others, so that masks matter."""
    generator = torch.Generator().manual_seed(n)
    if name == "texts":
        size = len(run.tokenizer) if run.tokenizer is not None else 10
        words = min(WORDS, (getattr(run.tokenizer, "max_length", None) or WORDS + 2) - 2) + more
        tokens = torch.randint(0, size, (n, words), generator=generator)
        lengths = torch.full((n,), words)
        lengths[-1] = min(3, words)
        return tokens, lengths
    if _takes_pixels(run):
        return (torch.randn(n, 3, *run.preprocess.size, generator=generator),)
    regions = torch.randn(n, REGIONS + more, _image_dim(run), generator=generator)
    real = torch.ones(n, REGIONS + more, dtype=torch.bool)
    real[-1, 5:] = False
    return regions, real


def _takes_pixels(run: Run) -> bool:
    return run.image_input["kind"] == "pixels" or "checksum" in (run.image_input.get("tower") or {})


def _image_dim(run: Run) -> int:
    """The channels its features must have."""
    return int(read_json(run.folder / "model.json")["arguments"]["image_dim"])


def _export(
    tower: nn.Module,
    given: Sequence[Tensor],
    axes: dict[str, dict[int, str]],
    out: dict[str, dict[int, str]],
    path: Path,
) -> None:
    """`axes` and `out`: the names of what goes in and comes out, with their free axes."""
    try:
        with _quietly(), unpacked(), torch.no_grad():
            torch.onnx.export(
                tower,
                tuple(given),
                str(path),
                input_names=list(axes),
                output_names=list(out),
                dynamic_axes=axes | out,
                opset_version=OPSET,
                dynamo=False,  # the other exporter needs one more package, and fixes sizes that are free here
            )
    except (RuntimeError, torch.onnx.OnnxExporterError) as error:
        raise QuintetError(f"this matcher cannot be exported: {str(error).splitlines()[0]:.200}") from None


@contextmanager
def _quietly() -> Iterator[None]:
    """Tracing warns of every check of sizes in Python; whether any of them matters is measured afterwards."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # one fused operation that ONNX does not have
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _difference(tower: nn.Module, given: Sequence[Tensor], axes: dict[str, dict[int, str]], path: Path) -> float:
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as kinds

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    try:
        (found,) = session.run(None, {name: tensor.numpy() for name, tensor in zip(axes, given, strict=True)})
    except (kinds.Fail, kinds.InvalidArgument, kinds.NotImplemented, kinds.RuntimeException) as error:
        raise QuintetError(f"onnxruntime cannot run what was exported: {str(error).splitlines()[0]:.200}") from None
    with torch.no_grad():
        return float(np.abs(found - tower(*given).numpy()).max())


def _description(run: Run, inputs: dict[str, Any], difference: dict[str, float]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "run": run.name,
        "weights_sha256": run.weights_checksum,
        "opset": OPSET,
        "inputs": inputs,  # of each tower by name, with the axes that are free
        "output": "embedding: (n, dim) float32 of unit length; the score of a pair is the dot product",
        "images": {"kind": "pixels", "preprocess": run.preprocess.state()} if _takes_pixels(run) else run.image_input,
        "largest_difference_from_torch": difference,
    }


# A text tower whose frozen encoder is an ONNX file already: that graph, between two small ones of ours


class _Before(nn.Module):
    """What the encoder takes, of what the tower takes."""

    def forward(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        real = torch.arange(tokens.shape[1]) < lengths[:, None]  # (n, L)
        return tokens + 0, real.long(), torch.zeros_like(tokens), lengths + 0


class _After(nn.Module):
    def __init__(self, matcher: Matcher) -> None:
        super().__init__()
        self.matcher = matcher

    def forward(self, words: Tensor, counts: Tensor) -> Tensor:
        """(n, L, d) word features, (n,) -> (n, dim)."""
        nothing = torch.zeros(words.shape[:2], dtype=torch.int64)
        return embedding_of(self.matcher.encode_texts(TextBatch(nothing, counts, words)))


def _onnx_encoder(matcher: Matcher) -> OnnxText | None:
    encoder = matcher.frozen_text_encoder() if isinstance(matcher, HasFrozenText) else None
    return encoder if isinstance(encoder, OnnxText) else None


def is_over_onnx(matcher: Matcher) -> bool:
    return _onnx_encoder(matcher) is not None


def export_over_onnx(matcher: Matcher, given: Sequence[Tensor], path: Path, export: Export) -> None:
    """`given`: tokens (n, L) and lengths (n,) to trace with."""
    import onnx
    from onnx import compose

    text_encoder = _onnx_encoder(matcher)
    assert text_encoder is not None
    encoder = compose.add_prefix(onnx.load(str(text_encoder.path)), "encoder.")
    inputs = [entry.name for entry in encoder.graph.input]  # ids, mask, types
    before_axes = {"tokens": TEXTS, "lengths": {0: "n"}}
    fed = dict.fromkeys(("fed_ids", "fed_mask", "fed_types"), TEXTS) | {"counts": {0: "n"}}
    parts = []
    words = text_encoder(*given)
    for module, example, axes, out in (
        (_Before(), given, before_axes, fed),
        (_After(matcher), (words, given[1]), {"words": TEXTS, "after_counts": {0: "n"}}, {"embedding": {0: "n"}}),
    ):
        export(module.eval(), example, axes, out, path)
        part = onnx.load(str(path))
        part.ir_version = encoder.ir_version
        parts.append(compose.add_prefix(part, f"{type(module).__name__}.", rename_inputs=False, rename_outputs=False))
    joined = compose.merge_models(parts[0], encoder, io_map=list(zip(fed, inputs, strict=False)))
    ends = [(encoder.graph.output[0].name, "words"), ("counts", "after_counts")]
    onnx.save(compose.merge_models(joined, parts[1], io_map=ends), str(path))
