"""Texts to query vectors without torch, whose import takes longer than everything else in `quintet search`.

Only for an index all of whose runs are `heads` over MiniLM, as `quintet-small` and what is fine-tuned from it are.
onnxruntime runs MiniLM; the text head behind it is a few small products, which numpy computes here as
`quintet.models.heads` does, up to rounding. All other runs, images, re-ranking and explanations take torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from quintet.backbones.minilm import NAME, MiniLM
from quintet.data.tokenizers import load_tokenizer
from quintet.errors import QuintetError
from quintet.files import file_checksum
from quintet.runs.run_folder import WEIGHTS, read_model
from quintet.search.index_folder import Manifest
from quintet.search.text_codes import TextCodes

PARTS = ("text_head.", "familiarity.")  # of the weights
EPSILON = 1e-5  # of BatchNorm and of LayerNorm
FALL, LEAST = 1.5, 0.05  # as in `quintet.models.heads`


class TextVectors:
    """The text sides of an index's runs."""

    def __init__(self, index: Path, manifest: Manifest) -> None:
        folders = [index / "runs" / run.weights for run in manifest.runs]
        self.tokenizers = [load_tokenizer(folder / "tokenizer.json") for folder in folders]
        encoder = MiniLM()
        heads = [_TextHead(folder, encoder) for folder in folders]
        self.queries: TextCodes[np.ndarray] = TextCodes(
            lambda texts: list(map(np.copy, self.vectors(texts))), _bytes_of
        )
        self._first = [(self.tokenizers[number], heads[number]) for number in manifest.first]

    def vectors(self, texts: Sequence[str]) -> np.ndarray:
        """(n, dim): as `query_vectors` makes them of Codes."""
        parts = [np.stack([head.vector(tokenizer.ids(text)) for text in texts]) for tokenizer, head in self._first]
        return np.concatenate(parts, axis=1) / np.float32(len(parts))


class _TextHead:
    """`Heads.encode_texts` in evaluation mode."""

    def __init__(self, folder: Path, encoder: MiniLM) -> None:
        self._encoder = encoder
        self._class_weight = float(read_model(folder)["arguments"].get("class_weight", 0.3))
        with safe_open(folder / WEIGHTS, framework="np") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys() if name.startswith(PARTS)}  # noqa: SIM118
        self._head = {name.removeprefix("text_head."): tensor for name, tensor in tensors.items()}

    def vector(self, ids: list[int]) -> np.ndarray:
        """(dim,)."""
        pooled = _unit(self._encoder.words(ids).mean(axis=0))  # (384,)
        head = _unit(self._text_head(pooled))
        if "familiarity.mean" not in self._head:
            return head
        centred = pooled - self._head["familiarity.mean"]
        familiarity = (centred @ self._head["familiarity.covariance"]) @ centred / max(centred @ centred, 1e-12)
        weight = np.float32(self._class_weight * max(familiarity, LEAST) ** -FALL)
        return _unit(np.concatenate([head, weight * pooled]))

    def _text_head(self, pooled: np.ndarray) -> np.ndarray:
        """(384,) -> (embed_dim,): standardised, through a linear map plus an MLP, then LayerNorm."""
        part = self._head
        x = (pooled - part["standard.running_mean"]) / np.sqrt(part["standard.running_var"] + EPSILON)
        hidden = _gelu(part["mlp.0.weight"] @ x + part["mlp.0.bias"])  # (hidden,)
        x = part["linear.weight"] @ x + part["linear.bias"] + part["mlp.3.weight"] @ hidden + part["mlp.3.bias"]
        x = x - x.mean()
        return x / np.sqrt(np.square(x).mean() + EPSILON) * part["norm.weight"] + part["norm.bias"]


def _bytes_of(vector: np.ndarray) -> int:
    return vector.nbytes


def _unit(vector: np.ndarray) -> np.ndarray:
    return vector / (np.linalg.norm(vector) or np.float32(1))


def _gelu(x: np.ndarray) -> np.ndarray:
    return x * np.array([0.5 + 0.5 * math.erf(each / math.sqrt(2)) for each in x.tolist()], dtype=np.float32)


def open_text_vectors(index: Path, manifest: Manifest, device: str) -> TextVectors | None:
    """None where torch encodes the texts: for other runs, on a device that was asked for, and where a run is not as it
    was written, which opening it with torch tells.
    """
    if not manifest.first or device not in ("auto", "cpu"):
        return None
    try:
        for run in manifest.runs:
            folder = index / "runs" / run.weights
            over_minilm = read_model(folder)["arguments"].get("text", NAME) == NAME
            if run.model != "heads" or not over_minilm or file_checksum(folder / WEIGHTS) != run.weights:
                return None
        return TextVectors(index, manifest)
    except (QuintetError, OSError, SafetensorError, KeyError):
        return None
