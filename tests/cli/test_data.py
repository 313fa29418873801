from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from quintet.cli.data import data_app
from quintet.data.corpus import Corpus
from quintet.data.formats import FORMATS
from quintet.data.vocabulary import split_words
from quintet.errors import CorpusError


def quintet_data(*arguments: object) -> Result:
    return CliRunner().invoke(data_app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    for n, name in enumerate(("a.png", "b.png", "c.png")):
        Image.new("RGB", (8, 8), (n, 0, 0)).save(folder / name)
    (folder / "t.csv").write_text(
        "image,caption,split\na.png,A [bold]dog[/bold].,train\nb.png,A cat.,train\n"
        "c.png,A cat.,test\ngone.png,Lost.,test\n"
    )
    return folder


def test_import_prints_the_splits_and_the_notes(source: Path, tmp_path: Path) -> None:
    result = quintet_data("import", "folder", source, tmp_path / "out", "--name", "mine", "--copy")
    assert result.exit_code == 0, result.output
    assert "skipped 1 images" in result.output
    assert "quintet data inspect" in result.output
    corpus = Corpus.open(tmp_path / "out")
    assert corpus.name == "mine"
    assert corpus.images[0].path == "images/a.png"


def test_options_are_key_value_pairs(source: Path, tmp_path: Path) -> None:
    arguments = ("import", "folder", source, tmp_path / "out", "--option", "strict=true", "--option", "seed=3")
    result = quintet_data(*arguments)
    assert isinstance(result.exception, CorpusError)
    assert "do not exist" in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("flcikr",), "did you mean 'flickr'"),
        (("folder", "--option", "strikt=true"), "did you mean 'strict'"),
        (("folder", "--option", "strict"), "expected KEY=VALUE"),
        (("folder", "--option", "seed=1", "--option", "seed=2"), "given twice"),
    ],
)
def test_mistakes_are_answered(source: Path, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    result = quintet_data("import", arguments[0], source, tmp_path / "out", *arguments[1:])
    assert isinstance(result.exception, CorpusError)
    assert message in str(result.exception)


def test_out_is_the_corpus_folder(source: Path, tmp_path: Path) -> None:
    assert quintet_data("import", "folder", source, "-o", tmp_path / "out").exit_code == 0
    assert len(Corpus.open(tmp_path / "out").images) == 3
    twice = quintet_data("import", "folder", source, tmp_path / "other", "-o", "seed=3")  # -o was --option once
    assert isinstance(twice.exception, CorpusError)
    assert "--option" in str(twice.exception)
    assert not (tmp_path / "other").exists()


def test_overwrite(source: Path, tmp_path: Path) -> None:
    assert quintet_data("import", "folder", source, tmp_path / "out").exit_code == 0
    assert "already holds a corpus" in str(quintet_data("import", "folder", source, tmp_path / "out").exception)
    assert quintet_data("import", "folder", source, tmp_path / "out", "--overwrite").exit_code == 0


@pytest.fixture
def imported(source: Path, tmp_path: Path) -> Path:
    assert quintet_data("import", "folder", source, tmp_path / "corpus").exit_code == 0
    return tmp_path / "corpus"


def test_inspect_prints_a_table(imported: Path) -> None:
    result = quintet_data("inspect", imported)
    assert result.exit_code == 0, result.output
    for words in ("train", "test", "vocabulary", "1 texts occur in several groups", "2 x A cat.", "note: skipped"):
        assert words in result.output


def test_inspect_json_is_json(imported: Path) -> None:
    result = quintet_data("inspect", imported, "--json", "--split", "train", "--check-images")
    assert result.exit_code == 0
    facts = json.loads(result.stdout)
    assert facts["splits"]["train"]["images"] == 2
    assert facts["image_files"] == {"checked": 2, "unreadable": [], "copies": []}


def test_check_images_fails_on_damage(imported: Path, source: Path) -> None:
    (source / "b.png").write_bytes(b"")
    result = quintet_data("inspect", imported, "--check-pictures")
    assert result.exit_code == 1
    assert "1 unreadable" in result.output
    assert "b.png is empty" in result.output


def test_contact_sheet(imported: Path, tmp_path: Path) -> None:
    result = quintet_data("inspect", imported, "--contact-sheet", tmp_path / "sheet.jpg", "--count", 2)
    assert result.exit_code == 0, result.output
    assert Image.open(tmp_path / "sheet.jpg").format == "JPEG"


def test_inspect_counts_what_a_dictionary_keeps(imported: Path, tmp_path: Path) -> None:
    words = sorted({word for text in Corpus.open(imported).split("train").texts for word in split_words(text.text)})
    vectors = tmp_path / "vectors.txt"
    vectors.write_text(f"{words[-1]} 1 2\nelsewhere 1 2\n", encoding="utf-8")
    result = quintet_data("inspect", imported, "--word-vectors", vectors, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)["dictionary"]
    assert (found["words"], found["vectors"]["words"]) == (1, len(words))
    texts = [split_words(text.text) for text in Corpus.open(imported).split("train").texts]
    kept = sum(text.count(words[-1]) for text in texts) / len(texts)
    assert found["splits"]["train"]["words_in_a_text"] == pytest.approx(kept)
    assert found["splits"]["train"]["words_written"] == pytest.approx(sum(map(len, texts)) / len(texts))
    table = quintet_data("inspect", imported, "--word-vectors", vectors)
    assert "dictionary: 1 words of the training texts" in table.output
    assert "--word-vectors FILE or --min-count N" in str(quintet_data("inspect", imported, "--case").exception)


def test_inspect_of_something_else(tmp_path: Path) -> None:
    assert "is not a corpus" in str(quintet_data("inspect", tmp_path).exception)


def test_formats_lists_every_format_and_option() -> None:
    result = quintet_data("formats")
    assert result.exit_code == 0, result.output
    listed = json.loads(quintet_data("formats", "--json").stdout)
    assert set(listed) == set(FORMATS)
    for name, format in FORMATS.items():
        assert name in result.output
        assert set(listed[name]["options"]) == set(format.options)
        for option in format.options:
            assert f"{option}=" in result.output


@pytest.mark.parametrize("command", ["import", "inspect", "formats"])
def test_help(command: str) -> None:
    result = quintet_data(command, "--help")
    assert result.exit_code == 0
    assert len(result.output) > 200


def test_a_contact_sheet_replaces_a_file_only_when_asked(source: Path, tmp_path: Path) -> None:
    quintet_data("import", "folder", source, tmp_path / "out")
    sheet = tmp_path / "holiday.jpg"
    sheet.write_bytes(b"mine")
    result = quintet_data("inspect", tmp_path / "out", "--contact-sheet", sheet)
    assert isinstance(result.exception, CorpusError)
    assert sheet.read_bytes() == b"mine"
    result = quintet_data("inspect", tmp_path / "out", "--contact-sheet", sheet, "--overwrite")
    assert result.exit_code == 0
    assert sheet.read_bytes() != b"mine"


def test_check_with_strict_ends_with_status_1_where_there_is_a_problem(tiny_corpus: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_corpus, tmp_path / "copy")
    splits = json.loads((folder / "splits.json").read_text())
    splits["test"].append(splits["train"][0])
    (folder / "splits.json").write_text(json.dumps(splits))
    head = json.loads((folder / "corpus.json").read_text())
    (folder / "corpus.json").write_text(json.dumps(head | {"checksums": {}}))
    result = quintet_data("check", folder, "--page", tmp_path / "check.html", "-o", tmp_path / "check.json")
    assert result.exit_code == 0
    assert "overlapping splits" in result.output
    assert "overlapping splits" in (tmp_path / "check.html").read_text()
    assert json.loads((tmp_path / "check.json").read_text())["findings"][0]["severity"] == "problem"
    assert quintet_data("check", folder, "--strict", "--no-images").exit_code == 1


def test_check_finds_a_flipped_bit_in_features(tiny_corpus: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_corpus, tmp_path / "copy")
    result = quintet_data("check", folder)
    assert result.exit_code == 0
    assert "features/toy: whole" in result.output
    path = folder / "features" / "toy" / "features.npy"
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)
    result = quintet_data("check", folder, "--json")
    assert result.exit_code == 1
    assert "damaged" in json.loads(result.stdout)["files"]["features/toy"]
    (folder / "texts.jsonl").write_text((folder / "texts.jsonl").read_text().replace(" red", " sad", 1))
    result = quintet_data("check", folder)
    assert "texts.jsonl is damaged" in str(result.exception)
