"""What an objective has learned goes from stage to stage: Dual-Path's classifier is trained on, not begun again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import nn

from quintet import distributed
from quintet.runs.checkpoint import load_tensors, own_rows, save_tensors, whole_state
from quintet.runs.run_folder import locate, read_head
from quintet.training.recipe_models import StageRecipe

FILE = "objective.safetensors"


def save_objective(folder: Path, objective: nn.Module) -> None:
    """Write its parameters and buffers beside the selected weights, if it has any. All processes call."""
    state = whole_state(objective)
    if state and distributed.is_main():
        save_tensors(folder / FILE, state, {})


def continue_objective(
    objective: nn.Module, stage: StageRecipe, previous: Path | None, note: Callable[[str], None]
) -> None:
    """Start every loss where the stage that this one starts from left the loss of the same name, if it had one."""
    folder = _source(stage, previous)
    if folder is None or not (folder / FILE).is_file():
        return
    found, _ = load_tensors(folder / FILE)
    shapes = _whole_shapes(objective)
    for loss in sorted({name.split(".")[1] for name in shapes}):  # names are parts.LOSS.PARAMETER
        own = {name: shape for name, shape in shapes.items() if name.startswith(f"parts.{loss}.")}
        there = {name: tuple(found[name].shape) for name in own if name in found}
        if there == own:
            state = own_rows(objective, {name: found[name] for name in own})
            objective.load_state_dict(state, strict=False)
        elif there:
            note(f"loss {loss!r} of stage {stage.name!r} has other sizes than before, so it starts anew")


def _source(stage: StageRecipe, previous: Path | None) -> Path | None:
    """The folder of the stage that the weights come from."""
    if stage.init == "scratch":
        return None
    if stage.init == "previous":
        return None if previous is None else previous.parent
    folder, name = locate(stage.init)
    stages = list(read_head(folder).get("stages", {}))  # in the order they were trained in
    name = name or (stages[-1] if stages else None)
    return None if name is None else folder / "stages" / name


def _whole_shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    parameters = dict(module.named_parameters())
    shapes = {}
    for name, tensor in module.state_dict().items():
        rows = distributed.global_rows(parameters[name]) if name in parameters else None
        shapes[name] = tuple(tensor.shape) if rows is None else (rows, *tensor.shape[1:])
    return shapes
