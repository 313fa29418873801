"""Which method and which loss has which optional ability, and that nobody asks for one in another way."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models.test_models import SMALL_CLIP
from torch import nn

import quintet
from quintet import protocols
from quintet.losses import OBJECTIVES
from quintet.models import MODELS, create_model
from quintet.protocols import Matcher, module_of, preprocess_of

SIZES: dict[str, dict[str, Any]] = defaultdict(
    lambda: {"vocabulary_size": 10, "image_dim": 8, "embed_dim": 16},
    heads={"vocabulary_size": 30_522, "image_dim": 8, "embed_dim": 16},
    clip={"vocabulary_size": 10, "config": SMALL_CLIP},
    **{"clip-tokens": {"vocabulary_size": 10, "config": SMALL_CLIP}},
)
ABILITIES = {
    "vse++": {"HasEmbedding"},
    "scan": {"ShowsAttention"},
    "bfan": {"ShowsAttention"},
    "vsrn": {"HasEmbedding", "KeepsRegions"},
    "mmca": {"HasEmbedding", "HasFrozenText", "ShowsAttention"},
    "hrem": {"HasEmbedding", "KeepsRegions"},
    "dual-path": {"HasEmbedding", "HasImageFeatures", "UsesPositionNoise"},
    "heads": {"HasEmbedding", "HasFrozenText"},
    "clip": {"HasEmbedding", "HasLogitScale", "ReadsPixels"},
    "clip-tokens": {"HasFrozenText", "ReadsPixels"},  # and those of its method
}
OF_MATCHERS = (
    "ReadsPixels",
    "HasFrozenText",
    "ShowsAttention",
    "UsesPositionNoise",
    "HasImageFeatures",
    "HasEmbedding",
    "KeepsRegions",
    "HasLogitScale",
)


def abilities(part: object, names: tuple[str, ...]) -> set[str]:
    return {name for name in names if isinstance(part, getattr(protocols, name))}


def test_the_table_has_every_method() -> None:
    assert set(ABILITIES) == set(MODELS.names())


@pytest.mark.parametrize("name", ABILITIES)
def test_a_method_has_its_abilities_and_no_other(name: str) -> None:
    matcher = create_model(name, **SIZES[name])
    assert isinstance(matcher, Matcher)
    assert abilities(matcher, OF_MATCHERS) == ABILITIES[name]
    assert module_of(matcher) is matcher


def test_a_matcher_of_pixels_has_a_preprocess_and_one_of_features_has_none() -> None:
    pixels = create_model("vse++", vocabulary_size=10, tower="small-cnn", embed_dim=4, word_dim=4)
    assert preprocess_of(pixels).size
    with pytest.raises(TypeError, match="no preprocess"):
        preprocess_of(create_model("vse++", vocabulary_size=10, image_dim=8, embed_dim=4, word_dim=4))


def test_losses_have_their_abilities() -> None:
    facts = {"embed_dim": 8, "region_dim": 8, "vocabulary_size": 10, "groups": 20, "teacher": "a run"}
    asked = ("UsesTextPool", "UsesCategories", "UsesTeacher")
    found = {
        name: abilities(OBJECTIVES.create(name, **OBJECTIVES.complete(name, {}, facts)), asked)
        for name in OBJECTIVES.names()
    }
    assert {name: has for name, has in found.items() if has} == {
        "ranking": {"UsesTextPool"},
        "instance": {"UsesCategories"},
        "distill": {"UsesTeacher"},
    }


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(TypeError, match=r"nn\.Module"):
        module_of(lambda step: {})  # type: ignore[arg-type]
    assert module_of(nn.Identity()) is not None


def test_no_caller_asks_for_an_ability_by_the_name_of_an_attribute() -> None:
    sniffing = re.compile(r"matcher: Any|(?:has|get)attr\((?:self\.)?(?:\w+\.)*(?:matcher|objective|loss|part)\b, \"")
    folder = Path(quintet.__file__).parent
    found = [
        f"{path.relative_to(folder)}: {line.strip()}"
        for path in sorted(folder.rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if sniffing.search(line)
    ]
    assert not found, found


def test_an_ability_is_asked_of_the_object_on_every_python() -> None:
    """Python 3.12 looks at the class alone: a property that raises counts there, and a parameter does not."""

    class Scaled(nn.Module):
        def __init__(self, pixels: bool) -> None:
            super().__init__()
            self.pixels = pixels
            self.logit_scale = nn.Parameter(torch.ones(()))
            self.register_buffer("logit_bias", torch.zeros(()))

        @property
        def preprocess(self) -> str:
            if not self.pixels:
                raise AttributeError("none")
            return "some"

    assert isinstance(Scaled(True), protocols.ReadsPixels)
    assert not isinstance(Scaled(False), protocols.ReadsPixels)
    assert isinstance(Scaled(False), protocols.HasLogitScale)
    assert not isinstance(nn.Linear(1, 1), protocols.HasLogitScale)
