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


@pytest.fixture
def comparisons(script: Any) -> Any:
    return script("results_compare")


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
        "intervals": {"rsum": [rsum - 10, rsum + 10]},
        "training": {"seconds": 60.0}, "peak_memory": {"bytes": 2**30}, "notes": [],
    }  # fmt: skip


def write(folder: Path, *contents: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for one in contents:
        (folder / f"{one['name']}-seed{one['seed']}.json").write_text(json.dumps(one))
    return folder


def three(name: str, level: float, **more: Any) -> list[dict[str, Any]]:
    return [content(name, seed, level, **more) for seed in range(3)]


def written(pages: Any, folder: Path, grid: str = "flickr8k") -> str:
    return pages.page(grid, pages.read_results(folder))


def section(text: str, start: str, end: str = "\n#") -> str:
    return text.partition(start)[2].partition(end)[0]


def reading(comparisons: Any, folder: Path, better: str = "hrem-fusion", worse: str = "hrem-none") -> str:
    return comparisons.compare(comparisons.read_results(folder), [(better, worse)]).verdict


def test_readings_follow_from_both_intervals(comparisons: Any, tmp_path: Path) -> None:
    clear = write(tmp_path / "clear", *three("hrem-fusion", 0.8), *three("hrem-none", 0.4))
    assert reading(comparisons, clear) == "confirmed"
    assert reading(comparisons, clear, "hrem-none", "hrem-fusion") == "not confirmed"
    close = write(tmp_path / "close", *three("hrem-fusion", 0.5, spread=4.0), *three("hrem-none", 0.5, spread=4.0))
    assert reading(comparisons, close) == "inconclusive"
    one = write(tmp_path / "one", content("hrem-fusion", 0, 0.9), content("hrem-none", 0, 0.1))
    assert reading(comparisons, one) == "inconclusive (one seed)"
    assert reading(comparisons, tmp_path / "nothing") == "not measured"


def overlaps(name: str, *values: float) -> list[dict[str, Any]]:
    made = [content(name, seed, 0.5) for seed in range(len(values))]
    return [one | {"similarities": {"S": value}} for one, value in zip(made, values, strict=True)]


def test_claims_about_s_are_scored_by_s_and_less_is_better(pages: Any, comparisons: Any, tmp_path: Path) -> None:
    less, more = overlaps("dual-path-full", 0.10, 0.11, 0.09), overlaps("dual-path-instance-2", 0.20, 0.22, 0.21)
    results = comparisons.read_results(write(tmp_path / "r", *less, *more))
    found = comparisons.compare(results, [("dual-path-full", "dual-path-instance-2")], by_overlap=True)
    assert found.differences == pytest.approx([0.10, 0.11, 0.12])
    assert (found.verdict, found.queries) == ("confirmed", None)
    other = comparisons.compare(results, [("dual-path-instance-2", "dual-path-full")], by_overlap=True)
    assert other.verdict == "not confirmed"
    text = written(pages, tmp_path / "r", "scenes")
    part = section(text, "### S of both losses together is below that of the instance loss alone", "\n###")
    assert part.startswith(": confirmed")
    assert "difference in S" in part
    assert "+0.110" in part


def test_pairs_are_of_one_seed(comparisons: Any, tmp_path: Path) -> None:
    folder = write(
        tmp_path / "r", content("a", 0, 0.5), content("a", 2, 0.6), content("b", 1, 0.5), content("b", 2, 0.4)
    )
    results = comparisons.read_results(folder)
    found = comparisons.compare(results, [("a", "b")])
    assert [(one.seed, other.seed) for one, other in found.pairs] == [(2, 2)]
    assert found.differences == [pytest.approx(results["a"][2].rsum - results["b"][2].rsum)]


def test_shares_of_groups_add_up_to_rsum(comparisons: Any) -> None:
    result = comparisons.Result(content("a", 0, 0.5))
    assert result.shares.sum() == pytest.approx(result.rsum)
    low, high = comparisons.over_queries(result.shares)
    assert low < result.rsum < high


def test_a_partial_grid_makes_a_page_that_says_what_is_missing(pages: Any, tmp_path: Path) -> None:
    folder = write(
        tmp_path / "r", *three("hrem-fusion", 0.8), *three("hrem-none", 0.4), content("scan-t2i-online", 1, 0.5),
        *three("hrem-ensemble", 0.9, kind="ensemble"),
    )  # fmt: skip
    text = written(pages, folder)
    assert "### Relations among samples help: confirmed" in text
    assert "### MMCA beats SCAN" not in text
    assert "MMCA beats SCAN" in section(text, "\nNot measured, needs a GPU, or days", ".\n")
    recipes = [line for line in section(text, "\n## The recipes", "\n## ").splitlines() if " (`" in line]
    assert ["hrem-fusion" in recipes[0], "scan-t2i" in recipes[1], "hrem-none" in recipes[2]] == [True] * 3
    assert "(`mmca`)" in recipes[3]  # named as missing
    assert "Not measured: hrem-standalone > hrem-none" in text
    assert "- `scan-t2i-online`, seed 0, 2" in text
    assert "- `mmca`, seed 0, 1, 2" in text
    single, ensembles = (section(text, f"\n## {title}", "\n## ") for title in ("Single models", "Ensembles"))
    assert "| HREM fusion (`hrem-fusion`)" in single
    assert "(`hrem-ensemble`)" not in single
    assert "(`hrem-ensemble`)" in ensembles
    assert "| HREM fusion (`hrem-fusion`)" not in ensembles
    assert "10 of " in text


def test_warnings_of_training_stand_on_the_page(pages: Any, tmp_path: Path) -> None:
    collapsed = {"notes": ["the scores have collapsed"] * 2}
    folder = write(tmp_path / "r", *(content("vsrn-online", seed, 0.1) | collapsed for seed in (0, 1)))
    assert "- `vsrn-online-seed0`, `vsrn-online-seed1`: the scores have collapsed" in written(pages, folder)


def test_a_run_that_collapsed_counts_in_no_verdict(pages: Any, comparisons: Any, tmp_path: Path) -> None:
    lost = {"notes": ["all scores are equal, the matcher has collapsed. Try a smaller batch"]}
    worse, better = three("scan-t2i-off-tri", 0.7), three("scan-t2i-off-quin", 0.2)
    folder = write(tmp_path / "all", *worse, *(one | lost for one in better))
    found = comparisons.compare(comparisons.read_results(folder), [("scan-t2i-off-quin", "scan-t2i-off-tri")])
    assert (found.pairs, found.verdict) == ((), "not scored")
    text = section(written(pages, folder), "### OffQuin beats OffTri: not scored")
    assert "collapse: `scan-t2i-off-quin-seed0`, `scan-t2i-off-quin-seed1`, `scan-t2i-off-quin-seed2`." in text
    assert "scan-t2i-off-quin > scan-t2i-off-tri" not in text

    folder = write(tmp_path / "one", *worse, better[0] | lost, *three("scan-t2i-off-quin", 0.9)[1:])
    found = comparisons.compare(comparisons.read_results(folder), [("scan-t2i-off-quin", "scan-t2i-off-tri")])
    assert [one.seed for one, _ in found.pairs] == [1, 2]
    assert min(found.differences) > 0, "the collapsed run would be below"

    team = [one | {"members": [f"scan-t2i-off-quin-seed{one['seed']}"]} for one in three("scan-ensemble-off-quin", 0.9)]
    folder = write(tmp_path / "team", *worse, better[0] | lost, *better[1:], *team)
    found = comparisons.compare(comparisons.read_results(folder), [("scan-ensemble-off-quin", "scan-t2i-off-tri")])
    assert [one.seed for one, _ in found.pairs] == [1, 2], "nor an ensemble with such a member"


def test_a_claim_that_the_setting_cannot_show_is_not_scored(pages: Any, tmp_path: Path) -> None:
    folder = write(tmp_path / "r", *three("dual-path-instance-2", 0.8), *three("dual-path-instance-1", 0.4))
    for grid, why in (("small", "The image CNN is fixed in both stages"), ("scenes", "no pretrained image CNN")):
        text = written(pages, folder, grid)
        found = section(text, "### Stage II beats stage I (instance loss): not scored")
        assert f"Not scored: {why}" in " ".join(found.split()).replace("There is no", "no")
        assert "confirmed" not in found
        (row,) = (line for line in text.splitlines() if line.startswith("| Stage II beats stage I (instance loss) |"))
        assert row.endswith("| 3 of 3 | not scored |")


def test_earlier_figures_stand_beside_ours(script: Any, tmp_path: Path) -> None:
    module, results = script("results_earlier"), script("results_compare").read_results
    found = results(write(tmp_path / "r", content("heads", 0, 0.5)))
    rsum = found["heads"][0].content["metrics"]["rsum"]
    earlier = [module.Earlier("heads", name, "someone", rsum + gap) for name, gap in (("a", -1), ("b", 4), ("c", 11))]
    text = module.earlier_text(found, [*earlier, module.Earlier("mmca", "not measured", "someone", 1.0)])
    assert [line.rstrip(" |").rpartition("| ")[2] for line in text.splitlines()[-3:]] == [
        "reached",
        "within the interval",
        "missed",
    ]
    assert "not measured" not in text
    assert module.earlier_text({}) == ""


def test_without_results_the_page_says_so(pages: Any, tmp_path: Path) -> None:
    assert "run `python -m benchmarks.measure.flickr8k --grid scenes`" in written(pages, tmp_path, "scenes")


def test_every_grid_gets_its_page_from_its_own_folder(pages: Any, script: Any, tmp_path: Path) -> None:
    assert list(pages.PAGES) == list(script("catalogue").GRIDS)
    (tmp_path / "results").mkdir()
    write(tmp_path / "results" / "flickr8k", *three("mmca", 0.8))
    write(tmp_path / "results" / "scenes", *three("vse-avg-online", 0.6))
    pages.main(tmp_path / "results", tmp_path / "docs")
    text = {grid: (tmp_path / "docs" / one.file).read_text() for grid, one in pages.PAGES.items()}
    flickr8k, scenes = text["flickr8k"], text["scenes"]
    assert flickr8k.startswith("# Results on Flickr8k\n")
    assert scenes.startswith("# Results on scenes\n")
    assert ("`mmca`, rsum" in flickr8k, "`mmca`, rsum" in scenes) == (True, False)
    assert text["trials"].startswith("# Trials on Flickr8k\n\nNot measured yet")
    grids = script("catalogue")
    for grid in ("flickr8k", "scenes"):
        assert f"3 of {len(grids.grid_rows(grid))} rows" in text[grid]


def test_claims_without_a_pair_in_the_grid_are_left_out(pages: Any, tmp_path: Path) -> None:
    folder = write(tmp_path / "r", *three("vse-avg-online", 0.6))
    flickr8k, scenes = (written(pages, folder, grid) for grid in ("flickr8k", "scenes"))
    for title in ("BFAN beats SCAN", "GPO beats average pooling"):
        assert (title in flickr8k, title in scenes) == (True, False)
    assert "OffTri beats the online triplet loss" in section(scenes, "\nNot measured, needs", ".\n")
    assert "bfan" not in scenes


def test_without_judgements_nothing_is_said_of_them(pages: Any, tmp_path: Path) -> None:
    judged = three("mmca", 0.6)
    assert written(pages, write(tmp_path / "judged", *judged)).count("tau-c") == 2  # explained, and a column
    alone = written(pages, write(tmp_path / "alone", *(one | {"human_agreement": None} for one in judged)))
    assert "tau-c" not in alone
    assert "CLIPScore" not in alone


def test_a_papers_table_stands_in_the_order_that_came_out(pages: Any, tmp_path: Path) -> None:
    levels = {"full": (0.5, 0.1), "instance-2": (0.8, 0.3), "ranking-2": (0.3, 0.2)}
    folder = write(
        tmp_path / "r",
        *(
            one | {"tower": "pixels", "similarities": {"S": overlap + 0.01 * one["seed"]}}
            for key, (level, overlap) in levels.items()
            for one in three(f"dual-path-{key}", level)
        ),
    )
    found = section(written(pages, folder, "scenes"), "### Dual-Path, Table II")
    rows = [line for line in found.splitlines() if line.startswith("| Dual-Path")]
    assert ["instance-2" in rows[0], "full" in rows[1], "ranking-2" in rows[2]] == [True] * 3
    assert "| 50.5 and 34.9 | 3 |" in rows[0]
    assert rows[0].endswith("| 0.310 ± 0.010 |")
    assert "least overlap first: `dual-path-full`, `dual-path-ranking-2`, `dual-path-instance-2`." in found


def test_notes_are_of_their_grid(pages: Any, tmp_path: Path) -> None:
    folder = write(tmp_path / "r", *three("mmca", 0.6), *three("vse-avg-online", 0.5))
    flickr8k, scenes = (
        section(written(pages, folder, grid), "### MMCA beats VSE++") for grid in ("flickr8k", "scenes")
    )
    assert ("pretrained text encoder here" in flickr8k, "from scratch here" in flickr8k) == (True, False)
    assert ("pretrained text encoder here" in scenes, "from scratch here" in scenes) == (False, True)


def test_pairs_are_of_one_series_and_in_the_grid(comparisons: Any, script: Any) -> None:
    grid = script("rows")
    first, second = list(grid.SERIES)[:2]
    methods = (
        grid.Method("a", "A", "r", series=(first, second)),
        grid.Method("b", "B", "r", series=(second,)),
        grid.Method("c", "C", "r", series=()),
        grid.Method("d", "D", "r", series=()),
    )
    rows = grid.rows(methods, (), (0,))
    assert comparisons.pairs_of_grid(rows, [("a", "b")]) == [(f"a-{second}", f"b-{second}")]
    assert comparisons.pairs_of_grid(rows, [("c", "d")]) == [("c", "d")]
    assert comparisons.pairs_of_grid(rows, [("a", "c"), ("a", "e")]) == []


def test_students_t_is_scipys(script: Any) -> None:
    stats = pytest.importorskip("scipy.stats")
    for freedom, quantile in script("results_compare").STUDENT.items():
        assert quantile == pytest.approx(stats.t.ppf(0.975, freedom), abs=1e-3)


def test_claims_and_papers_tables_are_about_rows_of_the_grids(script: Any) -> None:
    grid, claims = script("catalogue"), script("results_claims")
    series_names = script("results_compare").series_names
    known = {name for one in grid.GRIDS for names in series_names(grid.grid_rows(one)).values() for name in names}
    named = {name for claim in claims.CLAIMS for pair in claim.pairs for name in pair}
    assert named | {name for paper in claims.PAPER_TABLES for name in paper.rows} <= known
    assert {key for claim in claims.CLAIMS for key in (*claim.grid_notes, *claim.not_shown)} <= set(grid.GRIDS)


@pytest.mark.parametrize("name", ["rows", "results_compare", "results_tables"])
def test_examples_in_the_scripts_hold(script: Any, name: str) -> None:
    found = doctest.testmod(script(name))
    assert found.attempted
    assert not found.failed


def test_pairs_of_one_seed_count_once(comparisons: Any, tmp_path: Path) -> None:
    """Two methods against the same baseline are no more evidence over seeds than their mean."""
    names = {"hrem-fusion": 0.6, "hrem-standalone": 0.62, "hrem-none": 0.55}
    results = comparisons.read_results(
        write(tmp_path / "r", *(one for name, level in names.items() for one in three(name, level, spread=3.0)))
    )
    pairs = [("hrem-fusion", "hrem-none"), ("hrem-standalone", "hrem-none")]
    both = comparisons.compare(results, pairs)
    each = np.array([comparisons.compare(results, [pair]).differences for pair in pairs])  # (2, seeds)
    assert both.seeds == pytest.approx(comparisons.over_seeds(each.mean(axis=0).tolist()))
    assert len(both.differences) == 6


@pytest.mark.slow
def test_the_pages_in_docs_are_those_of_the_result_files(script: Any, tmp_path: Path) -> None:
    pages = script("results_page")
    pages.main(docs=tmp_path)
    for page in pages.PAGES.values():
        assert (tmp_path / page.file).read_text() == (pages.DOCS / page.file).read_text(), "run the page script again"
