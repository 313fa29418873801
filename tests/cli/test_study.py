from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from quintet.cli.main import app
from quintet.cli.study import _fitting, joined
from quintet.data.corpus import Corpus, Image, Text
from quintet.errors import QuintetError, RecipeError, RunError, TrainingError
from quintet.studies.expand import choose_recipe
from quintet.studies.study_file import list_studies, load_study


def study(*arguments: object) -> Result:
    result = CliRunner().invoke(app, ["study", *map(str, arguments)], env={"COLUMNS": "160", "TERM": "dumb"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def refused(*arguments: object) -> str:
    """The message of a wrong usage."""
    result = study(*arguments)
    assert result.exit_code == 2
    return result.output


@pytest.fixture
def recipe(tiny_recipe: dict[str, Any], tmp_path: Path) -> Path:
    del tiny_recipe["data"]["corpus"]
    second = copy.deepcopy(tiny_recipe["stages"][0]) | {
        "name": "offline",
        "loss": {"quintuplet": {}},
        "negatives": {"from": "online", "top_texts": 10, "top_images": 5},
    }
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(tiny_recipe | {"stages": [*tiny_recipe["stages"], second]}), encoding="utf-8")
    return path


def test_a_study_of_one_method_needs_no_matcher(tmp_path: Path) -> None:
    images = [Image(f"i{g}", str(g), f"{g}.png") for g in range(9)]
    texts = [Text(f"t{g}", str(g), "a small thing") for g in range(9)]
    splits = {
        name: [str(g) for g in range(start, start + 3)] for name, start in (("train", 0), ("dev", 3), ("test", 6))
    }
    Corpus("scenes", images, texts, splits, root=tmp_path).save(tmp_path / "corpus")
    options = ["--corpus", tmp_path / "corpus", "--seed", 0, "-o", tmp_path / "out"]
    with pytest.raises(TrainingError, match=r"\.png does not exist"):  # it comes as far as the images
        study("dual-path", *options, "--tables", 3, 6)
    assert sorted(path.name for path in (tmp_path / "out" / "runs").iterdir()) == [
        "instance-1-seed0",
        "left-alignment-seed0",
        "text-resnet50-seed0",
    ]
    assert re.search("No such option:? '?--top", refused("dual-path", *options, "--top", 4))


def test_a_study_from_the_command_line(recipe: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ["--corpus", tiny_corpus, "--recipe", recipe, "-o", out, "--device", "cpu", "--bootstrap", 0]
    result = study("aoq", *options, "--seeds", 3, 5, "--top", 4, "stages.*.epochs=1")
    assert result.exit_code == 0, result.output
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert summary["seeds"] == [3, 5]
    assert list(summary["variants"]) == ["online", "off-tri", "off-quin", "adap-off-quin", "top4"]
    assert (out / "tables.md").read_text(encoding="utf-8") in result.stdout
    assert "| VSE++ + AdapOffQuin " in result.stdout
    assert "±" in result.stdout
    assert (out / "runs" / "top4-seed5" / "weights.safetensors").is_file()

    again = study("aoq", *options, "--seeds", "3,5", "--top", "4", "stages.*.epochs=1", "--json")
    assert json.loads(again.stdout)["variants"] == summary["variants"]

    one = study("aoq", *options, "--seed", 5, "stages.*.epochs=1", "--json")
    assert json.loads(one.stdout)["seeds"] == [5]

    with pytest.raises(QuintetError, match="other settings"):
        study("aoq", *options, "--seeds", 3, 5, "stages.*.epochs=2")


def test_one_number_is_how_many_seeds(recipe: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    options = ["--corpus", tiny_corpus, "--recipe", recipe, "-o", tmp_path / "out", "--device", "cpu", "--json"]
    summary = json.loads(study("aoq", *options, "stages.*.epochs=1", "--seeds", 2, "--bootstrap", 0).stdout)
    assert summary["seeds"] == [0, 1]


def test_a_study_of_which_nothing_finishes_is_an_error(recipe: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    options = ["--corpus", tiny_corpus, "--recipe", recipe, "-o", tmp_path / "out", "--device", "cpu", "--seed", 0]
    with pytest.raises(QuintetError, match=r"no run .*became"):
        study("aoq", *options, "stages.online.loss.triplet.margin=1.0e+39")
    assert "became" in (tmp_path / "out" / "tables.md").read_text(encoding="utf-8")


def test_studies_are_listed() -> None:
    assert "AdapOffQuin" in json.loads(study("--list", "--json").stdout)["aoq"]
    assert list(json.loads(study("--list", "--json").stdout)) == list_studies()
    assert "aoq" in study("--list").stdout


@pytest.mark.parametrize("name", list_studies())
def test_a_study_shows_the_options_of_its_file(name: str) -> None:
    shown = study(name, "--help").stdout
    assert "--corpus" in shown
    for option, declared in load_study(name).options.items():
        assert f"--{declared.flag or option.replace('_', '-')} " in shown
        assert " ".join(declared.help.split()[:4]) in shown
    foreign = {option for other in list_studies() for option in load_study(other).options} - set(
        load_study(name).options
    )
    assert not [option for option in foreign if f"--{option.replace('_', '-')} " in shown]


def test_a_file_of_ones_own_is_a_study(tiny_recipe: dict[str, Any], tiny_corpus: Path, tmp_path: Path) -> None:
    tiny_recipe["stages"][0]["epochs"] = 1
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(tiny_recipe), encoding="utf-8")
    mine = {
        "about": "Widths",
        "base": "plain",
        "options": {"width": {"kind": "int", "help": "Dimensions of the space.", "flag": "dim"}},
        "settings": {"width": {"path": "matcher.embed_dim"}},
        "variants": {"plain": {"label": "Plain"}, "wide": {"key": "w{width}", "label": "{width}d", "sweep": "width"}},
        "tables": [{"title": "Widths", "rows": ["plain", "wide"]}],
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(mine), encoding="utf-8")
    assert "Dimensions of the space" in study(tmp_path / "mine.yaml", "--help").stdout
    options = ["--recipe", tmp_path / "base.yaml", "--corpus", tiny_corpus, "--device", "cpu", "--seed", 0, "--json"]
    shown = study(tmp_path / "mine.yaml", *options, "--dim", 4, 12, "--bootstrap", 0, "-o", tmp_path / "out").stdout
    assert list(json.loads(shown)["variants"]) == ["plain", "w4", "w12"]
    assert json.loads(shown)["study"] == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["aoq"], "name a folder for the study"),
        (["none.yaml", "-o", "x"], "none.yaml does not exist"),
        (["dual-path", "--tables", "9", "-o", "x"], "7, 8; got 9"),
        (["aoq", "-o", "x"], "--recipe, or choose it with --matcher"),
        (["aoq", "-o", "x", "--recipe", "vse-scenes", "--matcher", "vse++"], "one of the two"),
        (["aoq", "-o", "x", "--matcher", "vsrn"], "add --corpus"),
        (["aoq", "-o", "x", "--recipe", "vse-scenes", "--alpha", "big"], "--alpha takes numbers"),
        (["aoq", "-o", "x", "--recipe", "vse-scenes", "--top", "2.5"], "--top takes whole numbers"),
    ],
)
def test_mistakes_are_explained(arguments: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        study(*arguments)


def test_an_unknown_study_is_answered_with_the_nearest() -> None:
    assert "did you mean 'aoq'" in refused("aqo", "-o", "x")


def recipe_of(study: str, matcher: str | None, corpus: Path) -> str:
    return choose_recipe(load_study(study), matcher, corpus)


def corpus_named(folder: Path, name: str) -> Path:
    Corpus(name, [Image("i", "g")], [Text("t", "g", "words")], {"train": ["g"]}).save(folder)
    return folder


def test_the_matcher_and_the_corpus_choose_the_recipe(tmp_path: Path) -> None:
    scenes = corpus_named(tmp_path / "anything", "scenes")
    assert recipe_of("aoq", "vsrn", scenes) == "aoq-vsrn-scenes"
    assert recipe_of("aoq", "SCAN", scenes) == "aoq-scan-scenes"
    assert recipe_of("aoq", "vse++", scenes).endswith("vse-scenes")
    assert recipe_of("aoq", "bfan", corpus_named(tmp_path / "f30k", "flickr thirty")) == "aoq-bfan-f30k", (
        "by its folder"
    )
    odd = corpus_named(tmp_path / "odd", "odd")
    with pytest.raises(RecipeError, match=r"vsrn .*'odd'.*aoq-vsrn-scenes"):
        recipe_of("aoq", "vsrn", odd)
    with pytest.raises(RecipeError, match="did you mean 'scan'"):
        recipe_of("aoq", "scna", odd)


def test_values_with_spaces_between_them_are_one_argument() -> None:
    lists = {"--top": False, "--seeds": False, "--protocol": True}
    assert joined(["--top", "200", "300", "--seeds", "0", "1", "a=1"], lists) == [
        *("--top", "200,300", "--seeds", "0,1", "a=1")
    ]
    assert joined(["--protocol", "5fold", "5k", "-o", "5"], lists) == ["--protocol", "5fold,5k", "-o", "5"]
    assert joined(["-o", "7", "8"], lists) == ["-o", "7", "8"], "other options take one value"


def test_a_study_finds_the_recipe_of_its_method(tmp_path: Path) -> None:
    scenes, f30k = corpus_named(tmp_path / "a", "scenes"), corpus_named(tmp_path / "b", "f30k")
    assert recipe_of("mmca", "mmca", scenes) == recipe_of("mmca", None, scenes) == "mmca-scenes"
    assert recipe_of("dual-path", None, f30k) == "dual-path-f30k"
    assert recipe_of("hrem", None, f30k) == "hrem-fusion-bert-f30k", "what the paper's ablations are of"
    assert recipe_of("hrem", "hrem", scenes) == recipe_of("hrem", None, scenes) == "hrem-fusion-scenes"
    assert recipe_of("hrem", "standalone", scenes) == "hrem-standalone-scenes"


def test_sweeps_from_the_command_line(tiny_recipe: dict[str, Any], tiny_corpus: Path, tmp_path: Path) -> None:
    tiny_recipe["matcher"] = {"name": "hrem", "embed_dim": 8, "word_dim": 6, "heads": 2}
    relation = {"matching": "cosine", "top": 4, "farthest": None}
    tiny_recipe["stages"][0] |= {"loss": {"relation": relation}, "epochs": 1, "log_every": 1}
    path = tmp_path / "hrem.yaml"
    path.write_text(yaml.safe_dump(tiny_recipe), encoding="utf-8")
    options = ["--corpus", tiny_corpus, "--recipe", path, "-o", tmp_path / "out", "--device", "cpu", "--bootstrap", 0]
    sweeps = ["--lambda", 0.5, 1.5, "--tau", ".3", "--top", 4, "--hard-samples", "--curves", "--seed", 0]
    summary = json.loads(study("hrem", *options, *sweeps, "--json").stdout)
    assert list(summary["variants"]) == ["hrem", "relevance_weight0.5", "neighbours0.3", "without-relations"]
    assert summary["extras"].keys() == {"special_samples", "loss_curves", "hyperparameters"}
    assert re.search("No such option:? '?--curves", refused("mmca", "-o", "x", "--recipe", "mmca-scenes", "--curves"))


def test_a_second_recipe_takes_the_overrides_that_it_has_a_place_for() -> None:
    both = ["stages.*.epochs=1", "matcher.embed_dim=8", "data.workers=2", "stages.online.loss.triplet.margin=0.1"]
    base = ["matcher.heads=2", "stages.online.loss.relation.warmup_steps=10", "stages.*.loss.relation.top=5"]
    assert _fitting("vse-infinity-f30k", [*base, *both]) == both
    assert _fitting("hrem-standalone-f30k", [*base, *both]) == [*base, *both[:3]]


def test_resume_is_for_a_study_that_was_begun(recipe: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    options = ["aoq", "--corpus", tiny_corpus, "--recipe", recipe, "--seed", 0]
    with pytest.raises(RunError, match="no study"):
        study(*options, "--resume", tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    with pytest.raises(RecipeError, match="--out"):
        study(*options, "--resume", tmp_path / "a", "-o", tmp_path / "b")
    (tmp_path / "begun" / "runs" / "online-seed0").mkdir(parents=True)
    (tmp_path / "begun" / "runs" / "online-seed0" / "study.json").write_text("[]")
    with pytest.raises(QuintetError, match=r"study\.json"):  # it comes as far as the runs of that folder
        study(*options, "--resume", tmp_path / "begun")
