"""What each word attends to, drawn on the image: bright where the weight is, dark elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from quintet.data.images import open_image
from quintet.errors import QuintetError
from quintet.protocols import ShowsAttention
from quintet.report.analysis.subject import Subject
from quintet.report.document import image_address

SIZE = 168  # pixels of the longer side
DARKEST = 0.25  # of the brightness, where nothing is attended to
PLAIN = (210, 210, 205)  # stands for an image that is not shown
WORDS = 12  # of a text


@dataclass(frozen=True)
class Overlay:
    word: str | None  # None: texts are not shown
    address: str  # the drawing, as a data address


def can_attend(subject: Subject) -> bool:
    return isinstance(subject.run.matcher, ShowsAttention)


def draw_overlays(subject: Subject, image: int, text: int, photographs: bool) -> list[Overlay]:
    """One drawing per word of a text of the split, on an image of it or, without photographs, on a plain ground."""
    images, texts = subject.member.image_codes[image], subject.member.text_codes[text]
    assert isinstance(subject.run.matcher, ShowsAttention)
    found = subject.run.matcher.attention(images.to(subject.device), texts.to(subject.device))
    if found.boxes is None:
        raise QuintetError("the regions of these images have no boxes, so attention cannot be drawn")
    tokenizer = subject.run.tokenizer
    if tokenizer is None:
        raise QuintetError(f"run {subject.run.folder} has no tokenizer, so its words have no names")
    sentence = subject.split.texts[text].text
    is_mark = tokenizer.kinds().mark[tokenizer.ids(sentence)]
    words = [None if mark else word for word, mark in zip(tokenizer.tokens(sentence), is_mark, strict=True)]
    weights, boxes = found.weights.float().cpu().numpy(), found.boxes.float().cpu().numpy()
    ground = _ground(subject, image) if photographs else Image.new("RGB", (SIZE, SIZE), PLAIN)
    shown = [(word, row) for word, row in zip(words, weights, strict=False) if word is not None]
    return [
        Overlay(word if photographs else None, image_address(lit(ground, row, boxes))) for word, row in shown[:WORDS]
    ]


def _ground(subject: Subject, image: int) -> Image.Image:
    path = subject.split.images[image].path
    if path is None:
        raise QuintetError(f"corpus {subject.corpus.name!r} has features only: there is no image to draw on")
    picture = open_image(Path(subject.corpus.root) / path)
    picture.thumbnail((SIZE, SIZE), Image.Resampling.LANCZOS)
    return picture


def lit(picture: Image.Image, weights: np.ndarray, boxes: np.ndarray) -> Image.Image:
    """The image with each region as bright as its weight; where regions overlap, the largest counts.

    >>> boxes = np.array([[0.0, 0.0, 0.5, 1.0], [0.5, 0.0, 1.0, 1.0]])
    >>> shown = lit(Image.new("RGB", (4, 2), (200, 200, 200)), np.array([0.9, 0.0]), boxes)
    >>> shown.getpixel((0, 0)), shown.getpixel((3, 1))
    ((200, 200, 200), (50, 50, 50))
    """
    width, height = picture.size
    heat = np.zeros((height, width))
    top = max(float(weights.max()), 1e-12)
    for weight, (left, upper, right, lower) in zip(weights, boxes, strict=True):
        part = heat[round(upper * height) : round(lower * height), round(left * width) : round(right * width)]
        np.maximum(part, weight / top, out=part)
    pixels = np.asarray(picture, float) * (DARKEST + (1 - DARKEST) * heat)[:, :, None]
    return Image.fromarray(pixels.round().astype(np.uint8))
