"""The tokenizer, matcher and losses that a recipe names, and the weights that a stage starts from.

Configuration ends here: what is built takes plain arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quintet import distributed
from quintet.backbones.text_encoder import text_encoder_config
from quintet.data.corpus import Split
from quintet.data.dictionary import Dictionary
from quintet.data.tokenizers import Tokenizer
from quintet.data.vocabulary import WordVocabulary
from quintet.errors import RecipeError
from quintet.losses import OBJECTIVES
from quintet.losses.step import Progress, Step, Term
from quintet.models import MODELS, create_model
from quintet.models.size_limit import build_within
from quintet.protocols import (
    HasEmbedding,
    HasLogitScale,
    KeepsRegions,
    Matcher,
    Phased,
    UsesCategories,
    UsesTeacher,
    UsesTextPool,
)
from quintet.runs.checkpoint import load_tensors, own_rows, save_tensors, whole_state
from quintet.runs.run import load, read_tokenizer
from quintet.runs.run_folder import is_run, locate, read_head
from quintet.training.inputs import TrainingData
from quintet.training.recipe_models import Recipe, StageRecipe, TokenizerRecipe

OBJECTIVE_FILE = "objective.safetensors"


def build_tokenizer(recipe: TokenizerRecipe, train: Split) -> Tokenizer:
    """From a file, or from the texts of the training split and no others."""
    return build_dictionary(recipe, train)[0]


def build_dictionary(
    recipe: TokenizerRecipe, train: Split, model: str | None = None
) -> tuple[Tokenizer, Dictionary | None]:
    """The tokenizer, and where its tokens are words, what it keeps of the training texts.

    `model`: the pretrained model that the matcher names, `hf:NAME`.
    """
    if recipe.kind == "pretrained":
        return _pretrained_tokenizer(recipe.source or model, recipe.max_length), None
    texts = [text.text for text in train.texts]
    if recipe.kind == "wordpiece":
        from quintet.data.wordpiece import WordPiece

        if recipe.source and is_run(recipe.source):
            return _tokenizer_of_run(recipe), None
        if recipe.source:
            return WordPiece.load(recipe.source, recipe.max_length), None
        return WordPiece.train(texts, recipe.size, recipe.max_length), None
    vocabulary = _word_vocabulary(recipe, texts)
    coverage = None
    if recipe.word_vectors is not None:
        from quintet.data.dictionary import vector_coverage

        coverage, found = vector_coverage(recipe.word_vectors, vocabulary, texts)
        if recipe.vectors_only:
            vocabulary = vocabulary.only(found)
    return vocabulary, Dictionary.of(vocabulary, texts, coverage)


def _pretrained_tokenizer(source: str | None, max_length: int | None) -> Tokenizer:
    if source is None:
        raise RecipeError("data.tokenizer: name the model whose tokenizer it is, with source: FOLDER_OR_HUB_NAME")
    from quintet.data.pretrained import dual_encoder_files, is_dual_encoder
    from quintet.data.pretrained_tokenizer import PretrainedTokenizer
    from quintet.models.clip import load_text_side

    if is_dual_encoder(source):
        return load_text_side(dual_encoder_files(source), max_length)
    return PretrainedTokenizer.load(source, max_length)


def pretrained_model(recipe: Recipe) -> str | None:
    """The pretrained model, `hf:NAME`, that the matcher of a recipe is, or reads texts with."""
    named = (recipe.matcher.arguments.get(key) for key in ("source", "text"))
    return next((name for name in named if isinstance(name, str) and name.startswith("hf:")), None)


def _tokenizer_of_run(recipe: TokenizerRecipe) -> Tokenizer:
    """That of the run `source`, as it is."""
    tokenizer = read_tokenizer(locate(str(recipe.source))[0])
    if tokenizer is None:
        raise RecipeError(f"data.tokenizer.source: run {recipe.source} has no tokenizer; name another one")
    if recipe.max_length is not None:
        raise RecipeError(f"data.tokenizer: run {recipe.source} has its own max_length; leave max_length out")
    return tokenizer


def without_absent_vectors(recipe: Recipe, note: Callable[[str], None]) -> Recipe:
    """The recipe itself, or without the word vectors that it names by a bare file name and that are not here.

    Shipped recipes name word2vec's file so. Any other path must exist.
    """
    asked = recipe.data.tokenizer.word_vectors
    if asked is None or asked.exists():
        return recipe
    if asked.parent != Path():
        raise RecipeError(f"data.tokenizer.word_vectors: {asked} does not exist")
    note(f"the word vectors {asked} are not in this folder; training goes on without them")
    tokenizer = recipe.data.tokenizer.model_copy(update={"word_vectors": None, "vectors_only": False})
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"tokenizer": tokenizer})})


def _word_vocabulary(recipe: TokenizerRecipe, texts: list[str]) -> WordVocabulary:
    settings: dict[str, Any] = {
        "special_tokens": recipe.special_tokens,
        "max_length": recipe.max_length,
        "drop_unknown": recipe.unknown == "drop",
    }
    if recipe.vocabulary is not None:
        return WordVocabulary.load_scan_json(recipe.vocabulary, case=recipe.case, **settings)
    return WordVocabulary.build(texts, min_count=recipe.min_count, case=recipe.case, **settings)


def tell_dictionary(
    dictionary: Dictionary, recipe: TokenizerRecipe, info: Callable[[str], None], note: Callable[[str], None]
) -> None:
    """Say how large the dictionary is and how far vectors cover it; warn where they are absent or mostly missing."""
    info(str(dictionary))
    if dictionary.vectors is not None:
        info(str(dictionary.vectors))
        for warning in dictionary.vectors.warnings(recipe.case):
            note(warning)
    elif recipe.unknown == "drop":  # a dictionary as Dual-Path's, which is word2vec's
        note("no word vectors: all words start at random; data.tokenizer.word_vectors=FILE names a file of them")


def complete_model(recipe: Recipe, data: TrainingData, tokenizer: Tokenizer) -> dict[str, Any]:
    """The content of model.json: the matcher's name and arguments, completed with the sizes of the data."""
    facts: dict[str, Any] = {"vocabulary_size": len(tokenizer)}
    if data.store is not None:
        facts["image_dim"] = data.store.dim
    text = recipe.matcher.arguments.get("text")
    if isinstance(text, str) and text.startswith("hf:"):
        facts["text_config"] = text_encoder_config(text.removeprefix("hf:"))  # the run then opens without that folder
    name = recipe.matcher.name
    if isinstance(source := recipe.matcher.arguments.get("source"), str) and "source" in MODELS.parameters(name):
        facts |= _source_facts(source, tokenizer)
    elif "end_token" in MODELS.parameters(name):
        facts["end_token"] = tokenizer.ids("a")[-1]
    return {"name": name, "arguments": MODELS.complete(name, recipe.matcher.arguments, facts)}


def _source_facts(source: str, tokenizer: Tokenizer) -> dict[str, Any]:
    from quintet.data.pretrained import dual_encoder_files
    from quintet.data.pretrained_tokenizer import PretrainedTokenizer
    from quintet.models.clip import dual_encoder_facts

    if not isinstance(tokenizer, PretrainedTokenizer):
        raise RecipeError(f"{source} reads the tokens of its own tokenizer; set data.tokenizer={{kind: pretrained}}")
    return dual_encoder_facts(dual_encoder_files(source), tokenizer)  # the run then opens without that folder


def build_matcher(model: dict[str, Any], recipe: TokenizerRecipe, tokenizer: Tokenizer, seed: int) -> Matcher:
    """A fresh matcher, with pretrained word vectors if the recipe names a file."""
    matcher: Matcher = create_model(model["name"], **model["arguments"])
    if recipe.word_vectors is not None and recipe.vectors_start:
        from quintet.data.word_vectors import initial_embedding

        if not isinstance(tokenizer, WordVocabulary):
            raise RecipeError("word_vectors need a word vocabulary, not word pieces")
        table = _word_embedding(matcher, len(tokenizer))
        vectors, _ = initial_embedding(tokenizer, recipe.word_vectors, table.embedding_dim, seed)
        with torch.no_grad():
            table.weight.copy_(vectors)
    return matcher


def _word_embedding(matcher: Matcher, size: int) -> nn.Embedding:
    tables = [part for part in matcher.modules() if isinstance(part, nn.Embedding) and part.num_embeddings == size]
    if len(tables) != 1:
        raise RecipeError(
            f"word_vectors need a matcher with one table of {size} word embeddings; this one has {len(tables)}"
        )
    return tables[0]


class Objectives(nn.Module):
    """The losses of a stage by name. Their terms are named `loss.term`."""

    def __init__(self, parts: dict[str, nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(parts)

    def forward(self, step: Step) -> dict[str, Term]:
        return {f"{name}.{term}": value for name, part in self.parts.items() for term, value in part(step).items()}

    @property
    def without_phase(self) -> list[str]:
        """The losses that do not declare how they change over time. With one of them, no step is recorded."""
        return [name for name, part in self.parts.items() if not isinstance(part, Phased)]

    def phase(self, progress: Progress) -> Hashable:
        """The phases of all losses. While they are the same, a step computes the same function."""
        return tuple(part.phase(progress) for part in self.parts.values() if isinstance(part, Phased))

    @property
    def pool_size(self) -> int:
        """How many texts beside the batch the losses choose from."""
        return max((part.pool_size for part in self.parts.values() if isinstance(part, UsesTextPool)), default=0)

    @property
    def categorised(self) -> list[UsesCategories]:
        """The losses that classify pseudo-categories."""
        parts = [part for part in self.parts.values() if isinstance(part, UsesCategories)]
        return [part for part in parts if part.categories is not None]

    @property
    def taught(self) -> list[UsesTeacher]:
        """The losses that learn from another run."""
        return [part for part in self.parts.values() if isinstance(part, UsesTeacher)]


def build_objective(stage: StageRecipe, matcher: Matcher, tokenizer: Tokenizer, data: TrainingData) -> Objectives:
    facts: dict[str, Any] = {"vocabulary_size": len(tokenizer), "groups": len(data.train.groups)}
    if isinstance(matcher, HasEmbedding):
        facts["embed_dim"] = matcher.embed_dim
    if isinstance(matcher, KeepsRegions):
        facts["region_dim"] = matcher.region_dim
    facts["has_logit_scale"] = isinstance(matcher, HasLogitScale)
    return Objectives(
        {
            name: build_within(OBJECTIVES, name, OBJECTIVES.complete(name, arguments, facts))
            for name, arguments in stage.loss.items()
        }
    )


def initial_weights(stage: StageRecipe, previous: Path | None) -> dict[str, Tensor] | None:
    """The weights that the matcher of a stage starts from; None: fresh ones. `previous`: those of the stage before."""
    if stage.init == "scratch":
        return None
    if stage.init == "previous":
        if previous is None:
            raise RecipeError(f"stage {stage.name!r} starts from the previous stage, but it is the first")
        return load_tensors(previous)[0]
    return load(stage.init, device="cpu").matcher.state_dict()


def save_objective(folder: Path, objective: nn.Module) -> None:
    """Write the parameters and buffers of the losses beside the selected weights. All processes must call."""
    state = whole_state(objective)
    if state and distributed.is_main():
        save_tensors(folder / OBJECTIVE_FILE, state, {})


def continue_objective(
    objective: nn.Module, stage: StageRecipe, previous: Path | None, note: Callable[[str], None]
) -> None:
    """Load what the losses of the same names learned in the stage that this one starts from.

    Dual-Path's classifier, for example, is trained on through both stages.
    """
    folder = _source(stage, previous)
    if folder is None or not (folder / OBJECTIVE_FILE).is_file():
        return
    found, _ = load_tensors(folder / OBJECTIVE_FILE)
    shapes = _whole_shapes(objective)
    for loss in sorted({name.split(".")[1] for name in shapes}):  # names are parts.LOSS.PARAMETER
        own = {name: shape for name, shape in shapes.items() if name.startswith(f"parts.{loss}.")}
        there = {name: tuple(found[name].shape) for name in own if name in found}
        if there == own:
            state = own_rows(objective, {name: found[name] for name in own})
            objective.load_state_dict(state, strict=False)
        elif there:
            note(f"loss {loss!r} of stage {stage.name!r} has other sizes than before; it starts from scratch")


def _source(stage: StageRecipe, previous: Path | None) -> Path | None:
    """The folder of the stage that the initial weights come from."""
    if stage.init == "scratch":
        return None
    if stage.init == "previous":
        return None if previous is None else previous.parent
    folder, name = locate(stage.init)
    stages = list(read_head(folder).get("stages", {}))  # in training order
    name = name or (stages[-1] if stages else None)
    return None if name is None else folder / "stages" / name


def _whole_shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    parameters = dict(module.named_parameters())
    shapes = {}
    for name, tensor in module.state_dict().items():
        rows = distributed.global_rows(parameters[name]) if name in parameters else None
        shapes[name] = tuple(tensor.shape) if rows is None else (rows, *tensor.shape[1:])
    return shapes
