from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from quintet.data.corpus import Text
from quintet.data.features import WordFeatures, write_word_features
from quintet.data.loading import TokenizedTexts, text_batches
from quintet.data.vocabulary import WordVocabulary
from quintet.errors import CorpusError
from quintet.files import read_json, write_json

LENGTHS = [3, 1, 4, 2]
WORDS = np.random.default_rng(0).normal(size=(10, 5)).astype(np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_word_features(
        tmp_path / "kept", LENGTHS, [WORDS[:4], WORDS[4:]], dim=5, dtype="float32", facts={"encoder": "x"}
    )
    return tmp_path / "kept"


def test_rows_come_back_padded_with_zeros(folder: Path) -> None:
    kept = WordFeatures(folder)
    assert (len(kept), kept.dim) == (4, 5)
    batch = kept.batch([2, 1], length=6)
    assert batch.shape == (2, 6, 5)
    assert torch.equal(batch[0, :4], torch.from_numpy(WORDS[4:8]))
    assert torch.equal(batch[1, :1], torch.from_numpy(WORDS[3:4]))
    assert batch[0, 4:].abs().sum() == batch[1, 1:].abs().sum() == 0
    again = pickle.loads(pickle.dumps(kept))
    assert torch.equal(again.batch([2, 1], length=6), batch)


def test_half_precision_on_disk_is_float32_in_memory(tmp_path: Path) -> None:
    write_word_features(tmp_path, LENGTHS, [WORDS], dim=5, dtype="float16", facts={})
    found = WordFeatures(tmp_path).batch([0], length=3)
    assert found.dtype == torch.float32
    assert np.load(tmp_path / "features.npy").dtype == np.float16
    torch.testing.assert_close(found[0], torch.from_numpy(WORDS[:3]), atol=2e-3, rtol=2e-3)


def test_too_few_words_leave_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="4 words were given for texts of 10"):
        write_word_features(tmp_path / "kept", LENGTHS, [WORDS[:4]], dim=5, dtype="float32", facts={})
    assert list((tmp_path / "kept").iterdir()) == []


def test_damage_is_named(folder: Path) -> None:
    with pytest.raises(CorpusError, match="tokenized in another way"):
        WordFeatures(folder).batch([2], length=3)
    manifest = read_json(folder / "manifest.json")
    write_json(folder / "manifest.json", manifest | {"dim": 6})
    with pytest.raises(CorpusError, match="do not fit together"):
        WordFeatures(folder)
    write_json(folder / "manifest.json", manifest | {"version": 99})
    with pytest.raises(CorpusError, match="reads quintet-word-features"):
        WordFeatures(folder)
    write_json(folder / "manifest.json", manifest)
    (folder / "features.npy").write_bytes(b"no")
    with pytest.raises(CorpusError, match="damaged"):
        WordFeatures(folder)


def test_texts_carry_their_features(folder: Path) -> None:
    texts = [Text(str(n), "g", sentence) for n, sentence in enumerate(["a", "b", "a b", "c"])]
    tokenizer = WordVocabulary.build([text.text for text in texts], min_count=1, marks=False)
    lengths = [len(tokenizer.ids(text.text)) for text in texts]
    write_word_features(folder, lengths, [WORDS[: sum(lengths)]], dim=5, dtype="float32", facts={})
    sentences = TokenizedTexts(tokenizer, texts, WordFeatures(folder))
    assert sentences.lengths() == lengths
    parts = list(text_batches(sentences, 2, slice(1, 4)))
    assert [len(part) for part in parts] == [2, 1]
    assert parts[0].features is not None
    assert parts[0].features.shape == (*parts[0].tokens.shape, 5)
    assert torch.equal(parts[0].features[parts[0].real()], torch.from_numpy(WORDS[1:4]))
    assert next(text_batches(TokenizedTexts(tokenizer, texts), 2)).features is None
