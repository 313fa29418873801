from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quintet.data.corpus import Corpus
from quintet.errors import RecipeError
from quintet.evaluation.scoring import Member
from quintet.files import read_json
from quintet.losses import OBJECTIVES
from quintet.report.analysis.distributions import split_similarities
from quintet.runs.checkpoint import load_tensors
from quintet.runs.run import load
from quintet.studies.expand import build_study
from quintet.studies.runner import Settings, run_study
from quintet.studies.variants import Study
from quintet.training.build import build_matcher, build_tokenizer, complete_model
from quintet.training.inputs import open_data
from quintet.training.recipe import list_recipes, load_recipe, parse_recipe
from quintet.training.recipe_models import Recipe

TABLE_2 = ["instance-1", "ranking-1", "instance-2", "ranking-2", "instance-ranking", "full"]


def stage(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "batches": {"size": 6},
        "optimizer": {"name": "sgd", "lr": 0.05},
        "reduction": "mean",
        "epochs": 1,
        "log_every": 1,
    } | more


@pytest.fixture
def content(tiny_corpus: Path) -> dict[str, Any]:
    tokenizer = {"min_count": 1, "special_tokens": False, "unknown": "drop"}
    matcher = {"name": "dual-path", "embed_dim": 8, "word_dim": 6, "text_layout": "small", "text_width": 2, "length": 8}
    losses = {"instance": {"dropout": 0.1}}
    return {
        "name": "toy",
        "data": {"corpus": str(tiny_corpus), "features": "toy", "tokenizer": tokenizer},
        "matcher": matcher,
        "stages": [
            stage("one", freeze=["matcher.image_encoder.head.0.*"], loss=losses),
            stage("two", init="previous", loss=losses | {"ranking": {"margin": 0.5}}),
        ],
    }


@pytest.fixture
def base(content: dict[str, Any]) -> Recipe:
    return parse_recipe(content)


def with_vectors(content: dict[str, Any], path: Path) -> dict[str, Any]:
    words = ["a", "thing", "red", "green", "blue", "small", "large", "round", "square", "striped", "plain", "old"]
    path.write_text("".join(f"{word} {number} 0 0 1 0 0\n" for number, word in enumerate(words)), encoding="utf-8")
    content["data"]["tokenizer"] |= {"word_vectors": str(path), "vectors_only": True}
    return content


def recipe_of(study: Study, key: str) -> Recipe:
    return parse_recipe(study.variant(key).content(0))


def test_table_two_differs_in_losses_and_starts_alone(base: Recipe) -> None:
    study = build_study("dual-path", base, tables=[2])
    assert [variant.key for variant in study.variants] == TABLE_2
    assert study.reference == "full"
    found = {key: recipe_of(study, key).stages for key in TABLE_2}
    assert all(len(stages) == 1 for stages in found.values())
    assert {key: (sorted(stages[0].loss), stages[0].init) for key, stages in found.items()} == {
        "instance-1": (["instance"], "scratch"),
        "ranking-1": (["ranking"], "scratch"),
        "instance-2": (["instance"], "@instance-1"),
        "ranking-2": (["ranking"], "@ranking-1"),
        "instance-ranking": (["ranking"], "@instance-1"),
        "full": (["instance", "ranking"], "@instance-1"),
    }
    assert found["ranking-1"][0].loss == {"ranking": {"margin": 0.5}}
    assert found["ranking-1"][0].freeze == base.stages[0].freeze
    assert found["full"][0].loss == base.stages[1].loss
    (table,) = study.tables
    assert [(row.variant, row.label, *row.marks) for row in table.rows] == [
        ("ranking-1", "Only Ranking Loss", "I"),
        ("instance-1", "Only Instance Loss", "I"),
        ("instance-2", "Only Instance Loss", "II"),
        ("ranking-2", "Only Ranking Loss", "II"),
        ("instance-ranking", "Only Ranking Loss after instance loss", "II"),
        ("full", "Full model", "II"),
    ]
    assert table.columns == ("i2t_r1", "i2t_r10", "t2i_r1", "t2i_r10", "S")


def test_the_other_tables_change_one_thing_of_stage_one(content: dict[str, Any], tmp_path: Path) -> None:
    base = parse_recipe(with_vectors(content, tmp_path / "vectors.txt"))
    study = build_study("dual-path", base, tables=[3, 4, 5, 6], categories=[2, 5])
    assert [variant.key for variant in study.variants] == [
        "instance-1",
        "text-resnet50",
        "categories2",
        "categories5",
        "random-words",
        "left-alignment",
    ]
    assert study.reference == "instance-1"
    assert study.notes == ()
    own = recipe_of(study, "instance-1").model_dump()
    changes: dict[str, dict[str, Any]] = {}
    for variant in study.variants[1:]:
        other = recipe_of(study, variant.key).model_dump()
        changes[variant.key] = {
            "matcher": {key: value for key, value in other["matcher"].items() if own["matcher"].get(key) != value},
            "tokenizer": {
                key: value
                for key, value in other["data"]["tokenizer"].items()
                if own["data"]["tokenizer"][key] != value
            },
            "loss": other["stages"][0]["loss"] if own["stages"] != other["stages"] else {},
        }
    nothing: dict[str, Any] = {"matcher": {}, "tokenizer": {}, "loss": {}}
    assert changes == {
        "text-resnet50": nothing | {"matcher": {"text_layout": "resnet50"}},
        "categories2": nothing | {"loss": {"instance": {"dropout": 0.1, "categories": 2}}},
        "categories5": nothing | {"loss": {"instance": {"dropout": 0.1, "categories": 5}}},
        "random-words": nothing | {"tokenizer": {"vectors_start": False}},
        "left-alignment": nothing | {"matcher": {"alignment": "left", "test_positions": "left"}},
    }
    assert [len(table.rows) for table in study.tables] == [2, 3, 2, 2]
    assert study.tables[1].rows[-1].label == "Instance loss, 12 classes"


@pytest.mark.parametrize("name", ["dual-path-f30k", "dual-path-released-f30k"])
def test_table_three_has_the_next_deeper_text_cnn(name: str) -> None:
    study = build_study("dual-path", load_recipe(name), tables=[3])
    own, other = (row.variant for row in study.tables[0].rows)
    assert own == "instance-1"
    assert recipe_of(study, other).matcher.arguments["text_layout"] == "resnet152"


def test_image_towers_are_trained_in_both_stages_with_their_own_weights(tmp_path: Path) -> None:
    """Tables I, VII and VIII: stage I with the CNN fixed, stage II with all of it, of every tower."""
    files = {tower: tmp_path / f"{tower}.pth" for tower in ("vgg16", "vgg19", "resnet152")}
    for file in files.values():
        file.touch()
    base = load_recipe("dual-path-cuhk", ["matcher.tower_weights=resnet50.pth"])
    study = build_study("dual-path", base, tables=[1, 7, 8], **files)
    labels = [[(row.label, *row.marks) for row in table.rows] for table in study.tables]
    pairs = {name: [(name, "I"), (name, "II")] for name in ("vgg19-fc7", "resnet50", "resnet152", "vgg16-fc7")}
    assert labels == [
        pairs["vgg19-fc7"] + pairs["resnet50"] + pairs["resnet152"],
        pairs["vgg16-fc7"] + pairs["resnet50"],
        pairs["vgg19-fc7"] + pairs["resnet50"],
    ]
    for key, tower in (("vgg16", "vgg16-fc7"), ("vgg19", "vgg19-fc7"), ("resnet152", "resnet152")):
        first, second = recipe_of(study, f"{key}-1"), recipe_of(study, f"{key}-2")
        for recipe in (first, second):
            given = recipe.matcher.arguments
            assert (given["tower"], given["tower_weights"]) == (tower, str(files[key]))
            assert given.get("text_layout", "resnet50") == ("resnet152" if key == "resnet152" else "resnet50")
        assert first.stages == (base.stages[0],)
        assert (second.stages[0].init, second.stages[0].freeze) == (f"@{key}-1", ())
        assert second.stages[0].loss == base.stages[1].loss
    few = build_study("dual-path", base, tables=[7])
    assert [row.variant for row in few.tables[0].rows] == ["instance-1", "full"], "towers without weights are no rows"


def test_image_towers_need_pixels(base: Recipe) -> None:
    study = build_study("dual-path", base, tables=[1, 7, 8])
    assert study.tables == ()
    assert "reads features" in study.notes[0]


def test_random_words_are_the_same_words_without_their_vectors(content: dict[str, Any], tmp_path: Path) -> None:
    study = build_study("dual-path", parse_recipe(with_vectors(content, tmp_path / "vectors.txt")), tables=[5])
    tables, words = {}, {}
    for key in ("instance-1", "random-words"):
        recipe = recipe_of(study, key)
        data = open_data(recipe, lambda _: None)
        tokenizer = build_tokenizer(recipe.data.tokenizer, data.train)
        matcher: Any = build_matcher(complete_model(recipe, data, tokenizer), recipe.data.tokenizer, tokenizer, seed=0)
        words[key], tables[key] = tokenizer.state()["words"], matcher.text_encoder.cnn.embed.weight
    assert words["instance-1"] == words["random-words"]
    red = words["instance-1"].index("red")
    assert tables["instance-1"][red].tolist() == [2, 0, 0, 1, 0, 0]
    assert tables["random-words"][red].tolist() != [2, 0, 0, 1, 0, 0]


def test_what_cannot_be_compared_is_said(content: dict[str, Any]) -> None:
    content["matcher"]["text_layout"] = "resnet152"
    study = build_study("dual-path", parse_recipe(content), tables=[3, 5])
    assert [variant.key for variant in study.variants] == ["instance-1"]
    assert "resnet152" in study.notes[0]
    assert "data.tokenizer.word_vectors=FILE" in study.notes[1]


def test_categories_are_as_many_per_group_as_in_the_paper(content: dict[str, Any]) -> None:
    study = build_study("dual-path", parse_recipe(content), tables=[4])  # 12 training groups: 0.3 and 1.06 categories
    assert [variant.key for variant in study.variants] == ["instance-1", "categories2"]


@pytest.mark.parametrize("name", [name for name in list_recipes() if name.startswith("dual-path-")])
def test_shipped_recipes_have_the_two_stages(name: str, tiny_corpus: Path) -> None:
    study = build_study("dual-path", load_recipe(name, [f"data.corpus={tiny_corpus}"]), categories=[3])
    for variant in study.variants:
        recipe = parse_recipe(variant.content(0))
        for part in recipe.stages:
            for loss, arguments in part.loss.items():
                facts = {"groups": 12, "embed_dim": 8}
                OBJECTIVES.create(loss, **OBJECTIVES.complete(loss, arguments, facts))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"matcher": {"name": "vse++"}}, "is of matcher 'vse\\+\\+'"),
        ({"stages": [stage("one", loss={"instance": {}})]}, "the two stages"),
        ({"matcher": {"name": "dual-path", "alignment": "left"}}, "leave alignment at shift"),
    ],
)
def test_other_recipes_are_refused(content: dict[str, Any], change: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        build_study("dual-path", parse_recipe(content | change))
    with pytest.raises(RecipeError, match="7, 8; got 9"):
        build_study("dual-path", parse_recipe(content), tables=[9])
    with pytest.raises(RecipeError, match="there is no file"):
        build_study("dual-path", parse_recipe(content), tables=[7], vgg16="missing.pth")


def test_losses_and_stages_with_their_overlap(base: Recipe, tiny_corpus: Path, tmp_path: Path) -> None:
    settings = Settings(seeds=(0,), device="cpu", bootstrap=0, resamples=20)
    summary = run_study(build_study("dual-path", base, tables=[2]), tmp_path, settings)
    assert not_trained(summary) == []
    run = load(tmp_path / "runs" / "full-seed0")
    corpus = Corpus.open(tiny_corpus)
    validation, test = (
        split_similarities([Member.encode(run, corpus, split)], split).overlap
        for split in (corpus.split("dev"), corpus.split("test"))
    )
    results = tmp_path / "results"
    assert read_json(results / "full-seed0.full.json")["metrics"]["S"] == pytest.approx(test)
    assert read_json(results / "validation" / "full-seed0.full.json")["metrics"]["S"] == pytest.approx(validation)
    lines = (tmp_path / "tables.md").read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if "(Table II)" in line)
    rows = [line.split("|")[-2].strip() for line in lines[start:] if line.startswith("| Full model ")]
    assert rows[:2] == [f"{validation:.4f}", f"{test:.4f}"], "as in the paper, the validation split first"
    (published,) = (line for line in lines if line.startswith("| published: IV-B and Fig. 5, full model"))
    assert published.split("|")[-2].strip() == "0.0914"

    before, after = (
        load_tensors(tmp_path / "runs" / f"{key}-seed0" / "stages" / name / "objective.safetensors")[0]
        for key, name in (("instance-1", "one"), ("instance-2", "two"))
    )
    (name,) = (name for name in before if name.endswith("weight"))
    moved = (before[name] - after[name]).abs().mean()
    assert moved < 0.5 * before[name].abs().mean(), "stage II goes on with the classifier of stage I"


@pytest.mark.slow
def test_all_tables_with_spread(content: dict[str, Any], tmp_path: Path) -> None:
    base = parse_recipe(with_vectors(content, tmp_path / "vectors.txt"))
    settings = Settings(seeds=(0, 1), device="cpu", bootstrap=0, resamples=20)
    summary = run_study(build_study("dual-path", base, categories=[3]), tmp_path / "out", settings)
    assert not_trained(summary) == []
    assert len(summary["variants"]) == 6 + 4
    text = (tmp_path / "out" / "tables.md").read_text(encoding="utf-8")
    for number in ("II", "III", "IV", "V", "VI"):
        assert f"(Table {number})" in text
    found = summary["variants"]["full"]["protocols"]["full"]
    assert f"{found['mean']['S']:.4f} ± {found['spread']['S']:.4f}" in text


def not_trained(summary: dict[str, Any]) -> list[str]:
    runs = [run for variant in summary["variants"].values() for run in variant["runs"]]
    return [run["reason"] for run in runs if run["status"] != "trained"]
