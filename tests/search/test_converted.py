"""A run made of the authors' checkpoint, whose image tower nobody knows, indexes a corpus that has its features."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from quintet.data.corpus import Corpus
from quintet.evaluation.scoring import score_in_tiles
from quintet.runs.convert import convert
from quintet.runs.run import load
from quintet.search.indexing import build_index
from quintet.search.searcher import Searcher


def converted(folder: Path, sentences: list[str]) -> Path:
    torch.manual_seed(0)
    words = ["<pad>", "<start>", "<end>", "<unk>", *sorted({word for text in sentences for word in text.split()})]
    saved = {"word2idx": {w: i for i, w in enumerate(words)}, "idx2word": {str(i): w for i, w in enumerate(words)}}
    (folder / "vocab.json").write_text(json.dumps(saved | {"idx": len(words)}))
    rnn = torch.nn.GRU(4, 6, batch_first=True)
    text = {"embed.weight": torch.randn(len(words), 4), **{f"rnn.{k}": v.detach() for k, v in rnn.named_parameters()}}
    torch.save({"model": [{"fc.weight": torch.randn(6, 8), "fc.bias": torch.randn(6)}, text]}, folder / "best.pth.tar")
    convert("vsepp", folder / "best.pth.tar", folder / "run", folder / "vocab.json", features="toy")
    return folder / "run"


def test_its_index_finds_what_it_scores_highest(tmp_path: Path, tiny_corpus: Path) -> None:
    corpus = Corpus.open(tiny_corpus)
    sentences = [text.text for text in corpus.texts]
    run = load(converted(tmp_path, sentences))
    report = build_index(run.folder, [tiny_corpus], tmp_path / "index", device="cpu")
    assert (report.added, report.unreadable) == (len(corpus.images), [])
    with torch.no_grad():
        images = run.matcher.encode_images(next(run.image_batches(corpus, corpus.images)))
        texts = run.matcher.encode_texts(next(run.text_batches(corpus.texts[:5])))
        scores = score_in_tiles(run.matcher, images, texts)  # (n_images, 5)
    with Searcher.open(tmp_path / "index", device="cpu") as searcher:
        found = searcher.search_text(sentences[:5], k=3)
    for column, hits in zip(scores.T, found, strict=True):
        torch.testing.assert_close(torch.tensor([hit.score for hit in hits]), column.topk(3).values)
