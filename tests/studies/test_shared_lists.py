from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from quintet.studies.runner import share_lists
from quintet.training.recipe import parse_recipe
from quintet.training.recipe_models import Recipe


def make(recipe: dict[str, Any], **negatives: Any) -> Recipe:
    recipe = copy.deepcopy(recipe)
    recipe["stages"][0] |= {"name": "offline", "negatives": {"from": "runs/teacher", "top_texts": 10} | negatives}
    return parse_recipe(recipe)


def mined(run: Path, manifest: bool = True) -> Path:
    folder = run / "stages" / "offline" / "negatives"
    folder.mkdir(parents=True)
    (folder / "texts.npy").write_bytes(b"lists")
    if manifest:
        (folder / "manifest.json").write_text("{}", encoding="utf-8")
    return run


def shared(run: Path) -> bool:
    return (run / "stages" / "offline" / "negatives" / "manifest.json").is_file()


def test_lists_mined_alike_are_copied(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    # How negatives are drawn is no matter of mining.
    siblings = {mined(tmp_path / "first"): make(tiny_recipe, distribution="normal")}
    share_lists(tmp_path / "second", make(tiny_recipe), siblings)
    assert shared(tmp_path / "second")
    assert (tmp_path / "second" / "stages" / "offline" / "negatives" / "texts.npy").read_bytes() == b"lists"


@pytest.mark.parametrize(
    "other", [{"top_texts": 20}, {"from": "runs/another"}, {"exclude_duplicates": True}, {"false_negative_margin": 0.0}]
)
def test_lists_mined_otherwise_are_not(tiny_recipe: dict[str, Any], tmp_path: Path, other: dict[str, Any]) -> None:
    share_lists(tmp_path / "second", make(tiny_recipe), {mined(tmp_path / "first"): make(tiny_recipe, **other)})
    assert not shared(tmp_path / "second")


def test_unfinished_lists_are_not(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    share_lists(tmp_path / "second", make(tiny_recipe), {mined(tmp_path / "first", manifest=False): make(tiny_recipe)})
    assert not shared(tmp_path / "second")


def test_stages_that_mine_with_a_stage_of_their_own_run_share_nothing(
    tiny_recipe: dict[str, Any], tmp_path: Path
) -> None:
    second = copy.deepcopy(tiny_recipe["stages"][0]) | {"name": "offline", "negatives": {"from": "online"}}
    recipe = parse_recipe(tiny_recipe | {"stages": [*tiny_recipe["stages"], second]})
    share_lists(tmp_path / "second", recipe, {mined(tmp_path / "first"): recipe})
    assert not shared(tmp_path / "second")


def test_stages_without_negatives_are_left_alone(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    share_lists(tmp_path / "second", parse_recipe(tiny_recipe), {mined(tmp_path / "first"): make(tiny_recipe)})
    assert not (tmp_path / "second").exists()
