"""Queries that a home page can offer: everyday ones, words of the folders, and short texts of the index."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from quintet.search.generation import Generation
from quintet.search.items import Item, ItemDatabase
from quintet.search.queries import SAMPLE, Spread

MOST = 60  # folders whose words are tried, and texts of the index
GOOD = 2.5  # standard deviations above the mean of an index
LONGEST = 40  # characters of a text that is offered
EVERYDAY = """
a dog; a cat; a bird; horses; a child playing; a smiling person; someone's face; people at a table;
a crowd of people; a wedding; the beach; waves in the sea; a boat on the water; mountains; snow; a forest;
flowers; a red flower; grass; a sunset; a river; a lake; clouds in the sky; the night sky; a city street;
tall buildings; an old building; a house; a bridge; stairs; a church; a car; a bicycle; a motorcycle; a train;
an airplane; food on a plate; a cup of coffee; a cake; a bottle; a book; written text; a computer; a clock; coins;
a chair; a stone wall; a football game; someone climbing a rock; a person on a skateboard; someone swimming;
a red dress; someone in a suit; an astronaut; a rocket; a raccoon
"""


def candidates(items: ItemDatabase) -> list[str]:
    folders = list(items.counts_of("folder", "image"))[:MOST]
    rows = items.rows("text")
    some = rows[np.linspace(0, len(rows) - 1, min(SAMPLE, len(rows))).astype(int)] if len(rows) else rows
    texts = [entry.item.text or "" for entry in items.at_rows("text", some.tolist())]
    return choose_texts(map(str, folders), texts)


def choose_texts(folders: Iterable[str], texts: Iterable[str]) -> list[str]:
    """
    >>> choose_texts(["2024/summer_holiday", "DCIM"], ["a red heart"])[-3:]
    ['summer holiday', 'dcim', 'a red heart']
    """
    everyday = [" ".join(text.split()) for text in EVERYDAY.split(";")]
    named = [" ".join(re.findall(r"[^\W\d_]{3,}", folder.rpartition("/")[2])).lower() for folder in folders]
    short = sorted({text for text in texts if text and len(text) <= LONGEST}, key=lambda text: (len(text), text))
    return list(dict.fromkeys([*everyday, *filter(None, named), *short[:MOST]]))


def best_examples(texts: Sequence[str], vectors: np.ndarray, opened: Generation) -> list[tuple[str, Item]]:
    """The texts that fit an image well and better than all others do, with the image, best first.

    `vectors`: (n, dim), of the texts.
    """
    best = [hits[0][0] for hits in opened.nearest(vectors, 1, "image", None)]
    images = opened.vectors("image", np.array([entry.row for entry in best]))
    spreads = [Spread.of(vector, opened.sample("image")) for vector in vectors]
    scores = vectors.astype(np.float64) @ images.T  # (texts, their best images)
    above = scores - np.array([[spread.mean] for spread in spreads])  # its mean is a text's own, as in `chance`
    std = np.array([[spread.std] for spread in spreads])
    fits = above / np.sqrt(std)  # between what a text is sure of and what stands out
    numbers = [number for number in range(len(texts)) if fits[:, number].argmax() == number]
    numbers.sort(key=lambda number: -fits[number, number])
    return [(texts[number], best[number].item) for number in numbers if (above / std)[number, number] >= GOOD]
