"""The YAML file of a study: its options, its variants as changes of a recipe, its tables and its measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from quintet.errors import RecipeError, suggest
from quintet.studies.published import FILE, published_tables
from quintet.training.recipe import load_yaml, yaml_text
from quintet.training.recipe_models import Recipe

Given = dict[str, Any]  # options by name: True, a recipe, the path of a file, or a tuple of numbers


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StudyOption(_Strict):
    """What `quintet study NAME` and `build_study` take beside what every study takes."""

    kind: Literal["flag", "int", "float", "recipe", "file"] = Field(description="int and float: one or several numbers")
    help: str
    flag: str | None = Field(None, description="on the command line, where it differs from the option's name")
    metavar: str = "N"
    choices: tuple[int, ...] = Field((), description="the only values that it takes")
    default: tuple[float, ...] = ()
    default_for_groups: int | None = Field(
        None, description="the default is for so many training groups, and is scaled to the recipe's; at least 2"
    )
    implies: Given = Field({}, description="flag: other options, where these are not given")


class Setting(_Strict):
    """A field of the recipe that sweeps change and that labels show as `{name}`."""

    path: str | tuple[str, ...] = Field(description="as in an override; of several the first that is set")
    in_proportion: str | None = Field(None, description="a field that is scaled with it, as in the recipe; at least 1")


class Requirement(_Strict):
    """What a recipe must say, or what is said where it does not."""

    setting: str
    one_of: tuple[Any, ...] | None = Field(None, description="none: it must be set")
    otherwise: str


class VariantSpec(_Strict):
    """One way of training, or one for each value of an option."""

    key: str | None = Field(None, description="names the run folders; none: the variant's name in this file")
    label: str
    marks: tuple[str, ...] = Field((), description="its cells in the table's further columns")
    when: str | None = Field(None, description="only with this option")
    ensemble: tuple[str, ...] = Field(
        (), description="no training: the mean of the scores of these variants; of one: of its runs under two seeds"
    )
    recipe: str | None = Field(
        None, description="an option with the recipe that it changes, instead of the base recipe"
    )
    round: Literal[1, 2] | None = Field(None, description="the stages of this round instead of all")
    losses: tuple[str, ...] | None = Field(None, description="these losses alone, with the recipe's arguments")
    set: dict[str, Any] = Field({}, description='fields by path; "@online" is the run folder of the variant online')
    set_if_present: dict[str, Any] = Field({}, description="likewise, where the recipe has the field")
    files: dict[str, str] = Field({}, description="fields by path that get the file of an option")
    replace: dict[str, dict[str, Any]] = Field({}, description="setting -> the recipe's value -> the variant's")
    keep: tuple[str, ...] = Field(
        (), description="settings that are written out as the recipe or its defaults have them"
    )
    sweep: str | tuple[str, ...] | None = Field(
        None,
        description="an option: a variant for each of its values of the setting of that name; several: of each pair",
    )
    own_value: bool = Field(False, description="sweep: in order, with the recipe's own value among them")

    @property
    def changes_recipe(self) -> bool:
        return bool(
            self.round
            or self.losses
            or self.set
            or self.set_if_present
            or self.files
            or self.replace
            or self.keep
            or self.sweep
        )


class RowSpec(_Strict):
    """A line of a table: a variant under another label or with other marks."""

    variant: str
    label: str | None = None
    marks: tuple[str, ...] | None = None
    published: str | None = Field(None, description="its name among the published rows; none: its label")


class TableSpec(_Strict):
    title: str
    rows: tuple[str | RowSpec, ...]
    columns: tuple[str, ...] | None = Field(None, description="metrics; none: all recalls and their sum")
    compare: str | None = Field(None, description="numbers are followed by their difference to this variant's")
    marks: tuple[str, ...] = Field((), description="headings of the rows' marks")
    published: tuple[str, ...] = Field((), description="tables of the papers whose numbers stand beside ours")
    validation: bool = Field(False, description="measured on the validation split, too, as in the paper")
    when: str | tuple[str, ...] | dict[str, Any] | None = Field(
        None, description="only with one of these options, or where an option has this value"
    )
    requires: Requirement | None = Field(None, description="otherwise the table is left out, with a note")


class ColumnSpec(_Strict):
    key: str
    heading: str
    form: str = "{}"


class ExtraSpec(_Strict):
    """A measurement with a table of its own."""

    title: str
    when: str | tuple[str, ...] | None = Field(None, description="only with this option, or one of these")
    variants: tuple[str, ...] | dict[str, str] = Field(description="what it looks at, or that with labels")
    columns: tuple[ColumnSpec, ...]
    published: tuple[str, ...] = Field((), description="tables of the papers whose numbers stand beside ours")
    row: str = Field("{label}", description="what a row is called there")


class StudyFile(_Strict):
    name: str
    about: str
    base: str = Field(description="the variant that is trained first")
    matcher: str | None = Field(None, description="the only matcher whose recipes make this study")
    recipes: tuple[str, ...] = Field((), description="shipped recipes without their corpus, the best first")
    rounds: str | None = Field(None, description="how a recipe's stages are divided into two rounds")
    stage_with: str | None = Field(None, description="a loss that one stage has; its name is {stage}")
    requires: tuple[Requirement, ...] = ()
    reference: str | tuple[str, ...] = Field((), description="what all are compared with; none: the base variant")
    measures: tuple[str, ...] = Field((), description="numbers of every run beside its metrics")
    names: str = Field("{label}", description="what a variant is called outside tables")
    options: dict[str, StudyOption] = {}
    settings: dict[str, Setting] = {}
    variants: dict[str, VariantSpec]
    tables: tuple[TableSpec, ...]
    extras: dict[str, ExtraSpec] = Field({}, description="by the name of the measurement")

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        rows = [row if isinstance(row, str) else row.variant for table in self.tables for row in table.rows]
        compared = [table.compare for table in self.tables if table.compare is not None]
        measured = [key for extra in self.extras.values() for key in extra.variants]
        rows += [name for spec in self.variants.values() for name in spec.ensemble]
        self._check("variant", [self.base, *_several(self.reference), *rows, *compared, *measured], self.variants)
        whens = [name for table in self.tables for name in _several(table.when or ())]
        whens += [spec.when for spec in self.variants.values() if spec.when]
        whens += [name for extra in self.extras.values() for name in _several(extra.when or ())]
        whens += [spec.recipe for spec in self.variants.values() if spec.recipe]
        sweeps = [name for spec in self.variants.values() for name in _several(spec.sweep or ())]
        filed = [name for spec in self.variants.values() for name in spec.files.values()]
        implied = [name for option in self.options.values() for name in option.implies]
        self._check("option", [*whens, *sweeps, *filed, *implied], self.options)
        tables = [table.requires.setting for table in self.tables if table.requires]
        replaced = [name for spec in self.variants.values() for name in spec.replace]
        kept = [name for spec in self.variants.values() for name in spec.keep]
        needed = [requirement.setting for requirement in self.requires]
        printed = [key for table in self.tables for key in table.published]
        printed += [key for extra in self.extras.values() for key in extra.published]
        self._check("published table", printed, published_tables())
        self._check("setting", [*sweeps, *tables, *replaced, *kept, *needed], self.settings)
        return self

    def _check(self, what: str, wanted: Sequence[str], known: Mapping[str, Any]) -> None:
        for name in wanted:
            if name not in known:
                raise ValueError(f"there is no {what} {name!r}; {suggest(name, known)}")

    def given(self, options: Mapping[str, Any]) -> Given:
        """The options that are set, checked, with what they imply and with defaults; unset ones are left out."""
        found: Given = {}
        for name, value in options.items():
            if name not in self.options:
                raise RecipeError(f"study {self.name!r} takes no option {name!r}; {suggest(name, self.options)}")
            if value is not None and value is not False and value != () and value != []:
                found[name] = self._value(name, value)
        for name in list(found):
            found = {other: self._value(other, value) for other, value in self.options[name].implies.items()} | found
        return {name: option.default for name, option in self.options.items() if option.default} | found

    def _value(self, name: str, value: Any) -> Any:
        option = self.options[name]
        if option.kind == "flag":
            if value is not True:
                raise RecipeError(f"option {name!r} of study {self.name!r} is on or off, got {value!r}")
            return value
        if option.kind == "recipe":
            if not isinstance(value, Recipe):
                raise RecipeError(f"option {name!r} of study {self.name!r} takes a recipe, got {value!r}")
            return value
        if option.kind == "file":
            if not Path(value).is_file():
                raise RecipeError(f"option {name!r} of study {self.name!r}: there is no file {value}")
            return str(Path(value).resolve())
        values = tuple(value) if isinstance(value, list | tuple) else (value,)
        types = int if option.kind == "int" else (int, float)
        for number in values:
            if not isinstance(number, types) or isinstance(number, bool):
                what = "whole numbers" if option.kind == "int" else "numbers"
                raise RecipeError(f"option {name!r} of study {self.name!r} takes {what}, got {number!r}")
            if option.choices and number not in option.choices:
                known = ", ".join(map(str, option.choices))
                raise RecipeError(f"option {name!r} of study {self.name!r} takes {known}; got {number}")
        return values


def _several(value: str | Sequence[str] | Mapping[str, Any]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def list_studies() -> list[str]:
    """The names of the shipped studies."""
    folder = resources.files("quintet") / "studies"
    files = (entry.name for entry in folder.iterdir() if entry.name.endswith(".yaml") and entry.name != FILE)
    return sorted(name.removesuffix(".yaml") for name in files)


def load_study(source: str | Path) -> StudyFile:
    """A shipped study by name, or a YAML file.

    >>> load_study("mmca").options["dimension"].kind
    'int'
    """
    path = Path(source)
    if path.suffix in (".yaml", ".yml"):
        text = yaml_text(path)
    else:
        if str(source) not in list_studies():
            raise RecipeError(f"there is no study {str(source)!r}; {suggest(str(source), list_studies())}")
        text = (resources.files("quintet") / "studies" / f"{source}.yaml").read_text(encoding="utf-8")
    content = load_yaml(text, str(source))
    if not isinstance(content, dict):
        raise RecipeError(f"{source}: a study is a mapping of keys to values")
    try:
        return StudyFile.model_validate({"name": path.stem} | content)
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, found['loc']))}: {found['msg']}" for found in error.errors())
        raise RecipeError(f"{source}: {'; '.join(problems)}") from None
