"""One stage of training: epochs of batches, loss terms, optimizer steps, checkpoints, and the best validation epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from quintet import distributed
from quintet.codes import Codes
from quintet.data.batches import PairBatch
from quintet.data.loading import ImageSource, TokenizedTexts, image_batches, load_pairs, text_batches
from quintet.data.negatives import NegativeLists, OfflineRows, draw_offline
from quintet.data.sampling import epoch_batches
from quintet.data.tokenizers import Tokenizer
from quintet.errors import CorpusError, RecipeError, TrainingError, suggest
from quintet.evaluation.metrics import metrics_of_ranks, retrieval_metrics
from quintet.evaluation.ranks import BLOCK, count_ranks
from quintet.evaluation.scoring import Member, member_scores, whole_tiles
from quintet.files import check_shape, write_json
from quintet.layers.normalize import BATCH_NORMS, share_batchnorms
from quintet.losses.step import Progress, Step
from quintet.protocols import Matcher, UsesPositionNoise, evaluation_mode, module_of
from quintet.runs.checkpoint import load_checkpoint, save_checkpoint, save_tensors, whole_state
from quintet.runs.devices import tensor_core_products
from quintet.runs.encoding import encode_batches
from quintet.training.build import Objectives, save_objective
from quintet.training.graphs import WORDS, Outcome, StepGraphs, own_stream, recording_obstacle
from quintet.training.inputs import TrainingData, split_texts
from quintet.training.logs import CollapseWatch, Display, Log, Window, refuse_not_finite
from quintet.training.optim import (
    clip_gradients,
    freeze,
    frozen_modules,
    hold_statistics,
    lr_factor,
    make_optimizer,
    set_lr,
    transformer_layers,
)
from quintet.training.recipe_models import AugmentRecipe, StageRecipe
from quintet.training.stopping import Stop
from quintet.training.without_effect import settings_without_effect

OFFLINE, POOL = 1, 2  # streams of random numbers: offline negatives, and the pool of texts
DRAWING = {"top_texts", "top_images", "distribution", "mean", "std", "coupled"}  # fields of a recipe's `negatives`
VALIDATION_BATCH = 128


@dataclass
class Position:
    """How far the stage has come. The checkpoint holds it beside weights, optimizer state and random states."""

    epoch: int = 0  # epochs finished
    batch: int = 0  # batches done in the current epoch
    step: int = 0  # optimizer steps done
    best: float | None = None
    best_epoch: int | None = None
    best_metrics: dict[str, float] = field(default_factory=dict)
    window: dict[str, list[float]] = field(default_factory=dict)
    stuck: int = 0

    def __post_init__(self) -> None:
        if min(self.epoch, self.batch, self.step, self.stuck) < 0:
            raise ValueError("a count is below 0")
        if any(len(entry) != 2 or entry[1] <= 0 for entry in self.window.values()):
            raise ValueError("window takes a sum and a count above 0 for each loss")


@dataclass
class Summary:
    """What a finished stage leaves in done.json: the metrics and the epoch that were selected."""

    metrics: dict[str, float]
    epoch: int | None
    steps: int
    without_effect: list[str] = field(default_factory=list)  # settings, in words


class StageTrainer:
    """Runs one stage. It knows no method: the matcher encodes and scores, the losses return terms.

    The batches of an epoch and all random draws are functions of (seed, stage, epoch, batch), so a run that was stopped
    resumes with the same bits.
    """

    def __init__(
        self,
        stage: StageRecipe,
        matcher: Matcher,
        objective: Objectives,
        data: TrainingData,
        tokenizer: Tokenizer,
        *,
        folder: Path,
        seed: tuple[int, int],
        device: torch.device,
        augment: AugmentRecipe,
        workers: int,
        display: Display,
        negatives: NegativeLists | None = None,
    ) -> None:
        check_metric(stage.select)
        self.stage, self.data, self.tokenizer, self.negatives = stage, data, tokenizer, negatives
        self.folder, self.seed, self.device, self.workers, self.display = folder, seed, device, workers, display
        self.matcher = matcher
        self.module = nn.ModuleDict({"matcher": module_of(matcher), "objective": objective}).to(device)
        share_batchnorms(self.module)
        freeze(self.module, stage.freeze)
        self.frozen = frozen_modules(self.module, stage.freeze)
        if stage.frozen == "train":
            hold_statistics(self.frozen)
        check_chunks(stage, matcher, self.frozen)
        self.average: AveragedModel | None = None
        if stage.ema is not None:
            average = one_by_one(get_ema_multi_avg_fn(stage.ema)) if stage.shard else get_ema_multi_avg_fn(stage.ema)
            self.average = AveragedModel(module_of(matcher), multi_avg_fn=average, use_buffers=True).requires_grad_(
                False
            )
        if stage.shard and distributed.world_size() > 1:
            for part in [module_of(matcher)] if self.average is None else [module_of(matcher), self.average.module]:
                distributed.shard_layers(part, transformer_layers(part), device)
        self.optimizer = make_optimizer(self.module, stage.optimizer)
        self.trainable = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        if self.average is not None:
            self.module["average"] = self.average  # so that checkpoints hold it
        self.objective = objective
        self.train_images = data.image_source(matcher, augment)
        self.validation_images = data.image_source(matcher)
        self.train_texts = split_texts(data, data.train, tokenizer, matcher, device, augment)
        self.validation_texts = split_texts(data, data.validation, tokenizer, matcher, device)
        self.position = Position()
        self.graphs: StepGraphs | None = None
        if stage.graphs:
            obstacle = recording_obstacle(stage, objective.without_phase, device)
            if obstacle is None:
                self.graphs = StepGraphs(self._compute, self.trainable, display.note)
                self.train_texts.multiple = WORDS  # fewer lengths, fewer recordings
            else:
                display.note(f"graphs: true has no effect on stage {stage.name!r}: {obstacle}")
        self._pending: list[tuple[int, Outcome]] = []
        self._norms: list[tuple[int, Tensor]] = []
        self._watched: frozenset[str] = frozenset()  # terms that are logged and not displayed
        self._seconds = 0.0
        self._clustered: tuple[int, np.ndarray] | None = None  # the epoch, and the cluster of every training image
        if stage.compile:
            for verb in ("encode_images", "encode_texts"):
                setattr(matcher, verb, torch.compile(getattr(matcher, verb), dynamic=verb == "encode_texts"))

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.safetensors"

    def run(self, resume: bool = False) -> dict[str, Any]:
        """Train to the last epoch. Returns the metrics and the epoch that were selected."""
        resumed = resume and self.checkpoint.is_file()
        if resumed:
            state = load_checkpoint(self.checkpoint, self.module, self.optimizer)
            self.position = check_shape(state, Position, str(self.checkpoint))
        else:
            distributed.broadcast_module(self.module)
        self.window, self.watch = Window(self.position.window), CollapseWatch(self.position.stuck)
        log = Log(self.folder, self.position.step if resumed else None) if distributed.is_main() else None
        plan = self._plan(self.position.epoch)
        self.steps_per_epoch = -(-len(plan) // self.stage.accumulate)
        total = self.steps_per_epoch * self.stage.epochs
        self.display.stage(self.stage.name, self.stage.epochs, total, self.position.step)
        try:
            with own_stream(self.device, self.graphs is not None), Stop() as self.stop:
                while self.position.epoch < self.stage.epochs:
                    self._epoch(log)
        finally:
            self.graphs = None  # recordings hold memory and a reference to the trainer
            if log is not None:
                log.close()
        found = self.position.best_metrics, self.position.best_epoch, self.position.step
        summary = asdict(Summary(*found, settings_without_effect(self.stage, total)))
        if distributed.is_main():
            write_json(self.folder / "done.json", summary)
            self.checkpoint.unlink(missing_ok=True)
        distributed.barrier()
        return summary

    def _plan(self, epoch: int) -> list[np.ndarray]:
        """The global batches of an epoch, the same in every process and at every call."""
        batches, seed = self.stage.batches, (*self.seed, epoch)
        settings: dict[str, Any] = {"seed": seed, "per": batches.per, "drop_last": batches.drop_last}
        if batches.kind == "neighbours" and epoch >= batches.from_epoch:
            from quintet.training.clusters import neighbour_batches

            clusters = self._clusters(epoch)
            plan = neighbour_batches(self.data.train, clusters, batches.size, batches.per_cluster, **settings)
        else:
            plan = epoch_batches(self.data.train, batches.size, **settings)
        shared = [pairs for pairs in plan if len(pairs) >= distributed.world_size()]
        if not shared:
            raise RecipeError(
                f"no batch has a pair for each of {distributed.world_size()} processes "
                f"(batches.size is {batches.size}); "
                "use larger batches or fewer processes"
            )
        return shared

    def _clusters(self, epoch: int) -> np.ndarray:
        from quintet.training.clusters import image_clusters

        if self._clustered is None or self._clustered[0] != epoch:
            labels = image_clusters(
                self.stage.batches,
                epoch,
                self.matcher,
                self.data,
                folder=self.folder,
                seed=self.seed,
                device=self.device,
                at_start=self.position.batch == 0,
            )
            self._clustered = (epoch, labels)
        return self._clustered[1]

    def _epoch(self, log: Log | None) -> None:
        at = self.position
        plan = self._plan(at.epoch)
        self.module.train()
        for part in self.frozen:
            part.train(self.stage.frozen == "train")
        began = time.monotonic()
        for pairs, batch in zip(plan[at.batch :], self._load(plan[at.batch :]), strict=True):
            set_lr(self.optimizer, lr_factor(self.stage.schedule, at.step, self.steps_per_epoch, self.stage.epochs))
            with tensor_core_products(self.device, self.stage.precision == "tf32"):
                self._backward(batch, len(pairs), len(plan))
            at.batch += 1
            if at.batch % self.stage.accumulate == 0 or at.batch == len(plan):
                self._update()
                self._report(log)
                if at.batch < len(plan):
                    stops = self._stops()
                    if stops or at.step % self.stage.checkpoint_every == 0:
                        self._save()
                    if stops:
                        self.stop.leave()
        seconds = time.monotonic() - began
        self._log(log)  # the last steps of the epoch
        at.epoch, at.batch = at.epoch + 1, 0
        self._seconds += seconds
        if at.epoch % self.stage.validate_every == 0 or at.epoch == self.stage.epochs:
            self._select(log)
        self._save()
        if self._stops(at_epoch=True) and at.epoch < self.stage.epochs:
            self.stop.leave()

    def _stops(self, at_epoch: bool = False) -> bool:
        """Whether this process was asked to stop. Several must agree: they are asked at every log line and epoch."""
        if distributed.world_size() == 1:
            return self.stop.asked
        if not at_epoch and self.position.step % self.stage.log_every:
            return False
        asked = torch.full((), float(self.stop.asked), device=self.device)
        return bool(distributed.all_reduce_max(asked))

    def _load(self, plan: list[np.ndarray]) -> Iterator[PairBatch]:
        shares = [pairs[distributed.share(len(pairs))] for pairs in plan]
        seed = (*self.seed, self.position.epoch)
        draws = partial(self._draw, plan, self.position.batch) if self.negatives is not None else None
        for batch in load_pairs(
            self.data.train,
            self.train_images,
            self.train_texts,
            shares,
            seed=seed,
            offline=draws,
            position_noise=isinstance(self.matcher, UsesPositionNoise) and self.matcher.uses_position_noise,
            pool=partial(self._pool, self.position.batch) if self.objective.pool_size else None,
            workers=self.workers,
        ):
            yield batch.to(self.device, non_blocking=True)

    def _draw(self, plan: list[np.ndarray], first: int, number: int) -> OfflineRows:
        """This process's share of a batch's offline negatives. Every process draws all of them, so the draws agree."""
        recipe = self.stage.negatives
        assert recipe is not None
        assert self.negatives is not None
        rng = np.random.default_rng((*self.seed, self.position.epoch, first + number, OFFLINE))
        settings = recipe.model_dump(include=DRAWING)
        rows = draw_offline(self.negatives, self.data.train, plan[number], rng, **settings)
        return rows.take(distributed.share(len(rows)))

    def _pool(self, first: int, number: int) -> np.ndarray:
        """The rows of a batch's pool of texts, the same in every process."""
        rng = np.random.default_rng((*self.seed, self.position.epoch, first + number, POOL))
        texts = len(self.data.train.texts)
        return rng.choice(texts, min(self.objective.pool_size, texts), replace=False)

    def _backward(self, batch: PairBatch, total: int, batches: int) -> None:
        at = self.position
        progress = Progress(epoch=at.epoch + at.batch / batches, step=at.step)
        first = at.batch // self.stage.accumulate * self.stage.accumulate  # batch of this optimizer step
        share = 1 / min(self.stage.accumulate, batches - first)  # the last step may have fewer batches
        compute = self._compute if self.graphs is None else partial(self.graphs, self.objective.phase(progress))
        self._pending.append((at.step, compute(batch, progress, total, share)))

    def _compute(self, batch: PairBatch, progress: Progress, total: int, share: float) -> Outcome:
        """Forward and backward pass of a batch; `share` is its part of an optimizer step."""
        half = self.stage.precision == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half, cache_enabled=self.graphs is None):
            step = Step(self.matcher, batch, progress, total, self.stage.batches.chunk)
            terms = self.objective(step)
        loss = torch.zeros((), device=self.device)
        for term in terms.values():
            loss = loss + term.weight * self._reduce(term.values, share)
        loss.backward()
        sums = torch.stack([term.values.detach().sum() for term in terms.values()])
        counts = torch.stack([torch.full_like(sums[0], term.values.numel()) for term in terms.values()])
        collapse_values = {name: term.collapse_value for name, term in terms.items()}
        watched = frozenset(name for name, term in terms.items() if term.weight == 0)
        return Outcome(collapse_values, torch.stack([sums, counts]), watched, step.progress_was_read)

    def _reduce(self, values: Tensor, share: float) -> Tensor:
        if self.stage.reduction == "sum":
            return values.sum()
        count = distributed.all_reduce_sum(torch.full((), float(values.numel()), device=values.device))
        return values.sum() / count * share

    def _update(self) -> None:
        distributed.sum_gradients(self.trainable)
        norm = clip_gradients(self.trainable, math.inf if self.stage.clip is None else self.stage.clip)
        self._norms.append((self.position.step, norm.detach()))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update_parameters(module_of(self.matcher))
        self.position.step += 1

    def _report(self, log: Log | None) -> None:
        if self.position.step % self.stage.log_every == 0:
            self._log(log)
        elif self.device.type == "cpu":  # reading a value costs nothing here, so a NaN is reported at once
            self._flush()

    def _log(self, log: Log | None) -> None:
        """Write the mean losses since the last log line."""
        self._flush()
        at, means = self.position, self.window.take()
        if not means:
            return
        lr = float(self.optimizer.param_groups[-1]["lr"])
        if log is not None:
            log.write("train", at.step, epoch=at.epoch, lr=lr, **means)
            self.display.step(at.epoch, at.step, {k: v for k, v in means.items() if k not in self._watched}, lr)

    def _flush(self) -> None:
        """Read the pending losses and gradient norms: refuse NaN, watch for collapse, add them to the log window."""
        for step, outcome in self._pending:
            sums, counts = distributed.all_reduce_sum(outcome.sums).tolist()
            means = {
                name: total / max(count, 1)
                for name, total, count in zip(outcome.collapse_values, sums, counts, strict=True)
            }
            refuse_not_finite(means, f"step {step} of stage {self.stage.name!r}")
            self.window.add(means)
            self._watched = outcome.watched
            message = self.watch.look(outcome.collapse_values, means)
            if message is not None:
                if self.stage.on_collapse == "stop":
                    raise TrainingError(message)
                self.display.note(message)
        for step, norm in self._norms:
            refuse_not_finite({"gradient": float(norm)}, f"step {step} of stage {self.stage.name!r}")
        self._pending.clear()
        self._norms.clear()

    def _select(self, log: Log | None) -> None:
        """Measure the validation split; keep the weights when they are the best so far."""
        at = self.position
        self.module.eval()
        kept: Any = self.matcher if self.average is None else self.average.module
        metrics = validate(kept, self.data, self.validation_images, self.validation_texts, self.device)
        value = metrics[self.stage.select]
        better = at.epoch > self.stage.select_after and is_better(self.stage.select, value, at.best)
        if better:
            at.best, at.best_epoch, at.best_metrics = value, at.epoch, metrics
            weights = self._weights(kept)
            if distributed.is_main():
                facts = {"stage": self.stage.name, "epoch": at.epoch, "metrics": metrics}
                save_tensors(self.folder / "selected.safetensors", weights, facts)
            save_objective(self.folder, self.objective)
        if log is not None:
            seconds = round(self._seconds, 3)  # of training since the last validation
            log.write("validation", at.step, epoch=at.epoch, selected=better, seconds=seconds, **metrics)
            self.display.epoch(at.epoch, metrics, better)
        self._seconds = 0.0

    def _weights(self, kept: Matcher) -> dict[str, Tensor]:
        """What is kept of the matcher: its weights, with the adapters of LoRA merged into them."""
        module = module_of(kept)
        if self.stage.lora is None:
            return whole_state(module)
        from quintet.training.adapters import merged_state

        return merged_state(module)

    def _save(self) -> None:
        self._flush()
        self.position.window, self.position.stuck = dict(self.window.sums), self.watch.count
        save_checkpoint(self.checkpoint, self.module, self.optimizer, asdict(self.position))


def check_chunks(stage: StageRecipe, matcher: Matcher, frozen: Sequence[nn.Module]) -> None:
    """Refuse to encode in chunks what a BatchNorm normalises over a batch. `frozen`: the parts that do not train."""
    held = {part for outer in frozen if stage.frozen == "eval" for part in outer.modules()}
    names = [
        name for name, part in module_of(matcher).named_modules() if isinstance(part, BATCH_NORMS) and part not in held
    ]
    if stage.batches.chunk is not None and names:
        raise RecipeError(
            f"stage {stage.name!r}: batches.chunk encodes a part of the batch at a time, but {names[0]!r} normalises "
            "over all of it; leave chunk out, or freeze that part"
        )


def one_by_one(average: Any) -> Any:
    """An update of averages that FSDP keeps beside ones that it does not: no kernel takes both."""
    return lambda averages, current, count: [
        average([old], [new], count) for old, new in zip(averages, current, strict=True)
    ]


def check_metric(name: str) -> None:
    """Refuse a selection metric that `validate` does not measure."""
    known = retrieval_metrics([[1.0]], [0], [0])
    if name not in known:
        raise RecipeError(f"select: {name!r} is not a metric; {suggest(name, known)}")


def is_better(name: str, value: float, best: float | None) -> bool:
    """Recalls and precisions are better when larger, ranks when smaller.

    A tie goes to the later epoch: on a small validation split many epochs are equal, and the later ones learned more.

    >>> is_better("rsum", 2.0, 1.0), is_better("i2t_medr", 2.0, 1.0)
    (True, False)
    >>> is_better("rsum", 600.0, 600.0), is_better("i2t_medr", 1.0, 1.0)
    (True, True)
    """
    if best is None:
        return True
    return value <= best if name.endswith(("medr", "meanr")) else value >= best


def validate(
    matcher: Matcher, data: TrainingData, source: ImageSource, texts: TokenizedTexts, device: torch.device
) -> dict[str, float]:
    """The metrics of the validation split. Each process encodes its share, then all of them measure the whole."""
    split = data.validation
    if len(split.images) < distributed.world_size():
        raise CorpusError(f"split {split.name!r} has fewer images than there are processes; use fewer processes")
    images = split.images[distributed.share(len(split.images))]
    size, text_size = (distributed.even_batch_size(len(part), VALIDATION_BATCH) for part in (split.images, split.texts))
    own_texts = text_batches(texts, text_size, distributed.share(len(split.texts)))
    own_codes = encode_batches(matcher, image_batches(source, images, size), device, keep=device)
    image_codes = _gathered(own_codes, len(split.images))
    text_codes = _gathered(encode_batches(matcher, own_texts, device, keep=device), len(split.texts))
    score_block = member_scores([Member(matcher, image_codes, text_codes)], device)
    with evaluation_mode(matcher):
        ranks = count_ranks(score_block, split.image_groups, split.text_groups, whole_tiles(BLOCK))
    return metrics_of_ranks(ranks)


def _gathered(codes: Codes, total: int) -> Codes:
    with torch.no_grad():
        return distributed.gather_codes(codes, total)
