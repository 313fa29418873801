"""`train`: a recipe and a corpus in, a trained run out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from quintet.data.corpus import Corpus
from quintet.errors import RecipeError
from quintet.files import user_path
from quintet.runs.run import Run, load
from quintet.training import stages
from quintet.training.logs import Display
from quintet.training.recipe import expand_recipe, parse_recipe
from quintet.training.recipe_models import Recipe


def train(
    recipe: str | Path | Recipe | Mapping[str, Any] | None = None,
    corpus: Corpus | Path | str | None = None,
    *,
    out: Path | str | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    resume: Path | str | None = None,
    device: torch.device | str = "auto",
    display: Display | None = None,
) -> Run:
    """Train a recipe into a new run folder, or continue a run; returns the run, opened.

    >>> import quintet, tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> corpus = quintet.import_corpus("scenes", "-", folder / "scenes", train=12, dev=4, test=4, size=64)
    >>> small = ["stages.online.epochs=1", "stages.online.batches.size=8"]
    >>> run = train("vse-scenes", corpus, out=folder / "run", seed=1, overrides=small, device="cpu")
    >>> run.encode_texts("a red circle").embedding.shape[0]
    1

    - `recipe`: the name of a shipped recipe, a YAML file, or its content. `corpus` goes before the recipe's own
      `data.corpus`, `seed` before its `seed`.
    - `out`: the run folder to write.
    - `overrides`: fields of the recipe to change, `"stages.online.epochs=5"`.
    - `resume`: a run that was stopped; it continues from its last checkpoint, bit for bit. It has its own recipe,
      corpus and folder, so none is given.
    - `display`: is told about stages, steps and epochs (see `quintet.training.logs.Display`).

    Under torchrun the processes share each batch.
    """
    if resume is not None:
        given = {"recipe": recipe, "corpus": corpus, "out": out, "seed": seed, "overrides": overrides or None}
        extra = [name for name, value in given.items() if value is not None]
        if extra:
            raise RecipeError(f"resume takes no {' and no '.join(extra)}: the run has its own")
        stages.resume(resume, device=device, display=display)
        return load(resume, device=device)
    if recipe is None or out is None:
        raise RecipeError(
            "name a recipe and a folder for the run, or a run to resume (`quintet recipes` lists recipes)"
        )
    settings = [overrides] if isinstance(overrides, str) else list(overrides)
    if corpus is not None:
        folder = corpus.root if isinstance(corpus, Corpus) else user_path(corpus)
        settings.append(f"data.corpus={json.dumps(str(folder))}")
    if seed is not None:
        settings.append(f"seed={seed}")
    stages.train(_recipe(recipe, settings), out, device=device, display=display)
    return load(out, device=device)


def _recipe(recipe: str | Path | Recipe | Mapping[str, Any], settings: Sequence[str]) -> Recipe:
    if isinstance(recipe, Recipe):
        content: Any = recipe.model_dump(mode="json", by_alias=True)
    else:
        content = expand_recipe(recipe) if isinstance(recipe, str | Path) else dict(recipe)
    return parse_recipe(content, settings, recipe if isinstance(recipe, str) else "recipe")
