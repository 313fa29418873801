from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from quintet.errors import ImageError
from quintet.report.html_page import THUMBNAIL, Hit, QueryResult, metrics_table_html, write_search_page


class Reader(HTMLParser):
    """What a browser would see: tags with their attributes, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture
def image(tmp_path: Path) -> Path:
    Image.new("RGB", (96, 64), (200, 30, 40)).save(tmp_path / "red.png")
    return tmp_path / "red.png"


def page(tmp_path: Path, queries: list[QueryResult], **more: str) -> str:
    write_search_page(tmp_path / "page.html", "Searches", queries, **more)
    return (tmp_path / "page.html").read_text(encoding="utf-8")


def test_page_shows_queries_images_and_the_right_one(tmp_path: Path, image: Path) -> None:
    hits = [Hit(image, 0.9, "a red star", False), Hit(image, 0.512345, "two red stars", True)]
    reader = read(page(tmp_path, [QueryResult("a star", hits), QueryResult("no such", hits[:1])]))
    assert [tag["alt"] for tag in reader.all("img")] == ["a red star", "two red stars", "a red star"]
    assert len(reader.all("section")) == 2
    assert reader.text.count("✓ correct") == 1  # by a word and a sign, not by colour alone
    assert "is at rank 2" in reader.text
    assert "among the first 1" in reader.text
    assert "0.512" in reader.text


def test_text_is_escaped(tmp_path: Path, image: Path) -> None:
    nasty = '<script>alert("1")</script> & \' "'
    html = page(tmp_path, [QueryResult(nasty, [Hit(image, 0.0, nasty, False)])], intro=nasty)
    reader = read(html)
    assert not reader.all("script")
    assert reader.text.count(nasty) == 3
    assert reader.all("img")[0]["alt"] == nasty


def test_nothing_is_fetched(tmp_path: Path, image: Path) -> None:
    html = page(tmp_path, [QueryResult("q", [Hit(image, 1.0, "c", True)])], above=metrics_table_html([{"a": 1}]))
    reader = read(html)
    addresses = [value for _, tag in reader.tags for key, value in tag.items() if key in ("src", "href", "srcset")]
    assert addresses
    assert all(str(address).startswith("data:") for address in addresses)
    assert not re.search(r"https?://|url\(|@import", html)


def test_page_has_dark_colours_and_fits_a_phone(tmp_path: Path) -> None:
    html = page(tmp_path, [])
    assert "prefers-color-scheme: dark" in html
    assert any(tag.get("name") == "viewport" for tag in read(html).all("meta"))


def inlined(html: str) -> Image.Image:
    match = re.search(r"data:image/\w+;base64,([A-Za-z0-9+/=]+)", html)
    assert match
    return Image.open(io.BytesIO(base64.b64decode(match[1])))


def test_a_small_image_is_kept_exactly(tmp_path: Path, image: Path) -> None:
    shown = inlined(page(tmp_path, [QueryResult("q", [Hit(image, 1.0, "c", True)])]))
    assert shown.tobytes() == Image.open(image).tobytes()


@pytest.mark.parametrize("mode", ["CMYK", "L", "P", "RGBA"])
def test_a_large_image_of_any_mode_becomes_a_thumbnail(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("x.tif" if mode == "CMYK" else "x.png")
    Image.new(mode, (900, 450)).save(path)
    shown = inlined(page(tmp_path, [QueryResult("q", [Hit(path, 1.0, "c", True)])]))
    assert shown.size == (THUMBNAIL, THUMBNAIL // 2)


def test_a_broken_image_is_named_and_no_page_is_left(tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no image")
    with pytest.raises(ImageError, match=r"broken\.png"):
        page(tmp_path, [QueryResult("q", [Hit(tmp_path / "broken.png", 1.0, "c", True)])])
    assert not (tmp_path / "page.html").exists()


def test_table_has_headers_rows_and_one_decimal() -> None:
    reader = read(
        metrics_table_html([{"run": "<chance>", "R@1": 0.5, "rank": 100}, {"run": "b", "R@1": 31.25}], "Both")
    )
    assert [tag["scope"] for tag in reader.all("th")] == ["col", "col", "col", "row", "row"]
    assert "<chance>0.5100" in reader.text
    assert "31.2" in reader.text
    assert "Both" in reader.text
    assert metrics_table_html([]) == ""
