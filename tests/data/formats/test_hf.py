"""Data sets through `datasets`: folders of its layouts, and a hub that does not answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.data.formats.sources import as_parquet, captions, jpeg
from typer.testing import CliRunner

from quintet.cli.main import app
from quintet.data.formats import import_corpus
from quintet.data.formats.hub_datasets import HUB_DATASETS
from quintet.errors import CorpusError

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_splits_are_chosen_and_named(tmp_path: Path) -> None:
    source = str(as_parquet(tmp_path / "s"))
    corpus = import_corpus("hf", f"hf:{source}", tmp_path / "1", splits="train=test,validation")
    assert {name: len(groups) for name, groups in corpus.splits.items()} == {"dev": 2, "test": 4}
    with pytest.raises(CorpusError, match="has no split 'x'"):
        import_corpus("hf", source, tmp_path / "2", splits="x")
    assert not (tmp_path / "2").exists()


def test_a_folder_of_images_keeps_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "s" / "train"
    folder.mkdir(parents=True)
    rows = []
    for number in range(3):
        (folder / f"{number}.jpg").write_bytes(jpeg(number))
        rows.append({"file_name": f"{number}.jpg", "text": captions(number)[0]})
    (folder / "metadata.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    corpus = import_corpus("hf", str(tmp_path / "s"), tmp_path / "out")
    assert [corpus.image_path(image).read_bytes() for image in corpus.images] == [jpeg(number) for number in range(3)]
    assert [text.text for text in corpus.texts] == [captions(number)[0] for number in range(3)]


def test_a_hub_that_cannot_be_reached_is_told(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="is there a network"):
        import_corpus("hf", "quintet-tests/no-such-dataset", tmp_path / "out")
    assert not (tmp_path / "out" / "corpus.json").exists()


def test_scripts_are_never_run(tmp_path: Path) -> None:
    folder = tmp_path / "evil"
    folder.mkdir()
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(CorpusError):
        import_corpus("hf", str(folder), tmp_path / "out")
    assert not (tmp_path / "ran").exists()


def test_known_data_sets_name_options_that_exist(tmp_path: Path) -> None:
    from quintet.data.formats import get_format

    options = get_format("hf").options
    for name, known in HUB_DATASETS.items():
        assert set(known.options) <= set(options), name
        assert bool(known.options) != bool(known.refused) or not known.options, name
        assert known.known in ("card", "described")
        if known.refused:
            with pytest.raises(CorpusError, match=name):
                import_corpus("hf", name, tmp_path / "out")


def test_the_usual_columns_of_a_known_data_set_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the hub: the data set's name opens a folder with the columns of its card."""
    F = datasets.Features
    columns = {"image": datasets.Image(), **{f"caption_{at}": datasets.Value("string") for at in range(5)}}
    rows: dict[str, list[Any]] = {"image": [{"bytes": jpeg(number), "path": None} for number in range(2)]}
    rows |= {f"caption_{at}": [f"{number} {at}" for number in range(2)] for at in range(5)}
    made = datasets.Dataset.from_dict(rows, features=F(columns))
    (tmp_path / "s").mkdir()
    made.to_parquet(tmp_path / "s" / "validation-00000-of-00001.parquet")
    load = datasets.load_dataset
    monkeypatch.setattr(
        datasets, "load_dataset", lambda name, *given, **named: load(str(tmp_path / "s"), streaming=True)
    )
    result = CliRunner().invoke(app, ["data", "import", "hf:jxie/flickr8k", str(tmp_path / "out")])
    assert result.exit_code == 0, result.exception
    listed = [json.loads(line) for line in (tmp_path / "out" / "texts.jsonl").read_text().splitlines()]
    assert [row["text"] for row in listed] == [f"{number} {at}" for number in range(2) for at in range(5)]


def test_the_list_of_data_sets_says_where_it_is_from() -> None:
    result = CliRunner().invoke(app, ["data", "sets", "--json"])
    assert set(json.loads(result.stdout)) == set(HUB_DATASETS)
    assert "downloaded" in CliRunner().invoke(app, ["data", "sets"]).stdout
