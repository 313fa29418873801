"""Every row of a paper's table trains what its label says: all that differs from the recipe, typed from the papers."""

from __future__ import annotations

from typing import Any

import pytest

from quintet.models.hrem import build_hrem
from quintet.studies.expand import build_study
from quintet.studies.variants import Study
from quintet.training.recipe import load_recipe

ALPHA = "\N{GREEK SMALL LETTER ALPHA}"
LOSS = "stages.0.loss.quintuplet"
RELATION = "stages.0.loss.relation"

# AOQ, Tables 1 to 3 with the labels of the paper, against `adap-off-quin`: Eq. 5, from scratch, mined with round one.
AOQ = {
    "SCAN + OffTri": {f"{LOSS}.variant": "triplet"},  # Eq. 3
    "SCAN + OffQuin": {f"{LOSS}.variant": "quintuplet"},  # Eq. 4
    "SCAN + AdapOffQuin": {},
    # "only trained by the offline term", so there are no online terms to warm up with.
    "SCAN (OnlyOffline)": {f"{LOSS}.variant": "only_offline", f"{LOSS}.warmup_epochs": 0},
    # "fine-tuned in the second-round instead of re-trained from scratch", with Equation 5
    "SCAN (Fine-tune)": {"stages.0.init": "@online", f"{LOSS}.warmup_epochs": 0},
    # "online quintuplet loss instead of offline in Equation 4"
    "SCAN (OnlineQuin)": {f"{LOSS}.variant": "online_quintuplet"},
    # S(i, t) for S(i, t_off) and S(i_off, t) in the terms that Equation 5 adds
    "SCAN (w/o OfflineAdap)": {f"{LOSS}.variant": "without_offline_adaptation"},
    "SCAN (squared)": {f"{LOSS}.variant": "quintuplet", f"{LOSS}.squared": True},
    "SCAN (h = 500)": {"stages.0.negatives.top_texts": 500, "stages.0.negatives.top_images": 100},  # 5 : 1
}
LOSSES = {
    "online": "BFAN",
    "off-tri": "BFAN + OffTri",
    "off-quin": "BFAN + OffQuin",
    "adap-off-quin": "BFAN + AdapOffQuin",
}
# HREM, Table 3, against the recipe.
HREM = {
    "HREM": {},
    "w/o fragments": {"matcher.image_relation": False, "matcher.text_relation": False},
    "w/o visual": {"matcher.image_relation": False},
    "w/o textual": {"matcher.text_relation": False},
    "w/o instances": {f"{RELATION}.relations": "none"},
    "intra-modal only": {f"{RELATION}.relations": "intra"},
    "inter-modal only": {f"{RELATION}.relations": "inter"},
    "w/o connection matrix A": {f"{RELATION}.neighbours": 1},
    "w/o relevance matrix S": {f"{RELATION}.relevance_weight": 0, f"{RELATION}.regularisation": 0},
    "w/o consistency L_cross": {f"{RELATION}.consistency": False},
    "w/o consistency L_cross, L(v, u) kept": {f"{RELATION}.consistency": "initial"},
    "w/o regularisation L_reg": {f"{RELATION}.regularisation": 0},
    "w/o neighbour batches": {"stages.0.batches.kind": "random"},
}
# Which fragments and which instances are related: visual, textual, intra-modal, inter-modal.
HREM_MARKS = {
    "w/o fragments": "..xx",
    "w/o visual": ".xxx",
    "w/o textual": "x.xx",
    "w/o instances": "xx..",
    "intra-modal only": "xxx.",
    "inter-modal only": "xx.x",
    "HREM": "xxxx",
}
# MMCA, Tables 4 to 6, against the recipe.
MMCA = {
    "MMCA": {},
    **{f"{dim}d": {"matcher.embed_dim": dim} for dim in (64, 128, 512)},
    **{f"{ALPHA} = {alpha}": {"matcher.alpha": alpha} for alpha in (0.1, 0.4, 0.8)},
    f"{ALPHA} = 0, no cross module": {"matcher.cross": False},
    "i1 · c1 alone, no self-attention module": {"matcher.self_attention": False, "matcher.alpha": 1},
}


def flat(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, dict) and value:
        return {key: leaf for name, inner in value.items() for key, leaf in flat(inner, f"{path}.{name}").items()}
    if isinstance(value, list) and value:
        return {key: leaf for n, inner in enumerate(value) for key, leaf in flat(inner, f"{path}.{n}").items()}
    return {path.removeprefix("."): value}


def changes(study: Study, reference: str) -> dict[str, dict[str, Any]]:
    """Label -> what differs from the reference, by path; what is left out has the value None."""
    own = flat(study.variant(reference).content(0))
    found = {}
    for variant in study.variants:
        other = flat(variant.content(0))
        keys = [key for key in {**own, **other} if own.get(key) != other.get(key) and key != "name"]
        found[variant.label] = {key: other.get(key) for key in keys}
    return found


def test_aoq() -> None:
    study = build_study("aoq", load_recipe("aoq-scan-f30k", ["stages.offline.loss.quintuplet.warmup_epochs=2"]),
                        ablations=True, top=[500])  # fmt: skip
    found = changes(study, "adap-off-quin")
    online = found.pop("SCAN")
    assert found == AOQ
    assert online["stages.0.name"] == "online"
    assert online["stages.0.negatives.from"] is None
    assert {key: value for key, value in online.items() if ".loss." in key and value is not None} == {
        "stages.0.loss.triplet.margin": 0.2,
        "stages.0.loss.triplet.negatives": "hardest",
    }
    base = flat(study.variant("adap-off-quin").content(0))
    assert (base["stages.0.init"], base["stages.0.negatives.from"]) == ("scratch", "@online")
    assert base[f"{LOSS}.variant"] == "adaptive"
    labels = {variant.key: variant.label for variant in study.variants}
    main, ablations = study.tables
    assert [labels[row.variant] for row in main.rows] == [row.label for row in main.rows] == ["SCAN", *list(AOQ)[:3]]
    assert [labels[row.variant] for row in ablations.rows] == [row.label for row in ablations.rows] == list(AOQ)[3:]


def test_second_models_and_ensembles_of_aoq() -> None:
    """BFAN equal beside prob; each row is trained, averaged and compared as it is called."""
    base, partner = load_recipe("aoq-bfan-f30k"), load_recipe("aoq-bfan-prob-f30k")
    study = build_study("aoq", base, partner=partner, ensembles=True)
    for key in LOSSES:
        own, other = flat(study.variant(key).content(0)), flat(study.variant(f"partner-{key}").content(0))
        changed = {path: other[path] for path in own if own[path] != other[path] and path != "name"}
        mined = {} if key == "online" else {"stages.0.negatives.from": "@partner-online"}
        assert changed == {"matcher.focal": "prob"} | mined
    members = {variant.key: variant.members for variant in study.variants if variant.members}
    assert members == {f"seeds-{key}": (key,) for key in LOSSES} | {
        f"both-{key}": (key, f"partner-{key}") for key in LOSSES
    }
    main, seeds, both = study.tables
    assert [row.variant for row in seeds.rows] == [f"seeds-{key}" for key in LOSSES]
    assert [row.variant for row in both.rows] == [f"{kind}-{key}" for kind in ("partner", "both") for key in LOSSES]
    for row in (*main.rows, *seeds.rows, *both.rows[4:]):
        loss = LOSSES[row.variant.removeprefix("seeds-").removeprefix("both-")]
        assert row.label.partition(",")[0] == loss
        assert {published.place.split(", ")[1] for published in row.published} == {loss}


def test_hrem() -> None:
    study = build_study("hrem", load_recipe("hrem-fusion-bert-f30k"), ablations=True)
    assert changes(study, "hrem") == HREM
    labels = {variant.key: variant.label for variant in study.variants}
    _, hierarchical, instance = study.tables
    marks = {labels[row.variant]: "".join("x" if mark else "." for mark in row.marks) for row in hierarchical.rows}
    assert marks == HREM_MARKS
    assert hierarchical.marks == ("visual", "textual", "intra-modal", "inter-modal")
    for row in (*hierarchical.rows, *instance.rows):
        assert row.label == labels[row.variant]


def test_mmca() -> None:
    study = build_study("mmca", load_recipe("mmca-f30k"), ablations=True)
    assert changes(study, "mmca") == MMCA
    labels = {variant.key: variant.label for variant in study.variants}
    for table, own in zip(study.tables[1:], ("256d", f"{ALPHA} = 0.2"), strict=True):
        assert [row.label for row in table.rows] == [
            own if row.variant == "mmca" else labels[row.variant] for row in table.rows
        ]


@pytest.mark.parametrize("side", ["image", "text"])
def test_hrem_without_relations_of_one_side_leaves_the_other(side: str) -> None:
    """`image_relation` is of regions and `text_relation` of words."""
    matcher = build_hrem(image_dim=8, vocabulary_size=10, embed_dim=4, word_dim=4, **{f"{side}_relation": False})
    layers = {
        "image": matcher.image_encoder.aggregation.layer,
        "text": matcher.text_encoder.aggregation.layer,
    }
    assert [name for name, layer in layers.items() if layer is None] == [side]
