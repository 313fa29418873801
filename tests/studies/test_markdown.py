from __future__ import annotations

from typing import Any

from quintet.evaluation.metrics import RECALLS
from quintet.studies.markdown import markdown_table, render_tables, signed
from quintet.studies.over_seeds import over_seeds

METRICS = (*RECALLS, "rsum")


def variant(label: str, *values: float, **run: Any) -> dict[str, Any]:
    """A variant whose metrics are all the given value, one per seed, with differences to a reference at 50."""
    found = over_seeds([dict.fromkeys(METRICS, value) for value in values])
    changes = over_seeds([dict.fromkeys(METRICS, value - 50.0) for value in values])
    status = {"status": "trained", "reason": "", "notes": [], "protocols": {}} | run
    runs = [{"seed": seed, **status} for seed in range(max(1, len(values)))]
    return {"label": label, "protocols": {"full": found | {"difference": changes}}, "runs": runs}


def summary(*, seeds: int = 2, **variants: dict[str, Any]) -> dict[str, Any]:
    return {
        "study": "aoq",
        "base": "some-recipe",
        "reference": "online",
        "corpus": "tiny",
        "split": "test",
        "images": 1000,
        "texts": 5000,
        "protocols": ["full"],
        "validation": None,
        "seeds": list(range(seeds)),
        "variants": variants,
        "tables": [],
        "digits": {},
        "notes": [],
        "extras": {},
    }


def rows_of(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def layout(*rows: tuple[str, str], compare: str | None = None, columns: tuple[str, ...] = METRICS) -> dict[str, Any]:
    entries = [{"variant": key, "label": label, "marks": [], "published": []} for key, label in rows]
    table = {"title": "A table", "rows": entries, "columns": list(columns), "compare": compare, "marks": []}
    return table | {"validation": False}


def printed(place: str, corpus: str, protocol: str, **values: float) -> dict[str, Any]:
    return {"place": place, "corpus": corpus, "protocol": protocol, "values": values}


def test_the_layout_of_the_papers_first_table() -> None:
    content = summary(online=variant("VSRN", 49.0, 51.0), tri=variant("VSRN + OffTri", 52.0, 52.0))
    content["tables"] = [layout(("online", "VSRN"), ("tri", "VSRN + OffTri"))]
    rows = rows_of(render_tables(content).split("## A table")[1].split("##")[0])
    assert rows[0] == ["model", "text R@1", "R@5", "R@10", "image R@1", "R@5", "R@10", "rsum"]
    assert rows[2] == ["**1,000 test images, full**", *[""] * 7]
    assert rows[3] == ["VSRN", *["50.0 ± 1.4"] * 7]
    assert rows[4] == ["VSRN + OffTri", *["52.0 ± 0.0"] * 7]


def test_one_seed_shows_no_spread() -> None:
    content = summary(seeds=1, online=variant("VSRN", 50.0))
    content["tables"] = [layout(("online", "VSRN"))]
    text = render_tables(content)
    assert "±" not in text
    assert "One seed (0)" in text


def test_differences_stand_in_parentheses_as_in_the_third_table() -> None:
    content = summary(
        seeds=1, online=variant("VSRN", 50.0), adap=variant("VSRN + A", 54.0), odd=variant("VSRN (odd)", 51.5)
    )
    content["tables"] = [layout(("odd", "VSRN (odd)"), ("adap", "VSRN (own)"), compare="adap", columns=RECALLS)]
    rows = rows_of(render_tables(content).split("## A table")[1].split("##")[0])
    assert rows[3] == ["VSRN (odd)", *["51.5 (-2.5)"] * 6]
    assert rows[4] == ["VSRN (own)", *["54.0 (+0.0)"] * 6]


def test_other_measures_have_their_own_digits_and_notes_are_told() -> None:
    content = summary(seeds=1, online=variant("A", 0.25634), full=variant("B", 0.0914))
    content["digits"] = {"rsum": 4}
    content["notes"] = ["Table V is left out"]
    content["tables"] = [layout(("full", "B"), compare="online", columns=("i2t_r1", "rsum"))]
    text = render_tables(content)
    rows = rows_of(text.split("## A table")[1].split("##")[0])
    assert rows[3] == ["B", "0.1 (-0.2)", "0.0914 (-0.1649)"]
    assert "## Notes\n\n- Table V is left out\n" in text


def test_published_numbers_stand_below_ours_where_they_were_measured_alike() -> None:
    content = summary(seeds=1, online=variant("A", 50.0))
    content["variants"]["online"]["protocols"]["validation"] = content["variants"]["online"]["protocols"]["full"]
    content |= {"corpus": "f30k_precomp", "validation": 1014, "tables": [layout(("online", "A"))]}
    table = content["tables"][0]
    table |= {"columns": ["i2t_r1", "rsum"], "validation": True}
    table["rows"][0]["published"] = [
        printed("Table 1", "coco", "5fold", i2t_r1=72.7, rsum=507.9),
        printed("Table 2", "f30k", "full", i2t_r1=67.42),
        printed("Table II", "f30k", "validation", i2t_r1=55.0),
        printed("Fig. 5", "f30k", "full", S=0.0914),
    ]
    rows = rows_of(render_tables(content).split("## A table")[1].split("##")[0])
    assert rows[2:] == [
        ["**1,014 validation images**", "", ""],
        ["A", "50.0", "50.0"],
        ["published: Table II", "55.0", "-"],
        ["**1,000 test images, full**", "", ""],
        ["A", "50.0", "50.0"],
        ["published: Table 2", "67.42", "-"],
    ]
    content["corpus"] = "flickr8k"  # of which the paper has nothing: all that it has, once
    rows = rows_of(render_tables(content).split("## A table")[1].split("##")[0])
    assert [row[0] for row in rows[2:]] == [
        "**1,014 validation images**",
        "A",
        *("published: Table 1", "published: Table 2", "published: Table II"),
        "**1,000 test images, full**",
        "A",
    ]


def test_failures_are_told_and_leave_their_cells_empty() -> None:
    broken = variant("VSRN (OnlyOffline)", status="failed", reason="the loss term became nan")
    content = summary(online=variant("VSRN", 50.0, 50.0), broken=broken)
    content["tables"] = [layout(("broken", "VSRN (OnlyOffline)"))]
    text = render_tables(content)
    assert rows_of(text.split("## A table")[1].split("##")[0])[3] == ["VSRN (OnlyOffline)", *["-"] * 7]
    assert "VSRN (OnlyOffline), seed 0: failed" in text


def test_gains_have_each_seeds_difference_and_p_value() -> None:
    test = {"rsum": {"difference": 4.25, "interval": [1, 7], "p_value": 0.0123}}
    chance = {"paired": test, "at_chance": True, "metrics": {"rsum": 54.0}, "chance": {"rsum": 53.2}}
    content = summary(
        online=variant("VSRN", 50.0, 50.0), adap=variant("VSRN + A", 54.0, 55.0, protocols={"full": chance})
    )
    text = render_tables(content)
    rows = rows_of(text.split("## Difference to VSRN, seed by seed")[1])
    assert rows[3] == ["VSRN + A", "+4.5 ± 0.7", "+4.2 (0.0123), +4.2 (0.0123)"]
    assert "- VSRN + A, seed 1: not clearly better than guessing (full: rsum 54.0, guessing 53.2)" in text


def test_extra_tables() -> None:
    content = summary(online=variant("VSRN", 50.0, 50.0))
    columns = [{"key": "label", "heading": "model", "form": "{}"}, {"key": "s", "heading": "seconds", "form": "{:.3f}"}]
    extra = {"columns": columns, "rows": [{"label": "VSRN", "s": 1.0956}], "published": [[]]}
    content["extras"] = {"timing": {"title": "Time"} | extra}
    assert rows_of(render_tables(content).split("## Time")[1])[2] == ["VSRN", "1.096"]
    content["extras"]["timing"]["published"] = [[printed("Table 6", "coco", "5fold", s=1.604)]]
    rows = rows_of(render_tables(content).split("## Time")[1])
    assert rows[2:] == [["VSRN", "1.096"], ["published: Table 6", "1.604"]]
    content["extras"]["timing"] |= {"rows": [], "reason": "not measured: why"}
    assert "not measured: why" in render_tables(content).split("## Time")[1]


def test_columns_are_aligned() -> None:
    lines = markdown_table(["a", "long heading"], [["longer cell", "1"], ["b", "22"]]).splitlines()
    assert len({len(line) for line in lines}) == 1


def test_signed_never_shows_minus_zero() -> None:
    assert [signed(value) for value in (-0.01, 0.0, 0.06, -0.06)] == ["+0.0", "+0.0", "+0.1", "-0.1"]
