"""A text tower whose frozen encoder is an ONNX file already: that graph, between two small ones of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from quintet.backbones.onnx_text import OnnxText
from quintet.data.batches import TextBatch
from quintet.protocols import HasFrozenText, Matcher
from quintet.scores.embedding import embedding_of

# Writes a module as an ONNX file: the module, an example of its input, the free axes of input and output, the path.
Export = Callable[[nn.Module, Sequence[Tensor], dict[str, dict[int, str]], dict[str, dict[int, str]], Path], None]
TEXTS = {0: "n", 1: "words"}


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
