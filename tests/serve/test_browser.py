"""The page in a real Chromium."""

from __future__ import annotations

import base64
import random
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from quintet.search import StoreUnavailable

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect
expect.set_options(timeout=20_000)  # many tests may share the computer
CHROMIUM = shutil.which("chromium")
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
TOKEN = "a-token-of-some-length"

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this computer"),
    pytest.mark.slow,  # together; each takes a second or two
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


class Opened:
    """A page, the addresses it asked, and what its scripts complained of."""

    def __init__(self, page: Any, address: str) -> None:
        self.page, self.address = page, address
        self.asked: list[str] = []
        self.errors: list[str] = []
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda line: self.errors.append(line.text) if "Policy" in line.text else None)

    def search(self, words: str) -> None:
        self.page.get_by_role("searchbox").fill(words)
        self.page.keyboard.press("Enter")

    def cards(self) -> Any:
        return self.page.locator(".open")

    def focused(self) -> str:
        name: str = self.page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.id")
        return name


@pytest.fixture
def open_page(
    browser: Any, make_app: Callable[..., FastAPI], live: Callable[[FastAPI], str]
) -> Iterator[Callable[..., Opened]]:
    contexts = []
    opened: list[Opened] = []

    def go(path: str = "/", app: FastAPI | None = None, **context: Any) -> Opened:
        address = live(app or make_app())
        contexts.append(browser.new_context(**context))
        opened.append(Opened(contexts[-1].new_page(), address))
        opened[-1].page.set_default_timeout(20_000)
        opened[-1].page.goto(address + path)
        return opened[-1]

    yield go
    for page in opened:
        assert not page.errors
        outside = [url for url in page.asked if not url.startswith((page.address, "blob:"))]
        assert not outside, "the page asked somebody else"
    for context in contexts:
        context.close()


def test_a_text_fills_the_grid_as_it_is_scrolled(open_page: Callable[..., Opened], searcher: Any) -> None:
    for number in range(30, 130):  # more than one window of 40
        searcher._add(
            searcher.items[f"p{number % 30}"].__class__(f"p{number}", "image", f"shapes/scene-{number % 30:02}.png", 0),
            ["red thing"],
        )
    it = open_page(viewport={"width": 900, "height": 600})
    expect(it.page.get_by_text("30 photos and 30 texts")).to_be_visible()
    it.search("red circle")
    expect(it.page.get_by_role("status").first).to_contain_text("“red circle”: the best")
    first = it.cards().count()
    assert 40 <= first < 130
    while it.cards().count() < 130:
        it.page.mouse.wheel(0, 20_000)
        it.page.wait_for_timeout(50)
    expect(it.page.get_by_role("button", name="Show more")).to_be_hidden()
    expect(it.page.get_by_role("status").first).to_contain_text("130 photos")
    labels = [card.get_attribute("aria-label") for card in it.cards().all()]
    assert [label.partition(".")[0] for label in labels] == [str(rank) for rank in range(1, 131)]
    assert it.page.locator(".card img").first.evaluate("image => image.complete && image.naturalWidth") == 96


def test_the_keyboard_is_enough(open_page: Callable[..., Opened]) -> None:
    it = open_page(viewport={"width": 1000, "height": 700})
    keys = it.page.keyboard
    expect(it.page.get_by_text("30 photos")).to_be_visible()
    it.page.get_by_role("searchbox").blur()
    keys.press("/")
    assert it.focused() == "Describe a photo"
    keys.type("red circle/")  # a slash is a slash while typing
    assert it.page.get_by_role("searchbox").input_value() == "red circle/"
    keys.press("Backspace")
    keys.press("Enter")
    expect(it.cards()).to_have_count(30)
    names = [card.get_attribute("aria-label") for card in it.cards().all()]
    boxes = [card.bounding_box() for card in it.cards().all()]
    columns = sum(box["y"] == boxes[0]["y"] for box in boxes)
    assert columns > 2
    walk = {"ArrowDown": 0, "ArrowRight": 1, "End": 29, "Home": 0}
    for key, place in walk.items():
        keys.press(key)
        assert it.focused() == names[place], key
    keys.press("ArrowDown")
    assert it.focused() == names[columns]
    keys.press("ArrowLeft")
    assert it.focused() == names[columns - 1]
    assert it.page.locator('.open[tabindex="0"]').count() == 1  # one stop for Tab
    keys.press("Enter")
    dialog = it.page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    expect(dialog).to_contain_text(f"Result {columns}")
    keys.press("ArrowRight")
    expect(dialog).to_contain_text(f"Result {columns + 1}")
    keys.press("Escape")
    expect(dialog).to_be_hidden()
    expect(it.cards().nth(columns)).to_be_focused()  # where the reader was
    keys.press("Escape")
    assert it.focused() == "Describe a photo"


def test_an_explanation_shows_words_and_where_they_look(open_page: Callable[..., Opened], searcher: Any) -> None:
    it = open_page()
    it.search("red large")
    it.cards().first.click()
    dialog = it.page.get_by_role("dialog")
    word = dialog.get_by_role("button", name=re.compile(r"red\s*, weight [01]\.000"))
    expect(word).to_be_visible()
    pressed = dialog.locator('.word[aria-pressed="true"]')
    expect(pressed).to_have_count(1)  # one is shown at once
    item = it.page.request.post(f"{it.address}/api/search", data={"query": "red large", "limit": 1}).json()["hits"][0][
        "item"
    ]
    boxes = searcher.boxes[item["id"]]
    assert dialog.locator("rect.edge").count() == len(boxes)
    frame, shown = dialog.locator("#detail-photo").bounding_box(), dialog.locator("rect.edge").first.bounding_box()
    left, top, right, bottom = boxes[0]
    assert shown["x"] == pytest.approx(frame["x"] + left * frame["width"], abs=2)
    assert shown["y"] == pytest.approx(frame["y"] + top * frame["height"], abs=2)
    assert shown["width"] == pytest.approx((right - left) * frame["width"], abs=4)
    assert shown["height"] == pytest.approx((bottom - top) * frame["height"], abs=4)
    pressed.click()
    expect(dialog.locator("rect")).to_have_count(0)  # the bare image
    word.click()
    expect(word).to_have_attribute("aria-pressed", "true")


def test_words_whose_tokens_differ_are_matched_with_their_tokens(
    open_page: Callable[..., Opened], searcher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    explain = searcher.explain

    def pieces(query: str, item_id: str) -> Any:
        answer = explain("a run ##ning , qqq red", item_id)
        answer.words = explain("A Running, missing red.", item_id).words
        return answer

    monkeypatch.setattr(searcher, "explain", pieces)
    it = open_page()
    it.search("red")
    it.cards().first.click()
    it.page.wait_for_selector(".word")
    chips = {
        chip.inner_text().split(",")[0].strip(): chip.evaluate("chip => chip.tagName")
        for chip in it.page.locator(".word").all()
    }
    assert chips == {"A": "BUTTON", "Running": "BUTTON", "missing": "SPAN", "red.": "BUTTON"}


@pytest.mark.parametrize("way", ["file", "drop", "paste"])
def test_a_image_can_be_chosen_dropped_or_pasted(open_page: Callable[..., Opened], searcher: Any, way: str) -> None:
    it = open_page()
    expect(it.page.get_by_text("30 photos")).to_be_visible()
    path = searcher.image_path("p0")
    if way == "file":
        it.page.get_by_label("Search by a photo file").set_input_files(path)
    else:
        data = base64.b64encode(path.read_bytes()).decode()
        carried = it.page.evaluate_handle(
            """data => {
                const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
                const carried = new DataTransfer();
                carried.items.add(new File([bytes], "scene-00.png", { type: "image/png" }));
                return carried;
            }""",
            data,
        )
        if way == "drop":
            it.page.dispatch_event("main", "dragenter", {"dataTransfer": carried})
            expect(it.page.get_by_text("Drop a photo to search by it")).to_be_visible()
            it.page.dispatch_event("main", "drop", {"dataTransfer": carried})
            expect(it.page.get_by_text("Drop a photo to search by it")).to_be_hidden()
        else:
            it.page.evaluate(
                "carried => document.dispatchEvent(new ClipboardEvent('paste', {clipboardData: carried}))", carried
            )
    expect(it.page.get_by_role("status").first).to_contain_text("Like scene-00.png: 30 photos")
    expect(it.page.locator("#chip img")).to_be_visible()
    assert it.page.locator("#chip img").evaluate("image => image.naturalWidth") == 96
    it.cards().first.click()
    expect(it.page.get_by_role("dialog")).to_be_visible()
    expect(it.page.get_by_text("Why this one")).to_be_hidden()  # there are no words to explain
    it.page.keyboard.press("Escape")
    it.page.get_by_role("button", name="Search without this photo").click()
    it.search("red")
    expect(it.page.get_by_role("status").first).to_contain_text("“red”")


def test_more_like_this_and_back(open_page: Callable[..., Opened]) -> None:
    it = open_page()
    it.search("red circle")
    it.cards().nth(2).click()
    name = it.page.get_by_role("dialog").get_by_role("heading").first.inner_text()
    it.page.get_by_role("link", name="More like this").click()
    expect(it.page.get_by_role("status").first).to_contain_text(f"Like {name}")
    assert "?like=" in it.page.url
    it.page.reload()
    expect(it.page.get_by_role("status").first).to_contain_text(f"Like {name}")
    it.page.go_back()  # to the open result, and from it to the results
    expect(it.page.get_by_role("dialog")).to_contain_text(name)
    it.page.go_back()
    expect(it.page.get_by_role("dialog")).to_be_hidden()
    expect(it.page.get_by_role("status").first).to_contain_text("“red circle”")
    assert it.page.get_by_role("searchbox").input_value() == "red circle"
    it.page.go_back()
    expect(it.page.get_by_role("heading", name="Recent photos")).to_be_visible()


def test_texts_and_filters(open_page: Callable[..., Opened]) -> None:
    it = open_page()
    it.search("red circle")
    expect(it.cards()).to_have_count(30)
    it.page.get_by_text("Texts", exact=True).click()
    expect(it.page.get_by_role("status").first).to_contain_text("30 texts")
    it.page.get_by_text("Photos", exact=True).click()
    it.page.get_by_label("Filter results").fill('path~"*-0?.png"')
    it.page.keyboard.press("Enter")
    expect(it.cards()).to_have_count(10)
    it.page.get_by_label("Filter results").fill("path=none")
    it.page.keyboard.press("Enter")
    expect(it.page.get_by_role("alert").first).to_contain_text("Nothing passes the filter")
    it.page.get_by_label("Filter results").fill("path is nice")
    it.page.keyboard.press("Enter")
    expect(it.page.get_by_role("alert").first).to_contain_text("expected")


def test_troubles_are_told_and_can_be_mended(open_page: Callable[..., Opened], searcher: Any) -> None:
    it = open_page()
    trouble = it.page.get_by_role("alert").first
    it.search("xyzzy plugh")
    expect(trouble).to_contain_text("None of these words is known")
    it.page.get_by_label("Search by a photo file").set_input_files(
        {"name": "a.png", "mimeType": "image/png", "buffer": b"no image"}
    )
    expect(trouble).to_contain_text("not a photo that can be read")
    searcher.image_path("p5").unlink()
    it.search("red")
    expect(it.page.get_by_text(re.compile("file is gone"))).to_be_visible()
    searcher.error = StoreUnavailable("the store does not answer")
    it.search("blue")
    expect(it.page.get_by_role("status").first).to_contain_text("asking again")
    expect(trouble).to_contain_text("The store does not answer")
    searcher.error = None
    it.page.get_by_role("button", name="Try again").click()
    expect(it.cards()).to_have_count(30)
    expect(trouble).to_be_empty()
    it.page.route("**/api/search", lambda route: route.abort())
    it.search("green")
    expect(trouble).to_contain_text("The server does not answer")


def test_a_file_above_the_limit_is_not_even_sent(open_page: Callable[..., Opened], make_app: Any) -> None:
    it = open_page(app=make_app(max_upload_bytes=1000))
    expect(it.page.get_by_text("30 photos")).to_be_visible()
    it.page.get_by_label("Search by a photo file").set_input_files(
        {"name": "a.png", "mimeType": "image/png", "buffer": b"x" * 1001}
    )
    expect(it.page.get_by_role("alert").first).to_contain_text("too large")
    assert not any("/api/search/image" in url for url in it.asked)


def test_a_server_with_a_token_asks_for_it(open_page: Callable[..., Opened], make_app: Any) -> None:
    it = open_page(app=make_app(token=TOKEN))
    dialog = it.page.get_by_role("dialog", name="This server asks for its token")
    expect(dialog).to_be_visible()
    dialog.get_by_label("Token").fill("wrong")
    it.page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text("not a token of the server")
    dialog.get_by_label("Token").fill(TOKEN)
    it.page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    it.search("red circle")
    expect(it.cards()).to_have_count(30)
    expect(it.page.locator(".card img").first).to_have_js_property("naturalWidth", 96)  # images come by cookie


def test_a_phone_shows_rows_and_nothing_sticks_out(open_page: Callable[..., Opened]) -> None:
    it = open_page(**PHONE)
    width = "document.documentElement.scrollWidth <= window.innerWidth"
    assert it.page.evaluate(width)
    it.search("red circle")
    expect(it.cards()).to_have_count(30)
    assert it.page.evaluate(width)
    first, second, last = (it.cards().nth(number).bounding_box() for number in (0, 1, 29))
    assert first["y"] == second["y"] < last["y"]
    it.cards().first.tap()
    dialog = it.page.get_by_role("dialog")
    expect(dialog.get_by_text("Why this one")).to_be_visible()
    expect(dialog.locator("#detail-photo")).to_have_js_property("complete", True)
    stage, photo = (dialog.locator(name).bounding_box() for name in (".stage", "#detail-photo"))
    assert stage["height"] == pytest.approx(photo["height"], abs=1), "no bars above and below the photo"
    box = dialog.bounding_box()
    assert (box["x"], box["width"]) == (0, 390)
    assert it.page.get_by_role("button", name="Close").bounding_box()["y"] < 60
    for name in ("Close", "Next result"):
        size = it.page.get_by_role("button", name=name).bounding_box()
        assert min(size["width"], size["height"]) >= 24
    it.page.get_by_role("button", name="Close").tap()
    expect(dialog).to_be_hidden()


CONTRAST = """selector => {
    const channels = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map((value) => {
        const part = value / 255;
        return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    const light = (colour) => { const [r, g, b] = channels(colour); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    let element = document.querySelector(selector);
    const ink = light(getComputedStyle(element).color);
    while (/, 0\\)$|transparent/.test(getComputedStyle(element).backgroundColor)) element = element.parentElement;
    const paper = light(getComputedStyle(element).backgroundColor);
    return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_colour_schemes_can_be_read(open_page: Callable[..., Opened], scheme: str) -> None:
    it = open_page(color_scheme=scheme)
    paper = it.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(251, 251, 249)", "dark": "rgb(21, 24, 27)"}[scheme]
    selectors = ["#query", "#status", ".field .main", "#kinds :checked + span", "summary", ".keys"]
    assert {
        name: it.page.evaluate(CONTRAST, name) for name in selectors if it.page.evaluate(CONTRAST, name) < 4.5
    } == {}
    it.search("red")
    expect(it.cards()).to_have_count(30)
    it.cards().first.click()
    it.page.wait_for_selector(".word")
    selectors = [
        "#status",
        "#position",
        "dt",
        "dd",
        "#why-note",
        ".word",
        "#similar",
        "#original",
    ]
    assert {
        name: it.page.evaluate(CONTRAST, name) for name in selectors if it.page.evaluate(CONTRAST, name) < 4.5
    } == {}


def test_still_for_those_who_want_no_motion(open_page: Callable[..., Opened], searcher: Any) -> None:
    for motion, expected in (("reduce", "none"), ("no-preference", "breathe")):
        it = open_page(reduced_motion=motion)
        expect(it.page.get_by_text("30 photos")).to_be_visible()
        searcher.gate.clear()
        it.search("red")
        blank = it.page.locator(".blank").first
        expect(blank).to_be_visible()
        assert blank.evaluate("element => getComputedStyle(element).animationName") == expected
        expect(it.page.locator("#results")).to_have_attribute("aria-busy", "true")
        searcher.gate.set()
        expect(it.cards()).to_have_count(30)


def test_everything_has_a_role_and_a_name(open_page: Callable[..., Opened]) -> None:
    it = open_page()
    it.search("red circle")
    expect(it.cards()).to_have_count(30)
    assert it.page.get_by_role("search").count() == 1
    assert it.page.get_by_role("main").count() == 1
    assert it.page.get_by_role("heading", level=1).inner_text() == "Quintet"
    assert it.page.evaluate("document.documentElement.lang") == "en"
    assert it.page.title().startswith("“red circle”")
    expect(it.cards().nth(1)).to_have_accessible_name(re.compile(r"2\. scene-\d\d\.png, score [\d.]+"))
    it.cards().first.click()
    it.page.wait_for_selector(".word")
    expect(it.page.get_by_role("dialog")).to_have_accessible_name(re.compile(r"scene-\d\d\.png"))
    nameless = it.page.evaluate(
        """() => [...document.querySelectorAll("button, input, a, img[alt]:not([alt=''])")]
            .filter((element) => element.offsetParent !== null)
            .filter(({ariaLabel, textContent, labels, alt}) => !(ariaLabel || textContent || labels?.length || alt))
            .map((element) => element.outerHTML)"""
    )
    assert nameless == []
    assert it.page.evaluate("[...document.querySelectorAll('img')].every((image) => image.hasAttribute('alt'))")
    ids = it.page.evaluate("[...document.querySelectorAll('[id]')].map((element) => element.id)")
    assert len(ids) == len(set(ids))


def test_markup_in_names_and_texts_stays_text(open_page: Callable[..., Opened], searcher: Any) -> None:
    evil = "<img src=x onerror=alert(1)><b>red"
    searcher._add(searcher.items["s0"].__class__("evil", "text", None, None, evil), ["red circle"])
    it = open_page(path="/?q=red+circle&kind=text")
    expect(it.page.get_by_text(evil).first).to_be_visible()
    assert it.page.locator("img[src=x]").count() == 0


# ---- home, addresses, filters


def test_home_has_recent_photos_and_searches_to_try(open_page: Callable[..., Opened]) -> None:
    it = open_page()
    expect(it.page.get_by_role("heading", name="Recent photos")).to_be_visible()
    expect(it.cards()).to_have_count(30)
    expect(it.cards().first).to_have_accessible_name("scene-29.png")
    it.page.get_by_role("link", name="blue square").click()
    expect(it.page.get_by_role("status").first).to_contain_text("“blue square”")
    assert it.focused() == "results-head"  # the link is gone
    it.page.get_by_role("link", name="Quintet").click()
    expect(it.page.get_by_role("link", name="blue square")).to_be_visible()


def test_an_open_result_has_an_address_and_back_closes_it(open_page: Callable[..., Opened]) -> None:
    it = open_page("/?q=red+circle")
    expect(it.cards()).to_have_count(30)
    dialog = it.page.get_by_role("dialog")
    it.cards().nth(4).click()
    expect(dialog).to_be_visible()
    opened = it.page.url
    assert "photo=p" in opened
    it.page.keyboard.press("ArrowRight")
    expect(dialog).to_contain_text("Result 6")
    assert it.page.url != opened
    it.page.go_back()  # one step, however many were looked at
    expect(dialog).to_be_hidden()
    assert it.page.url.endswith("/?q=red+circle")
    expect(it.cards().nth(5)).to_be_focused()
    it.page.go_forward()
    expect(dialog).to_contain_text("Result 6")
    it.page.goto(opened)  # as somebody who got it
    expect(dialog).to_contain_text("Result 5")
    it.page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert it.page.url.endswith("/?q=red+circle")
    it.page.goto(f"{it.address}/?photo=p7")
    expect(dialog).to_contain_text("scene-07.png")


def test_a_result_that_is_gone_is_told_and_the_page_works(open_page: Callable[..., Opened]) -> None:
    it = open_page("/?photo=gone")
    expect(it.page.get_by_role("alert").first).to_contain_text("not in the index any more")
    expect(it.cards()).to_have_count(30)
    it.search("red circle")
    expect(it.page.get_by_role("alert").first).to_be_empty()
    it.page.goto(f"{it.address}/?like=gone")
    expect(it.page.get_by_role("alert").first).to_contain_text("not in the index any more")
    assert it.page.locator("#over").evaluate("over => getComputedStyle(over).clipPath") != "none", "an empty heading"


def test_filters_are_chosen_from_menus_with_counts(open_page: Callable[..., Opened]) -> None:
    it = open_page("/?q=red+circle")
    menu = it.page.locator(".menu summary")
    menu.click()
    it.page.get_by_role("link", name="10 to 19").click()
    expect(it.cards()).to_have_count(10)
    assert it.page.get_by_label("Filter results").input_value() == 'path~"shapes/scene-1*"'
    expect(menu).to_contain_text("10 to 19")
    it.page.get_by_role("link", name="Remove the filter 10 to 19").click()
    expect(it.cards()).to_have_count(30)
    assert it.page.get_by_role("searchbox").input_value() == "red circle"
    menu.press("Enter")
    expect(it.page.get_by_role("link", name="20 to 29")).to_be_visible()
    it.page.keyboard.press("Escape")
    expect(it.page.get_by_role("link", name="20 to 29")).to_be_hidden()
    expect(menu).to_be_focused()


def test_words_are_added_to_a_photo_and_taken_away(open_page: Callable[..., Opened], searcher: Any) -> None:
    it = open_page("/?like=p3")
    expect(it.page.locator("#chip")).to_contain_text("Like scene-03.png")
    it.search("yellow")
    expect(it.page.get_by_role("status").first).to_contain_text("Like scene-03.png, “yellow”")
    it.page.get_by_label("Without", exact=True).fill("red")
    it.page.keyboard.press("Enter")
    expect(it.page.get_by_role("status").first).to_contain_text("without “red”")
    assert it.page.url.endswith("/?q=yellow&like=p3&without=red")
    expected = [
        hit.item.id for hit in searcher.similar("p3", query="yellow", exclude=["red"], k=30, kind="image", where=None)
    ]
    shown = it.page.locator(".open").evaluate_all(
        "links => links.map((link) => new URL(link.href).searchParams.get('photo'))"
    )
    assert shown == expected
    it.page.get_by_label("Search by a photo file").set_input_files(searcher.image_path("p0"))
    expect(it.page.get_by_role("status").first).to_contain_text("Like scene-00.png, “yellow”")


def test_weak_results_are_below_a_line_and_duplicates_behind_one(
    open_page: Callable[..., Opened], searcher: Any
) -> None:
    searcher.judges = searcher.collapses = True
    it = open_page("/?like=p3&q=red")
    expect(it.page.get_by_role("button", name="+3 alike").first).to_be_visible()
    it.page.goto(f"{it.address}/?q=red+circle")
    expect(it.page.get_by_role("heading", name="Weaker matches")).to_be_visible()
    line = it.page.locator("#weak").bounding_box()["y"]
    weak = it.page.get_by_role("list", name="Weaker matches").locator(".open")
    assert all(card.bounding_box()["y"] > line for card in weak.all())
    before = it.cards().count()
    button = it.page.get_by_role("button", name="+3 alike").first
    button.click()
    expect(it.cards()).to_have_count(before + 3)
    expect(it.page.locator(".copy")).to_have_count(3)
    it.page.get_by_role("button", name="Hide alike").click()
    expect(it.cards()).to_have_count(before)


# ---- many photos


def test_photos_are_selected_copied_and_downloaded(open_page: Callable[..., Opened], searcher: Any) -> None:
    it = open_page(permissions=["clipboard-read", "clipboard-write"], accept_downloads=True)
    expect(it.cards()).to_have_count(30)
    bar = it.page.get_by_role("region", name="Selected photos")
    it.page.get_by_label("Select scene-29.png").click(force=True)
    expect(bar).to_contain_text("1 photo selected")
    it.cards().nth(3).click(modifiers=["Shift"])
    expect(bar).to_contain_text("4 photos selected")
    it.cards().nth(1).click()  # while some are selected, a click selects
    expect(bar).to_contain_text("3 photos selected")
    bar.get_by_role("button", name="Copy paths").click()
    expect(bar).to_contain_text("3 paths copied")
    chosen = [searcher.image_path(id_) for id_ in ("p29", "p27", "p26")]
    assert it.page.evaluate("navigator.clipboard.readText()").split("\n") == [str(path) for path in chosen]
    with it.page.expect_download() as waiting:
        bar.get_by_role("link", name="Download").click()
    with zipfile.ZipFile(waiting.value.path()) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {
            path.name: path.read_bytes() for path in chosen
        }
    it.page.get_by_role("button", name="Clear the selection").click()
    expect(bar).to_be_hidden()
    it.page.get_by_label("Select scene-28.png").click(force=True)
    with it.page.expect_download() as waiting:
        bar.get_by_role("link", name="Download").click()
    assert waiting.value.suggested_filename == "scene-28.png"


def test_photos_are_selected_by_the_keyboard_alone(open_page: Callable[..., Opened]) -> None:
    it = open_page()
    expect(it.cards()).to_have_count(30)
    it.cards().first.focus()
    keys = it.page.keyboard
    bar = it.page.get_by_role("region", name="Selected photos")
    keys.press("Space")
    expect(bar).to_contain_text("1 photo selected")
    keys.press("Shift+ArrowRight")
    keys.press("Shift+ArrowRight")
    expect(bar).to_contain_text("3 photos selected")
    keys.press("Control+a")
    expect(bar).to_contain_text("30 photos selected")
    keys.press("Escape")
    expect(bar).to_be_hidden()
    keys.press("Tab")  # the box of the photo
    keys.press("Space")
    expect(bar).to_contain_text("1 photo selected")


def test_results_are_links(open_page: Callable[..., Opened]) -> None:
    it = open_page("/?q=red+circle")
    expect(it.cards()).to_have_count(30)
    with it.page.context.expect_page() as waiting:
        it.cards().nth(2).click(modifiers=["Control"])
    other = waiting.value
    expect(other.get_by_role("dialog")).to_contain_text("Result 3")
    expect(it.page.get_by_role("dialog")).to_be_hidden()
    data = it.page.evaluate(
        """() => {
            const data = new DataTransfer();
            const event = new DragEvent("dragstart", {bubbles: true, dataTransfer: data});
            document.querySelector(".open").dispatchEvent(event);
            return [data.getData("DownloadURL"), data.getData("text/uri-list")];
        }"""
    )
    kind, name, address = data[0].split(":", 2)
    assert (kind, address) == ("image/png", data[1])
    assert it.page.request.get(address).headers["content-disposition"].endswith(name)


# ---- sizes, people, browsers


@pytest.mark.parametrize("width", [320, 390, 640, 1280])
def test_what_the_boxes_say_is_not_cut(open_page: Callable[..., Opened], width: int) -> None:
    it = open_page(viewport={"width": width, "height": 700})
    for name in ("query", "without"):
        it.page.evaluate("id => { const box = document.getElementById(id); box.value = box.placeholder; }", name)
        box = it.page.locator(f"#{name}")
        assert box.evaluate("box => box.scrollWidth <= box.clientWidth"), name
    expect(it.page.get_by_role("button", name="Search", exact=True)).to_be_visible()


@pytest.mark.parametrize("width", [320, 390, 640, 1280])
def test_rows_are_full_and_none_has_a_lone_photo(open_page: Callable[..., Opened], searcher: Any, width: int) -> None:
    rng = random.Random(width)
    for item in list(searcher.items.values()):
        item.metadata.update(width=rng.choice([300, 400, 400, 800]), height=rng.choice([300, 300, 500]))
    it = open_page(viewport={"width": width, "height": 700})
    expect(it.cards()).to_have_count(30)
    list_box = it.page.locator("#results").bounding_box()
    rows: dict[float, list[dict[str, float]]] = {}
    for card in it.page.locator(".card").all():
        box = card.bounding_box()
        rows.setdefault(round(box["y"]), []).append(box)
    assert len(rows) > 3
    for boxes in rows.values():
        assert boxes[-1]["x"] + boxes[-1]["width"] == pytest.approx(list_box["x"] + list_box["width"], abs=1.5)
        assert max(box["height"] for box in boxes) - min(box["height"] for box in boxes) < 1
    assert len(list(rows.values())[-1]) > 1
    assert it.page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_a_swipe_moves_and_closes(open_page: Callable[..., Opened]) -> None:
    it = open_page("/?q=red+circle", **PHONE)
    expect(it.cards()).to_have_count(30)
    it.cards().first.tap()
    dialog = it.page.get_by_role("dialog")
    expect(dialog).to_contain_text("Result 1,")

    def swipe(x: int, y: int) -> None:
        it.page.evaluate(
            """([x, y]) => {
                const stage = document.querySelector(".stage");
                const at = (type, left, top) => stage.dispatchEvent(new PointerEvent(type, {
                    bubbles: true, isPrimary: true, pointerType: "touch", clientX: left, clientY: top }));
                at("pointerdown", 200, 200);
                at("pointerup", 200 + x, 200 + y);
            }""",
            [x, y],
        )

    swipe(-120, 10)
    expect(dialog).to_contain_text("Result 2,")
    swipe(120, 10)
    expect(dialog).to_contain_text("Result 1,")
    swipe(20, 0)  # a tap that slipped
    expect(dialog).to_contain_text("Result 1,")
    swipe(0, 180)
    expect(dialog).to_be_hidden()


def test_without_javascript(open_page: Callable[..., Opened], searcher: Any) -> None:
    it = open_page(java_script_enabled=False, viewport={"width": 390, "height": 800})
    expect(it.cards()).to_have_count(30)
    it.search("red circle")
    it.page.wait_for_url("**/?q=red+circle*")
    expect(it.cards()).to_have_count(30)
    best = searcher.search_text(["red circle"], k=1, kind="image", where=None)[0][0].item
    it.cards().first.click()
    expect(it.page.get_by_role("heading", level=2)).to_have_text(best.path.rpartition("/")[2])
    expect(it.page.locator(".whole")).to_have_js_property("complete", True)
    it.page.get_by_role("link", name="Back").click()
    it.page.locator(".menu summary").click()
    it.page.get_by_role("link", name="10 to 19").click()
    expect(it.cards()).to_have_count(10)
    assert it.page.get_by_role("searchbox").input_value() == "red circle"
    boxes = it.page.get_by_role("checkbox")
    boxes.nth(0).check()
    boxes.nth(1).check()
    with it.page.expect_download() as waiting:
        it.page.get_by_role("button", name="Download the selected photos").click()
    with zipfile.ZipFile(waiting.value.path()) as archive:
        assert len(archive.namelist()) == 2


def axe() -> Path | None:
    """Where npm puts axe-core: in this folder or one above, or for everybody."""
    folders = [folder / "node_modules" for folder in (Path.cwd(), *Path.cwd().parents)]
    if npm := shutil.which("npm"):
        found = subprocess.run([npm, "root", "--global"], capture_output=True, text=True, check=False, timeout=60)
        folders.append(Path(found.stdout.strip() or "."))
    paths = (folder / "axe-core/axe.min.js" for folder in folders)
    return next((path for path in paths if path.is_file()), None)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_axe_finds_nothing(open_page: Callable[..., Opened], searcher: Any, width: int, scheme: str) -> None:
    """Each state of the page, by the rules of axe-core."""
    if (script := axe()) is None:
        pytest.skip("axe-core is not installed: npm install axe-core")
    searcher.judges = searcher.collapses = True
    it = open_page(viewport={"width": width, "height": 800}, color_scheme=scheme)

    def check(state: str) -> None:
        it.page.evaluate(script.read_text(encoding="utf-8"))
        found = it.page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
        assert [(state, each["id"], each["nodes"][0]["html"]) for each in found] == []
        assert it.page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), state

    expect(it.cards()).to_have_count(30)
    check("home")
    it.page.locator(".menu summary").click()
    check("menu")
    it.page.keyboard.press("Escape")
    it.search("red circle")
    expect(it.page.get_by_role("heading", name="Weaker matches")).to_be_visible()
    it.page.get_by_role("button", name="+3 alike").first.click()
    check("results")
    it.cards().first.click()
    it.page.wait_for_selector(".word")
    check("one result")
    it.page.keyboard.press("Escape")
    it.page.get_by_role("button", name="Select", exact=True).click()
    it.cards().first.click()
    check("selected")
    it.search("xyzzy")
    expect(it.page.get_by_role("alert").first).to_contain_text("None of these words")
    check("trouble")
    it.page.goto(f"{it.address}/?like=p3&q=red")
    expect(it.page.locator("#chip")).to_be_visible()
    check("like")
    it.page.goto(f"{it.address}/?q={'a' * 100_000}")
    expect(it.page.get_by_text("search for a shorter text")).to_be_visible()
    check("a long address")
