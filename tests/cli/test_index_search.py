from __future__ import annotations

import json
import os
import webbrowser
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import quintet
from quintet.backbones.create import create_tower
from quintet.backbones.extractor import FeatureExtractor
from quintet.cli.main import app
from quintet.data.vocabulary import WordVocabulary
from quintet.errors import QuintetError
from quintet.models import create_model
from quintet.runs.checkpoint import save_tensors, write_run

runner = CliRunner()


def call(*arguments: Any) -> Any:
    result = runner.invoke(app, [*map(str, arguments), "--device", "cpu"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of VSE++ and SCAN, images, and an index of both."""
    place = tmp_path_factory.mktemp("place")
    torch.manual_seed(0)
    save_tensors(place / "small.safetensors", create_tower("small-cnn").state_dict(), {})
    tower = FeatureExtractor.create("small-cnn", place / "small.safetensors", grid=(2, 2)).state()
    vocabulary = WordVocabulary.build(["a red dog", "a blue house"], min_count=1)
    for name in ("vse++", "scan"):
        sizes = {"vocabulary_size": len(vocabulary), "image_dim": 128, "embed_dim": 8, "word_dim": 4}
        write_run(
            place / name,
            name=name,
            model={"name": name, "arguments": sizes},
            state_dict=create_model(name, **sizes).state_dict(),
            tokenizer=vocabulary,
            image_input={"kind": "features", "name": "small", "tower": tower},
        )
    (place / "pictures").mkdir()
    for colour in ("red", "navy", "teal", "gold"):
        Image.new("RGB", (300, 200), colour).save(place / "pictures" / f"{colour}.png")
    (place / "texts.txt").write_text("a red dog\na blue house\n")
    call(
        "index", place / "vse++", place / "pictures", "-o", place / "index",
        "--texts", place / "texts.txt", "--rerank-with", place / "scan",
    )  # fmt: skip
    return place


def test_an_index_is_made_and_reported(place: Path, tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "pictures" / "a.png")
    (tmp_path / "pictures" / "b.jpg").write_text("no image")
    said = call("index", place / "vse++", tmp_path / "pictures", "-o", tmp_path / "index").output
    assert "unreadable:" in said
    assert "1 added, 0 kept, 0 dropped, 1 unreadable" in said
    facts = json.loads(call("index", place / "vse++", tmp_path / "pictures", "-o", tmp_path / "index", "--json").stdout)
    assert (facts["added"], facts["kept"]) == (0, 1)
    assert facts["unreadable"][0][0].endswith("b.jpg")


def test_texts_find_images(place: Path) -> None:
    said = call("search", place / "index", "a red dog", "-k", 2).stdout
    assert said.startswith("a red dog")
    assert said.count(".png") == 2


def test_results_as_json(place: Path, tmp_path: Path) -> None:
    (tmp_path / "queries.txt").write_text("a red dog\n\na blue house\n")
    found = json.loads(call("search", place / "index", "--queries", tmp_path / "queries.txt", "--json").stdout)
    assert [answer["query"] for answer in found] == ["a red dog", "a blue house"]
    hit = found[0]["hits"][0]
    assert hit["rank"] == 1
    assert (Path(hit["root"]) / hit["path"]).is_file()
    assert hit["metadata"]["width"] == 300


def test_images_find_images_and_texts(place: Path) -> None:
    photo = place / "pictures" / "gold.png"
    found = json.loads(call("search", place / "index", "--image", photo, "--json").stdout)
    assert found[0]["hits"][0]["path"] == "gold.png"
    found = json.loads(call("search", place / "index", "--image", photo, "--find", "texts", "--json").stdout)
    assert {hit["text"] for hit in found[0]["hits"]} == {"a red dog", "a blue house"}


def test_filters_and_reranking(place: Path) -> None:
    found = json.loads(
        call(
            "search", place / "index", "a red dog", "--where", 'path~"t*" and width>=300', "--rerank", 4, "--json"
        ).stdout
    )
    assert [hit["path"] for hit in found[0]["hits"]] == ["teal.png"]


def test_explanations_are_printed_and_drawn(place: Path, tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.html"
    said = call("search", place / "index", "a red dog", "--explain", "-o", sheet, "-k", 2).stdout
    assert "red +" in said or "red -" in said
    page = sheet.read_text()
    assert page.count("attention of red") == 2
    assert page.count("data:image/") >= 2 + 2 * 3
    assert "http" not in page.replace("http-equiv", "")


def test_a_page_is_opened(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    call("search", place / "index", "a <b>red</b> dog", "--open")
    assert opened[0].startswith("file://")
    page = Path(opened[0].removeprefix("file://")).read_text()
    assert "&lt;b&gt;red" in page
    assert "<b>red</b>" not in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "what to search for"),
        (("",), "empty"),
        (("zzyx",), "knows no word"),
        (("dog " * 25_000,), "a text is enough"),
        (("a \udcff dog",), "no text"),
        (("a dog", "--where", "date=\udcff"), "no text"),
        (("a dog", "--where", "width >< 3"), "filter"),
        (("--image", __file__), "not an image"),
        (("--image", "PICTURE", "--rerank", 2), "--rerank"),
        (("--image", "PICTURE", "--explain"), "--explain"),
    ],
)
def test_what_cannot_be_searched_for_is_told(place: Path, arguments: tuple[Any, ...], message: str) -> None:
    given = [place / "pictures" / "red.png" if each == "PICTURE" else each for each in arguments]
    with pytest.raises(QuintetError, match=message):
        call("search", place / "index", *given)


@pytest.mark.parametrize(
    "where",
    [
        "date>=2999-99-99",
        "date<0000-00-00",
        "width>" + "9" * 5000,
        "width>-" + "9" * 5000,
        "width<1e99999",
        "modified~" + "*" * 3000,
        "path=\x1b[2J",
        "path~'*" + "?*" * 500 + "x'",
    ],
)
def test_filters_that_nobody_would_write_find_what_they_say(place: Path, where: str) -> None:
    found = json.loads(call("search", place / "index", "a red dog", "--where", where, "--json").stdout)
    assert len(found[0]["hits"]) == (4 if where.startswith("modified") else 0)


@pytest.mark.parametrize(
    ("option", "value", "limit"),
    [
        ("-k", "1000000000", "100000"),
        ("-k", "0", ""),
        ("-k", "9" * 5000, ""),
        ("-k", "\udcff", ""),
        ("--rerank", "1" + "0" * 40, "10000000"),
    ],
)
def test_a_number_of_results_that_makes_no_sense_is_wrong_usage(
    place: Path, option: str, value: str, limit: str
) -> None:
    result = runner.invoke(app, ["search", str(place / "index"), "a red dog", option, value])
    assert result.exit_code == 2
    assert limit in result.output
    with quintet.open_index(place / "index", device="cpu") as index, pytest.raises(QuintetError, match="at most 100"):
        index.search("a red dog", k=10**9)


def test_names_with_control_characters_are_shown_as_escapes(place: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    names = ["a\x1b[2J.png", "line\nbreak.png", "bell\x07.png", "\u202egnp.png", os.fsdecode(b"\xff\x1b.png")]
    for number, name in enumerate(names):
        Image.new("RGB", (9 + number, 9)).save(tmp_path / "photos" / name, "PNG")
    (tmp_path / "photos" / "bad\x1b[31m.png").write_text("no image")
    index = ["index", str(place / "vse++"), str(tmp_path / "photos"), "-o", str(tmp_path / "in\x1bdex")]
    said = call(*index).output + call("search", tmp_path / "in\x1bdex", "a red dog", "--duplicates").output
    assert r"bad\x1b[31m.png" in said
    for shown in (r"a\x1b[2J.png", r"line\nbreak.png", r"bell\x07.png", r"\u202egnp.png", r"\xff\x1b.png"):
        assert f"  {shown}\n" in said
    assert not set(said) & {"\x1b", "\x07", "\u202e"}
    found = json.loads(call("search", tmp_path / "in\x1bdex", "a red dog", "--duplicates", "--json").stdout)
    assert {hit["path"] for hit in found[0]["hits"]} == {*names[:4], "\\xff\x1b.png"}


def test_an_index_without_texts_says_how_to_get_some(place: Path, tmp_path: Path) -> None:
    call("index", place / "vse++", place / "pictures", "-o", tmp_path / "index")
    with pytest.raises(QuintetError, match=r"holds no texts.*--texts"):
        call("search", tmp_path / "index", "a red dog", "--find", "texts")


def test_a_image_bomb_is_refused(place: Path, tmp_path: Path) -> None:
    (tmp_path / "bomb.ppm").write_bytes(b"P6 30000 30000 255\n")
    with pytest.raises(QuintetError, match="decompression bomb"):
        call("search", place / "index", "--image", tmp_path / "bomb.ppm")


def test_a_image_that_is_gone_is_still_a_result(place: Path, tmp_path: Path) -> None:
    moved = (place / "pictures" / "red.png").rename(tmp_path / "red.png")
    try:
        call("search", place / "index", "a red dog", "--sheet", tmp_path / "sheet.html", "-k", 4)
    finally:
        moved.rename(place / "pictures" / "red.png")
    assert (tmp_path / "sheet.html").read_text().count("<li>") == 4


def test_towers_are_exported(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    for options, folder in ((["-o", "towers"], "towers"), ([], "vse++-onnx")):
        result = runner.invoke(app, ["export", str(place / "vse++"), "--onnx", *options])
        assert result.exit_code == 0, result.output
        assert "differs from torch" in result.output.replace("\n", " ")
        assert (tmp_path / folder / "texts.onnx").is_file()
    assert "--onnx" in str(runner.invoke(app, ["export", str(place / "vse++")]).exception)


# Several words, several parts, and what is done with the results


def test_several_words_are_one_text(place: Path) -> None:
    quoted = json.loads(call("search", place / "index", "a red dog", "--json").stdout)
    assert json.loads(call("search", place / "index", "a", "red", "dog", "--json").stdout) == quoted
    assert json.loads(call("search", place / "index", "--text", "a red dog", "--json").stdout) == quoted
    assert len(quoted) == 1


def test_image_text_and_what_not_to_show_are_one_query(place: Path) -> None:
    image = place / "pictures" / "red.png"
    given = ["--image", image, "--text", "a dog", "--not", "a blue house"]
    (found,) = json.loads(call("search", place / "index", *given, "--json").stdout)
    with quintet.open_index(place / "index", device="cpu") as index:
        hits = index.search("a dog", image=image, exclude="a blue house")
        alone = index.search("a dog", exclude=["a blue house"])
    assert [hit["score"] for hit in found["hits"]] == [hit.score for hit in hits]
    assert [hit.score for hit in hits] != [hit.score for hit in alone]
    for wrong in (["--explain"], ["--rerank", 2]):
        with pytest.raises(QuintetError, match=r"explain|one part"):
            call("search", place / "index", "a dog", "--not", "a house", *wrong)


def test_paths_are_for_other_programs(place: Path) -> None:
    found = json.loads(call("search", place / "index", "a red dog", "--json").stdout)
    said = call("search", place / "index", "a red dog", "--paths")
    assert said.stdout.splitlines() == [str(place / "pictures" / hit["path"]) for hit in found[0]["hits"]]
    with pytest.raises(QuintetError, match="--paths and --json"):
        call("search", place / "index", "a red dog", "--paths", "--json")


def test_images_are_copied_and_nothing_is_replaced(place: Path, tmp_path: Path) -> None:
    (tmp_path / "found").mkdir()
    (tmp_path / "found/red.png").write_text("mine")
    for _ in range(2):
        said = call("search", place / "index", "a red dog", "--copy-to", tmp_path / "found").output
    assert "0 images copied" in said
    assert "4 are there already" in said
    names = {path.name for path in (tmp_path / "found").iterdir()}
    assert names == {"red.png", "red-2.png", "navy.png", "teal.png", "gold.png"}
    assert (tmp_path / "found/red.png").read_text() == "mine"
    assert (tmp_path / "found/red-2.png").read_bytes() == (place / "pictures/red.png").read_bytes()
    (tmp_path / "file").touch()
    with pytest.raises(QuintetError, match="cannot be made"):
        call("search", place / "index", "a red dog", "--copy-to", tmp_path / "file")


def test_an_unknown_field_is_answered_with_the_known_ones(place: Path) -> None:
    for field, hint in (("yaer", "did you mean 'year'"), ("nonsense_", "orientation")):
        with pytest.raises(QuintetError, match=hint):
            call("search", place / "index", "a red dog", "--where", f"width>1 or {field}=2024")


def test_a_word_beside_a_field_of_numbers_is_a_mistake(place: Path) -> None:
    for condition in ("year>=abc", "width=nan", 'width~"20*"', 'path~"*" or width="200"'):
        with pytest.raises(QuintetError, match="holds numbers"):
            call("search", place / "index", "a red dog", "--where", condition)
    call("search", place / "index", "a red dog", "--where", "width>=1 and path>=1 and date>=2024")


def test_a_query_in_another_language_is_told(place: Path) -> None:
    result = call("search", place / "index", "a", "roter", "Hund", "dog", "--json")
    assert "'roter', 'hund'" in result.stderr
    assert "'roter'" not in call("search", place / "index", "a red dog", "--json").stderr
