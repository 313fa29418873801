"""Read, extend, override and write recipes: YAML files of the data, the matcher and the stages of training."""

from __future__ import annotations

import copy
import difflib
import itertools
import re
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from quintet.data.pretrained import PREFIX, is_pretrained
from quintet.errors import QuintetError, RecipeError, suggest
from quintet.files import read_bytes, user_path
from quintet.runs.run_folder import HUB, is_there
from quintet.training.recipe_models import Recipe

LARGEST_RECIPE = 2**20  # bytes
EARLIER_NAMES = {"longest": "max_length", "marks": "special_tokens"}  # of keys, in recipes of earlier runs
MOST_VALUES = 10_000  # of a recipe; the longest shipped one has about 100


class _Yaml(yaml.SafeLoader):
    """YAML in which 1e-3 is a number (PyYAML reads only 1.0e-3 as one)."""


_Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


class _Dumper(yaml.SafeDumper):
    """YAML with the entries of a list indented, as the shipped recipes are written."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def list_recipes() -> dict[str, str]:
    """The shipped recipes: name -> its header comment, which begins with the commands that run it."""
    return {name: "\n".join(header(recipe_text(name))) for name in _shipped()}


def _shipped() -> list[str]:
    folder = resources.files("quintet") / "recipes"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def recipe_text(name: str) -> str:
    """The file of a shipped recipe, as it is written: what it extends is not filled in."""
    shipped = _shipped()
    if name not in shipped:
        raise RecipeError(f"there is no recipe {name!r}; {suggest(name, shipped)}")
    return (resources.files("quintet") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")


def header(text: str) -> list[str]:
    """The lines of the comment at the top of a YAML file.

    >>> header("# quintet train mine\\n# A trial.\\nname: mine\\n# not this one\\n")
    ['quintet train mine', 'A trial.']
    """
    return [line.lstrip("# ") for line in itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())]


def load_recipe(source: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """A shipped recipe by name or a YAML file, with `key=value` overrides applied.

    >>> load_recipe("vse-scenes", ["stages.online.epochs=5"]).stages[0].epochs
    5
    """
    return parse_recipe(expand_recipe(source), overrides, str(source))


def show_recipe(source: str | Path, overrides: Sequence[str] = ()) -> str:
    """A recipe as YAML with its header comment, with what it extends filled in: a file that `load_recipe` reads."""
    content = expand_recipe(source)
    for override in overrides:
        _apply(content, override)
    parse_recipe(content, (), str(source))  # only a valid recipe is shown
    lines = [*header(_text(source)), *(f"Changed here: {override}" for override in overrides)]
    body = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None)
    return "".join(f"# {line}\n" for line in lines) + body


def expand_recipe(source: str | Path, _below: tuple[str, ...] = ()) -> dict[str, Any]:
    """The content of a recipe on top of what it `extends`, which is a shipped recipe or a file beside it.

    A mapping changes the parent's mapping key by key, or replaces it if it has another `name` or `kind`; anything else
    replaces the parent's value. `stages` as a list replaces all stages. `stages` as a mapping from names changes the
    stages of these names, and adds the others at the end. A stage, or a loss in a stage, that is null is left out.
    """
    path = Path(source)
    is_file = _is_file(source)
    key = str(path.absolute()) if is_file else str(source)
    if key in _below:
        chain = " -> ".join((*_below[_below.index(key) :], key))
        raise RecipeError(f"recipes extend each other in a circle: {chain}")
    content = _mapping(load_yaml(_text(source), str(source)), str(source))
    if "extends" not in content:
        return content
    parent = content.pop("extends")
    if not isinstance(parent, str):
        raise RecipeError(f"{source}: extends takes one recipe's name or the path of a YAML file, got {parent!r}")
    beside = path.parent / parent if is_file and _is_file(parent) else parent
    try:
        inherited = expand_recipe(beside, (*_below, key))
        parse_recipe(inherited, (), parent)
    except RecipeError as error:
        if _below or "in a circle" in str(error):
            raise
        raise RecipeError(f"{source} extends {parent}: {error}") from None
    return _extended(inherited, {"name": path.stem} | content, str(source))


def _extended(parent: dict[str, Any], child: dict[str, Any], where: str) -> dict[str, Any]:
    stages = child.get("stages")
    if not isinstance(stages, dict):
        return _merged(parent, child)
    found = {stage["name"]: stage for stage in parent["stages"]}
    for name, changes in stages.items():
        if name not in found and (not isinstance(changes, dict) or "loss" not in changes):
            raise RecipeError(
                f"{where}: there is no stage {name!r} in the recipe that it extends; {suggest(str(name), found)}; "
                "a new stage needs a loss"
            )
        if changes is None:
            del found[name]
        elif isinstance(changes, dict):
            stage = _merged(found.get(name, {"name": name}), changes)
            if isinstance(stage["loss"], dict):
                stage["loss"] = {loss: given for loss, given in stage["loss"].items() if given is not None}
            found[name] = stage
        else:
            raise RecipeError(f"{where}: stages.{name} takes a mapping, or null to leave the stage out")
    rest = {key: value for key, value in child.items() if key != "stages"}
    return _merged(parent, rest) | {"stages": list(found.values())}


def _merged(old: Any, new: Any) -> Any:
    """
    >>> _merged({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}})
    {'a': {'b': 1, 'c': 3}}
    >>> _merged({"schedule": {"kind": "step", "every": 5}}, {"schedule": {"kind": "cosine"}})
    {'schedule': {'kind': 'cosine'}}
    """
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    return old | {
        key: value if _is_another(old.get(key), value) else _merged(old.get(key), value) for key, value in new.items()
    }


def _is_another(old: Any, new: Any) -> bool:
    """Whether a mapping names another matcher, optimizer or kind, so that the arguments of the old one are not its."""
    both = isinstance(old, dict) and isinstance(new, dict)
    return both and any(key in new and new[key] != old.get(key) for key in ("name", "kind"))


def parse_recipe(content: Any, overrides: Sequence[str] = (), where: str = "recipe") -> Recipe:
    """The recipe of a mapping, such as a YAML file holds, with `key=value` overrides applied."""
    content = _mapping(copy.deepcopy(content), where)  # the caller's mapping stays as it is
    for override in overrides:
        _apply(content, override)
    try:
        return Recipe.model_validate(_mapping(content, where))
    except ValidationError as error:
        raise RecipeError(f"{where}: " + "; ".join(_explain(problem, content) for problem in error.errors())) from None


def with_whole_paths(recipe: Recipe) -> Recipe:
    """The recipe with its folders as absolute paths, so that a run can be resumed from anywhere."""
    content = recipe.model_dump(mode="json", by_alias=True)
    names = [stage.name for stage in recipe.stages]
    if recipe.data.corpus is not None:
        content["data"]["corpus"] = str(user_path(recipe.data.corpus).resolve())
    for stage in content["stages"]:
        if stage["init"] not in ("scratch", "previous"):
            stage["init"] = _whole_path(stage["init"])
        for loss in stage["loss"].values():
            if isinstance(loss.get("teacher"), str):
                loss["teacher"] = _whole_path(loss["teacher"])
        negatives = stage["negatives"]
        if negatives is not None and negatives["from"] not in names:
            negatives["from"] = _whole_path(negatives["from"])
    return Recipe.model_validate(content)


def _whole_path(run: str) -> str:
    """A folder's whole path; the name of a run that comes with Quintet stays as it is, and one of the hub, too."""
    if run.startswith(HUB):
        return run
    if is_pretrained(run):
        folder = user_path(run.removeprefix(PREFIX))
        return f"{PREFIX}{folder.resolve()}" if folder.is_dir() else run
    return str(user_path(run).resolve()) if is_there(user_path(run)) else run


def recipe_yaml(recipe: Recipe) -> str:
    """The whole recipe, defaults included, as YAML that `load_recipe` reads back."""
    return yaml.safe_dump(recipe.model_dump(mode="json", by_alias=True), sort_keys=False, allow_unicode=True, width=120)


def _is_file(source: str | Path) -> bool:
    return Path(source).suffix in (".yaml", ".yml")


def yaml_text(path: str | Path) -> str:
    """The text of a YAML file."""
    try:
        return read_bytes(path, LARGEST_RECIPE).decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path} is not valid YAML in UTF-8: {error}") from None
    except QuintetError as error:
        raise RecipeError(f"YAML file: {error}") from None


def _text(source: str | Path) -> str:
    return yaml_text(source) if _is_file(source) else recipe_text(str(source))


def load_yaml(text: str, where: str) -> Any:
    """The value of a YAML text: of plain values, of bounded size."""
    try:
        value = yaml.load(text, _Yaml)
        _count(value, MOST_VALUES)
    except RecursionError:
        raise RecipeError(f"{where} is not valid YAML: it is nested too deeply") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # a number of 5,000 digits, the 32nd of a month
        raise RecipeError(f"{where} is not valid YAML in UTF-8: {error}") from None
    return value


def _count(value: Any, left: int) -> int:
    """How many values may still come. A few lines of aliases can name more values than there is memory."""
    if left <= 0:
        raise ValueError(f"it holds more than {MOST_VALUES} values")
    parts: Iterable[Any] = ()
    if isinstance(value, dict):
        parts = itertools.chain.from_iterable(value.items())
    elif isinstance(value, list | tuple | set):
        parts = value
    elif not isinstance(value, str | int | float | None):
        raise ValueError(f"{value} is a {type(value).__name__}; put it in quotes if a text is meant")
    for part in parts:
        left = _count(part, left - 1)
    return left


def _mapping(content: Any, where: str) -> dict[str, Any]:
    """The content of a recipe, its keys by the names of today."""
    if not isinstance(content, dict):
        raise RecipeError(f"{where}: a recipe is a mapping of keys to values")
    return dict(_renamed(content))


def _renamed(value: Any) -> Any:
    if isinstance(value, dict):
        return {EARLIER_NAMES.get(key, key): _renamed(inner) for key, inner in value.items()}
    return [_renamed(inner) for inner in value] if isinstance(value, list) else value


def _apply(content: dict[str, Any], override: str) -> None:
    """Set `a.b.c=value`."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise RecipeError(f"override {override!r} is not of the form key=value, as in stages.online.epochs=5")
    value = load_yaml(text, f"override {override[:200]!r}: the value")
    set_field(content, key, value, where=f"override {override!r}")


def set_field(content: dict[str, Any], key: str, value: Any, where: str = "recipe") -> None:
    """Set the field `a.b.c`; stages are addressed by name or number, and `stages.*` means all of them.

    >>> content = {"stages": [{"name": "online", "epochs": 3}]}
    >>> set_field(content, "stages.online.epochs", 5)
    >>> content
    {'stages': [{'name': 'online', 'epochs': 5}]}
    """
    *path, last = key.split(".")
    targets: list[Any] = [content]
    for part in path:
        targets = [inner for target in targets for inner in _enter(target, part, where)]
    for target in targets:
        if not isinstance(target, dict):
            raise RecipeError(f"{where}: {'.'.join(path)!r} is not a mapping")
        target[EARLIER_NAMES.get(last, last)] = value


def _enter(target: Any, part: str, where: str) -> list[Any]:
    """What `part` names inside `target`: a key of a mapping, or an entry of a list by name, by number or all by `*`."""
    if isinstance(target, dict):
        if target.get(part) is None:
            target[part] = {}
        return [target[part]]
    if not isinstance(target, list):
        raise RecipeError(f"{where}: nothing can be set inside {part!r}")
    if part == "*":
        return target
    names = [str(entry.get("name", number)) for number, entry in enumerate(target)]
    if part.isdigit() and int(part) < len(target):
        return [target[int(part)]]
    if part in names:
        return [target[names.index(part)]]
    raise RecipeError(f"{where}: no entry {part!r} there; {suggest(part, names)}")


def _explain(problem: Any, content: Any) -> str:
    location = [str(part) for part in problem["loc"]]
    key = ".".join(_as_overridden(problem["loc"], content))
    if problem["type"] == "extra_forbidden":
        return f"unknown key {key!r}{_nearest_key(location)}"
    if problem["type"] == "missing":
        return f"{key!r} is missing"
    return f"{key!r}: {problem['msg']} (got {str(problem['input'])[:80]!r})"


def _as_overridden(location: Sequence[str | int], content: Any) -> list[str]:
    """The parts of a key as an override gives them: a stage by its name, not by its number.

    >>> _as_overridden(("stages", 0, "epochs"), {"stages": [{"name": "online"}]})
    ['stages', 'online', 'epochs']
    """
    parts = []
    for part in location:
        try:
            content = content[part]
        except (KeyError, IndexError, TypeError):
            content = None
        named = isinstance(part, int) and isinstance(content, dict) and isinstance(content.get("name"), str)
        parts.append(content["name"] if named else str(part))
    return parts


def _nearest_key(location: list[str]) -> str:
    """The nearest field to an unknown key, or all fields of the mapping that holds the key."""
    model: Any = Recipe
    for part in location[:-1]:
        if part.isdigit():
            continue
        annotation = model.model_fields[part].annotation
        candidates = [annotation, *getattr(annotation, "__args__", ())]
        model = next((item for item in candidates if isinstance(item, type) and issubclass(item, BaseModel)), None)
        if model is None:
            return ""
    near = difflib.get_close_matches(location[-1], model.model_fields, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; known here: {', '.join(sorted(model.model_fields))}"
