"""One page of small pictures with their first caption: what a corpus looks like at a glance."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from quintet.data.corpus import Corpus
from quintet.data.pictures import thumbnail
from quintet.errors import CorpusError, PictureError
from quintet.files import complete_or_absent

SIDE, GAP, LINE, LINES, COLUMNS = 160, 12, 14, 3, 6
FORMATS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG"}
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def contact_sheet(corpus: Corpus, path: Path | str, count: int = 24, split: str | None = None) -> None:
    """Draw `count` pictures, spread evenly over the corpus (or a split), into a JPEG or PNG file.

    A picture that cannot be read is a grey box with the reason.
    """
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise CorpusError(f"{path}: a contact sheet is a .jpg or .png file")
    images = corpus.images if split is None else corpus.split(split).images
    captions = {text.image or text.group: text.text for text in reversed(corpus.texts)}  # the first one wins
    count = min(count, len(images))
    if count < 1:
        raise CorpusError(f"corpus {corpus.name!r}: no pictures to draw")
    chosen = [images[place * len(images) // count] for place in range(count)]
    columns = min(COLUMNS, count)
    width, height = SIDE + GAP, SIDE + GAP + LINE * LINES + 4
    sheet = Image.new("RGB", (columns * width + GAP, -(-count // columns) * height + GAP), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=11)
    for place, image in enumerate(chosen):
        left, top = GAP + place % columns * width, GAP + place // columns * height
        try:
            small = thumbnail(corpus.picture(image), SIDE, name=image.id)
            sheet.paste(small, (left + (SIDE - small.width) // 2, top + (SIDE - small.height) // 2))
        except (PictureError, CorpusError) as error:
            draw.rectangle((left, top, left + SIDE, top + SIDE), fill="lightgrey")
            _write(draw, str(error), left + 4, top + 4, 10, font)
        caption = captions.get(image.id) or captions.get(image.group, "")
        _write(draw, caption, left, top + SIDE + 3, LINES, font)
    with complete_or_absent(path) as temporary:
        sheet.save(temporary, FORMATS[path.suffix.lower()], quality=88)


def _write(draw: ImageDraw.ImageDraw, text: str, left: int, top: int, lines: int, font: Font) -> None:
    for number, line in enumerate(_wrap(draw, text, SIDE - 8, lines, font)):
        draw.text((left, top + number * LINE), line, fill="black", font=font)


def _wrap(draw: ImageDraw.ImageDraw, text: str, width: int, lines: int, font: Font) -> list[str]:
    """At most `lines` lines that fit; what does not is cut with an ellipsis."""
    words = [part for word in text.split()[:100] for part in _pieces(word)]
    wrapped = [""]
    for word in words:
        longer = f"{wrapped[-1]} {word}".strip()
        if draw.textlength(longer, font=font) <= width:
            wrapped[-1] = longer
        elif len(wrapped) == lines:
            wrapped[-1] += "…"
            break
        else:
            wrapped.append(word)
    return wrapped


def _pieces(word: str, size: int = 20) -> list[str]:
    return [word[start : start + size] for start in range(0, len(word), size)]
