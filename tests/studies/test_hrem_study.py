from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from quintet.errors import QuintetError, RecipeError
from quintet.losses import OBJECTIVES
from quintet.studies.expand import build_study
from quintet.studies.measurements import loss_curves
from quintet.studies.runner import Settings, run_study
from quintet.studies.variants import Study, Trained
from quintet.training.recipe import load_recipe, parse_recipe
from quintet.training.recipe_models import Recipe

HREM = "hrem"


def recipe_of(study: Study, key: str) -> Recipe:
    return parse_recipe(study.variant(key).content(0))


def relation(study: Study, key: str) -> dict[str, Any]:
    return recipe_of(study, key).stages[0].loss["relation"]


def test_table_3() -> None:
    study = build_study("hrem", load_recipe("hrem-fusion-bert-f30k"), ablations=True)
    hierarchical, instance = study.tables[1:]
    assert [row.variant for row in hierarchical.rows] == [
        *("without-fragments", "without-visual", "without-textual", "without-relations", "intra", "inter", HREM)
    ]
    assert hierarchical.marks == ("visual", "textual", "intra-modal", "inter-modal")
    assert hierarchical.rows[3].marks == ("✓", "✓", "", "")
    assert hierarchical.columns == ("i2t_r1", "i2t_r5", "t2i_r1", "t2i_r5")
    assert [row.label for row in instance.rows] == [
        *("w/o connection matrix A", "w/o relevance matrix S", "w/o consistency L_cross"),
        "w/o consistency L_cross, L(v, u) kept",
        *("w/o regularisation L_reg", "w/o neighbour batches", "HREM"),
    ]
    assert recipe_of(study, "without-fragments").matcher.arguments["text_relation"] is False
    assert relation(study, "intra")["relations"] == "intra"
    assert relation(study, "without-connection")["neighbours"] == 1
    assert relation(study, "without-relevance")["relevance_weight"] == 0
    assert relation(study, "without-consistency")["consistency"] is False
    assert relation(study, "without-cross-loss")["consistency"] == "initial"
    readings = [row.published for row in instance.rows[2:4]]
    assert readings[0] == readings[1] != (), "the paper's one row stands beside both"
    assert recipe_of(study, "without-neighbours").stages[0].batches.kind == "random"
    for variant in study.variants:
        OBJECTIVES.create("relation", embed_dim=8, **relation(study, variant.key) | {"sampling_dim": 8})


def test_what_a_recipe_lacks_already_is_not_trained_again() -> None:
    study = build_study(
        "hrem", load_recipe("hrem-fusion-scenes", ["stages.online.batches.kind=random"]), ablations=True
    )
    assert study.tables[2].rows[5].variant == HREM
    assert "without-neighbours" not in [variant.key for variant in study.variants]


def test_figure_6_changes_one_number_at_a_time() -> None:
    base = load_recipe("hrem-standalone-f30k")
    study = build_study("hrem", base, relevance_weight=[0.5, 1.5], top=[5, 10], neighbours=[0.3, 0.5])
    assert [variant.key for variant in study.variants] == [HREM, "relevance_weight0.5", "top5", "neighbours0.3"]
    assert [row.label for row in study.tables[1].rows] == ["λ = 0.5", "λ = 1.5"]
    assert [[row.variant for row in table.rows][1] for table in study.tables[1:]] == [HREM] * 3, (
        "the paper's own values"
    )
    assert relation(study, "top5") == base.stages[0].loss["relation"] | {"top": 5}
    assert "Figure 6c" in study.tables[3].title


def test_both_mechanisms_and_their_ensemble_are_one_table() -> None:
    base = load_recipe("hrem-fusion-bert-coco")
    study = build_study("hrem", base, mechanisms=True, gpo=load_recipe("vse-infinity-bert-coco"))
    table = study.tables[1]
    assert [(row.variant, row.label) for row in table.rows] == [
        ("gpo", "GPO"),
        ("standalone", "HREM (Standalone)"),
        (HREM, "HREM (Fusion)"),
        ("full", "HREM (Full), both models"),
    ]
    assert relation(study, "standalone") == base.stages[0].loss["relation"] | {"mechanism": "standalone"}
    assert study.variant("full").members == ("standalone", HREM)
    other = build_study("hrem", load_recipe("hrem-standalone-bert-f30k"), mechanisms=True)
    assert other.variant("full").members == (HREM, "fusion")
    gpo = load_recipe("vse-infinity-bert-coco")
    assert (recipe_of(study, "gpo").matcher, recipe_of(study, "gpo").stages) == (gpo.matcher, gpo.stages)
    sums = [{published.place[:7]: published.values["rsum"] for published in row.published} for row in table.rows]
    assert [found["Table 1"] for found in sums] == [434.3, 443.1, 444.1, 450.9]


def test_recipes_without_relations_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"'hrem'.*'vse-scenes' .*'vse\+\+'"):
        build_study("hrem", load_recipe("vse-scenes"))
    with pytest.raises(RecipeError, match=r"one stage .*relation"):
        build_study("hrem", load_recipe("hrem-fusion-scenes", ["stages.online.loss={triplet: {}}"]))


def _lines(figure: Path) -> set[str]:
    """The words of a figure."""
    return {node.text for node in ElementTree.parse(figure).iter() if node.tag.endswith("}text") and node.text}


@pytest.fixture
def tiny_hrem(tiny_recipe: dict[str, Any]) -> Recipe:
    tiny_recipe["matcher"] = {"name": "hrem", "embed_dim": 8, "word_dim": 6, "heads": 2}
    loss = {"relation": {"matching": "cosine", "top": 4, "warmup_epochs": 1, "farthest": None}}
    tiny_recipe["stages"][0] |= {"loss": loss, "epochs": 3, "log_every": 1}
    return parse_recipe(tiny_recipe)


def test_it_trains_with_special_samples_and_loss_curves(tiny_hrem: Recipe, tmp_path: Path) -> None:
    study = build_study("hrem", tiny_hrem, top=[2, 6], neighbours=[0.3], hard_samples=True, curves=True)
    assert [variant.key for variant in study.variants] == [HREM, "top2", "top6", "neighbours0.3", "without-relations"]
    summary = run_study(study, tmp_path / "out", Settings(seeds=(0,), device="cpu", bootstrap=0, resamples=20))
    special = summary["extras"]["special_samples"]["rows"]
    assert [(row["samples"], row["percent"], row["label"]) for row in special[:3]] == [
        ("hard", 5, "w/o relations among instances"),
        ("hard", 5, "HREM"),
        ("hard", 10, "w/o relations among instances"),
    ]
    assert all(0 <= row["i2t_r1"] <= 100 for row in special)
    curves = summary["extras"]["loss_curves"]["rows"]
    assert [row["epoch"] for row in curves] == [2, 3], "the first epoch is the warm-up"
    log = (tmp_path / "out" / "runs" / "hrem-seed0" / "stages" / "online" / "log.jsonl").read_text(encoding="utf-8")
    lines = [row for row in map(json.loads, log.splitlines()) if row["kind"] == "train" and row["epoch"] == 2]
    mean = sum(row["relation.enhanced"] for row in lines) / len(lines)
    assert curves[-1]["enhanced"] == pytest.approx(mean)
    points = summary["extras"]["hyperparameters"]["rows"]
    assert [(row["name"], row["value"]) for row in points] == [("K", 2), ("K", 4), ("K", 6), ("τ", 0.3), ("τ", 0.5)]
    metrics = {key: summary["variants"][key]["runs"][0]["protocols"]["full"]["metrics"] for key in (HREM, "top6")}
    assert points[1]["rsum"] == points[4]["rsum"] == metrics[HREM]["rsum"]
    assert points[2]["i2t_r1"] == metrics["top6"]["i2t_r1"]
    drawn = {name: _lines(tmp_path / "out" / "figures" / f"{name}.svg") for name in ("hyperparameters", "loss-curves")}
    assert drawn["hyperparameters"] >= {"R@1 (%) by K", "R@1 (%) by τ", "text to image R@1 (%)"}
    assert not any("λ" in text for text in drawn["hyperparameters"]), "it was not changed"
    assert drawn["loss-curves"] >= {"triplet loss", "initial embeddings", "enhanced embeddings"}
    text = (tmp_path / "out" / "tables.md").read_text(encoding="utf-8")
    assert "## Hard and infrequent samples (Table 4 of the paper)" in text
    assert "| infrequent " in text
    folders = {HREM: tmp_path / "out" / "runs" / "without-relations-seed0"}
    with pytest.raises(QuintetError, match="the relations had started"):
        loss_curves(Trained(folders, {HREM: tiny_hrem}, {HREM: "HREM"}, "cpu"))
