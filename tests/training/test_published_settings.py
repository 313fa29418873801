"""Every shipped recipe against one table of published settings (`published_settings.yaml`)."""

from __future__ import annotations

import inspect
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from quintet.losses import OBJECTIVES
from quintet.models import MODELS, create_model
from quintet.registry import Registry
from quintet.training.optim import make_optimizer
from quintet.training.recipe import expand_recipe, list_recipes, load_recipe, load_yaml, parse_recipe, set_field
from quintet.training.recipe_models import Recipe

FILE = Path(__file__).parent / "published_settings.yaml"
TABLE: list[dict[str, Any]] = load_yaml(FILE.read_text(encoding="utf-8"), FILE.name)
PUBLISHED = ("-f30k", "-coco", "-cuhk")  # corpora of the papers


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """Path -> value: all that a recipe says, and the defaults of its matcher and losses."""
    content = recipe.model_dump(mode="json", by_alias=True)
    content["matcher"] = defaults(MODELS, recipe.matcher.name) | content["matcher"]
    found = flat({key: content[key] for key in ("seed", "data", "matcher")})
    found["stages"] = " ".join(stage["name"] for stage in content["stages"])
    for stage in content["stages"]:
        name = stage.pop("name")
        found[f"stages.{name}.losses"] = " ".join(sorted(stage["loss"]))
        stage["loss"] = {loss: defaults(OBJECTIVES, loss) | given for loss, given in stage["loss"].items()}
        found |= flat(stage, f"stages.{name}.")
    return found


def defaults(registry: Registry, name: str) -> dict[str, Any]:
    parameters = registry.parameters(name).items()
    return {key: given.default for key, given in parameters if given.default is not inspect.Parameter.empty}


def flat(value: dict[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, inner in value.items():
        nested = isinstance(inner, dict) and inner
        found |= flat(inner, f"{path}{key}.") if nested else {f"{path}{key}": inner}
    return found


def expected_of(name: str, actual: dict[str, Any]) -> dict[str, tuple[Any, str]]:
    """Path -> value and place: what the table says of a recipe."""
    found: dict[str, tuple[Any, str]] = {}
    for entry in TABLE:
        if any(fnmatchcase(name, pattern) for pattern in entry["recipes"]):
            for path, value in entry["settings"].items():
                for key in expanded(path, actual):
                    found[key] = (value, entry["place"])
    mined = {path.rpartition(".")[0] for path in found if ".negatives." in path}  # `negatives: null` is for the others
    return {path: value for path, value in found.items() if path not in mined}


def expanded(path: str, actual: dict[str, Any]) -> list[str]:
    """A path for every stage that it is about; losses that a stage has not are left out."""
    if not path.startswith("stages."):
        return [path]
    _, stage, rest = path.split(".", 2)
    stages = actual["stages"].split() if stage == "*" else [stage]
    has = {name: actual.get(f"stages.{name}.losses", "").split() for name in stages}
    in_loss = rest.split(".")[1] if rest.startswith("loss.") else None
    return [f"stages.{name}.{rest}" for name in stages if has[name] and (in_loss is None or in_loss in has[name])]


def disagreements(name: str, recipe: Recipe) -> list[str]:
    actual = settings_of(recipe)
    expected = expected_of(name, actual)
    wrong = [
        f"{path} is {actual.get(path)!r}, and {place} has {value!r}"
        for path, (value, place) in expected.items()
        if path not in actual or actual[path] != value
    ]
    wanted = actual if name.endswith(PUBLISHED) else said_by(recipe)
    return wrong + [f"{path} ({wanted[path]!r}) is not in the table" for path in wanted.keys() - expected.keys()]


def said_by(recipe: Recipe) -> dict[str, Any]:
    """Path -> value: what a recipe writes out."""
    content = recipe.model_dump(mode="json", by_alias=True, exclude_unset=True)
    found = flat({key: content[key] for key in ("data", "matcher")})
    for stage in content["stages"]:
        name = stage.pop("name")
        found |= flat({"losses": " ".join(sorted(stage["loss"]))} | stage, f"stages.{name}.")
    return {path: value for path, value in found.items() if value != {}}


@pytest.mark.parametrize("name", list_recipes())
def test_a_recipe_has_the_published_settings(name: str) -> None:
    assert disagreements(name, load_recipe(name)) == []


def test_every_entry_has_its_place_and_is_about_a_recipe() -> None:
    for entry in TABLE:
        assert entry["place"].strip()
        for pattern in entry["recipes"]:
            assert any(fnmatchcase(name, pattern) for name in list_recipes()), pattern
    untouched = [name for name in list_recipes() if not expected_of(name, settings_of(load_recipe(name)))]
    assert untouched == []


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("dual-path-f30k", "stages.*.optimizer.lr", 7.0),
        ("dual-path-f30k", "stages.instance.freeze", []),
        ("dual-path-coco", "stages.*.reduction", "sum"),
        ("dual-path-vgg16-cuhk", "matcher.tower", "vgg19-fc7"),
        ("dual-path-released-coco", "stages.ranking.loss.ranking.weight", 1),
        ("dual-path-released-f30k", "stages.*.optimizer.nesterov", False),
        ("dual-path-released-cuhk", "stages.ranking.loss.instance.text_weight", 0.1),
        ("hrem-fusion-bert-f30k", "stages.online.loss.relation.mechanism", "standalone"),
        ("aoq-bfan-f30k", "stages.offline.loss.quintuplet.alpha", 3),
        ("aoq-scan-scenes", "stages.offline.loss.quintuplet.beta", 15),
        ("aoq-vsrn-coco", "stages.offline.negatives.top_images", 300),
        ("scan-i2t-lse-coco", "matcher.lambda_lse", 6),
        ("aoq-scan-i2t-teacher-f30k", "matcher.lambda_softmax", 9),
        ("aoq-bfan-prob-coco", "matcher.focal", "equal"),
        ("mmca-f30k", "stages.online.loss.triplet.warmup_epochs", 1),
        ("hrem-standalone-scenes", "stages.online.loss.relation.mechanism", "fusion"),
        ("aoq-bfan-flickr8k", "stages.*.optimizer.lr", 7.0),
        ("dual-path-flickr8k", "stages.instance.freeze", []),
        ("vse-scenes", "matcher.embed_dim", 64),
        ("heads-flickr8k", "matcher.dropout", 0.1),
    ],
)
def test_a_changed_setting_is_noticed(name: str, path: str, value: Any) -> None:
    content = expand_recipe(name)
    set_field(content, path, value)
    assert disagreements(name, parse_recipe(content))


# What matchers and losses take where a recipe says nothing: the papers' numbers, whatever recipes write out.
DEFAULTS: list[tuple[Registry, str, dict[str, Any]]] = [
    (OBJECTIVES, "triplet", {"margin": 0.2, "negatives": "hardest"}),
    (OBJECTIVES, "quintuplet", {"margin_online": 0.2, "margin_offline": 0, "alpha": 0.3, "beta": 1.5}),
    (OBJECTIVES, "instance", {"dropout": 0.75, "image_weight": 1, "text_weight": 1}),
    (OBJECTIVES, "ranking", {"margin": 1, "pool": 256, "weight": 1}),
    (OBJECTIVES, "relation", {"layers": 1, "neighbours": 0.5, "relevance_weight": 1.5, "top": 10, "margin": 0.2}),
    (OBJECTIVES, "relation", {"sigma": 1, "matching": "dot", "distance": "squared", "regularisation": 1}),
    (MODELS, "scan", {"embed_dim": 1024, "word_dim": 300, "lambda_softmax": 9, "lambda_lse": 6, "relu_slope": 0}),
    (MODELS, "bfan", {"embed_dim": 1024, "word_dim": 300, "lambda_softmax": 20, "relu_slope": 0.1}),
    (MODELS, "vsrn", {"embed_dim": 2048, "word_dim": 300, "blocks": 4, "normalise_over": "channels"}),
    (MODELS, "hrem", {"embed_dim": 1024, "word_dim": 300, "beta": 0.8, "top": 1, "dropout": 0.1}),
    (MODELS, "mmca", {"embed_dim": 256, "heads": 16, "alpha": 0.2, "filters": 256}),
    (MODELS, "dual-path", {"embed_dim": 2048, "word_dim": 300, "length": 32, "text_layout": "resnet50"}),
]


@pytest.mark.parametrize(("registry", "name", "published"), DEFAULTS, ids=[name for _, name, _ in DEFAULTS])
def test_defaults_are_the_papers(registry: Registry, name: str, published: dict[str, Any]) -> None:
    assert published.items() <= defaults(registry, name).items()


@pytest.mark.parametrize("name", ["dual-path-f30k", "dual-path-released-f30k"])
def test_every_learning_rate_of_stage_two_is_of_what_it_says(name: str) -> None:
    """Filters of the image CNN at 0.02 of the rate; as released the first at 0.0001, gains at 0.001, words at 0.001."""
    recipe = load_recipe(name)
    released = "released" in name
    model = {"image_dim": None, "vocabulary_size": 20, "tower": "resnet50", "tower_pretrained": False}
    with torch.device("meta"):
        matcher = create_model("dual-path", **recipe.matcher.arguments | model)
    module = nn.ModuleDict({"matcher": matcher})
    optimizer = make_optimizer(module, recipe.stages[1].optimizer)
    rates = {id(p): group["base_lr"] for group in optimizer.param_groups for p in group["params"]}
    lr = recipe.stages[1].optimizer.lr
    tower = "matcher.image_encoder.tower."
    expected = {
        f"{tower}conv1.weight": 1e-4 if released else 0.02,
        f"{tower}layer3.2.conv2.weight": 0.02,
        f"{tower}layer3.2.bn2.weight": 1e-3 if released else 0.02,
        f"{tower}layer1.0.downsample.1.weight": 1e-3 if released else 0.02,
        f"{tower}layer3.2.bn2.bias": 0.02,
        "matcher.text_encoder.cnn.embed.weight": 1e-3 if released else 1,
        "matcher.text_encoder.cnn.blocks.0.conv1.weight": 1,
    }
    parameters = dict(module.named_parameters())
    assert {key: rates[id(parameters[key])] / lr for key in expected} == pytest.approx(expected)
