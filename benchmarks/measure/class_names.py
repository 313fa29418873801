"""The sentence vectors of ImageNet's class names, as MiniLM in int8 makes them.

    python -m benchmarks.measure.class_names

Writes src/quintet/backbones/imagenet_classes.safetensors from imagenet_classes.tsv; to be run again when names change.
"""

from __future__ import annotations

import torch
from safetensors.torch import save_file
from torch import Tensor

from quintet.backbones.class_names import VECTORS, read_names
from quintet.files import atomic_write
from quintet.layers.normalize import l2norm
from quintet.layers.pooling import masked_mean
from quintet.runs.run import Run, load

KINDS = 0.5  # weight of the kinds, beside 1 for the names and 1 for the list of both


def sentence_vectors(run: Run, texts: list[str]) -> Tensor:
    """(n, 384) of unit length: the mean of the words that the frozen encoder gives."""
    encoder = run.matcher.frozen_text_encoder()  # type: ignore[attr-defined]
    assert run.tokenizer is not None
    rows = [run.tokenizer.ids(text) for text in texts]
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
    for row, ids in zip(tokens, rows, strict=True):
        row[: len(ids)] = torch.tensor(ids)
    words = encoder(tokens, lengths)  # (n, L, 384)
    return l2norm(masked_mean(words, torch.arange(tokens.shape[1]) < lengths[:, None]), eps=0)


def class_vector(run: Run, names: list[str], kinds: list[str]) -> Tensor:
    """(384,): the names as "a photo of a ...", all in one list, and the kinds of thing."""
    texts = [f"a photo of {_article(name)}" for name in names]
    texts += [", ".join(names + kinds)] + [f"a photo of {_article(kind)}" for kind in kinds]
    vectors = sentence_vectors(run, texts)
    end = len(names)
    total = vectors[:end].mean(0) + vectors[end]
    if kinds:
        total = total + KINDS * vectors[end + 1 :].mean(0)
    return l2norm(total[None], eps=0)[0]


def _article(name: str) -> str:
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


if __name__ == "__main__":
    small = load("quintet-small", device="cpu")
    vectors = torch.stack([class_vector(small, names, kinds) for names, kinds in read_names()])  # (1000, 384)
    with atomic_write(VECTORS) as temporary:
        save_file({"vectors": vectors.half()}, temporary, {"encoder": "minilm-int8", "names": "imagenet_classes.tsv"})
