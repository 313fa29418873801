from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from quintet.cli.mining import mine_command, parse_size
from quintet.data.corpus import Corpus
from quintet.data.negatives import NegativeLists
from quintet.errors import QuintetError
from quintet.runs.run import load
from quintet.training.recipe import parse_recipe
from quintet.training.stages import train_recipe


@pytest.fixture
def trained(tiny_recipe: dict[str, Any], tmp_path: Path) -> Path:
    train_recipe(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu")
    return tmp_path / "run"


def mine(*arguments: object) -> Result:
    app = typer.Typer()
    app.command("mine")(mine_command)
    return CliRunner().invoke(app, [str(word) for word in arguments], catch_exceptions=False)


def test_mine_writes_lists_and_tells_what_it_found(trained: Path, tiny_corpus: Path) -> None:
    result = mine(trained, tiny_corpus, "--top-texts", 5, "--top-images", 3, "--device", "cpu")
    assert result.exit_code == 0
    for words in (
        "positive pairs",
        "texts of images, rank 1",
        "images of texts, last",
        "pairs of one group: 24 left out",
    ):
        assert words in result.output
    lists = NegativeLists.open(trained / "negatives" / "train")
    lists.check(Corpus.open(tiny_corpus).split("train"))
    assert lists.texts.shape == (12, 5)
    assert lists.images.shape == (24, 3)


def test_mine_as_json_on_another_split_and_stage(trained: Path, tmp_path: Path) -> None:
    options = [
        "--split",
        "dev",
        "--stage",
        "online",
        "--json",
        "--exclude-duplicates",
        "--false-negative-margin",
        "0.0",
    ]
    result = mine(
        trained, "--out", tmp_path / "lists", "--memory", "64M", "--precision", "float32", "--device", "cpu", *options
    )
    facts = json.loads(result.stdout)
    assert facts["folder"] == str(tmp_path / "lists")
    assert facts["options"]["exclude_duplicates"] is True
    assert facts["options"]["false_negative_margin"] == 0.0
    assert facts["lists"]["texts"] == {"anchors": 6, "not_full": 6, "empty": facts["lists"]["texts"]["empty"]}
    assert "texts_above_false_negative_threshold" in facts["excluded"]
    assert NegativeLists.open(tmp_path / "lists").manifest["split"] == "dev"


def test_a_checkpoint_mines_as_its_stage_does(trained: Path) -> None:
    place = trained / "negatives" / "train-online"
    for path in (trained / "stages" / "online", trained / "stages" / "online" / "selected.safetensors"):
        facts = json.loads(mine(path, "--json", "--device", "cpu").stdout)
        assert facts["folder"] == str(place)
        assert facts["matcher"]["weights"] == load(trained, stage="online").weights_checksum
    facts = json.loads(mine(trained / "weights.safetensors", "--json", "--device", "cpu").stdout)
    assert facts["folder"] == str(trained / "negatives" / "train")


def test_mistakes_are_explained(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(QuintetError, match="not a size"):
        mine(trained, "--memory", "lots")
    with pytest.raises(QuintetError, match="did you mean 'train'"):
        mine(trained, "--split", "trains", "--device", "cpu")
    with pytest.raises(QuintetError, match="is not a run"):
        mine(tmp_path / "nothing", "--device", "cpu")


@pytest.mark.parametrize(("text", "size"), [("1024", 1024), ("1.5K", 1536), ("2 MiB", 2**21), ("3g", 3 * 2**30)])
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size
