"""VSE-infinity's checkpoints against a twin that has the released code's tensors and computes item by item."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quintet
from quintet.runs.convert import ConversionError, convert, read_checkpoint, translate

BERT = {
    "vocab_size": 12,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 10,
    "max_position_embeddings": 20,
}
IDS = [[1, 5, 6, 2], [1, 2], [1, 8, 9, 7, 10, 2]]
D = 6


class Pool(nn.Module):
    """One item at a time; the first rank is 0, the base of the sinusoids 10,000."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(32, 32, batch_first=True, bidirectional=True)
        self.linear = nn.Linear(32, 1, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        """(n, d) -> (d,)."""
        code = torch.tensor(
            [
                [
                    (math.sin if channel % 2 == 0 else math.cos)(rank / 10_000 ** ((channel - channel % 2) / 32))
                    for channel in range(32)
                ]
                for rank in range(len(rows))
            ]
        )
        states = self.gru(code[None])[0][0]  # (n, 64)
        weights = (self.linear((states[:, :32] + states[:, 32:]) / 2)[:, 0] / 0.1).softmax(0)
        return torch.stack(
            [weights @ rows[:, channel].sort(descending=True).values for channel in range(rows.shape[1])]
        )


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(5, D // 2), nn.Linear(D // 2, D)])
        self.bns = nn.ModuleList([nn.BatchNorm1d(D // 2), nn.BatchNorm1d(D)])  # the second is never applied


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.mlp, self.gpool = nn.Linear(5, D), Layers(), Pool()

    def forward(self, regions: Tensor) -> Tensor:
        hidden = torch.relu(self.mlp.bns[0](self.mlp.layers[0](regions)))
        vector = self.gpool(self.fc(regions) + self.mlp.layers[1](hidden))
        return vector / (vector.norm() + 1e-8)


class GRUTexts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.gpool = nn.Embedding(12, 4), Pool()
        self.rnn = nn.GRU(4, D, batch_first=True, bidirectional=True)

    def forward(self, ids: list[int]) -> Tensor:
        states = self.rnn(self.embed(torch.tensor([ids])))[0][0]  # (n, 2 d)
        vector = self.gpool((states[:, :D] + states[:, D:]) / 2)
        return vector / (vector.norm() + 1e-8)


class BertTexts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        transformers = pytest.importorskip("transformers")
        self.bert = transformers.BertModel(transformers.BertConfig(**BERT))
        self.linear, self.gpool = nn.Linear(8, D), Pool()

    def forward(self, ids: list[int]) -> Tensor:
        vector = self.gpool(self.linear(self.bert(torch.tensor([ids])).last_hidden_state[0]))
        return vector / (vector.norm() + 1e-8)


def checkpoint(path: Path, texts: type[nn.Module], wrap: str = "", **options: Any) -> tuple[Path, nn.Module, nn.Module]:
    torch.manual_seed(0)
    twins = Images().eval(), texts().eval()
    for module in twins:
        for buffer in module.buffers():
            if buffer.is_floating_point():
                buffer.uniform_(0.5, 1.5)
    model = [{wrap + name: tensor for name, tensor in twin.state_dict().items()} for twin in twins]
    torch.save({"epoch": 25, "model": model, "opt": argparse.Namespace(**options), "best_rsum": 1.0}, path)
    return path, *twins


@pytest.mark.parametrize("texts", [GRUTexts, BertTexts])
@pytest.mark.parametrize("wrap", ["", "module."])
def test_scores_equal_the_twins(tmp_path: Path, texts: type[nn.Module], wrap: str) -> None:
    path, images_twin, texts_twin = checkpoint(tmp_path / "best", texts, wrap, precomp_enc_type="basic")
    convert("vse-infinity", path, tmp_path / "run", options={"bert_heads": 2})
    fragments, counts = torch.randn(2, 7, 5), (7, 4)
    mask = torch.arange(7) < torch.tensor(counts)[:, None]
    m = quintet.load(tmp_path / "run")
    with torch.no_grad():
        expected = torch.stack([images_twin(rows[:n]) for rows, n in zip(fragments, counts, strict=True)])
        expected = expected @ torch.stack([texts_twin(ids) for ids in IDS]).T
        found = m.score(
            m.encode_images(quintet.ImageBatch(fragments=fragments, mask=mask)),
            m.encode_texts(quintet.TextBatch.from_ids(IDS)),
        )
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    made = translate("vse-infinity", read_checkpoint(path))
    assert made.arguments["first_rank"] == 0
    assert any("never applies" in what for what in made.dropped)


def test_the_first_rank_matters(tmp_path: Path) -> None:
    path, twin, _ = checkpoint(tmp_path / "best", GRUTexts)
    made = translate("vse-infinity", read_checkpoint(path))
    regions = torch.randn(1, 7, 5)
    with torch.no_grad():
        for first, equal in ((0, True), (1, False)):
            ours = quintet.create_model("vse++", **made.arguments | {"first_rank": first}).eval()
            ours.load_state_dict(made.state)
            found = ours.encode_images(quintet.ImageBatch(fragments=regions)).embedding
            assert torch.allclose(found[0], twin(regions[0]), atol=1e-5) is equal


def test_the_programs_own_word_is_added_to_the_vocabulary(tmp_path: Path) -> None:
    path, *_ = checkpoint(tmp_path / "best", GRUTexts)
    words = ["<pad>", "<start>", "<end>", "<unk>", "a", "dog", "cat", "runs", "on", "grass", "."]
    saved = {"word2idx": {w: i for i, w in enumerate(words)}, "idx2word": {str(i): w for i, w in enumerate(words)}}
    (tmp_path / "vocab.json").write_text(json.dumps(saved | {"idx": len(words)}))
    run = convert("vse-infinity", path, tmp_path / "run", tmp_path / "vocab.json")
    assert run.tokenizer is not None
    assert len(run.tokenizer) == 12
    assert run.tokenizer.kinds().mask == 11
    assert run.tokenizer.ids("A dog runs.") == [1, 4, 5, 7, 10, 2]


def test_other_checkpoints_are_told_apart(tmp_path: Path) -> None:
    path, *_ = checkpoint(tmp_path / "best", GRUTexts, precomp_enc_type="backbone")
    with pytest.raises(ConversionError, match="precomp_enc_type='backbone'"):
        convert("vse-infinity", path, tmp_path / "run")
    path, *_ = checkpoint(tmp_path / "best", GRUTexts)
    with pytest.raises(ConversionError, match="of kind vse-infinity"):
        convert("vsepp", path, tmp_path / "run")
    assert not (tmp_path / "run").exists()
