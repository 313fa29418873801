"""The documentation site: which pages it has, links between them, and its search without a network."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools import docs_site

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium")


def pages_of(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for each in entry.values() if isinstance(entry, dict) else entry:
            yield from pages_of(each)


def test_every_page_is_in_the_navigation_and_in_the_index() -> None:
    config = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))
    navigation = list(pages_of(config["project"]["nav"]))
    site = docs_site.sources()
    assert sorted(navigation) == sorted(str(name) for name in site.values() if name.suffix == ".md")
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    linked = {Path("docs", target).resolve() for target in re.findall(r"\]\(([^)#]+)", index)}
    pages = [source for source in site if source.suffix in (".md", ".ipynb") and source.name != "README.md"]
    assert [str(page) for page in pages if page.resolve() not in linked] == []


def test_links_are_changed_to_where_pages_lie_in_the_site() -> None:
    site = {
        Path(source): Path(name)
        for source, name in {
            "CONTRIBUTING.md": "contributing.md",
            "docs/a.md": "a.md",
            "docs/sub/b.ipynb": "sub/b.md",
            "docs/images/c.png": "images/c.png",
        }.items()
    }

    def changed(text: str, page: str) -> str:
        return docs_site.relink(text, Path(page), site)

    assert changed("[x](docs/a.md#part)", "CONTRIBUTING.md") == "[x](a.md#part)"
    assert changed("[x](../../CONTRIBUTING.md)", "docs/sub/b.ipynb") == "[x](../contributing.md)"
    assert changed("[x](sub/b.ipynb) ![y](images/c.png)", "docs/a.md") == "[x](sub/b.md) ![y](images/c.png)"
    kept = "[x](#here) [y](https://example.org/z.md) `[z](gone.md)`\n```\n[z](gone.md)\n```\n"
    assert changed(kept, "docs/a.md") == kept
    with pytest.raises(SystemExit, match="out of the site"):
        changed("[x](../src/quintet/codes.py)", "docs/a.md")


def test_a_notebook_becomes_a_page_with_its_outputs(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "text"]},
        {
            "cell_type": "code",
            "source": "1 + 1",
            "outputs": [{"data": {"text/plain": "2"}}, {"name": "stdout", "text": ["a\n", "b\n"]}],
        },
        {"cell_type": "code", "source": "plot()", "outputs": [{"data": {"image/png": "aGVsbG8="}}]},
    ]
    (tmp_path / "n.ipynb").write_text(json.dumps({"cells": cells}))
    page = docs_site.notebook_page(tmp_path / "n.ipynb", tmp_path)
    assert page.startswith("# Title\ntext\n\n```python\n1 + 1\n```\n\n```text\n2\n```\n\n```text\na\nb\n```\n")
    (figure,) = re.findall(r"!\[.*\]\((.*)\)", page)
    assert (tmp_path / figure).read_bytes() == b"hello"


def test_what_a_page_loads_from_the_network_is_found() -> None:
    bad = [
        '<script src="https://x.org/a.js">',
        '<link rel="stylesheet" href="//x.org/a.css">',
        '<img src="http://x/a">',
    ]
    assert all(docs_site.LOADED.search(text) for text in bad)
    good = (
        '<a href="https://x.org"><script src="../a.js"></script><img src="a.png"><link rel="stylesheet" href="a.css">'
    )
    assert not docs_site.LOADED.search(good)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("zensical")
    home = tmp_path_factory.mktemp("site")
    shutil.copyfile(ROOT / "zensical.toml", home / "zensical.toml")
    docs_site.build(home)
    return home / "build/site"


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this computer")
@pytest.mark.parametrize("width", [390, 1280])
def test_the_site_is_searched_from_disk_without_a_network(site: Path, width: int) -> None:
    driver = pytest.importorskip("playwright.sync_api")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        context = browser.new_context(offline=True, viewport={"width": width, "height": 800})
        asked, wrong = [], []
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto((site / "index.html").as_uri())
        page.keyboard.press("/")
        page.keyboard.type("adaptive offline quintuplet")
        page.get_by_role("link", name=re.compile("AOQ")).first.wait_for(timeout=20_000)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        browser.close()
    assert not wrong
    assert not [url for url in asked if not url.startswith(("file:", "data:", "blob:", "about:"))]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this computer")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_nothing_on_the_site(site: Path, width: int, scheme: str) -> None:
    driver = pytest.importorskip("playwright.sync_api")
    from tests.serve.test_browser import axe

    if (script := axe()) is None:
        pytest.skip("axe-core is not installed: npm install axe-core")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_context(
            offline=True, viewport={"width": width, "height": 800}, color_scheme=scheme
        ).new_page()
        for name in ("index", "search", "methods/scan", "reference/commands", "results", "notebooks/search"):
            page.goto((site / f"{name}.html").as_uri())
            page.wait_for_function("!document.querySelector('.md-code__nav:not([role])')")
            page.evaluate(script.read_text(encoding="utf-8"))
            found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
            assert [(name, each["id"], each["nodes"][0]["html"]) for each in found] == []
        browser.close()


@pytest.mark.slow
def test_a_link_to_a_heading_that_does_not_exist_stops_the_build(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = site.parents[1]
    collect = docs_site.collect

    def with_broken_link(pages: Path) -> None:
        collect(pages)
        with (pages / "search.md").open("a") as page:
            page.write("\n[gone](training.md#no-such-heading)\n")

    monkeypatch.setattr(docs_site, "collect", with_broken_link)
    with pytest.raises(SystemExit, match="warnings"):
        docs_site.build(home)
