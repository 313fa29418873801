"""Recipes are read, changed and written: one YAML file names the data, the matcher and the stages of its training."""

from __future__ import annotations

import copy
import difflib
import re
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from quintet.errors import RecipeError, suggest
from quintet.training.recipe_models import Recipe


class _Yaml(yaml.SafeLoader):
    """YAML in which 1e-3 is a number, as people mean it (PyYAML wants 1.0e-3)."""


_Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def list_recipes() -> dict[str, str]:
    """The shipped recipes: name -> what its header comment says."""
    folder = resources.files("quintet") / "recipes"
    found = {}
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".yaml"):
            found[entry.name.removesuffix(".yaml")] = _header(entry.read_text(encoding="utf-8"))
    return found


def _header(text: str) -> str:
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return "\n".join(lines)


def load_recipe(source: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> Recipe:
    """A shipped recipe by name or a YAML file, with `key=value` overrides applied."""
    return parse_recipe(_read(source), overrides, str(source))


def parse_recipe(content: Any, overrides: list[str] | tuple[str, ...] = (), where: str = "recipe") -> Recipe:
    if not isinstance(content, dict):
        raise RecipeError(f"{where}: a recipe is a mapping of keys to values")
    content = copy.deepcopy(content)  # overrides are not the caller's
    for override in overrides:
        _apply(content, override)
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        raise RecipeError(f"{where}: " + "; ".join(_explain(problem) for problem in error.errors())) from None


def with_whole_paths(recipe: Recipe) -> Recipe:
    """The recipe with its folders as absolute paths, so that a run can be resumed from anywhere."""
    content = recipe.model_dump(mode="json", by_alias=True)
    names = [stage.name for stage in recipe.stages]
    if recipe.data.corpus is not None:
        content["data"]["corpus"] = str(recipe.data.corpus.resolve())
    for stage in content["stages"]:
        if stage["init"] not in ("scratch", "previous"):
            stage["init"] = _whole_path(stage["init"])
        negatives = stage["negatives"]
        if negatives is not None and negatives["from"] not in names:
            negatives["from"] = _whole_path(negatives["from"])
    return Recipe.model_validate(content)


def _whole_path(run: str) -> str:
    """A folder's whole path; the name of a run that comes with Quintet stays as it is."""
    return str(Path(run).resolve()) if Path(run).exists() else run


def recipe_yaml(recipe: Recipe) -> str:
    """The whole recipe, defaults included, as YAML that `load_recipe` reads back."""
    return yaml.safe_dump(recipe.model_dump(mode="json", by_alias=True), sort_keys=False, allow_unicode=True, width=120)


def recipe_text(name: str) -> str:
    """The YAML of a shipped recipe."""
    shipped = list_recipes()
    if name not in shipped:
        raise RecipeError(f"there is no recipe {name!r}; {suggest(name, shipped)}")
    return (resources.files("quintet") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")


def _read(source: str | Path) -> Any:
    path = Path(source)
    is_file = path.suffix in (".yaml", ".yml")
    if is_file and not path.is_file():
        raise RecipeError(f"recipe file {path} does not exist")
    try:
        text = path.read_text(encoding="utf-8") if is_file else recipe_text(str(source))
        return yaml.load(text, _Yaml)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(f"{source} is not valid YAML in UTF-8: {error}") from None


def _apply(content: dict[str, Any], override: str) -> None:
    """Set `a.b.c=value`; stages are addressed by name or number, and `stages.*` means all of them."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise RecipeError(f"override {override!r} is not of the form key=value, as in stages.online.epochs=5")
    try:
        value = yaml.load(text, _Yaml)
    except yaml.YAMLError as error:
        raise RecipeError(f"override {override!r}: the value is not valid YAML: {error}") from None
    *path, last = key.split(".")
    places: list[Any] = [content]
    for part in path:
        places = [inner for place in places for inner in _enter(place, part, override)]
    for place in places:
        if not isinstance(place, dict):
            raise RecipeError(f"override {override!r}: {'.'.join(path)!r} is not a mapping")
        place[last] = value


def _enter(place: Any, part: str, override: str) -> list[Any]:
    """What `part` names inside `place`: a key of a mapping, or an entry of a list by name, by number or all by `*`."""
    if isinstance(place, dict):
        if place.get(part) is None:
            place[part] = {}
        return [place[part]]
    if not isinstance(place, list):
        raise RecipeError(f"override {override!r}: nothing can be set inside {part!r}")
    if part == "*":
        return place
    names = [str(entry.get("name", number)) for number, entry in enumerate(place)]
    if part.isdigit() and int(part) < len(place):
        return [place[int(part)]]
    if part in names:
        return [place[names.index(part)]]
    raise RecipeError(f"override {override!r}: no entry {part!r} there; {suggest(part, names)}")


def _explain(problem: Any) -> str:
    location = [str(part) for part in problem["loc"]]
    key = ".".join(location)
    if problem["type"] == "extra_forbidden":
        return f"unknown key {key!r}{_nearest_key(location)}"
    if problem["type"] == "missing":
        return f"{key!r} is missing"
    return f"{key!r}: {problem['msg']} (got {str(problem['input'])[:80]!r})"


def _nearest_key(location: list[str]) -> str:
    """Suggest the nearest field of the model that the unknown key stands in."""
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
