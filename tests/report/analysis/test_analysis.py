"""Analyses of runs that were trained on the tiny corpus: numbers against plain ones, figures, reasons, mistakes."""

from __future__ import annotations

import copy
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as PILImage

from quintet.data.corpus import Corpus, Image, Text
from quintet.data.vocabulary import WordVocabulary
from quintet.errors import QuintetError, RecipeError
from quintet.evaluation.correlation import correlation_map, map_summary
from quintet.files import read_json, write_jsonl
from quintet.models import create_model
from quintet.report.analysis import ANALYSES, ONLY_ON_REQUEST, analyse
from quintet.report.analysis.ranks import recall_curve
from quintet.report.analysis.subject import Options, Subject, distinct_names, open_subjects
from quintet.runs.writing import write_run
from quintet.training.recipe import parse_recipe
from quintet.training.stages import train

pytest.importorskip("matplotlib")

CPU = torch.device("cpu")
FEW = Options(samples=5, batches=2, batch_size=4, images=4)


def two_rounds(recipe: dict[str, Any]) -> dict[str, Any]:
    second = copy.deepcopy(recipe["stages"][0])
    second |= {"name": "offline", "loss": {"quintuplet": {}}}
    second["negatives"] = {"from": "online", "top_texts": 4, "top_images": 2}
    return recipe | {"stages": [recipe["stages"][0], second]}


@pytest.fixture(scope="module")
def runs(tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`a` and `b`: two seeds of a recipe of two rounds."""
    home = tmp_path_factory.mktemp("runs")
    recipe: dict[str, Any] = {
        "name": "tiny",
        "data": {"features": "toy", "corpus": str(tiny_corpus), "tokenizer": {"min_count": 1}},
        "matcher": {"name": "vse++", "embed_dim": 8, "word_dim": 6},
        "stages": [{"name": "online", "loss": {"triplet": {}}, "batches": {"size": 6}, "epochs": 2, "log_every": 2}],
    }
    for seed, name in enumerate("ab"):
        train(parse_recipe(two_rounds(recipe) | {"seed": seed}), home / name, device="cpu")
    return home


@pytest.fixture
def subjects(runs: Path, tiny_corpus: Path) -> list[Subject]:
    return open_subjects([runs / "a", runs / "b"], Corpus.open(tiny_corpus), "test", device=CPU)


def whole_scores(subject: Subject) -> np.ndarray:
    member = subject.member
    return member.matcher.score(member.image_codes, member.text_codes).detach().numpy()


def test_everything_that_applies_is_written_with_its_provenance(subjects: list[Subject], tmp_path: Path) -> None:
    found = analyse(subjects, tmp_path, options=FEW)
    assert set(found) == set(ANALYSES.entries) - set(ONLY_ON_REQUEST)
    assert "instance loss" in found.pop("errors")["reason"]
    assert not (tmp_path / "errors.json").exists()
    for kind, content in found.items():
        stored = read_json(tmp_path / f"{kind}.json")
        assert stored["provenance"]["runs"] == [
            {"name": one.label, "weights_sha256": one.run.weights_checksum} for one in subjects
        ]
        assert stored["split_checksum"] == subjects[0].split.checksum
        assert stored["kind"] == kind
        assert "command" in stored["provenance"]
        assert content["figures"] == stored["figures"]
        assert all((tmp_path / figure).stat().st_size for figure in stored["figures"])
        assert kind == "mined" or stored["figures"]


def test_distributions_are_those_of_the_scores(subjects: list[Subject], tmp_path: Path) -> None:
    found = analyse(subjects, tmp_path, ["distributions"], options=FEW)["distributions"]["runs"]
    for subject in subjects:
        scores = whole_scores(subject)
        right = subject.split.image_groups[:, None] == subject.split.text_groups
        assert found[subject.label]["positive"]["mean"] == pytest.approx(float(scores[right].mean()), abs=1e-6)
        assert found[subject.label]["negative"]["pairs"] == (~right).sum()
        p, _ = np.histogram(scores[right], np.linspace(-1, 1, 201))
        q, _ = np.histogram(scores[~right], np.linspace(-1, 1, 201))
        assert found[subject.label]["S"] == pytest.approx(np.minimum(p / p.sum(), q / q.sum()).sum())


def test_correlations_before_are_of_the_stored_features(subjects: list[Subject], tmp_path: Path) -> None:
    found = analyse(subjects, tmp_path, ["correlation"], options=FEW)["correlation"]
    assert list(found["maps"]) == ["before a", "a", "b"]  # both runs read the same features
    pictures = [image for image in subjects[0].split.images if image.id in found["pictures"]]
    (batch,) = subjects[0].run.image_batches(subjects[0].corpus, pictures)
    assert batch.fragments is not None
    expected = map_summary(correlation_map(batch.fragments.mean(1).numpy()))
    assert found["maps"]["before a"] == pytest.approx(expected)
    assert found["maps"]["a"]["images"] == 4


def test_words_are_of_right_pairs(subjects: list[Subject], tmp_path: Path) -> None:
    found = analyse(subjects[:1], tmp_path, ["words"], options=FEW)["words"]["runs"]["a"]
    assert len(found["sentences"]) == 5
    scores, split = whole_scores(subjects[0]), subjects[0].split
    row_of = {text.id: row for row, text in enumerate(split.texts)}
    for sentence in found["sentences"]:
        text = row_of[sentence["text"]]
        assert sentence["words"] == split.texts[text].text.split()
        assert sentence["score"] == pytest.approx(scores[split.images_of_text[text][0], text], abs=1e-5)


def test_curves_hold_every_stage_once(runs: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    paths = [runs / "a", runs / "a" / "stages" / "online", runs / "b" / "stages" / "offline"]
    chosen = open_subjects(paths, Corpus.open(tiny_corpus), "dev", device=CPU)
    assert [one.label for one in chosen] == ["a", "a, stage online", "b, stage offline"]
    found = analyse(chosen, tmp_path, ["curves", "hardness"])
    assert {run: sorted(stages) for run, stages in found["curves"]["validation"].items()} == {
        "a": ["offline", "online"],
        "b": ["offline"],
    }
    assert found["curves"]["validation"]["a"]["online"]["epoch"] == [1, 2]
    assert "triplet.text" in found["curves"]["losses"]["a"]["online"]
    assert list(found["hardness"]["runs"]["a"]) == ["offline"]


def test_a_run_without_logs_does_not_cost_the_others_their_curves(
    runs: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    shutil.copytree(runs / "b", tmp_path / "bare", ignore=shutil.ignore_patterns("log.jsonl"))
    both = open_subjects([runs / "a", tmp_path / "bare"], Corpus.open(tiny_corpus), "dev", device=CPU)
    found = analyse(both, tmp_path / "out", ["curves"])
    assert list(found["curves"]["validation"]) == ["a"]
    with pytest.raises(QuintetError, match="holds no training logs"):
        analyse(both[1:], tmp_path / "out", ["curves"])


def test_errors_are_drawn_where_they_were_logged(subjects: list[Subject], tmp_path: Path) -> None:
    rows = [
        {"kind": "train", "step": step, "epoch": step - 1, "instance.image_error": 1 / step, "instance.text_error": 0.5}
        for step in (1, 2, 4)
    ]
    write_jsonl(tmp_path / "run" / "stages" / "one" / "log.jsonl", rows)
    subjects[0].run = replace(subjects[0].run, folder=tmp_path / "run")
    found = analyse(subjects[:1], tmp_path / "out", ["errors"])["errors"]
    assert found["runs"]["a"]["one"]["instance.image_error"] == [1.0, 0.5, 0.25]
    assert "error of the text branch, %" in (tmp_path / "out" / "errors.svg").read_text()


def test_ranks_and_recalls(subjects: list[Subject], tmp_path: Path) -> None:
    found = analyse(subjects, tmp_path, ["ranks"])["ranks"]
    best = subjects[0].ranks.t2i.best
    curve = found["recalls"]["a, text to image"]
    assert curve["K"] == list(range(1, 7))  # there are six images
    assert curve["recall"][0] == pytest.approx(100 * (best < 1).mean())
    assert curve["recall"][-1] == 100.0
    assert sum(found["cross_retrieval"]["counts"]["b"]) == found["cross_retrieval"]["pairs"] == 12


def test_recalls_are_the_share_of_ranks_up_to_k() -> None:
    ranks = np.array([4, 1, 2, 2, 7])
    _, recalls = recall_curve(ranks, 8)
    assert recalls == pytest.approx([100 * np.mean(ranks <= k) for k in range(1, 9)])


def test_online_negatives_have_the_rank_that_is_expected(subjects: list[Subject], tmp_path: Path) -> None:
    options = Options(batch_size=4, batches=400, seed=1)
    found = analyse(subjects, tmp_path, ["negatives"], options=options)["negatives"]
    assert found["candidates"] == {"i2t": 10, "t2i": 5}
    assert found["expected_rank"]["i2t"] == pytest.approx(11 / 4)
    # Batches hold two texts of a group now and then, so an anchor may have one negative less.
    assert found["runs"]["a"]["i2t"]["mean_rank"] == pytest.approx(11 / 4, rel=0.15)


def test_what_was_mined_and_drawn(subjects: list[Subject], tmp_path: Path) -> None:
    found = analyse(subjects[:1], tmp_path, ["mined"], options=FEW)["mined"]["stages"]
    assert list(found) == ["a: offline"]
    assert 0 <= found["a: offline"]["online"]["top1"]["i2t"] <= 1
    assert 1 <= found["a: offline"]["drawn"]["text_rank"] <= 4
    assert found["a: offline"]["drawn"]["pairs"] == 24


def test_timing_of_the_four_losses(subjects: list[Subject], tmp_path: Path) -> None:
    found = analyse(subjects[:1], tmp_path, ["timing"])["timing"]["runs"]["a"]
    assert [row["loss"] for row in found] == ["online", "OffTri", "OffQuin", "AdapOffQuin"]
    assert all(row["seconds"] > 0 for row in found)


def test_a_kind_that_is_named_must_apply(subjects: list[Subject], tmp_path: Path) -> None:
    with pytest.raises(QuintetError, match="logged classification errors"):
        analyse(subjects, tmp_path, ["errors"])
    with pytest.raises(RecipeError, match="did you mean 'words'"):
        analyse(subjects, tmp_path, ["wrods"])
    assert not list(tmp_path.iterdir())


def test_runs_are_told_apart_by_name_folder_or_path(runs: Path, tiny_corpus: Path) -> None:
    assert distinct_names({Path("x/a"): "one", Path("y/a"): "two"}) == {Path("x/a"): "one", Path("y/a"): "two"}
    assert set(distinct_names({Path("x/a"): "one", Path("y/a"): "one"}).values()) == {"x/a", "y/a"}
    with pytest.raises(QuintetError, match="named twice"):
        open_subjects([runs / "a", runs / "a"], Corpus.open(tiny_corpus), "test", device=CPU)


def test_correlations_before_of_pixels_are_of_the_tower_as_training_found_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images, texts = [], []
    for group in "abc":
        pixels = rng.integers(0, 255, size=(32, 32, 3), dtype=np.uint8)
        PILImage.fromarray(pixels).save(tmp_path / f"{group}.png")
        images.append(Image(f"{group}.png", group, f"{group}.png"))
        texts.append(Text(group, group, f"image {group}"))
    Corpus("pixels", images, texts, {"test": list("abc")}, root=tmp_path).save(tmp_path)
    arguments = {"vocabulary_size": 9, "embed_dim": 8, "word_dim": 6, "tower": "small-cnn"}
    trained = create_model("vse++", **arguments)
    torch.manual_seed(1)
    for parameter in trained.parameters():
        torch.nn.init.normal_(parameter)
    write_run(
        tmp_path / "run",
        name="pixels",
        model={"name": "vse++", "arguments": arguments},
        state_dict=trained.state_dict(),
        tokenizer=WordVocabulary.build(["image a b c"], min_count=1),
        image_input={"kind": "pixels"},
    )
    subjects = open_subjects([tmp_path / "run"], Corpus.open(tmp_path), "test", device=CPU)
    found = analyse(subjects, tmp_path / "out", ["correlation"])["correlation"]["maps"]
    torch.manual_seed(0)
    fresh: Any = create_model("vse++", **arguments).eval()
    (batch,) = subjects[0].run.image_batches(subjects[0].corpus, subjects[0].split.images)
    with torch.no_grad():
        expected = map_summary(correlation_map(fresh.image_encoder.tower.pooled(batch.pixels).numpy()))
    assert found["before pixels"] == pytest.approx(expected, rel=1e-4)
    assert found["pixels"]["mean"] != pytest.approx(expected["mean"], rel=1e-3)
    assert "reason" in analyse(subjects, tmp_path / "out")["curves"]  # it was not trained here
