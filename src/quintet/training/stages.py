"""`train`: a recipe and a corpus in, a trained run out.

The stages of the recipe run one after the other. A run that was stopped is resumed from its last checkpoint.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from quintet import distributed
from quintet.data.corpus import Corpus
from quintet.data.negatives import NegativeLists
from quintet.data.pretrained import dual_encoder_files, is_pretrained
from quintet.data.tokenizers import Tokenizer
from quintet.errors import RecipeError, RunError, suggest
from quintet.files import read_json, user_path
from quintet.models import create_model
from quintet.protocols import Matcher, module_of
from quintet.runs.checkpoint import check_new, finish_run, load_tensors, load_weights, start_run, writing
from quintet.runs.devices import pick_device
from quintet.runs.run import Run, load, read_tokenizer
from quintet.runs.run_folder import (
    HUB,
    START_FILES,
    check_name,
    is_there,
    locate,
    read_head,
    read_image_input,
    read_model,
    shipped_runs,
    verify_files,
)
from quintet.training.build import (
    build_dictionary,
    build_matcher,
    build_objective,
    complete_model,
    continue_objective,
    initial_weights,
    pretrained_model,
    tell_dictionary,
    without_absent_vectors,
)
from quintet.training.inputs import TrainingData, keep_inputs, open_data, prepare_features
from quintet.training.logs import Display, Silent
from quintet.training.loop import StageTrainer, Summary, check_chunks, check_metric
from quintet.training.nodes import check_same, copy_from_first, require_one_folder
from quintet.training.optim import freeze, frozen_modules, make_optimizer, transformer_layers
from quintet.training.recipe import expand_recipe, load_recipe, parse_recipe, recipe_yaml, with_whole_paths
from quintet.training.recipe_models import NegativesRecipe, Recipe, StageRecipe
from quintet.training.without_effect import optimizer_steps, settings_without_effect


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
    - `display`: is notified of stages, steps and epochs (see `quintet.training.logs.Display`).

    Under torchrun the processes share each batch.
    """
    if resume is not None:
        given = {"recipe": recipe, "corpus": corpus, "out": out, "seed": seed, "overrides": overrides or None}
        extra = [name for name, value in given.items() if value is not None]
        if extra:
            raise RecipeError(f"resume takes no {' and no '.join(extra)}: the run has its own")
        resume_run(resume, device=device, display=display)
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
    train_recipe(_recipe(recipe, settings), out, device=device, display=display)
    return load(out, device=device)


def _recipe(recipe: str | Path | Recipe | Mapping[str, Any], settings: Sequence[str]) -> Recipe:
    if isinstance(recipe, Recipe):
        content: Any = recipe.model_dump(mode="json", by_alias=True)
    else:
        content = expand_recipe(recipe) if isinstance(recipe, str | Path) else dict(recipe)
    return parse_recipe(content, settings, recipe if isinstance(recipe, str) else "recipe")


def check_stages(recipe: Recipe, model: dict[str, Any], tokenizer: Tokenizer, data: TrainingData) -> None:
    """Build what each stage names once and drop it: a mistake in the last stage is reported before the first runs."""
    matcher: Matcher = create_model(model["name"], **model["arguments"])
    if recipe.data.augment.words:
        from quintet.data.augment import ChangedWords

        ChangedWords(tokenizer.kinds(), recipe.data.augment.words)  # raises if the vocabulary has no mask
    trainable = {parameter: parameter.requires_grad for parameter in matcher.parameters()}
    for number, stage in enumerate(recipe.stages):
        earlier = [before.name for before in recipe.stages[:number]]
        _check_source(f"stage {stage.name!r}: init", stage.init, ["scratch", *(["previous"] if number else [])])
        if stage.negatives is not None and not _names_lists(stage.negatives.source, earlier):
            what = "run folder, candidate lists"
            _check_source(f"stage {stage.name!r}: negatives.from", stage.negatives.source, earlier, what)
        elif stage.negatives is not None:
            _read_lists(stage.negatives, data, Silent())
        check_metric(stage.select)
        checked = matcher
        if stage.lora is not None:
            checked = copy.deepcopy(matcher)
            _add_adapters(checked, stage)
        objective = build_objective(stage, checked, tokenizer, data)
        for part in objective.taught:
            _check_source(f"stage {stage.name!r}: the teacher of its loss", part.teacher, [])
        if stage.batches.kind == "neighbours" or objective.categorised:
            from quintet.training.clusters import require_clustering

            require_clustering()
        module = nn.ModuleDict({"matcher": module_of(checked), "objective": objective})
        freeze(module, stage.freeze)
        check_chunks(stage, checked, frozen_modules(module, stage.freeze))
        if stage.shard and not transformer_layers(module_of(checked)):
            raise RecipeError(
                f"stage {stage.name!r}: shard is for transformers, and this matcher has no layers of one; leave it out"
            )
        make_optimizer(module, stage.optimizer)
        for parameter, wanted in trainable.items():
            parameter.requires_grad_(wanted)


def _add_adapters(matcher: Matcher, stage: StageRecipe) -> str:
    from quintet.training.adapters import add_adapters  # most recipes train the weights themselves

    assert stage.lora is not None
    return f"stage {stage.name}: {add_adapters(matcher, stage.lora)}"


def _check_source(where: str, name: str, known: list[str], what: str = "run folder") -> None:
    """Raise unless `name` is known or a run."""
    if name in known:
        return
    if is_pretrained(name):
        dual_encoder_files(name)
        return
    if not name.startswith(HUB) and not is_there(user_path(name)) and name not in shipped_runs():
        hint = f"; {suggest(name, known)}" if known else ""
        raise RecipeError(f"{where}: {name!r} is not a {what} or a known stage{hint}")
    read_head(locate(name)[0])


def stage_negatives(
    recipe: NegativesRecipe,
    *,
    out: Path,
    stages: list[str],
    folder: Path,
    data: TrainingData,
    device: torch.device,
    display: Display,
) -> NegativeLists:
    """Open the lists in `folder`, or mine them first, or copy those that the recipe names into it.

    A mining job that was killed is resumed.
    """
    copied = _copied_lists(recipe, folder / "negatives", data, device)
    if copied is not None:
        return copied
    counts = f"hard negatives of {len(data.train.images)} images and {len(data.train.texts)} texts"
    if _names_lists(recipe.source, stages):
        display.info(f"{counts}, from {recipe.source}")
        lists = _read_lists(recipe, data, display)
        if distributed.is_main():
            lists.save(folder / "negatives")
        distributed.barrier()
        return lists
    from quintet.mining.mine import mine  # most recipes mine nothing

    own = recipe.source in stages
    miner = load(out, stage=recipe.source, device=device) if own else load(recipe.source, device=device)
    display.info(f"{counts}, mined with {miner.name}")
    lists = mine(miner, data.corpus, split=data.train, out=folder / "negatives", **recipe.mining())
    lists.check(data.train, miner.weights_checksum)
    return lists


def _names_lists(source: str, stages: list[str]) -> bool:
    from quintet.data.candidates import names_lists

    return source not in stages and is_there(user_path(source)) and names_lists(user_path(source))


def _copied_lists(
    recipe: NegativesRecipe, folder: Path, data: TrainingData, device: torch.device
) -> NegativeLists | None:
    """The run's copy of lists from elsewhere: a resumed run reads it, whatever became of the lists themselves."""
    copied = NegativeLists.find(folder)
    facts = {} if copied is None else copied.manifest.get("imported", {})
    wanted = str(user_path(recipe.source).resolve()), [recipe.top_texts, recipe.top_images]
    missing = torch.tensor(int((facts.get("from"), facts.get("top")) != wanted), device=device)
    if distributed.all_reduce_max(missing) or copied is None:  # for all processes
        return None
    copied.check(data.train)
    return copied


def _read_lists(recipe: NegativesRecipe, data: TrainingData, display: Display) -> NegativeLists:
    from quintet.data.candidates import read_lists

    path = user_path(recipe.source)
    tops = recipe.model_dump(include={"top_texts", "top_images"})
    lists = read_lists(path, data.train, **tops, note=display.note)
    made = lists.manifest.get("options", {})
    for name, value in recipe.mining().items():
        asked = value is not None and value is not False
        if name not in tops and asked and made.get(name) != value:
            raise RecipeError(
                f"negatives.{name} decides what is mined, and {path} was made without it ({made.get(name)!r}); "
                "leave it out, or mine with it"
            )
    return lists


def train_recipe(
    recipe: Recipe, out: Path | str, *, device: torch.device | str = "auto", display: Display | None = None
) -> dict[str, Any]:
    """Train a recipe into a new run folder. Returns the selected validation metrics of each stage."""
    out = user_path(out)
    display = display or Silent()
    chosen = pick_device(device)
    with distributed.process_group(chosen), writing(out, f"training {recipe.name}"):
        check_new(out)
        if recipe.data.corpus is not None:
            check_name(recipe.data.corpus)
        prepare_features(recipe, chosen, display)
        data = open_data(recipe, display.note)
        recipe = without_absent_vectors(recipe, display.note)
        check_same(recipe, data)
        tokenizer, dictionary = build_dictionary(recipe.data.tokenizer, data.train, pretrained_model(recipe))
        if dictionary is not None:
            tell_dictionary(dictionary, recipe.data.tokenizer, display.info, display.note)
        model = complete_model(recipe, data, tokenizer)
        check_stages(recipe, model, tokenizer, data)
        for stage in recipe.stages:
            for message in settings_without_effect(stage, optimizer_steps(stage, data.train)):
                display.note(message)
        if distributed.is_main():
            start_run(
                out,
                name=recipe.name,
                recipe=recipe_yaml(with_whole_paths(recipe)),
                model=model,
                tokenizer=tokenizer,
                image_input=data.image_input(),
                corpus=data.corpus.root,
                splits=data.checksums(),
                dictionary=None if dictionary is None else dictionary.content(),
            )
        distributed.barrier()
        copy_from_first(out)
        return _run_stages(recipe, out, data, tokenizer, chosen, display)


def resume_run(
    out: Path | str, *, device: torch.device | str = "auto", display: Display | None = None
) -> dict[str, Any]:
    """Continue a run exactly from its last checkpoint."""
    out = user_path(out)
    display = display or Silent()
    chosen = pick_device(device)
    with distributed.process_group(chosen), ExitStack() as stack:
        copy_from_first(out)
        head = read_head(out)
        if head["status"] == "complete":
            return dict(head.get("stages", {}))
        stack.enter_context(writing(out, f"resuming {head['name']}"))
        if (
            head["status"] == "starting"
            or not (out / "tokenizer.json").is_file()
            or not (out / "recipe.yaml").is_file()
        ):
            raise RunError(f"{out} stopped before its first step and cannot be resumed; train again into that folder")
        verify_files(out, START_FILES)
        read_image_input(out)  # raises where it is damaged
        recipe = load_recipe(out / "recipe.yaml")
        data = open_data(recipe, display.note)
        check_same(recipe, data)
        if head.get("splits") != data.checksums():
            raise RunError(
                f"the corpus {data.corpus.root} has changed since {out} was started: other ids, groups or splits; "
                "restore it, or train into a new folder"
            )
        tokenizer = read_tokenizer(out)
        assert tokenizer is not None
        return _run_stages(recipe, out, data, tokenizer, chosen, display)


def _run_stages(
    recipe: Recipe, out: Path, data: TrainingData, tokenizer: Tokenizer, device: torch.device, display: Display
) -> dict[str, Any]:
    require_one_folder(recipe, out)
    model = read_model(out)
    data = keep_inputs(data, recipe.data, device)
    summaries: dict[str, Any] = {}
    previous: Path | None = None
    for number, stage in enumerate(recipe.stages):
        folder = out / "stages" / stage.name
        if (folder / "done.json").is_file():
            summaries[stage.name] = asdict(read_json(folder / "done.json", Summary))
            if distributed.is_main():  # left over if the run was killed between the two files
                (folder / "checkpoint.safetensors").unlink(missing_ok=True)
        else:
            trainer = _make_trainer(recipe, number, stage, model, data, tokenizer, out, previous, device, display)
            summaries[stage.name] = trainer.run(resume=True)
            copy_from_first(out)
        previous = folder / "selected.safetensors"
    assert previous is not None
    if distributed.is_main():
        finish_run(out, load_tensors(previous)[0], {"stages": summaries})
    distributed.barrier()
    copy_from_first(out)
    return summaries


def _make_trainer(
    recipe: Recipe,
    number: int,
    stage: StageRecipe,
    model: dict[str, Any],
    data: TrainingData,
    tokenizer: Tokenizer,
    out: Path,
    previous: Path | None,
    device: torch.device,
    display: Display,
) -> StageTrainer:
    folder = out / "stages" / stage.name
    # The same initial weights whether or not an earlier stage ran in this process.
    torch.manual_seed(_mix(recipe.seed, number, 0))
    matcher = build_matcher(model, recipe.data.tokenizer, tokenizer, recipe.seed)
    weights = initial_weights(stage, previous)
    if weights is not None:
        load_weights(matcher, weights, Path(stage.init))
    if stage.lora is not None:
        display.info(_add_adapters(matcher, stage))
    objective = build_objective(stage, matcher, tokenizer, data)
    for part in objective.taught:
        teacher = load(part.teacher, device=device)
        display.info(f"encoding the training split with {teacher.name}, the teacher of stage {stage.name}")
        part.learn_from(teacher.matcher, *teacher.encode_split(data.corpus, data.train, keep=device))
    continue_objective(objective, stage, previous, display.note)
    if objective.categorised:
        from quintet.training.clusters import assign_categories

        assign_categories(objective, matcher, data, folder=folder, seed=(recipe.seed, number), device=device)
    negatives = None
    if stage.negatives is not None:
        names = [earlier.name for earlier in recipe.stages]
        negatives = stage_negatives(
            stage.negatives, out=out, stages=names, folder=folder, data=data, device=device, display=display
        )
    torch.manual_seed(_mix(recipe.seed, number, 1 + distributed.rank()))  # dropout differs between processes
    return StageTrainer(
        stage,
        matcher,
        objective,
        data,
        tokenizer,
        folder=folder,
        seed=(recipe.seed, number),
        device=device,
        augment=recipe.data.augment,
        workers=recipe.data.workers,
        display=display,
        negatives=negatives,
    )


def _mix(seed: int, stage: int, stream: int) -> int:
    return (seed * 1009 + stage) * 10_007 + stream
