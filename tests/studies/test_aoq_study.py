from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quintet.data.corpus import Corpus
from quintet.errors import RecipeError
from quintet.evaluation import retrieval_metrics
from quintet.files import read_json, read_jsonl
from quintet.losses import OBJECTIVES
from quintet.mining import mine as mining
from quintet.runs.run import load
from quintet.studies.expand import build_study
from quintet.studies.runner import Settings, run_study
from quintet.studies.variants import Row, Study
from quintet.training.recipe import list_recipes, load_recipe, parse_recipe
from quintet.training.recipe_models import Recipe

QUICK = Settings(seeds=(0, 1), device="cpu", bootstrap=0, resamples=50)
MAIN = ["online", "off-tri", "off-quin", "adap-off-quin"]
ABLATIONS = ["only-offline", "fine-tune", "online-quin", "without-offline-adap", "squared"]


@pytest.fixture
def two_rounds(tiny_recipe: dict[str, Any]) -> Recipe:
    second = copy.deepcopy(tiny_recipe["stages"][0]) | {
        "name": "offline",
        "epochs": 1,
        "loss": {"quintuplet": {"variant": "adaptive", "alpha": 0.4, "warmup_epochs": 0.5}},
        "negatives": {"from": "online", "top_texts": 10, "top_images": 5},
    }
    return parse_recipe(tiny_recipe | {"stages": [*tiny_recipe["stages"], second]})


def recipe_of(study: Study, key: str) -> Recipe:
    return parse_recipe(study.variant(key).content(0))


def keys(study: Study) -> list[str]:
    return [variant.key for variant in study.variants]


def test_options_are_those_of_its_file(two_rounds: Recipe) -> None:
    assert [extra.key for extra in build_study("aoq", two_rounds).extras] == ["training_curves", "cross_retrieval"]
    assert build_study("aoq", two_rounds, timing=True).extras[-1].key == "timing"
    with pytest.raises(RecipeError, match=r"'tops'.*'top'"):
        build_study("aoq", two_rounds, tops=[200])


def test_the_four_losses_differ_in_their_variant_alone(two_rounds: Recipe) -> None:
    study = build_study("aoq", two_rounds)
    assert keys(study) == MAIN
    assert [variant.label for variant in study.variants] == [
        "VSE++",
        "VSE++ + OffTri",
        "VSE++ + OffQuin",
        "VSE++ + AdapOffQuin",
    ]
    online = recipe_of(study, "online")
    assert online.stages == two_rounds.stages[:1]
    for key, loss in (("off-tri", "triplet"), ("off-quin", "quintuplet"), ("adap-off-quin", "adaptive")):
        (stage,) = recipe_of(study, key).stages
        assert stage.loss == {"quintuplet": {"variant": loss, "alpha": 0.4, "warmup_epochs": 0.5}}
        assert stage.negatives is not None
        assert (stage.negatives.source, stage.negatives.top_texts, stage.negatives.top_images) == ("@online", 10, 5)
        assert (stage.init, stage.epochs) == ("scratch", 1)
        assert study.variant(key).needs == ("online",)


def test_ablations(two_rounds: Recipe) -> None:
    study = build_study("aoq", two_rounds, ablations=True)
    assert keys(study) == [*MAIN, *ABLATIONS]
    losses = {key: recipe_of(study, key).stages[0].loss["quintuplet"] for key in ABLATIONS}
    assert losses["only-offline"]["variant"] == "only_offline"
    assert losses["only-offline"]["warmup_epochs"] == 0, "it has no online terms to warm up with"
    assert recipe_of(study, "fine-tune").stages[0].init == "@online"
    assert losses["squared"] == {"variant": "quintuplet", "squared": True, "alpha": 0.4, "warmup_epochs": 0.5}
    for key, arguments in losses.items():
        OBJECTIVES.create("quintuplet", **arguments)
        assert recipe_of(study, key).stages[0].negatives == recipe_of(study, "adap-off-quin").stages[0].negatives
    table = study.tables[1]
    assert table.rows[0].label == "VSE++ (OnlyOffline)"
    assert (table.compare, len(table.columns)) == ("adap-off-quin", 6)


def test_list_lengths_keep_the_proportion_and_the_own_length_is_not_trained_twice(two_rounds: Recipe) -> None:
    study = build_study("aoq", two_rounds, top=[4, 10, 20])
    assert keys(study) == [*MAIN, "top4", "top20"]
    negatives = recipe_of(study, "top4").stages[0].negatives
    assert negatives is not None
    assert (negatives.top_texts, negatives.top_images) == (4, 2)
    assert [(row.variant, row.label) for row in study.tables[1].rows] == [
        ("top4", "VSE++ (h = 4)"),
        ("adap-off-quin", "VSE++ (h = 10)"),
        ("top20", "VSE++ (h = 20)"),
    ]


def test_alpha_and_beta_change_one_at_a_time(two_rounds: Recipe) -> None:
    study = build_study("aoq", two_rounds, alpha=[0.2, 0.4], beta=[1.0, 2.0])
    assert [row.label for row in study.tables[1].rows] == [
        "VSE++ (β = 1.5, α = 0.2)",  # noqa: RUF001
        "VSE++ (β = 1.5, α = 0.4)",  # noqa: RUF001
        "VSE++ (β = 1, α = 0.4)",  # noqa: RUF001
        "VSE++ (β = 2, α = 0.4)",  # noqa: RUF001
    ]
    assert study.tables[1].rows[1].variant == "adap-off-quin"
    loss = recipe_of(study, "beta1-alpha0.4").stages[0].loss["quintuplet"]
    assert (loss["alpha"], loss["beta"], loss["variant"]) == (0.4, 1.0, "adaptive")
    assert len(study.variants) == 4 + 3


def test_batch_sizes_are_of_the_online_loss(two_rounds: Recipe) -> None:
    study = build_study("aoq", two_rounds, batch_size=[9])
    stage = recipe_of(study, "online-batch9").stages[0]
    assert (stage.batches.size, stage.negatives) == (9, None)
    assert [row.label for row in study.tables[1].rows] == ["VSE++ (batch 6)", "VSE++ (batch 9)"]
    assert recipe_of(study, "online").stages[0].batches.size == 6


def test_a_recipe_of_one_round_gets_a_second(tiny_recipe: dict[str, Any]) -> None:
    tiny_recipe["stages"][0]["loss"]["caption"] = {}
    study = build_study("aoq", parse_recipe(tiny_recipe))
    (stage,) = recipe_of(study, "adap-off-quin").stages
    assert stage.name == "offline"
    assert stage.loss == {
        "quintuplet": {"margin_online": 0.2, "warmup_epochs": 1, "variant": "adaptive"},
        "caption": {},
    }
    assert stage.negatives is not None
    assert (stage.negatives.source, stage.negatives.top_texts, stage.negatives.top_images) == ("@online", 300, 60)
    assert (stage.epochs, stage.batches.size) == (2, 6)


def test_a_recipe_with_a_teacher_keeps_it_and_gets_a_baseline(two_rounds: Recipe) -> None:
    offline = two_rounds.stages[1]
    assert offline.negatives is not None
    taught = offline.model_copy(update={"negatives": offline.negatives.model_copy(update={"source": "runs/teacher"})})
    study = build_study("aoq", two_rounds.model_copy(update={"stages": (taught,)}))
    stage = recipe_of(study, "online").stages[0]
    assert stage.loss == {"triplet": {"margin": 0.2, "negatives": "hardest", "warmup_epochs": 0.5}}
    assert (stage.negatives, stage.epochs) == (None, 1)
    second = recipe_of(study, "off-tri").stages[0].negatives
    assert second is not None
    assert second.source == "runs/teacher"
    assert study.variant("off-tri").needs == ()


def test_fine_tuning_recipes_start_from_round_one(two_rounds: Recipe) -> None:
    tuned = two_rounds.stages[1].model_copy(update={"init": "previous"})
    study = build_study("aoq", two_rounds.model_copy(update={"stages": (two_rounds.stages[0], tuned)}))
    assert recipe_of(study, "off-quin").stages[0].init == "@online"


def test_what_comes_to_the_same_is_trained_once(two_rounds: Recipe) -> None:
    loss = {"quintuplet": {"alpha": 0.4}}  # no warm-up that fine-tuning could switch off
    tuned = two_rounds.stages[1].model_copy(update={"init": "previous", "loss": loss})
    study = build_study("aoq", two_rounds.model_copy(update={"stages": (two_rounds.stages[0], tuned)}), ablations=True)
    assert study.tables[1].rows[1] == Row("adap-off-quin", "VSE++ (Fine-tune)")
    assert "fine-tune" not in keys(study)


def test_recipes_that_make_no_study_are_refused(tiny_recipe: dict[str, Any], two_rounds: Recipe) -> None:
    third = two_rounds.stages[1].model_copy(update={"name": "third"})
    with pytest.raises(RecipeError, match=r"2 stages .*quintuplet"):
        build_study("aoq", two_rounds.model_copy(update={"stages": (*two_rounds.stages, third)}))
    tiny_recipe["stages"][0]["loss"] = {"caption": {}}
    with pytest.raises(RecipeError, match="no triplet loss"):
        build_study("aoq", parse_recipe(tiny_recipe))


@pytest.mark.parametrize(
    "name", [name for name in list_recipes() if name.startswith(("aoq-", "vse", "scan", "vsrn", "bfan"))]
)
def test_every_shipped_recipe_makes_a_study(name: str) -> None:
    study = build_study(
        "aoq", load_recipe(name), ablations=True, top=[50], alpha=[0.2], beta=[1.0], batch_size=[192], timing=True
    )
    assert len(study.variants) == 4 + 5 + 1 + 2 + 1
    for variant in study.variants:
        for stage in parse_recipe(variant.content(0)).stages:
            for loss, arguments in stage.loss.items():
                assert set(arguments) <= set(OBJECTIVES.parameters(loss))


def test_a_whole_study(two_rounds: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minings: list[str] = []
    mine = mining.mine_codes

    def counted(*arguments: Any, **options: Any) -> Any:
        minings.append(options["source"]["weights"])
        return mine(*arguments, **options)

    monkeypatch.setattr(mining, "mine_codes", counted)
    study = build_study("aoq", two_rounds, timing=True)
    summary = run_study(study, tmp_path, QUICK)
    assert {run["status"] for variant in summary["variants"].values() for run in variant["runs"]} == {"trained"}
    assert len(minings) == len(set(minings)) == 2, "one mining a seed, with that seed's first round"
    assert [row["label"] for row in summary["extras"]["timing"]["rows"]] == [v.label for v in study.variants]
    text = (tmp_path / "tables.md").read_text(encoding="utf-8")
    assert "Training time per batch" in text
    assert "mining" not in text
    lists = [tmp_path / "runs" / f"{key}-seed0" / "stages" / "offline" / "negatives" for key in MAIN[1:]]
    for other in lists[1:]:
        np.testing.assert_array_equal(np.load(lists[0] / "texts.npy"), np.load(other / "texts.npy"))
    minings.clear()
    again = run_study(study, tmp_path, QUICK)
    assert minings == []
    assert again["variants"] == summary["variants"]
    assert again["extras"] == summary["extras"]


def test_draws_from_both_distributions_and_an_own_alpha_and_beta(two_rounds: Recipe) -> None:
    study = build_study("aoq", two_rounds, draws=True, ablations=True, own_alpha=[0.2, 0.4], own_beta=[1.0])
    normal, uniform = (recipe_of(study, key).stages[0] for key in ("normal", "adap-off-quin"))
    assert normal.negatives is not None
    assert uniform.negatives is not None
    assert (normal.negatives.distribution, uniform.negatives.distribution) == ("normal", "uniform")
    assert normal.loss == uniform.loss
    tables = {table.title.split(" (")[0]: table for table in study.tables}
    draws = tables["Uniform and normal draws of offline negatives"]
    assert [(row.variant, row.label) for row in draws.rows] == [
        ("adap-off-quin", "VSE++ (uniform draws)"),
        ("normal", "VSE++ (normal draws)"),
    ]
    own = tables["Alpha and beta of w/o OfflineAdap, which the paper adjusts on the validation split"]
    assert own.validation
    names = [row.variant for row in own.rows]
    assert names == ["without-offline-adap", *(f"without-offline-adap-beta1-alpha{a:g}" for a in (0.2, 0.4))]
    assert names == [row.variant for row in study.tables[1].rows if "w/o OfflineAdap" in row.label]
    loss = recipe_of(study, names[1]).stages[0].loss["quintuplet"]
    assert (loss["variant"], loss["alpha"], loss["beta"]) == ("without_offline_adaptation", 0.2, 1.0)
    one = build_study("aoq", two_rounds, ablations=True, own_beta=[2.0])
    assert "without-offline-adap-beta2-alpha0.4" in keys(one), "alpha stays the recipe's"


def test_ensembles_of_seeds_and_of_two_recipes(two_rounds: Recipe, tmp_path: Path) -> None:
    wider = two_rounds.model_copy(update={"matcher": two_rounds.matcher.model_copy(update={"embed_dim": 12})})
    study = build_study("aoq", two_rounds, ensembles=True, partner=wider)
    assert study.variant("both-off-tri").members == ("off-tri", "partner-off-tri")
    assert study.variant("seeds-online").members == ("online",)
    second = recipe_of(study, "partner-off-quin")
    assert second.matcher.arguments["embed_dim"] == 12
    assert second.stages[0].negatives is not None
    assert second.stages[0].negatives.source == "@partner-online", "a second model mines with its own first round"
    summary = run_study(study, tmp_path, QUICK)
    assert {run["status"] for variant in summary["variants"].values() for run in variant["runs"]} == {"trained"}
    corpus = Corpus.open(two_rounds.data.corpus or "")
    split = corpus.split("test")

    def mean_metrics(*names: str) -> dict[str, float]:
        runs = [load(tmp_path / "runs" / name, device="cpu") for name in names]
        scores = sum(run.score(*run.encode_split(corpus, "test")) for run in runs) / len(runs)
        return retrieval_metrics(scores, split.image_groups, split.text_groups)

    def measured(key: str) -> list[dict[str, float]]:
        return [run["protocols"]["full"]["metrics"] for run in summary["variants"][key]["runs"]]

    expected = [mean_metrics(f"online-seed{seed}", f"partner-online-seed{seed}") for seed in (0, 1)]
    for found, wanted in zip(measured("both-online"), expected, strict=True):
        assert found == pytest.approx(wanted)
    (two_seeds,) = measured("seeds-off-tri")
    assert two_seeds == pytest.approx(mean_metrics("off-tri-seed0", "off-tri-seed1"))
    text = (tmp_path / "tables.md").read_text(encoding="utf-8")
    for label in ("VSE++, two seeds", "VSE++ + AdapOffQuin, both models", "VSE++ + OffTri, second model"):
        assert f"| {label} " in text
    assert "ensembles (the mean" in text


def test_one_seed_makes_no_ensemble_and_says_so(two_rounds: Recipe, tmp_path: Path) -> None:
    study = build_study("aoq", two_rounds, ensembles=True)
    summary = run_study(study, tmp_path, Settings(seeds=(3,), device="cpu", bootstrap=0, resamples=50))
    (run,) = summary["variants"]["seeds-online"]["runs"]
    assert (run["status"], run["reason"]) == ("skipped", "the ensemble needs a second seed")
    assert "needs a second seed" in (tmp_path / "tables.md").read_text(encoding="utf-8")


def test_figures_and_the_epochs_that_pass_the_baseline(two_rounds: Recipe, tmp_path: Path) -> None:
    study = build_study("aoq", two_rounds)
    summary = run_study(study, tmp_path, QUICK)
    extras = summary["extras"]
    assert extras["training_curves"]["figures"] == ["figures/training-curves.svg"]
    assert extras["cross_retrieval"]["figures"] == ["figures/cross-retrieval.svg"]
    drawn = (tmp_path / "figures" / "training-curves.svg").read_text(encoding="utf-8")
    for label in ("VSE++ + OffTri", "text to image R@1", "Figure 4"):
        assert label in drawn
    rows = extras["training_curves"]["rows"]
    assert [row["label"] for row in rows] == ["VSE++ + OffTri", "VSE++ + OffQuin", "VSE++ + AdapOffQuin"]
    for row, key in zip(rows, MAIN[1:], strict=True):
        for metric in ("t2i_r1", "i2t_r1"):
            expected = []
            for seed in (0, 1):
                own, base = (validations(tmp_path / "runs" / f"{one}-seed{seed}", metric) for one in (key, "online"))
                above = [number for number, value in enumerate(own, 1) if value > max(base)]
                expected.append(str(above[0]) if above else "never")
            assert row[metric] == ", ".join(expected)
    counts = extras["cross_retrieval"]["rows"]
    assert [row["label"] for row in counts] == [variant.label for variant in study.variants]
    assert {sum(value for name, value in row.items() if name != "label") for row in counts} == {12}, (
        "pairs of the split"
    )
    text = (tmp_path / "tables.md").read_text(encoding="utf-8")
    assert "passes the best of VSE++ (Figure 4)" in text
    assert "(figures/cross-retrieval.svg)" in text
    (tmp_path / "figures" / "cross-retrieval.svg").unlink()
    run_study(study, tmp_path, QUICK)
    assert (tmp_path / "figures" / "cross-retrieval.svg").is_file(), "a figure that is gone is drawn again"


def validations(run: Path, metric: str) -> list[float]:
    (log,) = run.glob("stages/*/log.jsonl")
    return [row[metric] for row in read_jsonl(log) if row["kind"] == "validation"]


def test_ablations_run_and_lists_of_another_length_are_mined_anew(two_rounds: Recipe, tmp_path: Path) -> None:
    study = build_study("aoq", two_rounds, ablations=True, top=[4], alpha=[0.2], batch_size=[9])
    summary = run_study(study, tmp_path, Settings(seeds=(0,), device="cpu", bootstrap=0, resamples=50))
    status = {key: variant["runs"][0]["status"] for key, variant in summary["variants"].items()}
    assert status == dict.fromkeys(keys(study), "trained")
    shape = {
        key: read_json(tmp_path / "runs" / f"{key}-seed0" / "stages" / "offline" / "negatives" / "manifest.json")[
            "shapes"
        ]
        for key in ("adap-off-quin", "top4")
    }
    assert (shape["adap-off-quin"]["texts"][1], shape["top4"]["texts"][1]) == (10, 4)
    text = (tmp_path / "tables.md").read_text(encoding="utf-8")
    for label in ("OnlyOffline", "Fine-tune", "OnlineQuin", "w/o OfflineAdap", "squared", "h = 4", "batch 9"):
        assert f"| VSE++ ({label}) " in text
