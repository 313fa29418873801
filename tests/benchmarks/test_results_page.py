from __future__ import annotations

import doctest
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

GROUPS = 60


@pytest.fixture
def pages(script: Any) -> Any:
    return script("results_page")


def content(name: str, seed: int, level: float, kind: str = "single", spread: float = 1.0) -> dict[str, Any]:
    """A result whose rsum is about 600 x level, the same queries being easy for everybody."""
    ease = np.random.default_rng(7).random(GROUPS)
    noise = np.random.default_rng(seed + 100 * len(name)).normal(0, 0.01 * spread)
    i2t = np.where(ease < level + noise, 3, 0)
    t2i = np.where(ease < level + noise, 15, 3)
    rsum = 100 * i2t.sum() / GROUPS + 100 * t2i.sum() / (5 * GROUPS)
    return {
        "name": name, "seed": seed, "label": name.upper(), "loss": None, "kind": kind, "tower": "EfficientNet-Lite0",
        "device": "a GPU", "metrics": {f"{w}_r{k}": 50.0 for w in ("i2t", "t2i") for k in (1, 5, 10)} | {"rsum": rsum},
        "counts": {"images": GROUPS, "texts": 5 * GROUPS, "i2t_queries": GROUPS, "t2i_queries": 5 * GROUPS},
        "hits": {"i2t": " ".join(map(str, i2t)), "t2i": " ".join(map(str, t2i))},
        "human_agreement": {"tau_c": 0.4, "judgements": 16992}, "similarities": {"S": 0.2},
        "training": {"seconds": 60.0}, "peak_memory": {"bytes": 2**30}, "notes": [],
    }  # fmt: skip


def write(folder: Path, *contents: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for one in contents:
        (folder / f"{one['name']}-seed{one['seed']}.json").write_text(json.dumps(one))
    return folder


def three(name: str, level: float, **more: Any) -> list[dict[str, Any]]:
    return [content(name, seed, level, **more) for seed in range(3)]


def reading(pages: Any, folder: Path, better: str = "hrem-fusion", worse: str = "hrem-none") -> str:
    return pages.compare(pages.read_results(folder), [(better, worse)]).verdict


def test_readings_follow_from_both_intervals(pages: Any, tmp_path: Path) -> None:
    clear = write(tmp_path / "clear", *three("hrem-fusion", 0.8), *three("hrem-none", 0.4))
    assert reading(pages, clear) == "confirmed"
    assert reading(pages, clear, "hrem-none", "hrem-fusion") == "not confirmed"
    close = write(tmp_path / "close", *three("hrem-fusion", 0.5, spread=4.0), *three("hrem-none", 0.5, spread=4.0))
    assert reading(pages, close) == "inconclusive"
    one = write(tmp_path / "one", content("hrem-fusion", 0, 0.9), content("hrem-none", 0, 0.1))
    assert reading(pages, one) == "inconclusive (one pair)"
    assert reading(pages, tmp_path / "nothing") == "not measured"


def test_pairs_are_of_one_seed(pages: Any, tmp_path: Path) -> None:
    folder = write(
        tmp_path / "r", content("a", 0, 0.5), content("a", 2, 0.6), content("b", 1, 0.5), content("b", 2, 0.4)
    )
    found = pages.compare(pages.read_results(folder), [("a", "b")])
    assert [(one.seed, other.seed) for one, other in found.pairs] == [(2, 2)]
    results = pages.read_results(folder)
    assert found.differences == [pytest.approx(results["a"][2].rsum - results["b"][2].rsum)]


def test_shares_of_groups_add_up_to_rsum(pages: Any) -> None:
    result = pages.Result(content("a", 0, 0.5))
    assert result.shares.sum() == pytest.approx(result.rsum)
    low, high = pages.over_queries(result.shares)
    assert low < result.rsum < high


def test_a_partial_grid_makes_a_page_that_says_what_is_missing(pages: Any, tmp_path: Path) -> None:
    folder = write(
        tmp_path / "r", *three("hrem-fusion", 0.8), *three("hrem-none", 0.4), content("scan-t2i-online", 1, 0.5),
        *three("hrem-ensemble", 0.9, kind="ensemble"),
    )  # fmt: skip
    pages.main(folder, tmp_path / "results.md")
    text = (tmp_path / "results.md").read_text()
    assert "### Relations among samples help: confirmed" in text
    assert "### MMCA beats SCAN: not measured" in text
    assert "Not measured: hrem-standalone > hrem-none." in text
    assert "- `scan-t2i-online`, seed 0, 2" in text
    assert "- `mmca`, seed 0, 1, 2" in text
    single, ensembles = text.split("## Ensembles")[0], text.split("## Ensembles")[1].split("## What the papers")[0]
    assert "HREM-ENSEMBLE" not in single
    assert "HREM-ENSEMBLE" in ensembles
    assert "HREM-FUSION" not in ensembles
    assert "10 of " in text


def test_warnings_of_training_stand_on_the_page(pages: Any, tmp_path: Path) -> None:
    folder = write(tmp_path / "r", content("vsrn-online", 0, 0.1) | {"notes": ["the scores have collapsed"]})
    assert "- `vsrn-online-seed0`: the scores have collapsed" in pages.page(pages.read_results(folder))


def test_without_results_the_page_says_so(pages: Any, tmp_path: Path) -> None:
    assert "Nothing is measured yet" in pages.page(pages.read_results(tmp_path))


def test_students_t_is_scipys(script: Any) -> None:
    stats = pytest.importorskip("scipy.stats")
    for freedom, quantile in script("results_compare").STUDENT.items():
        assert quantile == pytest.approx(stats.t.ppf(0.975, freedom), abs=1e-3)


def test_claims_are_about_rows_of_the_grid(script: Any) -> None:
    known = {row.name for row in script("flickr8k_grid").rows()} | {"heads"}
    named = {name for claim in script("results_claims").CLAIMS for pair in claim.pairs for name in pair}
    assert named - known == set()


@pytest.mark.parametrize("name", ["flickr8k_grid", "results_compare"])
def test_examples_in_the_scripts_hold(script: Any, name: str) -> None:
    found = doctest.testmod(script(name))
    assert found.attempted
    assert not found.failed
