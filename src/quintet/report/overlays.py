"""Attention of each word drawn on the image: regions with large weights are bright, the others dark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from quintet.data.images import open_image
from quintet.errors import QuintetError
from quintet.protocols import ShowsAttention
from quintet.report.analysis import Subject
from quintet.report.html_page import image_address

SIZE = 168  # pixels of the longer side
DARKEST = 0.25  # share of the brightness that a region of weight 0 keeps
PLAIN = (210, 210, 205)  # colour in place of an image that is not shown
WORDS = 12  # of a text


@dataclass(frozen=True)
class Overlay:
    word: str | None  # None: texts are not shown
    address: str  # the drawing, as a data URL


def can_attend(subject: Subject) -> bool:
    return isinstance(subject.run.matcher, ShowsAttention)


def draw_overlays(subject: Subject, image: int, text: int, photographs: bool) -> list[Overlay]:
    """One drawing per word of a text of the split, on the image or, without photographs, on a plain background."""
    images, texts = subject.member.image_codes[image], subject.member.text_codes[text]
    assert isinstance(subject.run.matcher, ShowsAttention)
    found = subject.run.matcher.attention(images.to(subject.device), texts.to(subject.device))
    if found.boxes is None:
        raise QuintetError("the regions of these images have no boxes, so attention cannot be drawn")
    tokenizer = subject.run.tokenizer
    if tokenizer is None:
        raise QuintetError(f"run {subject.run.folder} has no tokenizer, so its tokens cannot be named")
    caption = subject.split.texts[text].text
    is_special = tokenizer.kinds().special[tokenizer.ids(caption)]
    words = [None if special else word for word, special in zip(tokenizer.tokens(caption), is_special, strict=True)]
    weights, boxes = found.weights.float().cpu().numpy(), found.boxes.float().cpu().numpy()
    background = _background(subject, image) if photographs else Image.new("RGB", (SIZE, SIZE), PLAIN)
    shown = [(word, row) for word, row in zip(words, weights, strict=False) if word is not None]
    return [
        Overlay(word if photographs else None, image_address(highlight(background, row, boxes)))
        for word, row in shown[:WORDS]
    ]


def _background(subject: Subject, image: int) -> Image.Image:
    path = subject.split.images[image].path
    if path is None:
        raise QuintetError(f"corpus {subject.corpus.name!r} has features only, no images to draw on")
    opened = open_image(Path(subject.corpus.root) / path)
    opened.thumbnail((SIZE, SIZE), Image.Resampling.LANCZOS)
    return opened


def highlight(image: Image.Image, weights: np.ndarray, boxes: np.ndarray) -> Image.Image:
    """The image with the brightness of each region by its weight; where regions overlap, the largest weight counts.

    >>> boxes = np.array([[0.0, 0.0, 0.5, 1.0], [0.5, 0.0, 1.0, 1.0]])
    >>> shown = highlight(Image.new("RGB", (4, 2), (200, 200, 200)), np.array([0.9, 0.0]), boxes)
    >>> shown.getpixel((0, 0)), shown.getpixel((3, 1))
    ((200, 200, 200), (50, 50, 50))
    """
    width, height = image.size
    heat = np.zeros((height, width))
    top = max(float(weights.max()), 1e-12)
    for weight, (left, upper, right, lower) in zip(weights, boxes, strict=True):
        part = heat[round(upper * height) : round(lower * height), round(left * width) : round(right * width)]
        np.maximum(part, weight / top, out=part)
    pixels = np.asarray(image, float) * (DARKEST + (1 - DARKEST) * heat)[:, :, None]
    return Image.fromarray(pixels.round().astype(np.uint8))
