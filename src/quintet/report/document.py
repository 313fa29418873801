"""What every page of ours is: one file that fetches nothing, for laptop, phone and paper, light and dark."""

from __future__ import annotations

import base64
import io
from html import escape
from pathlib import Path

from PIL import Image

from quintet.data.images import open_image

THUMBNAIL = 224  # pixels of the longer side


def document(title: str, body: str, style: str) -> str:
    """A whole page; `title` is plain text, `body` and `style` are HTML and CSS."""
    return _PAGE.format(title=escape(title), body=body, style=style)


def thumbnail(path: Path | str) -> str:
    """An image file as a data address. Small ones stay PNG, which keeps drawings crisp; photographs become JPEG."""
    image = open_image(path)
    small = max(image.size) <= THUMBNAIL
    if not small:
        image.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)
    return image_address(image, "PNG" if small else "JPEG")


def image_address(image: Image.Image, form: str = "JPEG") -> str:
    """
    >>> image_address(Image.new("RGB", (1, 1)), "PNG")[:22]
    'data:image/png;base64,'
    """
    buffer = io.BytesIO()
    image.save(buffer, format=form, **({"quality": 85} if form == "JPEG" else {"optimize": True}))
    return data_address(f"image/{form.lower()}", buffer.getvalue())


def data_address(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


# The policy in the head holds the page to its word: a browser refuses whatever is not in this file.
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{body}
</main>
</body>
</html>
"""
