"""The study of AOQ: its losses under one set of seeds, and the ablations of the paper and its supplement.

Round one, `online`, is trained once per seed; every other variant of that seed mines with it (or with the teacher that
the base recipe names). Runs of one seed start from the same weights and see the same batches where their sizes agree.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from quintet.errors import RecipeError
from quintet.evaluation.metrics import RECALLS
from quintet.training.recipe_models import NegativesRecipe, Recipe
from quintet.training.studies.aoq_timing import time_batches
from quintet.training.studies.shared_lists import share_lists
from quintet.training.studies.study import Column, Extra, Layout, Row, Study, Variant

ONLINE, ADAPTIVE = "online", "adap-off-quin"
ROUND_ONE = f"@{ONLINE}"
QUINTUPLET = "quintuplet"
BOTH_ROUNDS = ("same_group", "warmup_epochs", "warmup", "weight")  # arguments that the losses of both rounds have
MAIN = {"off-tri": ("OffTri", "triplet"), "off-quin": ("OffQuin", "quintuplet"), ADAPTIVE: ("AdapOffQuin", "adaptive")}
# label, arguments of the loss, arguments of the stage; squares are the simpler change of Eq. 4 of section 3.3
ABLATIONS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "only-offline": ("OnlyOffline", {"variant": "only_offline", "warmup_epochs": 0}, {}),
    "fine-tune": ("Fine-tune", {"variant": "adaptive", "warmup_epochs": 0}, {"init": ROUND_ONE}),
    "online-quin": ("OnlineQuin", {"variant": "online_quintuplet"}, {}),
    "without-offline-adap": ("w/o OfflineAdap", {"variant": "without_offline_adaptation"}, {}),
    "squared": ("squared", {"variant": "quintuplet", "squared": True}, {}),
}


def aoq_study(
    base: Recipe,
    *,
    ablations: bool = False,
    top: Sequence[int] = (),
    alpha: Sequence[float] = (),
    beta: Sequence[float] = (),
    batch_size: Sequence[int] = (),
    timing: bool = False,
) -> Study:
    """Online, OffTri, OffQuin and AdapOffQuin of any matcher, and by option:

    - `ablations`: the rows of Table 3, and squared hinges;
    - `top`: other list lengths h for texts, with images in the recipe's own proportion (5 to 1 in the paper);
    - `alpha`, `beta`: other strengths of the adaptive weights, one changed at a time (supplement);
    - `batch_size`: the online loss with other batch sizes (supplement);
    - `timing`: seconds per batch of the four losses (supplement).
    """
    rounds = _Rounds(base)
    plan = _Plan(base.matcher.name.upper())
    plan.add(Variant(ONLINE, plan.name, rounds.online()))
    for key, (label, variant) in MAIN.items():
        plan.add(Variant(key, f"{plan.name} + {label}", rounds.offline(key, {"variant": variant})))
    main = tuple(Row(variant.key, variant.label) for variant in plan.variants)
    plan.tables.append(Layout("Online and offline losses (Tables 1 and 2 of the paper)", main))
    _add_ablations(plan, rounds, ablations, top)
    _add_batch_sizes(plan, rounds, batch_size)
    _add_weights(plan, rounds, alpha, beta)
    extras = (_timing(main),) if timing else ()
    return Study("aoq", base.name, ONLINE, tuple(plan.variants), tuple(plan.tables), extras, share_lists)


class _Plan:
    """Variants and tables as they come together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.variants: list[Variant] = []
        self.tables: list[Layout] = []

    def add(self, variant: Variant) -> Row:
        self.variants.append(variant)
        return Row(variant.key, variant.label)


class _Rounds:
    """The two rounds of a base recipe, each as the content of a recipe of its own."""

    def __init__(self, base: Recipe) -> None:
        self.base = base.model_dump(mode="json", by_alias=True)
        names = [stage.name for stage in base.stages]
        second = [number for number, stage in enumerate(base.stages) if QUINTUPLET in stage.loss]
        if len(second) > 1:
            raise RecipeError(
                f"recipe {base.name!r} has {len(second)} stages with the quintuplet loss; a study needs one"
            )
        cut = second[0] if second else len(names)
        self.first: list[dict[str, Any]] = self.base["stages"][:cut] or [_without_offline(self.base["stages"][0])]
        self.second: list[dict[str, Any]] = self.base["stages"][cut:] or [_with_offline(self.base["stages"][-1])]
        stage = self.second[0]
        if stage["negatives"]["from"] in (*names[:cut], ROUND_ONE):
            stage["negatives"]["from"] = ROUND_ONE
        if stage["init"] == "previous":
            stage["init"] = ROUND_ONE
        self.loss: dict[str, Any] = stage["loss"][QUINTUPLET]
        self.negatives: dict[str, Any] = stage["negatives"]

    def online(self, batch_size: int | None = None) -> dict[str, Any]:
        stages = copy.deepcopy(self.first)
        key = ONLINE
        if batch_size is not None:
            key = f"{ONLINE}-batch{batch_size}"
            for stage in stages:
                stage["batches"]["size"] = batch_size
        return self._recipe(key, stages)

    def offline(
        self,
        key: str,
        loss: dict[str, Any],
        stage: dict[str, Any] | None = None,
        negatives: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Round two with some arguments of its loss, its stage and its negatives replaced."""
        stages = copy.deepcopy(self.second)
        stages[0] |= stage or {}
        stages[0]["loss"][QUINTUPLET] |= loss
        stages[0]["negatives"] |= negatives or {}
        return self._recipe(key, stages)

    def _recipe(self, key: str, stages: list[dict[str, Any]]) -> dict[str, Any]:
        return copy.deepcopy(self.base) | {"name": f"{self.base['name']}-{key}", "stages": stages}


def _with_offline(stage: dict[str, Any]) -> dict[str, Any]:
    """Round two of a recipe that has only round one: the same stage with the quintuplet loss for the triplet loss."""
    if "triplet" not in stage["loss"]:
        raise RecipeError(f"stage {stage['name']!r} has no triplet loss that the quintuplet loss could replace")
    triplet = stage["loss"]["triplet"]
    kept = {key: triplet[key] for key in BOTH_ROUNDS if key in triplet}
    loss = {QUINTUPLET: {"margin_online": triplet.get("margin", 0.2), **kept}}
    others = {name: arguments for name, arguments in stage["loss"].items() if name != "triplet"}
    negatives = NegativesRecipe(source=ROUND_ONE).model_dump(mode="json", by_alias=True)
    return copy.deepcopy(stage) | {"name": "offline", "loss": loss | others, "negatives": negatives}


def _without_offline(stage: dict[str, Any]) -> dict[str, Any]:
    """Round one of a recipe that has only round two (a teacher mines for it): the same stage with the triplet loss."""
    quintuplet = stage["loss"][QUINTUPLET]
    kept = {key: quintuplet[key] for key in BOTH_ROUNDS if key in quintuplet}
    loss = {"triplet": {"margin": quintuplet.get("margin_online", 0.2), "negatives": "hardest", **kept}}
    others = {name: arguments for name, arguments in stage["loss"].items() if name != QUINTUPLET}
    return copy.deepcopy(stage) | {"name": "online", "loss": loss | others, "negatives": None}


def _add_ablations(plan: _Plan, rounds: _Rounds, ablations: bool, top: Sequence[int]) -> None:
    rows = []
    for key, (label, loss, stage) in ABLATIONS.items() if ablations else ():
        recipe = rounds.offline(key, _known_warmup(loss, rounds), stage)
        rows.append(plan.add(Variant(key, f"{plan.name} ({label})", recipe)))
    own = rounds.negatives
    for length in dict.fromkeys(top):
        label = f"{plan.name} (h = {length})"
        if length == own["top_texts"]:
            rows.append(Row(ADAPTIVE, label))
            continue
        images = max(1, round(length * own["top_images"] / own["top_texts"]))
        lengths = {"top_texts": length, "top_images": images}
        key = f"top{length}"
        rows.append(plan.add(Variant(key, label, rounds.offline(key, {"variant": "adaptive"}, negatives=lengths))))
    if rows:
        title = f"Ablations (Table 3 of the paper); in parentheses the difference to {plan.name} + AdapOffQuin"
        plan.tables.append(Layout(title, tuple(rows), RECALLS, compare=ADAPTIVE))


def _known_warmup(loss: dict[str, Any], rounds: _Rounds) -> dict[str, Any]:
    """A warm-up is switched off where the recipe has one, and not mentioned where it has none."""
    return {key: value for key, value in loss.items() if key != "warmup_epochs" or key in rounds.loss}


def _add_batch_sizes(plan: _Plan, rounds: _Rounds, sizes: Sequence[int]) -> None:
    own = rounds.first[-1]["batches"]["size"]
    rows = [Row(ONLINE, f"{plan.name} (batch {own})")]
    for size in dict.fromkeys(sizes):
        if size != own:
            key, label = f"{ONLINE}-batch{size}", f"{plan.name} (batch {size})"
            rows.append(plan.add(Variant(key, label, rounds.online(size))))
    if sizes:
        plan.tables.append(Layout("Batch size of the online loss (supplement)", tuple(rows), RECALLS))


def _add_weights(plan: _Plan, rounds: _Rounds, alphas: Sequence[float], betas: Sequence[float]) -> None:
    """One of the two changed at a time, as in the supplement; the recipe's own values are AdapOffQuin itself."""
    own = rounds.loss.get("beta", 1.5), rounds.loss.get("alpha", 0.3)
    wanted = [(own[0], alpha) for alpha in sorted({*alphas, own[1]})]
    wanted += [(beta, own[1]) for beta in sorted({*betas} - {own[0]})]
    rows = []
    for beta, alpha in wanted:
        label = f"{plan.name} (β = {beta:g}, α = {alpha:g})"  # noqa: RUF001
        if (beta, alpha) == own:
            rows.append(Row(ADAPTIVE, label))
            continue
        key = f"beta{beta:g}-alpha{alpha:g}"
        recipe = rounds.offline(key, {"variant": "adaptive", "alpha": alpha, "beta": beta})
        rows.append(plan.add(Variant(key, label, recipe)))
    if alphas or betas:
        plan.tables.append(Layout("Strength of the adaptive weights (supplement)", tuple(rows), RECALLS))


def _timing(rows: tuple[Row, ...]) -> Extra:
    columns = (
        Column("label", "model"),
        Column("seconds", "seconds per batch", "{:.4f}"),
        Column("relative", "to the first", "{:.2f}"),
        Column("batch", "pairs"),
    )
    needs = tuple(row.variant for row in rows)
    labels = {row.variant: row.label for row in rows}
    return Extra(
        "timing",
        "Training time per batch (supplement)",
        columns,
        needs,
        lambda trained: time_batches(trained, ONLINE, labels),
    )
