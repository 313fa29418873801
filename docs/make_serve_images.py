"""Takes the screenshots of docs/serve.md: `python docs/make_serve_images.py FOLDER` (Chromium and playwright needed).

FOLDER gets what they show, unless it is there: generated scenes, a VSE++ run, the first stage of a SCAN run, and an
index of the test split searched with the one and re-ranked by the other. Training takes ten minutes on two quiet cores.
"""

from __future__ import annotations

import io
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image
from playwright.sync_api import expect, sync_playwright

import quintet
from quintet.search.searcher import Searcher
from quintet.serve.app import create_app
from quintet.serve.server import address, listen, make_server
from quintet.serve.service import Searchers
from quintet.serve.settings import Settings
from quintet.training.recipe import load_recipe

IMAGES = Path(__file__).parent / "images"
QUERY = "two orange diamonds, a pink star and a red heart"
DESK = {"viewport": {"width": 1180, "height": 720}}
PHONE = {"viewport": {"width": 390, "height": 760}, "device_scale_factor": 1.5, "is_mobile": True}


def make_index(folder: Path) -> Path:
    corpus, vse, scan, index = (folder / name for name in ("corpora/scenes", "runs/vse", "runs/scan", "scenes.index"))
    if not corpus.exists():
        quintet.import_corpus("scenes", "-", corpus)
        quintet.extract_features(corpus)
    if not vse.exists():
        quintet.train("vse-scenes", corpus, out=vse, device="cpu")
    if not scan.exists():
        recipe = load_recipe("aoq-scan-scenes", ["stages.online.epochs=6"])
        online = recipe.model_copy(update={"stages": recipe.stages[:1]})
        quintet.train(online, corpus, out=scan, device="cpu")
    if not index.exists():
        quintet.build_index(vse, corpus, index, split="test", rerank_with=scan, device="cpu")
    return index


@contextmanager
def serving(index: Path) -> Iterator[str]:
    with TemporaryDirectory() as folder:
        searcher = Searcher.open(index, device="cpu")
        rerank = 100 if searcher.describe()["can_rerank"] else None
        settings = Settings(port=0, cache=Path(folder), rerank=rerank)
        with listen(settings) as listener:
            ready = threading.Event()
            server = make_server(create_app(Searchers(searcher), settings), settings, ready.set)
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
            thread.start()
            ready.wait()
            yield address(listener, settings)
            server.should_exit = True
            thread.join()


def capture(page: Any, name: str) -> None:
    """In 256 colours, which halves the file and is not visible in these images."""
    page.wait_for_load_state("networkidle")
    shot = Image.open(io.BytesIO(page.screenshot(animations="disabled"))).convert("RGB")
    shot.quantize(256, dither=Image.Dither.NONE).save(IMAGES / f"{name}.png", optimize=True)


def search(page: Any) -> None:
    page.get_by_role("searchbox").fill(QUERY)
    page.keyboard.press("Enter")
    page.wait_for_selector(".card img")
    for image in page.locator(".card img").all()[:15]:
        expect(image).to_have_js_property("complete", True)


def explain(page: Any) -> None:
    search(page)
    page.locator(".card").first.click()
    page.wait_for_selector(".word")
    word = page.locator(".word", has_text="heart")
    if word.get_attribute("aria-pressed") == "false":
        word.click()
    page.mouse.move(0, 0)


def main(folder: Path) -> None:
    with serving(make_index(folder)) as base, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for look, shots in (
            (DESK, {"serve-results": search}),
            (DESK | {"color_scheme": "dark"}, {"serve-explanation-dark": explain}),
            (PHONE, {"serve-phone": search, "serve-phone-explanation": explain}),
        ):
            page = browser.new_context(**look).new_page()
            page.goto(base)
            for name, act in shots.items():
                act(page)
                capture(page, name)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
