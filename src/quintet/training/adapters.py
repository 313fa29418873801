"""LoRA: small matrices beside linear layers are trained, and merged into the weights that a run keeps.

Hu et al.: LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022. The library `peft` puts them in.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from quintet.errors import RecipeError
from quintet.protocols import Matcher, module_of
from quintet.training.recipe_models import LoraRecipe

ATTENTION = ("*.q_proj", "*.v_proj", "*.query", "*.value")  # what transformers calls queries and values


def add_adapters(matcher: Matcher, recipe: LoraRecipe) -> str:
    """Put adapters into a matcher, and leave only these and what `recipe.train` names to be trained.

    An adapter begins as zero, so the matcher computes what it did. Returns what is trained, in words.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise RecipeError(f"lora needs the `lora` extra: `pip install 'quintet-retrieval[lora]'` ({error})") from None
    module = nn.ModuleDict({"matcher": module_of(matcher)})  # so that names are those of `freeze` and of groups
    layers = _layers(module, recipe.targets)
    total = sum(parameter.numel() for parameter in module.parameters())
    config = LoraConfig(
        r=recipe.rank,
        lora_alpha=recipe.alpha,
        lora_dropout=recipe.dropout,
        target_modules="|".join(map(re.escape, layers)),
    )
    inject_adapter_in_model(config, module)
    named = dict(module.named_parameters())
    for pattern in recipe.train:
        if not any(fnmatchcase(name, pattern) for name in named):
            raise RecipeError(f"lora.train: {pattern!r} matches no parameter; names look like {_some(named)}")
    for name, parameter in named.items():
        parameter.requires_grad_(".lora_" in name or any(fnmatchcase(name, pattern) for pattern in recipe.train))
    trained = sum(parameter.numel() for parameter in named.values() if parameter.requires_grad)
    return f"LoRA beside {len(layers)} layers: {trained:,} numbers are trained, the matcher has {total:,}"


def _layers(module: nn.Module, patterns: tuple[str, ...] | None) -> list[str]:
    """The linear layers that match. MultiheadAttention reads the weights of its layer itself, past any adapter."""
    inside = {
        f"{name}.{leaf}"
        for name, part in module.named_modules()
        if isinstance(part, nn.MultiheadAttention)
        for leaf, _ in part.named_modules()
    }
    linear = [name for name, part in module.named_modules() if isinstance(part, nn.Linear) and name not in inside]
    for pattern in patterns or ():
        if not any(fnmatchcase(name, pattern) for name in linear):
            raise RecipeError(f"lora.targets: {pattern!r} matches no linear layer; names look like {_some(linear)}")
    found = [name for name in linear if any(fnmatchcase(name, pattern) for pattern in patterns or ATTENTION)]
    if not found:
        raise RecipeError(
            "lora: this matcher has no layers of queries and values; name linear layers with targets, as in "
            f"{_some(linear)}"
        )
    return found


def merged_state(module: nn.Module) -> dict[str, Tensor]:
    """The state dict with adapters added to the weights, named as if there were none. `module` is not changed."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    state = {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in module.state_dict().items()
        if ".lora_" not in name
    }
    for name, part in module.named_modules():
        if isinstance(part, BaseTunerLayer):
            layer: Any = part
            state[f"{name}.weight"] = layer.base_layer.weight.detach() + layer.get_delta_weight("default").detach()
    return state


def _some(names: Any) -> str:
    return ", ".join(repr(name) for name in list(names)[:3]) or "those of no layer here"
