"""Draws the images of the documentation: `python docs/make_images.py` (with the package installed)."""

from __future__ import annotations

import textwrap
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from quintet.data.scenes.captions import captions
from quintet.data.scenes.render import draw
from quintet.data.scenes.scene import Scene, family, generator

IMAGES = Path(__file__).parent / "images"
COLUMNS, SIDE, GAP, CAPTION = 4, 200, 20, 78  # pixels
FAMILIES = (29, 54, 24)  # one per row: near-duplicates that a matcher has to distinguish


def scenes_sheet() -> Image.Image:
    """Three families of near-duplicates, four scenes of each, with the longest caption of each."""
    width = COLUMNS * (SIDE + GAP) + GAP
    sheet = Image.new("RGB", (width, len(FAMILIES) * (SIDE + CAPTION + GAP) + GAP), "white")
    for row, key in enumerate(FAMILIES):
        for column, scene in enumerate(family(generator(key))[:COLUMNS]):
            corner = (GAP + column * (SIDE + GAP), GAP + row * (SIDE + CAPTION + GAP))
            _put(sheet, scene, corner, seed=100 * key + column)
    return sheet


def _put(sheet: Image.Image, scene: Scene, corner: tuple[int, int], seed: int) -> None:
    rng = generator(seed)
    x, y = corner
    sheet.paste(Image.fromarray(draw(scene, rng, SIDE).pixels), corner)
    pen = ImageDraw.Draw(sheet)
    pen.rectangle((x - 1, y - 1, x + SIDE, y + SIDE), outline=(205, 205, 205))
    words = max(captions(scene, rng), key=len)
    pen.multiline_text(
        (x, y + SIDE + 7), textwrap.fill(words, 30), fill=(50, 50, 50), font=ImageFont.load_default(13), spacing=3
    )


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    scenes_sheet().save(IMAGES / "scenes.png", optimize=True)
