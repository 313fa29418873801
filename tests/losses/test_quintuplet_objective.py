"""The objective of the second round: variants, warm-up, logging terms, and the same numbers from two distributed."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from quintet import distributed
from quintet.codes import Codes
from quintet.data.batches import ImageBatch, OfflineBatch, PairBatch, TextBatch
from quintet.errors import RecipeError
from quintet.losses import OBJECTIVES
from quintet.losses.quintuplet import (
    QuintupletObjective,
    adaptive_offline_quintuplet,
    offline_quintuplet,
    offline_triplet,
    online_quintuplet,
    only_offline,
)
from quintet.losses.step import Progress, Step
from quintet.losses.triplet import triplet


class Toy(nn.Module):
    """Images through a linear map, texts through a table; counts what it encodes."""

    image_input = "fragments"

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.map = nn.Parameter(0.3 * torch.randn(4, 4, generator=generator, dtype=torch.float64))
        self.table = nn.Parameter(0.3 * torch.randn(40, 4, generator=generator, dtype=torch.float64))
        self.encoded = 0

    def encode_images(self, images: ImageBatch) -> Codes:
        assert images.fragments is not None
        self.encoded += len(images)
        return Codes(embedding=images.fragments[:, 0] @ self.map)

    def encode_texts(self, texts: TextBatch) -> Codes:
        self.encoded += len(texts)
        return Codes(embedding=self.table[texts.tokens[:, 0]])

    def score(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        assert image_codes.embedding is not None
        assert text_codes.embedding is not None
        return image_codes.embedding @ text_codes.embedding.T

    def score_pairs(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        return self.score(image_codes, text_codes).diagonal()


def make_batch(n: int = 7, seed: int = 0, offline: bool = True, rows: slice = slice(None)) -> PairBatch:
    generator = torch.Generator().manual_seed(seed)

    def images() -> ImageBatch:
        return ImageBatch(fragments=torch.randn(n, 1, 4, generator=generator, dtype=torch.float64)[rows])

    def texts() -> TextBatch:
        tokens = torch.randint(40, (n, 1), generator=generator)[rows]
        return TextBatch(tokens, torch.ones(len(tokens), dtype=torch.int64))

    groups = torch.arange(n)[rows] // 2  # two captions of most images
    batch = PairBatch(images(), texts(), groups, groups, groups, torch.arange(n)[rows])
    return replace(batch, offline=OfflineBatch(texts(), images(), images(), texts())) if offline else batch


def step_of(batch: PairBatch, epoch: float = 0.0, total: int | None = None) -> Step:
    return Step(Toy(), batch, Progress(epoch=epoch), total)


@pytest.mark.parametrize("same_group", ["ignored", "negative"])
@pytest.mark.parametrize(
    "variant", ["adaptive", "quintuplet", "triplet", "only_offline", "online_quintuplet", "without_offline_adaptation"]
)
def test_variants_are_the_functions(variant: str, same_group: str) -> None:
    step = step_of(make_batch())
    negative = ~(step.same_group if same_group == "ignored" else step.diagonal)
    pairs = (step.scores, step.off_text, step.off_image)
    quintuplet = (*pairs, step.off_pair, step.derived_pair)
    margins = {"margin_online": 0.3, "margin_offline": 0.1}
    expected = {
        "adaptive": lambda: adaptive_offline_quintuplet(*quintuplet, **margins, alpha=0.5, beta=1.1, negative=negative),
        "quintuplet": lambda: offline_quintuplet(*quintuplet, **margins, negative=negative),
        "triplet": lambda: offline_triplet(*pairs, **margins, negative=negative),
        "only_offline": lambda: only_offline(*quintuplet, margin_offline=0.1),
        "online_quintuplet": lambda: online_quintuplet(*pairs, **margins, negative=negative),
        "without_offline_adaptation": lambda: adaptive_offline_quintuplet(
            *quintuplet, **margins, alpha=0.5, beta=1.1, negative=negative, compare_with="positive"
        ),
    }[variant]()
    objective = OBJECTIVES.create(
        "quintuplet", variant=variant, **margins, alpha=0.5, beta=1.1, same_group=same_group, weight=0.7, watch=False
    )
    terms = objective(step)
    assert list(terms) == list(expected)
    for name, values in expected.items():
        torch.testing.assert_close(terms[name].values, values)
        assert terms[name].weight == 0.7


def test_squared_detach_and_clamp_reach_the_loss() -> None:
    step = step_of(make_batch())
    plain = QuintupletObjective()(step)
    squared = QuintupletObjective(squared=True)(step)
    torch.testing.assert_close(squared["offline_text"].values, plain["offline_text"].values ** 2)
    below_zero = QuintupletObjective(beta=-1e3)(step)["online_text"].values
    assert (below_zero < 0).any()
    assert not QuintupletObjective(beta=-1e3, clamp=True)(step)["online_text"].values.any()
    detached = QuintupletObjective(detach=True)(step)["online_text"].values.sum()
    gradient = torch.autograd.grad(detached, step.off_text, retain_graph=True, allow_unused=True)[0]
    assert gradient is None


def test_the_gaps_are_logged_and_do_not_train() -> None:
    step = step_of(make_batch())
    terms = QuintupletObjective(same_group="negative")(step)
    scores = step.scores.detach()
    hardest = scores - 1e9 * torch.eye(7)
    online = (hardest.amax(1) + hardest.amax(0)) / 2
    offline = (step.off_text + step.off_image) / 2
    torch.testing.assert_close(terms["gap_online"].values, offline.detach() - online)
    torch.testing.assert_close(terms["gap_positive"].values, scores.diagonal() - offline.detach())
    for name in ("gap_online", "gap_positive"):
        assert terms[name].weight == 0.0
        assert not terms[name].values.requires_grad


def test_only_what_a_variant_needs_is_encoded() -> None:
    for variant, encoded in (("triplet", 4), ("online_quintuplet", 4), ("quintuplet", 6), ("adaptive", 6)):
        step = step_of(make_batch())
        QuintupletObjective(variant=variant)(step)  # type: ignore[arg-type]
        assert step.matcher.encoded == encoded * 7, variant  # type: ignore[attr-defined]


@pytest.mark.parametrize("warmup", ["mean", "softmax"])
def test_warm_up_is_that_of_the_triplet_loss(warmup: Any) -> None:
    objective = QuintupletObjective(warmup_epochs=2, warmup=warmup)
    step = step_of(make_batch(), epoch=1.9)
    terms = objective(step)
    expected = triplet(step.scores, ~step.same_group, margin=0.2, choose=warmup)
    assert list(terms) == ["online_text", "online_image"]
    torch.testing.assert_close(terms["online_text"].values, expected["text"])
    assert "derived_pair" in objective(step_of(make_batch(), epoch=2.0))


@pytest.mark.parametrize("variant", ["adaptive", "quintuplet", "without_offline_adaptation"])
@pytest.mark.parametrize("squared", [False, True])
def test_equal_scores_sit_at_the_flat_value(variant: str, squared: bool) -> None:
    step = step_of(make_batch())
    with torch.no_grad():
        step.matcher.map.zero_()  # type: ignore[attr-defined]
    objective = QuintupletObjective(variant=variant, squared=squared)  # type: ignore[arg-type]
    watched = {name: term for name, term in objective(step).items() if term.collapse_value is not None}
    assert list(watched) == ["online_text", "online_image"]
    for term in watched.values():
        torch.testing.assert_close(term.values, torch.full((7,), term.collapse_value, dtype=torch.float64))


def test_a_stage_without_negatives_is_told_so() -> None:
    with pytest.raises(RecipeError, match="negatives:"):
        QuintupletObjective()(step_of(make_batch(offline=False)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"variant": "adaptve"}, "variant cannot be .*adaptive"),
        ({"alpha": 0.0}, "alpha must be positive"),
        ({"variant": "only_offline", "warmup_epochs": 1}, "no online terms"),
        ({"same_group": "positive"}, "same_group cannot be"),
        ({"warmup": "median"}, "warmup cannot be"),
    ],
)
def test_arguments_that_make_no_sense(arguments: dict, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        OBJECTIVES.create("quintuplet", **arguments)


def gradients_of(step: Step, variant: str) -> list[Tensor]:
    terms = QuintupletObjective(variant=variant)(step)  # type: ignore[arg-type]
    torch.stack([term.weight * term.values.sum() for term in terms.values()]).sum().backward()
    parameters = list(step.matcher.parameters())  # type: ignore[attr-defined]
    distributed.sum_gradients(parameters)
    return [parameter.grad for parameter in parameters]


def work(rank: int, port: int, folder: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    try:
        for variant in ("adaptive", "online_quintuplet"):
            found = gradients_of(step_of(make_batch(rows=distributed.share(7)), total=7), variant)
            if rank == 0:
                torch.save(found, Path(folder) / f"{variant}.pt")
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(work, (port, str(tmp_path)), nprocs=2)
    for variant in ("adaptive", "online_quintuplet"):
        alone = gradients_of(step_of(make_batch()), variant)
        for one, two in zip(alone, torch.load(tmp_path / f"{variant}.pt", weights_only=True), strict=True):
            torch.testing.assert_close(one, two)
