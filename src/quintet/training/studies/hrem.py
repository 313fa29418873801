"""The study of HREM: Table 3's ablations, Figure 6's sweeps, Table 4's special samples and Figure 7's loss curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quintet.errors import QuintetError, RecipeError
from quintet.report.analysis.training_curves import term_curves
from quintet.training.recipe_models import Recipe
from quintet.training.studies.overrides import Overrides
from quintet.training.studies.special_samples import special_samples_of
from quintet.training.studies.study import Column, Extra, Layout, Row, Study, Trained

HREM, WITHOUT = "hrem", "without-relations"
RELATION = "stages.{stage}.loss.relation."
RECALLS = ("i2t_r1", "i2t_r5", "t2i_r1", "t2i_r5")  # the columns of Table 3
HAS, LACKS = "✓", ""
NO_IMAGE_RELATION, NO_TEXT_RELATION = "matcher.image_relation=false", "matcher.text_relation=false"
# key, label, overrides, and what remains: visual, textual, intra-modal, inter-modal (Table 3a)
HIERARCHICAL: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("without-fragments", "w/o fragments", (NO_IMAGE_RELATION, NO_TEXT_RELATION), (LACKS, LACKS, HAS, HAS)),
    ("without-visual", "w/o visual", (NO_IMAGE_RELATION,), (LACKS, HAS, HAS, HAS)),
    ("without-textual", "w/o textual", (NO_TEXT_RELATION,), (HAS, LACKS, HAS, HAS)),
    (WITHOUT, "w/o instances", (f"{RELATION}relations=none",), (HAS, HAS, LACKS, LACKS)),
    ("intra", "intra-modal only", (f"{RELATION}relations=intra",), (HAS, HAS, HAS, LACKS)),
    ("inter", "inter-modal only", (f"{RELATION}relations=inter",), (HAS, HAS, LACKS, HAS)),
    (HREM, "HREM", (), (HAS, HAS, HAS, HAS)),
)
INSTANCE: tuple[tuple[str, str, tuple[str, ...]], ...] = (  # Table 3b
    ("without-connection", "w/o connection matrix A", (f"{RELATION}neighbours=1",)),
    (
        "without-relevance",
        "w/o relevance matrix S",
        (f"{RELATION}relevance_weight=0", f"{RELATION}regularisation=0"),
    ),
    ("without-consistency", "w/o consistency L_cross", (f"{RELATION}consistency=false",)),
    ("without-regularisation", "w/o regularisation L_reg", (f"{RELATION}regularisation=0",)),
    ("without-neighbours", "w/o neighbour batches", ("stages.{stage}.batches.kind=random",)),
    (HREM, "HREM", ()),
)


def hrem_study(
    base: Recipe,
    *,
    ablations: bool = False,
    relevance_weight: Sequence[float] = (),
    top: Sequence[int] = (),
    neighbours: Sequence[float] = (),
    hard_samples: bool = False,
    curves: bool = False,
) -> Study:
    """HREM, and by option ablations (Table 3), sweeps (Figure 6), hard samples (Table 4), loss curves (Figure 7):

    - `ablations`: the rows of Table 3;
    - `relevance_weight`, `top`, `neighbours`: other values of lambda, K and tau, one changed at a time (Figure 6);
    - `hard_samples`: R@1 on hard and on infrequent test samples with and without relations among instances (Table 4);
    - `curves`: the triplet loss of initial and of enhanced embeddings by epoch (Figure 7).
    """
    stage = _relation_stage(base)
    plan = Overrides(base, HREM, "HREM")

    def row(key: str, label: str, overrides: Sequence[str], marks: tuple[str, ...] = ()) -> Row:
        return plan.row(key, label, *(override.format(stage=stage) for override in overrides), marks=marks)

    tables = [Layout("The recipe itself (Tables 1 and 2 of the paper)", (row(HREM, "HREM", ()),))]
    if ablations:
        rows = tuple(row(*line) for line in HIERARCHICAL)
        marks = ("visual", "textual", "intra-modal", "inter-modal")
        tables.append(Layout("Hierarchical relations (Table 3a of the paper)", rows, RECALLS, marks=marks))
        instance = tuple(row(*line) for line in INSTANCE)
        tables.append(Layout("Relations among instances (Table 3b of the paper)", instance, RECALLS))
    for part, sign, name, argument, values in (
        ("a", "λ", "the weight of the relevance matrix", "relevance_weight", relevance_weight),
        ("b", "K", "how many matches of fragments count", "top", top),
        ("c", "τ", "the share of a batch that is connected", "neighbours", neighbours),
    ):
        lines = tuple(
            row(f"{argument}{value:g}", f"{sign} = {value:g}", (f"{RELATION}{argument}={value:g}",))
            for value in dict.fromkeys(values)
        )
        if lines:
            tables.append(Layout(f"{sign}, {name} (Figure 6{part} of the paper)", lines))
    extras = []
    if hard_samples:
        without = row(WITHOUT, "w/o instances", (f"{RELATION}relations=none",))
        extras.append(_special_samples(without.variant))
    if curves:
        extras.append(_loss_curves(stage))
    return Study(HREM, base.name, HREM, tuple(plan.variants), tuple(tables), tuple(extras))


def _relation_stage(base: Recipe) -> str:
    """The stage that trains with relations."""
    names = [stage.name for stage in base.stages if "relation" in stage.loss]
    if len(names) != 1:
        raise RecipeError(f"the study of HREM needs one stage with the relation loss; {base.name!r} has {len(names)}")
    return names[0]


def _special_samples(without: str) -> Extra:
    columns = (
        Column("samples", "samples"),
        Column("percent", "percentile", "{}%"),
        Column("label", "model"),
        Column("i2t_r1", "text R@1", "{:.1f}"),
        Column("t2i_r1", "image R@1", "{:.1f}"),
    )
    labels = {without: "w/o relations among instances", HREM: "HREM"}

    def measure(trained: Trained) -> list[dict[str, Any]]:
        rows = special_samples_of(trained, tuple(labels))
        return [row | {"label": labels[row["run"]]} for row in rows]

    return Extra(
        "special_samples", "Hard and infrequent samples (Table 4 of the paper)", columns, tuple(labels), measure
    )


def _loss_curves(stage: str) -> Extra:
    columns = (
        Column("epoch", "epoch"),
        Column("initial", "initial embeddings", "{:.4f}"),
        Column("enhanced", "enhanced embeddings", "{:.4f}"),
    )
    title = "Triplet loss by epoch, once relations have started (Figure 7 of the paper)"
    return Extra("loss_curves", title, columns, (HREM,), lambda trained: loss_rows(trained, stage))


def loss_rows(trained: Trained, stage: str) -> list[dict[str, Any]]:
    """The two losses of each epoch in which there are enhanced embeddings; means over the epoch."""
    found = term_curves(trained.folders[HREM], ("initial", "enhanced")).get(stage, {})
    if "relation.enhanced" not in found:
        raise QuintetError("not measured: no epoch was logged after the relations had started")
    lines = zip(found["epoch"], found["relation.initial"], found["relation.enhanced"], strict=True)
    return [
        {"epoch": int(epoch), "initial": initial, "enhanced": enhanced}
        for epoch, initial, enhanced in lines
        if enhanced == enhanced  # NaN before
    ]
