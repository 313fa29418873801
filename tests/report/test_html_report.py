from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as PILImage
from typer.testing import CliRunner

import quintet
from quintet.cli.main import app
from quintet.data.corpus import Corpus, Image
from quintet.data.feature_store import Part, write_manifest
from quintet.data.negatives import NegativeLists
from quintet.data.sampling import epoch_batches
from quintet.errors import QuintetError
from quintet.report.analysis import Subject
from quintet.report.anchors import anchors_of
from quintet.training import stages
from quintet.training.recipe import parse_recipe

pytest.importorskip("matplotlib")
CELLS = np.array([[0, 0, 0.5, 0.5], [0.5, 0, 1, 0.5], [0, 0.5, 0.5, 1], [0.5, 0.5, 1, 1]], np.float32)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, make_corpus: Callable[[Path], Path]) -> Path:
    """A corpus with images and boxes, and two runs on it: an embedding matcher and one that attends."""
    root = tmp_path_factory.mktemp("report")
    folder = make_corpus(root / "corpus")
    corpus = Corpus.open(folder)
    images = []
    for number, image in enumerate(corpus.images):
        PILImage.new("RGB", (40, 30), (8 * number, 90, 200)).save(folder / f"{image.id}.png")
        images.append(Image(image.id, image.group, f"{image.id}.png"))
    Corpus("tiny", images, corpus.texts, corpus.splits, root=folder).save(folder)
    store = folder / "features" / "toy"
    np.save(store / "boxes.npy", np.tile(CELLS, (len(images), 1, 1)))
    rows = np.stack([np.zeros(len(images), np.int64), np.arange(len(images))], axis=1)
    part = Part("features.npy", boxes="boxes.npy")
    write_manifest(store, [image.id for image in images], rows, [part], fragments=4, dim=8, tower={"name": "toy"})
    for matcher in ("vse++", "scan"):
        stage = {"name": "online", "loss": {"triplet": {}}, "batches": {"size": 6}, "epochs": 2, "log_every": 2}
        rounds = [stage]
        if matcher == "vse++":  # AOQ's second round
            negatives = {"from": "online", "top_texts": 8, "top_images": 4}
            rounds.append(stage | {"name": "offline", "loss": {"quintuplet": {}}, "negatives": negatives})
        content = {
            "name": f"tiny-{matcher}",
            "data": {"features": "toy", "corpus": str(folder), "tokenizer": {"min_count": 1}},
            "matcher": {"name": matcher, "embed_dim": 8, "word_dim": 6},
            "stages": rounds,
        }
        stages.train_recipe(parse_recipe(content), root / matcher, device="cpu")
    return root


def report(*arguments: object) -> Any:
    options = ["--device", "cpu", "--bootstrap", "20", "--samples", "10", "--examples", "2"]
    result = CliRunner().invoke(app, ["report", *map(str, arguments), *options])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(scope="module")
def public(home: Path) -> Path:
    annotations = home / "experts.txt"
    split = Corpus.open(home / "corpus").split("test")
    lines = [f"{image.id}\t{split.texts[(3 * k) % 12].id}\t{1 + k % 4}\t1\t2" for k, image in enumerate(split.images)]
    annotations.write_text("\n".join(lines), encoding="utf-8")
    scan, vse = home / "scan", home / "vse++"
    report(scan, vse, "--ensemble", f"{scan},{vse}", "--expert-annotations", annotations, "-o", home / "public")
    return home / "public"


@pytest.fixture(scope="module")
def private(home: Path) -> Path:
    report(home / "scan", "--photographs", "-o", home / "private")
    return home / "private"


def page(folder: Path) -> str:
    return (folder / "index.html").read_text(encoding="utf-8")


def captions(home: Path) -> list[str]:
    return [text.text for text in Corpus.open(home / "corpus").split("test").texts]


def test_every_part_is_on_the_page_and_every_figure_is_a_file(public: Path) -> None:
    html = page(public)
    shown = ("results", "training", "ranks", "distributions", "speed", "special", "gallery", "failures", "differences")
    for anchor in (*shown, "negatives", "words"):
        assert f'id="{anchor}"' in html
        assert f'href="#{anchor}"' in html
    assert json.loads((public / "report.json").read_text())["left_out"] == {}
    files = {path.name for path in (public / "figures").iterdir()}
    drawn = ("training", "losses", "recalls", "ranks", "cross-retrieval", "distributions", "speed", "word-means")
    assert {f"{name}.svg" for name in drawn} <= files
    for name in files:
        assert f"figures/{name}" in html


def test_nothing_is_fetched_from_anywhere(public: Path, private: Path) -> None:
    for folder in (public, private):
        html = page(folder)
        assert "default-src 'none'; img-src data:" in html
        assert set(re.findall(r'(?:src|href)="([a-z]+:|#|[^"]{0,9})', html)) <= {"data:", "#"}
        assert "<script" not in html


def test_single_models_and_ensembles_have_a_table_each(public: Path) -> None:
    html = page(public)
    single = html.split("<caption>Single models</caption>")[1].split("</table>")[0]
    together = html.split("<caption>Ensembles")[1].split("</table>")[0]
    assert re.findall(r'scope="row">([^<]+)', single) == ["tiny-scan", "tiny-vse++", "chance"]
    assert re.findall(r'scope="row">([^<]+)', together) == ["tiny-scan + tiny-vse++", "chance"]
    numbers = json.loads((public / "report.json").read_text())
    for name, found in numbers["results"].items():
        low, high = found["intervals"]["rsum"]
        assert f"{low:.1f} to {high:.1f}" in (together if " + " in name else single)
    assert set(numbers["human_agreement"]) == set(numbers["results"])
    assert numbers["pairs_per_second"]["tiny-scan"] > 0
    assert {row["samples"] for row in numbers["special_samples"]} == {"hard", "infrequent"}


def test_without_photographs_no_image_and_no_text_is_in_any_file(home: Path, public: Path) -> None:
    html = page(public)
    drawings = [base64.b64decode(found).decode() for found in re.findall(r"data:image/svg\+xml;base64,([^\"]+)", html)]
    everything = [html, *drawings, *(path.read_text() for path in public.rglob("*.*") if path.is_file())]
    for caption in captions(home):
        assert not any(caption in text for text in everything)
    assert "data:image/png" not in html
    assert not (public / "figures" / "words.svg").exists()
    assert "for private use" in html
    assert 'class="banner"' not in html


def test_with_photographs_correct_results_are_marked(home: Path, private: Path) -> None:
    html = page(private)
    gallery = html.split('id="gallery"')[1].split('id="failures"')[0]
    assert gallery.count("✓ correct") >= 4  # two queries in each direction, each with its correct result
    assert gallery.count("<img") > 4
    assert any(caption in gallery for caption in captions(home))
    assert 'class="banner"' in html
    attention = html.split('id="attention"')[1].split('id="words"')[0]
    assert attention.count("data:image/jpeg") >= 8
    assert ">thing<" in attention
    assert "&lt;start&gt;" not in attention


def section(html: str, anchor: str) -> str:
    return html.split(f'<section class="part" id="{anchor}">')[1].split('<section class="part"')[0]


def test_runs_and_ensembles_stand_side_by_side_on_the_queries_where_they_differ(home: Path, public: Path) -> None:
    scan, vse = (
        Subject(quintet.load(home / name, device="cpu"), corpus, corpus.split("test"), name=name)
        for corpus in [Corpus.open(home / "corpus")]
        for name in ("scan", "vse++")
    )
    html = section(page(public), "differences")
    assert "<h3>tiny-scan and tiny-vse++</h3>" in html
    for direction, heading in (("i2t", "image"), ("t2i", "caption")):
        first, second = (getattr(one.ranks, direction) for one in (scan, vse))
        ratios = np.maximum((first.best + 1) / (second.best + 1), (second.best + 1) / (first.best + 1))
        best = int(ratios.argmax())
        assert ratios[best] > 1
        side = scan.split.images if direction == "i2t" else scan.split.texts
        query = html.split(f"{heading} {side[first.rows[best]].id}</span></")[1].split("</section>")[0]
        ranks = re.findall(r"First correct result at rank (\d+)\.", query)[:2]
        assert ranks == [str(first.best[best] + 1), str(second.best[best] + 1)]
        assert query.index("<h4>tiny-scan</h4>") < query.index("<h4>tiny-vse++</h4>")


def test_ensembles_stand_side_by_side_too(home: Path) -> None:
    scan, vse, stage = home / "scan", home / "vse++", home / "vse++" / "stages" / "online"
    teams = ["--ensemble", f"{scan},{vse}", "--ensemble", f"{scan},{stage}"]
    report(scan, *teams, "-o", home / "teams")
    html = section(page(home / "teams"), "differences")
    assert "<h3>tiny-scan + tiny-vse++ and tiny-scan + tiny-vse++, stage online</h3>" in html


def test_anchors_have_the_negatives_that_training_drew(home: Path, public: Path) -> None:
    corpus = Corpus.open(home / "corpus")
    train = corpus.split("train")
    subject = Subject(quintet.load(home / "vse++", device="cpu"), corpus, corpus.split("test"), name="vse")
    found = anchors_of(subject, 3)
    assert (found.stage, found.batch_size) == ("offline", 6)
    assert [anchor.direction for anchor in found.found] == ["i2t"] * 3 + ["t2i"] * 3
    lists = NegativeLists.open(home / "vse++" / "stages" / "offline" / "negatives")
    scores = subject.run.score(*subject.run.encode_split(corpus, "train")).numpy()
    batch = epoch_batches(train, 6, seed=(0, 1, 0), per="texts")[0]
    for anchor in found.found:
        matrix, own, other = scores, train.image_groups, train.text_groups
        columns, table = batch[:, 1], lists.texts
        if anchor.direction == "t2i":
            matrix, own, other = scores.T, other, own
            columns, table = batch[:, 0], lists.images
        positive, online, offline = anchor.shown
        assert (positive.kind, online.kind, offline.kind) == ("positive", "online", "offline")
        assert other[positive.row] == own[anchor.row]
        wrong = [row for row in columns if other[row] != own[anchor.row]]
        assert online.score == pytest.approx(max(matrix[anchor.row, row] for row in wrong), abs=1e-5)
        assert online.row in wrong
        assert offline.rank is not None
        assert table[anchor.row, offline.rank - 1] == offline.row
        for one in anchor.shown:
            assert one.score == pytest.approx(matrix[anchor.row, one.row], abs=1e-5)
    html = section(page(public), "negatives")
    first, *_ = found.found
    assert f"image {train.images[first.row].id}<" in html
    assert f"offline, rank {first.shown[2].rank}</th>" in html
    assert not any(text.text in html for text in train.texts)
    report(home / "vse++", "--photographs", "-o", home / "photographs")
    shown = section(page(home / "photographs"), "negatives")
    assert train.texts[first.shown[2].row].text in shown
    assert shown.count("<img") == 2 + 2 * 3, "an image for each image anchor, three for each text"


def test_a_part_without_material_says_why(home: Path) -> None:
    report(home / "vse++", "-o", home / "embedding")
    assert "has attention" in page(home / "embedding")
    assert list(json.loads((home / "embedding" / "report.json").read_text())["left_out"]) == [
        "differences",
        "attention",
    ]


def test_an_ensemble_needs_two_runs(home: Path) -> None:
    with pytest.raises(QuintetError, match="two or more runs"):
        report(home / "scan", "--ensemble", str(home / "scan"), "-o", home / "x")


@pytest.mark.slow
def test_the_page_works_in_a_browser_on_desktop_and_mobile(public: Path, private: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = Path("/usr/bin/chromium")
    if not chromium.is_file():
        pytest.skip("no Chromium")
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=str(chromium), args=["--no-sandbox"])
        for folder in (public, private):
            for width in (1280, 390):
                tab = browser.new_page(viewport={"width": width, "height": 800})
                asked: list[str] = []
                complaints: list[str] = []
                tab.on("request", lambda request, asked=asked: asked.append(request.url))
                tab.on("console", lambda message, complaints=complaints: complaints.append(message.text))
                tab.goto((folder / "index.html").as_uri())
                assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
                assert complaints == []
                assert tab.evaluate("document.documentElement.scrollWidth") <= width
                broken = "[...document.images].filter(i => !i.complete || !i.naturalWidth).length"
                assert tab.evaluate(broken) == 0
        browser.close()
