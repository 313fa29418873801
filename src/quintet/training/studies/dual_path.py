"""The study of Dual-Path: Tables II to VI of the paper, under one set of seeds.

Stage I with the instance loss, `instance-1`, is trained once per seed. Stage II starts from it, weights and classifier,
and every ablation of Tables III to VI is stage I again with one thing changed.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from quintet.data.corpus import Corpus, Split
from quintet.errors import RecipeError
from quintet.evaluation.scoring import Member
from quintet.report.analysis.distributions import split_similarities
from quintet.training.recipe_models import DataRecipe, Recipe
from quintet.training.studies.study import Layout, Measure, Row, Study, Variant

INSTANCE_1, FULL = "instance-1", "full"
LOSSES = ("instance", "ranking")
TABLES = (2, 3, 4, 5, 6)
RECALLS_1_10 = ("i2t_r1", "i2t_r10", "t2i_r1", "t2i_r10")
RECALLS_1 = ("i2t_r1", "t2i_r1")
DEEPER = {"small": "resnet50", "resnet50": "resnet152", "released": "resnet152"}
SHARES = (3_000 / 113_287, 10_000 / 113_287)  # pseudo-categories of Table IV by the number of its training groups


def dual_path_study(base: Recipe, *, tables: Sequence[int] = TABLES, categories: Sequence[int] = ()) -> Study:
    """Losses and stages with S (Table II), deeper text CNN (III), pseudo-categories (IV), word vectors (V), shift (VI).

    - `tables`: which of them, by number; what they share is trained once.
    - `categories`: how many pseudo-categories; default: as many per training group as in the paper.
    """
    wrong = [number for number in tables if number not in TABLES]
    if wrong:
        raise RecipeError(f"Dual-Path's tables that can be trained are 2 to 6, got {wrong[0]}")
    plan = _Plan(base)
    plan.add(INSTANCE_1, "Only Instance Loss", plan.stage_one())
    for number in sorted(set(tables)):
        if number == 4:
            plan.categories(categories)
        else:
            {2: plan.losses, 3: plan.deeper, 5: plan.word_vectors, 6: plan.position_shift}[number]()
    return Study(
        "dual-path",
        base.name,
        FULL if 2 in tables else INSTANCE_1,
        tuple(plan.variants),
        tuple(plan.tables),
        measures=(Measure("S", _overlap, digits=4),),
        notes=tuple(plan.notes),
    )


def _overlap(member: Member, split: Split) -> float:
    """The indicator S of Eq. 10."""
    return split_similarities([member], split).overlap


class _Plan:
    """Variants and tables as they come together."""

    def __init__(self, base: Recipe) -> None:
        _check(base)
        self.data = base.data
        self.base: dict[str, Any] = base.model_dump(mode="json", by_alias=True)
        *self.first, self.second = self.base["stages"]
        self.matcher: dict[str, Any] = self.base["matcher"]
        self.variants: list[Variant] = []
        self.tables: list[Layout] = []
        self.notes: list[str] = []

    def add(self, key: str, label: str, recipe: dict[str, Any], stage: str = "I") -> Row:
        recipe["name"] = f"{self.base['name']}-{key}"
        self.variants.append(Variant(key, f"{label}, stage {stage}", recipe))
        return Row(key, label, (stage,))

    def tabulate(self, title: str, columns: tuple[str, ...], *rows: Row) -> None:
        self.tables.append(Layout(title, rows, columns, marks=("stage",)))

    def stage_one(self, loss: str = "instance", **changes: Mapping[str, Any]) -> dict[str, Any]:
        """Stage I with one loss; `changes` are of the `matcher`, the `tokenizer` and the `arguments` of the loss."""
        recipe = copy.deepcopy(self.base) | {"stages": copy.deepcopy(self.first)}
        for stage in recipe["stages"]:
            own = stage["loss"].get(loss, self.second["loss"][loss])
            stage["loss"] = {loss: own | changes.get("arguments", {})}
        recipe["matcher"] |= changes.get("matcher", {})
        recipe["data"]["tokenizer"] |= changes.get("tokenizer", {})
        return recipe

    def stage_two(self, start: str, losses: Sequence[str]) -> dict[str, Any]:
        """Stage II with some of its losses, from the run of another variant."""
        stage = copy.deepcopy(self.second) | {"init": f"@{start}"}
        stage["loss"] = {name: stage["loss"][name] for name in losses}
        return copy.deepcopy(self.base) | {"stages": [stage]}

    def losses(self) -> None:
        """Table II. What "only ranking loss" starts from in stage II is not said: from itself, or as the others do."""
        self.tabulate(
            "Ranking loss and instance loss, with the overlap S (Table II)",
            (*RECALLS_1_10, "S"),
            self.add("ranking-1", "Only Ranking Loss", self.stage_one("ranking")),
            own_row("Only Instance Loss"),
            self.add("instance-2", "Only Instance Loss", self.stage_two(INSTANCE_1, ["instance"]), "II"),
            self.add("ranking-2", "Only Ranking Loss", self.stage_two("ranking-1", ["ranking"]), "II"),
            self.add(
                "instance-ranking",
                "Only Ranking Loss after instance loss",
                self.stage_two(INSTANCE_1, ["ranking"]),
                "II",
            ),
            self.add(FULL, "Full model", self.stage_two(INSTANCE_1, LOSSES), "II"),
        )

    def deeper(self) -> None:
        """Table III."""
        own = self.matcher.get("text_layout", "resnet50")
        other = DEEPER.get(own)
        if other is None:
            self.notes.append(f"Table III is left out: there is no deeper text CNN than {own}")
            return
        image = self.matcher.get("tower") or self.base["data"]["features"]
        changed = self.stage_one(matcher={"text_layout": other})
        self.tabulate(
            "Deeper text CNN (Table III)",
            RECALLS_1,
            own_row(f"{image} + {own} text CNN"),
            self.add(f"text-{other}", f"{image} + {other} text CNN", changed),
        )

    def categories(self, wanted: Sequence[int]) -> None:
        """Table IV."""
        groups = _groups(self.data)
        counts = wanted or [max(2, round(share * groups)) for share in SHARES]
        rows = [
            self.add(f"categories{count}", f"{count:,} categories", self.stage_one(arguments={"categories": count}))
            for count in dict.fromkeys(counts)
        ]
        own = own_row(f"Instance loss, {groups:,} classes")
        self.tabulate("K-class loss and instance loss (Table IV)", RECALLS_1, *rows, own)

    def word_vectors(self) -> None:
        """Table V: the same words, their embeddings random or from the file."""
        if self.base["data"]["tokenizer"]["word_vectors"] is None:
            self.notes.append(
                "Table V is left out: the recipe names no word vectors; add data.tokenizer.word_vectors=FILE"
            )
            return
        self.tabulate(
            "Initialization of the word embeddings (Table V)",
            RECALLS_1_10,
            self.add("random-words", "Random initialization", self.stage_one(tokenizer={"vectors_start": False})),
            own_row("Word vector initialization"),
        )

    def position_shift(self) -> None:
        """Table VI."""
        left = {"alignment": "left", "test_positions": "left"}
        self.tabulate(
            "Position shift and left alignment (Table VI)",
            RECALLS_1_10,
            self.add("left-alignment", "Left alignment", self.stage_one(matcher=left)),
            own_row("Position shift"),
        )


def own_row(label: str) -> Row:
    """Stage I as the recipe has it, under the name it has in a table."""
    return Row(INSTANCE_1, label, ("I",))


def _check(base: Recipe) -> None:
    if base.matcher.name != "dual-path":
        raise RecipeError(f"recipe {base.name!r} is of matcher {base.matcher.name!r}; this study is of dual-path")
    if base.matcher.arguments.get("alignment", "shift") != "shift":
        raise RecipeError("this study compares position shift with left alignment: leave alignment at shift")
    *first, last = base.stages
    fits = first and set(last.loss) == set(LOSSES) and all(set(stage.loss) == {"instance"} for stage in first)
    if not fits:
        raise RecipeError(
            f"recipe {base.name!r} has not the two stages that this study compares: the instance loss alone, then "
            "instance and ranking loss together"
        )


def _groups(data: DataRecipe) -> int:
    if data.corpus is None:
        raise RecipeError("the recipe names no corpus; add --corpus FOLDER")
    groups = len(Corpus.open(data.corpus).split(data.train).groups)
    return groups if data.limit is None else min(groups, data.limit)
