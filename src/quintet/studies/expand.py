"""From a study's file, a base recipe and options to a `Study`: every variant's recipe, every table's rows."""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from quintet.data.corpus import Corpus
from quintet.errors import RecipeError, suggest
from quintet.evaluation.metrics import RECALLS
from quintet.losses import OBJECTIVES
from quintet.models import MODELS
from quintet.registry import Registry
from quintet.studies.measurements import EXTRAS, MEASURES
from quintet.studies.published import counterparts
from quintet.studies.study_file import (
    ExtraSpec,
    Given,
    Requirement,
    RowSpec,
    StudyFile,
    TableSpec,
    VariantSpec,
    load_study,
)
from quintet.studies.variants import Column, Extra, Layout, Row, Study, Variant, renamed
from quintet.training.build import without_absent_vectors
from quintet.training.recipe import list_recipes, parse_recipe, set_field
from quintet.training.recipe_models import Recipe
from quintet.training.rounds import ROUNDS, Stages

T = TypeVar("T")
Content = dict[str, Any]  # of a recipe, as JSON values


def build_study(source: str | Path | StudyFile, base: Recipe, **options: Any) -> Study:
    """The study of a base recipe: `source` names a shipped study or a YAML file, which says what `options` there are.

    >>> from quintet.training.recipe import load_recipe
    >>> study = build_study("mmca", load_recipe("mmca-f30k"), dimension=[64, 256])
    >>> [variant.key for variant in study.variants]
    ['mmca', 'dim64']
    >>> study.variants[1].recipe["matcher"]["embed_dim"]
    64
    """
    file = source if isinstance(source, StudyFile) else load_study(source)
    return _Expansion(file, base, file.given(options)).study()


def choose_recipe(study: StudyFile, matcher: str | None, corpus: Path | None) -> str:
    """The shipped recipe to start from: the study's own, or with `matcher` that of a matcher, for a corpus.

    A recipe of the study and the matcher (aoq-vsrn-f30k) comes before a plain one (vsrn-f30k).
    """
    if matcher == study.matcher:
        matcher = None
    if matcher is None and not study.recipes:
        raise RecipeError("name the base recipe with --recipe, or choose it with --matcher (one of the two)")
    if corpus is None:
        raise RecipeError("the corpus chooses the recipe: add --corpus FOLDER, or name the recipe with --recipe")
    shipped = list_recipes()
    corpora = dict.fromkeys((Corpus.open(corpus).name, corpus.name))
    short = (matcher or "").lower().replace("+", "")
    names = (f"{study.name}-{short}", short) if matcher is not None else study.recipes
    for wanted in (f"{name}-{kind}" for name in names for kind in corpora):
        if wanted in shipped:
            return wanted
    fitting = [recipe for recipe in shipped if any(f"-{name}-" in f"-{recipe}" for name in names)]
    if not fitting:
        raise RecipeError(f"no shipped recipe is for matcher {matcher!r}; {suggest(short, MODELS.names())}")
    raise RecipeError(
        f"there is no shipped recipe of {matcher or study.matcher} for corpus {next(iter(corpora))!r}; take one of "
        f"another corpus as the base, with --recipe: {', '.join(fitting)}"
    )


class _Expansion:
    """Variants, tables and notes as they come together. No recipe is trained twice."""

    def __init__(self, file: StudyFile, base: Recipe, options: Given) -> None:
        if file.matcher is not None and base.matcher.name != file.matcher:
            raise RecipeError(
                f"study {file.name!r} needs a recipe of matcher {file.matcher!r}; {base.name!r} is of matcher "
                f"{base.matcher.name!r}"
            )
        self.notes: list[str] = []
        base = without_absent_vectors(base, self.notes.append)
        self.file, self.base = file, base
        self.options = {
            name: without_absent_vectors(value, self.notes.append) if isinstance(value, Recipe) else value
            for name, value in options.items()
        }
        self.content: Content = base.model_dump(mode="json", by_alias=True)
        self.stage = _stage_with(file.stage_with, base) if file.stage_with is not None else None
        self.facts = _Facts(self, self.content)
        for requirement in file.requires:
            if not self._fulfilled(requirement):
                raise RecipeError(requirement.otherwise.format_map(self.facts))
        self.variants: dict[str, Variant] = {}
        self._whole: dict[str, Content] = {}  # recipes with all defaults, by variant

    def study(self) -> Study:
        list(self._rows(RowSpec(variant=self.file.base), marks=True))
        tables = tuple(filter(None, map(self._table, self.file.tables)))
        extras = tuple(self._extra(key, spec) for key, spec in self.file.extras.items() if self._wanted(spec.when))
        reference = [self.file.reference] if isinstance(self.file.reference, str) else self.file.reference
        return Study(
            self.file.name,
            self.base.name,
            next((key for key in reference if key in self.variants), self.file.base),
            tuple(self.variants.values()),
            tables,
            extras,
            measures=tuple(_known("measure", name, MEASURES) for name in self.file.measures),
            notes=tuple(self.notes),
        )

    def _rounds(self, base: Recipe) -> tuple[Stages, Stages]:
        if self.file.rounds is None:
            raise RecipeError(f"study {self.file.name!r} has variants of a round, and does not say which `rounds`")
        return _known("rounds", self.file.rounds, ROUNDS)(base)

    @cached_property
    def groups(self) -> int:
        """How many groups the recipe trains on."""
        if self.base.data.corpus is None:
            raise RecipeError("the recipe names no corpus; add --corpus FOLDER")
        groups = len(Corpus.open(self.base.data.corpus).split(self.base.data.train).groups)
        return groups if self.base.data.limit is None else min(groups, self.base.data.limit)

    def _fulfilled(self, requirement: Requirement) -> bool:
        value = self.facts[requirement.setting]
        return value is not None if requirement.one_of is None else value in requirement.one_of

    def _table(self, spec: TableSpec) -> Layout | None:
        if not self._wanted(spec.when):
            return None
        if spec.requires is not None and not self._fulfilled(spec.requires):
            self.notes.append(spec.requires.otherwise.format_map(self.facts))
            return None
        specs = (row if isinstance(row, RowSpec) else RowSpec(variant=row) for row in spec.rows)
        rows = dict.fromkeys(row for given in specs for row in self._rows(given, bool(spec.marks), spec.published))
        if not rows:
            return None
        title = spec.title.format_map(self.facts)
        columns = (*RECALLS, "rsum") if spec.columns is None else spec.columns
        return Layout(title, tuple(rows), columns, spec.compare, spec.marks, spec.validation)

    def _wanted(self, when: str | tuple[str, ...] | dict[str, Any] | None) -> bool:
        if isinstance(when, dict):
            return any(value in self.options.get(name, ()) for name, value in when.items())
        names = (when,) if isinstance(when, str) else when
        return names is None or any(name in self.options for name in names)

    def _extra(self, key: str, spec: ExtraSpec) -> Extra:
        labels = {}
        for name in spec.variants:
            for row in self._rows(RowSpec(variant=name), marks=False):
                given = spec.variants[name] if isinstance(spec.variants, dict) else row.label
                labels[row.variant] = given.format_map(self.facts)
        columns = tuple(Column(column.key, column.heading, column.form) for column in spec.columns)
        measure = _known("measurement", key, EXTRAS)
        return Extra(key, spec.title.format_map(self.facts), columns, labels, measure, spec.row, spec.published)

    def _rows(self, row: RowSpec, marks: bool, printed: tuple[str, ...] = ()) -> Iterator[Row]:
        """The lines of a table for a variant of the file, which there may be several of.

        `printed`: the papers' tables that may have a counterpart, called as the row or as the variant is.
        """
        spec = self.file.variants[row.variant]
        if spec.when is not None and spec.when not in self.options:
            return
        if spec.ensemble:
            yield from self._ensemble(row, spec, printed)
            return
        for content in self._contents(row.variant, spec):
            facts = _Facts(self, content)
            label = (row.label or spec.label).format_map(facts)
            shown = (spec.marks if row.marks is None else row.marks) if marks else ()
            key = self._variant(row.variant, spec, content, facts)
            named = self.file.names.format(label=spec.label.format_map(facts), marks=spec.marks)
            names = (label, named) if row.published is None else (row.published.format_map(facts),)
            yield Row(key, label, shown, counterparts(printed, *names))

    def _ensemble(self, row: RowSpec, spec: VariantSpec, printed: tuple[str, ...]) -> Iterator[Row]:
        """The line of an ensemble, where all of its members are trained."""
        members = [found for name in spec.ensemble for found in self._rows(RowSpec(variant=name), marks=False)]
        if len(members) == len(spec.ensemble):
            label = (row.label or spec.label).format_map(self.facts)
            variant = Variant(row.variant, spec.label.format_map(self.facts), {}, tuple(one.variant for one in members))
            self.variants.setdefault(row.variant, variant)
            names = (label if row.published is None else row.published.format_map(self.facts),)
            yield Row(row.variant, label, row.marks or (), counterparts(printed, *names))

    def _variant(self, name: str, spec: VariantSpec, content: Content, facts: _Facts) -> str:
        """The key of the variant with this recipe: a new one, or one that comes to the same."""
        key = (spec.key or name).format_map(facts)
        recipe = parse_recipe(content, where=f"variant {key!r}")
        whole = _with_defaults(recipe)
        known = next((other for other, found in self._whole.items() if found == whole), None)
        if known is not None:
            return known
        content = recipe.model_dump(mode="json", by_alias=True)
        if spec.changes_recipe:
            content["name"] = f"{recipe.name}-{key}"
        label = spec.label.format_map(facts)
        variant = Variant(key, self.file.names.format(label=label, marks=spec.marks), content)
        for needed in variant.needs:
            if needed not in self.variants and needed in self.file.variants:
                list(self._rows(RowSpec(variant=needed), marks=False))
        self.variants[key] = variant
        self._whole[key] = whole
        return key

    def _contents(self, name: str, spec: VariantSpec) -> Iterator[Content]:
        """The recipes of a variant: one, or one for each value of the option that it sweeps."""
        base = self.base if spec.recipe is None else self.options[spec.recipe]
        content: Content = base.model_dump(mode="json", by_alias=True)
        if spec.round is not None:
            content["stages"] = copy.deepcopy(self._rounds(base)[spec.round - 1])
        if spec.recipe is not None:
            content = renamed(content, f"{spec.recipe}-")
        if spec.losses is not None:
            for stage in content["stages"]:
                stage["loss"] = {loss: self._arguments(stage, loss) for loss in spec.losses}
        where = f"variant {name!r} of study {self.file.name!r}"
        for path, value in spec.set.items():
            set_field(content, path.format_map(self.facts), copy.deepcopy(value), where)
        for path, value in spec.set_if_present.items():
            if _lookup(content, path.format_map(self.facts)) is not None:
                set_field(content, path.format_map(self.facts), copy.deepcopy(value), where)
        for path, option in spec.files.items():
            set_field(content, path.format_map(self.facts), self.options[option], where)
        for setting, others in spec.replace.items():
            own = _Facts(self, content)[setting]
            if own not in others:
                raise RecipeError(f"{where} has no value of {setting!r} for a recipe with {own!r}")
            self._change(content, setting, others[own])
        for setting in spec.keep:
            self._change(content, setting, _Facts(self, content)[setting])
        if spec.sweep is None:
            yield content
            return
        names = (spec.sweep,) if isinstance(spec.sweep, str) else spec.sweep
        facts = _Facts(self, content)
        if not any(name in self.options for name in names):
            return
        own = {name: facts[name] for name in names}
        given = {name: self._values(name) or [own[name]] for name in names}
        choices = (sorted({*given[name], own[name]}) if spec.own_value else given[name] for name in names)
        for values in itertools.product(*choices):
            changed = copy.deepcopy(content)
            for name, value in zip(names, values, strict=True):
                if value != own[name]:
                    self._change(changed, name, value)
            yield changed

    def _arguments(self, stage: dict[str, Any], loss: str) -> dict[str, Any]:
        """A loss's arguments in the recipe: the stage's own, or those of a stage that has this loss."""
        for found in (stage, *self.content["stages"]):
            if loss in found["loss"]:
                return copy.deepcopy(found["loss"][loss])
        raise RecipeError(f"recipe {self.base.name!r} has no stage with the loss {loss!r}")

    def _values(self, option: str) -> list[Any]:
        values = self.options.get(option, ())
        paper = self.file.options[option].default_for_groups
        if paper is not None and values == self.file.options[option].default:
            return [max(2, round(value / paper * self.groups)) for value in values]
        return list(values)

    def _change(self, content: Content, name: str, value: Any) -> None:
        setting = self.file.settings[name]
        (path,) = (setting.path,) if isinstance(setting.path, str) else setting.path
        path = path.format_map(self.facts)
        if setting.in_proportion is not None:
            other = setting.in_proportion.format_map(self.facts)
            scaled = max(1, round(value * _lookup(content, other) / _lookup(content, path)))
            set_field(content, other, scaled)
        set_field(content, path, value)


class _Facts(Mapping[str, Any]):
    """What labels and paths show as `{name}`: the settings of a recipe, `method`, `groups` and `stage`."""

    def __init__(self, expansion: _Expansion, content: Content) -> None:
        self.expansion, self.content = expansion, content
        self.fixed = {"method": expansion.base.matcher.name.upper(), "stage": expansion.stage}

    def __getitem__(self, name: str) -> Any:
        settings = self.expansion.file.settings
        if name in self.fixed:
            return self.fixed[name]
        if name == "groups":
            return self.expansion.groups
        if name not in settings:
            raise RecipeError(f"study {self.expansion.file.name!r}: nothing is called {name!r}; {suggest(name, self)}")
        path = settings[name].path
        paths = (path,) if isinstance(path, str) else path
        found = (_lookup(self._whole, one.format_map(self.fixed)) for one in paths)
        return next((value for value in found if value is not None), None)

    @cached_property
    def _whole(self) -> Content:
        return _with_defaults(parse_recipe(self.content))

    def __iter__(self) -> Iterator[str]:
        return iter((*self.fixed, "groups", *self.expansion.file.settings))

    def __len__(self) -> int:
        return len(list(iter(self)))


def _lookup(content: Any, path: str) -> Any:
    """The value at `a.b.c`, None where there is none; of all stages (`*`) the last one's.

    >>> _lookup({"stages": [{"name": "online", "epochs": 3}]}, "stages.*.epochs")
    3
    """
    for part in path.split("."):
        if isinstance(content, list):
            names = [entry.get("name") for entry in content]
            number = -1 if part == "*" else names.index(part) if part in names else int(part)
            content = content[number]
        else:
            content = content.get(part) if isinstance(content, dict) else None
    return content


def _stage_with(loss: str, base: Recipe) -> str:
    names = [stage.name for stage in base.stages if loss in stage.loss]
    if len(names) != 1:
        raise RecipeError(f"this study needs one stage with the {loss} loss; recipe {base.name!r} has {len(names)}")
    return names[0]


def _with_defaults(recipe: Recipe) -> Content:
    """The recipe without its name, with what its matcher and its losses take where it says nothing."""
    content = recipe.model_dump(mode="json", by_alias=True, exclude={"name"})
    content["matcher"] = _defaults(MODELS, recipe.matcher.name) | content["matcher"]
    for stage in content["stages"]:
        stage["loss"] = {name: _defaults(OBJECTIVES, name) | given for name, given in stage["loss"].items()}
    return content


def _defaults(registry: Registry, name: str) -> dict[str, Any]:
    parameters = registry.parameters(name).items()
    return {key: given.default for key, given in parameters if given.default is not inspect.Parameter.empty}


def _known(kind: str, name: str, known: Mapping[str, T]) -> T:
    if name not in known:
        raise RecipeError(f"there is no {kind} {name!r}; {suggest(name, known)}")
    return known[name]
