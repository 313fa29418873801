from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def test_the_second_epoch_of_the_first_stage_is_timed_without_its_warm_up(
    script: Any, tmp_path: Path, tiny_corpus: Path, tiny_recipe: dict[str, Any]
) -> None:
    times = script("epoch_times")
    tiny_recipe["stages"][0] |= {"loss": {"triplet": {"warmup_epochs": 1, "warmup": "softmax"}}, "select_after": 1}
    tiny_recipe["stages"].append(tiny_recipe["stages"][0] | {"name": "second"})
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(tiny_recipe), encoding="utf-8")
    recipe = times.timed_recipe(str(file), tiny_corpus, False, ["seed=3"])
    assert [stage.name for stage in recipe.stages] == [tiny_recipe["stages"][0]["name"]]
    assert recipe.stages[0].loss == {"triplet": {}}
    assert recipe.seed == 3
    found = times.epoch_time(recipe, tmp_path / "run", "cpu")
    assert found["steps"] > 0
    assert found["seconds"] > 0
    assert abs(found["ms_a_step"] - 1000 * found["seconds"] / found["steps"]) < 0.01
