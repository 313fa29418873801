"""Where the line before weak results lies: how many right photos are above it, and how many of absent things.

    python -m benchmarks.measure.weak_line --corpus corpora/flickr8k

Indexes of some of the test split's photos are searched for captions of their own photos, and for things that none of
them shows. Writes benchmarks/results/weak_line.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from quintet.data.corpus import Corpus
from quintet.evaluation.result import provenance
from quintet.files import write_json
from quintet.runs.run import load
from quintet.search.chance import BY_CHANCE, TEXTS, ChanceScores
from quintet.search.encoder import Encoder

RESULTS = Path(__file__).parents[1] / "results"
SIZES = (100, 300, 1000)
CAPTIONS = 300  # of an index, one a photo
SHOWN = 20  # results that `quintet search` shows
# Nothing that photographs of people and dogs show.
ABSENT = (
    "a spaceship orbits the earth", "a bowl of tomato soup", "a giraffe eats leaves", "an x-ray of a hand",
    "a plate of sushi", "a subway map", "a microscope", "a violin on a table", "a screenshot of a program",
    "a jar of pickles", "an elephant in a river", "a zebra", "a pizza with olives", "a cathedral at night",
    "a page of a newspaper", "a diagram of a cell", "a bouquet of roses", "a computer keyboard", "a polar bear",
    "a penguin on ice",
)  # fmt: skip


def above(chance: ChanceScores, images: np.ndarray, text: np.ndarray) -> np.ndarray:
    """(n,): whether each image's score lies above the line, as a search of all of them draws it."""
    scores = images @ text
    return scores >= chance.line(scores, np.sort(scores)[::-1][:SHOWN], len(images))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", default="quintet-small")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--name", default="Flickr8k", help="of the corpus")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS / "weak_line.json")
    arguments = parser.parse_args()
    run, corpus = load(arguments.run, device="cpu"), Corpus.open(arguments.corpus)
    split, choose = corpus.split("test"), np.random.default_rng(arguments.seed)
    images = run.encode_images([corpus.image_path(image) for image in split.images]).embedding
    encoder = Encoder([run], device="cpu")
    words = encoder.random_texts((0,))
    absent = encoder.encode_texts(ABSENT)[0].embedding.numpy()
    caption = {text.group: text.text for text in reversed(split.texts)}  # the first of each photo
    rows: list[dict[str, Any]] = []
    for size in SIZES:
        chosen = choose.choice(len(images), min(size, len(images)), replace=False)
        part = images[chosen].numpy()
        chance = ChanceScores(words, part)
        own = chosen[:CAPTIONS]
        texts = encoder.encode_texts([caption[split.images[row].group] for row in own])[0].embedding.numpy()
        found = np.array([above(chance, part, text) for text in texts])  # (captions, images)
        none = np.array([above(chance, part, text) for text in absent])  # (absent, images)
        rows.append(
            {
                "images": len(part),
                "captions": len(texts),
                "right_above": float(np.mean(found[np.arange(len(texts)), np.arange(len(texts))])),
                "above": float(np.median(found.sum(1))),
                "absent_above": float(np.median(none.sum(1))),
                "absent_mean": float(np.mean(none.sum(1))),
                "absent_none": float(np.mean(none.sum(1) == 0)),
            }
        )
        print(rows[-1])
    found = {
        "benchmark": "weak_line",
        "run": run.name,
        "corpus": arguments.name,
        "split": split.checksum,
        "random_texts": TEXTS,
        "by_chance": BY_CHANCE,
        "absent": len(ABSENT),
        "seed": arguments.seed,
        "sizes": rows,
        "provenance": provenance(),
    }
    write_json(arguments.out, found)


if __name__ == "__main__":
    main()
