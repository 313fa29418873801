"""The drawings of the documentation: as their script writes them, on a page and with a text in their place."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from typing import Any

import yaml
from PIL import Image

from docs import make_drawings

DOCS = Path(__file__).resolve().parents[2] / "docs"
FOLDER = DOCS / "images/drawings"
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")


def _with_pixels(text: str) -> str:
    """Pixels in place of PNG bytes, which depend on the zlib that Pillow was built with."""

    def pixels(found: re.Match[str]) -> str:
        return Image.open(io.BytesIO(base64.b64decode(found[1]))).convert("RGB").tobytes().hex()

    return re.sub(r"data:image/png;base64,([^\"]+)", pixels, text)


def test_the_files_are_what_the_script_writes() -> None:
    written = make_drawings.drawings()
    assert sorted(written) == sorted(path.name for path in FOLDER.iterdir())
    changed = [n for n, text in written.items() if _with_pixels(text) != _with_pixels((FOLDER / n).read_text("utf-8"))]
    assert changed == [], "run python -m docs.make_drawings"


def test_every_drawing_is_on_a_page_with_a_text_in_its_place() -> None:
    used = {}
    for page in DOCS.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert "<!-- drawing" not in text, page
        used.update({(page.parent / target).resolve(): alt for alt, target in IMAGE.findall(text)})
    short = [path.name for path in FOLDER.iterdir() if len(used.get(path.resolve(), "")) < 40]
    assert short == []


def test_every_module_in_a_drawing_exists() -> None:
    boxes = [
        box for one in yaml.safe_load((DOCS / "drawings.yaml").read_text("utf-8")).values() for box in one["boxes"]
    ]
    named = [module for box in boxes if "in" in box for module in re.findall(r"[^,\s]+/(?:\s?\w+\.py)?", box["in"])]
    assert len(named) > 50
    assert [module for module in named if not (DOCS.parent / "src/quintet" / module.replace(" ", "")).exists()] == []


def test_text_is_large_enough_on_a_phone_and_has_a_dark_form() -> None:
    for path in FOLDER.iterdir():
        text = path.read_text(encoding="utf-8")
        assert 'width="360"' in text.split(">")[0]  # 358 pixels are left on a phone that is 390 wide
        assert min(float(size) for size in re.findall(r'font(?:-size)?[:=]"?([\d.]+)', text)) >= 11, path.name
        assert "prefers-color-scheme:dark" in text


def test_an_arrow_comes_from_every_box_in_sight() -> None:
    def arrows(*spans: Any) -> int:
        boxes = [{"at": at, "of": "both", "title": "a"} for at in spans]
        return make_drawings.boxes({"title": "t", "boxes": boxes}).count("marker-end")

    assert arrows("left", "right", "wide") == 2
    assert arrows("wide", "left", "right", "wide") == 4
    assert arrows("wide", "left", "wide") == 3, "the second wide box sees the first beside the left one"
    assert arrows("left", "right", [0, 28], [31, 69], [72, 100]) == 4


def test_subscripts_do_not_touch_file_names() -> None:
    assert "<tspan" not in make_drawings.words(0, 0, "scores/cross_attention.py", "ink")
    assert ">off</tspan>" in make_drawings.words(0, 0, "draw t_{off}", "ink")
