"""Vectors for the words of scenes, in GloVe's format: quintet-small's embedding of each word, cut to 100 dimensions.

    python -m benchmarks.measure.scenes_words

Writes benchmarks/grids/scenes_words.txt, with which the rows of Dual-Path's Table V start.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import quintet
from quintet.data.scenes import captions
from quintet.data.vocabulary import split_words
from quintet.files import atomic_write

OUT = Path(__file__).parents[1] / "grids" / "scenes_words.txt"
DIM = 100


def words() -> list[str]:
    """Every word of the generated texts."""
    texts = [*captions.OPENINGS, *captions.ABOUT, "there is are you can see with then between many shape thing just an"]
    for table in (captions.COLOURS, captions.SIZES, captions.TEXTURES, captions.NUMBERS, captions.RELATIONS):
        texts += [" ".join(wordings) for wordings in table.values()]
    for table in (captions.SIDES, captions.PLACES, captions.BACKGROUNDS):
        texts += [" ".join(wordings) for wordings in table.values()]
    texts += [" ".join(word for pair in pairs for word in pair) for pairs in captions.NOUNS.values()]
    texts += [" ".join(word for side in sides for word in side) for sides in captions.ORDERS.values()]
    return sorted({word for text in texts for word in split_words(text.lower())})


def main() -> None:
    found = words()
    embedding = quintet.load("quintet-small", device="cpu").encode_texts(found).embedding
    assert embedding is not None
    vectors = embedding.double().numpy()
    _, _, directions = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)
    kept = (vectors - vectors.mean(axis=0)) @ directions[:DIM].T  # (words, DIM)
    kept *= 0.1 / kept.std()
    lines = [f"{word} {' '.join(f'{value:.4f}' for value in row)}" for word, row in zip(found, kept, strict=True)]
    with atomic_write(OUT) as temporary:
        temporary.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
