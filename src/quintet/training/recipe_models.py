"""The fields of a recipe and their defaults: data, matcher, and the stages of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MOST = 2**31 - 1  # of a count


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="after")
    def _counts_are_possible(self) -> _Strict:
        for name in type(self).model_fields:
            if isinstance(value := getattr(self, name), int) and value > MOST:
                raise ValueError(f"{name} cannot be {value}: at most {MOST:,}")
        return self


class TokenizerRecipe(_Strict):
    """How texts become token ids."""

    kind: Literal["words", "wordpiece", "pretrained"] = "words"
    min_count: int = Field(4, ge=1, description="words: minimum count of a word in the training split")
    max_length: int | None = Field(
        None, ge=3, le=100_000, description="maximum number of tokens of a text, special tokens included"
    )
    special_tokens: bool = Field(True, description="words: add the special tokens <start> and <end>")
    unknown: Literal["mark", "drop"] = Field("mark", description="words outside the vocabulary: <unk>, or left out")
    case: bool = Field(False, description="words: case-sensitive")
    vocabulary: Path | None = Field(
        None, description="words: a vocabulary in SCAN's JSON format instead of one built from the training split"
    )
    source: str | None = Field(
        None,
        description="wordpiece: vocab.txt, folder, hub name, or a run that has one; none: trained on the corpus; "
        "pretrained: folder or hub name; none: that of the model which the matcher names",
    )
    size: int = Field(8000, ge=10, description="wordpiece: size of the vocabulary, when trained on the corpus")
    word_vectors: Path | None = Field(None, description="GloVe or word2vec file that initialises the word embeddings")
    vectors_only: bool = Field(False, description="words without a vector in that file are outside the vocabulary")
    vectors_start: bool = Field(True, description="false: random embeddings; the file only selects the words")

    @model_validator(mode="after")
    def _files_are_of_the_kind(self) -> TokenizerRecipe:
        if self.kind == "words" and self.source is not None:
            raise ValueError("source goes with kind: wordpiece or pretrained; words are read from `vocabulary`")
        if self.kind != "words" and self.vocabulary is not None:
            raise ValueError("vocabulary goes with kind: words; other tokenizers are read from `source`")
        if self.vectors_only and (self.word_vectors is None or self.vocabulary is not None):
            raise ValueError("vectors_only filters the words of the corpus by a file; name it with `word_vectors`")
        return self


class AugmentRecipe(_Strict):
    """Random changes of images and texts in training."""

    crop: Literal["none", "resized", "shift", "squeeze"] = Field(
        "none", description="shift: a crop from a slightly larger image; squeeze: which is made square first"
    )
    smallest: float = Field(0.08, gt=0, le=1, description="crop: resized: smallest share of the area that is cut out")
    flip: float = Field(0.0, ge=0, le=1, description="probability of a horizontal flip; 0 where left and right matter")
    regions: float = Field(0.0, ge=0, lt=1, description="features: probability of dropping a region")
    words: float = Field(0.0, ge=0, lt=1, description="probability of masking, replacing or dropping a word")

    @model_validator(mode="after")
    def _sizes_vary(self) -> AugmentRecipe:
        if self.smallest != type(self).model_fields["smallest"].default and self.crop != "resized":
            raise ValueError("augment.smallest is of crop: resized; the other crops have one size")
        return self


class DataRecipe(_Strict):
    """Which corpus, and how its images and texts are read."""

    corpus: Path | None = Field(None, description="a corpus folder; `--corpus` on the command line sets it")
    features: str | None = Field(None, description="a folder under CORPUS/features; none: the matcher reads pixels")
    train: str = "train"
    validation: str = "dev"
    test: str = "test"
    tokenizer: TokenizerRecipe = TokenizerRecipe()
    augment: AugmentRecipe = AugmentRecipe()
    text_cache: Literal["none", "float16", "float32"] = Field(
        "none", description="keep the outputs of a frozen text encoder under CORPUS/texts, in this type"
    )
    keep: Literal["auto", "disk", "device"] = Field(
        "auto",
        description="where image data is kept; auto: features that fit easily in a GPU's memory, else on disk",
    )
    workers: int = Field(0, ge=0, le=1024, description="data loader processes; 0: load in the training process")
    limit: int | None = Field(None, ge=2, description="train on the first N groups only, for trials")

    @model_validator(mode="after")
    def _what_changes_is_there(self) -> DataRecipe:
        if self.features is not None and (self.augment.crop != "none" or self.augment.flip):
            raise ValueError("augment changes pixels, and this recipe reads features; leave crop and flip out")
        if self.features is None and self.augment.regions:
            raise ValueError("augment.regions is for features, and this recipe reads pixels; use augment.crop")
        if self.text_cache != "none" and self.augment.words:
            raise ValueError("augment.words changes texts, and text_cache keeps features of unchanged ones")
        return self


class NamedRecipe(BaseModel):
    """A name and its arguments, which are checked by the builder of that name."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class BatchRecipe(_Strict):
    kind: Literal["random", "neighbours"] = Field("random", description="neighbours: batches of similar images")
    size: int = Field(128, ge=2, le=2**20, description="pairs in a batch, over all processes")
    chunk: int | None = Field(
        None,
        ge=1,
        description="gradient caching: pairs encoded at a time; the gradient is the same, and larger batches fit",
    )
    per: Literal["texts", "images"] = Field("texts", description="an epoch visits each text once, or each image once")
    drop_last: bool = False
    from_epoch: int = Field(0, ge=0, description="neighbours: epochs with random batches before")
    refresh: int = Field(1, ge=1, description="neighbours: epochs between two clusterings by the current weights")
    per_cluster: int = Field(8, ge=2, description="neighbours: images per cluster in a batch")
    clusters: int | None = Field(
        None,
        ge=1,
        description="neighbours: number of k-means clusters; none: so many that each has 4 x per_cluster images",
    )

    @model_validator(mode="after")
    def _clusters_fill_a_batch(self) -> BatchRecipe:
        if self.kind == "neighbours" and self.size % self.per_cluster:
            raise ValueError(f"a batch of {self.size} cannot be made of {self.per_cluster} images a cluster")
        return self


class NegativesRecipe(_Strict):
    """Offline hard negatives (AOQ): which matcher mines them from the training split, and how they are drawn."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True)
    source: str = Field(
        alias="from",
        description="an earlier stage, the run folder of a teacher, or candidate lists: a folder of `quintet mine -o`, "
        "the authors' i2t_*.npy and t2i_*.npy, a table of image and text ids",
    )
    top_texts: int = Field(300, ge=1, description="h: number of hard negative texts per image")
    top_images: int = Field(60, ge=1, description="number of hard negative images per text")
    distribution: Literal["uniform", "normal"] = "uniform"
    mean: float = Field(0.5, ge=0, le=1, description="normal: mean, as a fraction of the list")
    std: float = Field(0.25, gt=0, description="normal: standard deviation, as a fraction of the list")
    coupled: bool = Field(False, description="one draw for text and image, as in the released code")
    exclude_duplicates: bool = Field(False, description="leave out texts equal to one of the anchor's own")
    false_negative_margin: float | None = Field(
        None, description="leave out candidates whose score is within this margin of the positive's"
    )

    def mining(self) -> dict[str, Any]:
        """The settings that decide which lists are mined. The others say how negatives are drawn from them."""
        return self.model_dump(include={"top_texts", "top_images", "exclude_duplicates", "false_negative_margin"})


class GroupRecipe(_Strict):
    """Settings of the parameters whose names match the pattern; the first match counts."""

    match: str = Field(description="a pattern of names, as in 'matcher.text_encoder.*'")
    lr_scale: float = Field(1.0, ge=0)
    weight_decay: float | None = Field(None, ge=0)


class OptimizerRecipe(_Strict):
    name: Literal["adam", "adamw", "sgd"] = "adam"
    lr: float = Field(2e-4, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    momentum: float = Field(0.9, ge=0, lt=1, description="sgd only")
    nesterov: bool = Field(False, description="sgd only")
    groups: tuple[GroupRecipe, ...] = ()
    layer_decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="factor of the learning rate from one layer of a transformer to the one below, down to its input",
    )


class LoraRecipe(_Strict):
    """LoRA: low-rank matrices beside linear layers are trained in place of the weights. Needs the extra `lora`."""

    rank: int = Field(8, ge=1)
    alpha: int = Field(16, ge=1, description="an adapter's output is multiplied with alpha / rank")
    dropout: float = Field(0.0, ge=0, lt=1, description="of the adapters' input")
    targets: tuple[str, ...] | None = Field(
        None, description="patterns of linear layers, as in 'matcher.*.out_proj'; none: queries and values of attention"
    )
    train: tuple[str, ...] = Field(
        (), description="patterns of other parameters that are trained, in full, as in 'matcher.model.logit_scale'"
    )


class ScheduleRecipe(_Strict):
    """The learning rate over time, as a factor of the optimizer's."""

    kind: Literal["constant", "step", "multistep", "cosine"] = "constant"
    every: int = Field(15, ge=1, description="step: epochs between two decays")
    milestones: tuple[float, ...] = Field((), description="multistep: epochs after which it decays")
    factor: float = Field(0.1, gt=0, description="step and multistep: factor of one decay")
    floor: float = Field(0.0, ge=0, description="cosine: the last factor")
    warmup_steps: int = Field(0, ge=0, description="linear warm-up from zero")


class StageRecipe(_Strict):
    """One round of training."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    init: str = Field("scratch", description="scratch, previous (the stage before), or a run folder")
    freeze: tuple[str, ...] = Field((), description="patterns of parameter names that are not trained")
    frozen: Literal["eval", "train"] = Field(
        "eval", description="mode of the parts that freeze leaves without trained parameters"
    )
    lora: LoraRecipe | None = Field(
        None, description="train adapters of the matcher; they are merged into its weights, so a run has none"
    )
    loss: dict[str, dict[str, Any]] = Field(description="losses by name, each with its arguments")
    reduction: Literal["sum", "mean"] = Field("sum", description="over the anchors of the batch")
    negatives: NegativesRecipe | None = Field(None, description="mined before the stage starts")
    batches: BatchRecipe = BatchRecipe()
    optimizer: OptimizerRecipe = OptimizerRecipe()
    schedule: ScheduleRecipe = ScheduleRecipe()
    epochs: int = Field(30, ge=1)
    clip: float | None = Field(2.0, gt=0, description="maximum norm of the gradient")
    accumulate: int = Field(1, ge=1, description="batches per optimizer step; each has its own negatives")
    ema: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="decay of an exponential moving average of the matcher's weights, which is validated and kept",
    )
    precision: Literal["float32", "tf32", "bfloat16"] = Field(
        "float32", description="tf32: products on a GPU's tensor cores; bfloat16: automatic half precision"
    )
    compile: bool = Field(False, description="torch.compile the two encoders")
    graphs: bool = Field(False, description="on one GPU, record a step and replay it (CUDA graphs)")
    shard: bool = Field(
        False,
        description="each process keeps a share of the weights, gradients and optimizer state of transformers (FSDP)",
    )
    select: str = Field("rsum", description="the validation metric whose best epoch is kept")
    validate_every: int = Field(
        1, ge=1, description="epochs between two validations; the last epoch is always validated"
    )
    select_after: int = Field(
        0, ge=0, description="the first epochs, which are never selected: those of a warm-up, for example"
    )
    checkpoint_every: int = Field(200, ge=1, description="optimizer steps between two checkpoints")
    log_every: int = Field(20, ge=1, description="optimizer steps between two log lines")
    on_collapse: Literal["warn", "stop"] = "warn"

    @model_validator(mode="after")
    def _loss_is_named(self) -> StageRecipe:
        if not self.loss:
            raise ValueError("a stage needs at least one loss")
        if self.select_after >= self.epochs:
            raise ValueError(f"select_after {self.select_after} leaves none of {self.epochs} epochs to select")
        other = "lora" if self.lora is not None else "compile" if self.compile else None
        if self.shard and other is not None:
            raise ValueError(f"shard and {other} do not go together; leave one of them out")
        return self


class Recipe(_Strict):
    name: str
    seed: int = Field(0, ge=0, lt=2**31)
    data: DataRecipe = DataRecipe()
    matcher: NamedRecipe
    stages: tuple[StageRecipe, ...]

    @model_validator(mode="after")
    def _stage_names_differ(self) -> Recipe:
        names = [stage.name for stage in self.stages]
        if not names:
            raise ValueError("a recipe needs at least one stage")
        if len(set(names)) != len(names):
            raise ValueError(f"stages must have different names, got {names}")
        for number, stage in enumerate(self.stages):
            if stage.negatives is not None and stage.negatives.source in names[number:]:
                raise ValueError(
                    f"stage {stage.name!r} mines with stage {stage.negatives.source!r}, which has not run by then"
                )
        return self
