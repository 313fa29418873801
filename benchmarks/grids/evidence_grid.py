"""The grid behind docs/evidence.md: every paper's main claim on generated scenes, small enough for two cores.

A row is one training run, or the mining of one first round. `benchmarks/measure/evidence.py` makes them. Rows stand in
the order in which they are made: what matters most first, seed by seed. docs/evidence-design.md says why each is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

SEEDS = (0, 1, 2)
# Scenes held out. "scenes" is for matchers that keep one vector; "small" for those that score every pair at length.
HELD_OUT = {"scenes": (1000, 1000), "small": (300, 500)}  # dev, test
SIZES = (2000, 4000, 8000, 16000)
BATCHES = (128, 32)
MIDDLE = 8000  # where a claim is looked at in one size only

# Every image once an epoch, with one of its texts. Larger corpora get fewer epochs and more steps; smaller batches get
# half of the epochs, and still more steps.
EPOCHS = {2000: 60, 4000: 40, 8000: 30, 16000: 20}
LR = {384: 2e-3, 128: 2e-3, 64: 1.4e-3, 32: 1e-3}  # the best of 5e-4, 1e-3, 2e-3 for a first round, by validation
WARMUP = 0.1  # of the epochs, by softmax; hardest negatives from then on
VALIDATIONS = 10

# The paper's list lengths on COCO, 300 texts of 566,435 and 60 images of 113,287, as shares of the training set.
TEXTS_SHARE, IMAGES_SHARE = 1 / 2000, 1 / 2000
LONG = 8  # mined lists are so many times longer, for the filters to choose from

# How lists are cleared of false negatives: by truth; by a score below the anchor's positive by a margin or a share of
# it; by a margin below both the anchor's positive and the candidate's own.
FILTERS = (
    "plain",
    "truth",
    *(f"margin-{value}" for value in (0.05, 0.1, 0.2)),
    *(f"share-{value}" for value in (0.95, 0.9, 0.8)),
    *(f"both-{value}" for value in (0.0, 0.05, 0.1)),
)

LOSSES = {  # in the paper's words -> variant of the quintuplet loss
    "OffTri": "triplet",
    "OffQuin": "quintuplet",
    "AdapOffQuin": "adaptive",
    "OnlyOffline": "only_offline",
    "OnlineQuin": "online_quintuplet",
    "w/o OfflineAdap": "without_offline_adaptation",
}


@dataclass(frozen=True)
class Row:
    """One result file."""

    name: str
    part: str
    seed: int
    corpus: str = "scenes"
    recipe: dict[str, Any] | None = None  # None: mining; "@ROW" and "@ROW/LISTS" stand for the folders of other rows
    needs: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)  # what tables and figures choose rows by

    @property
    def id(self) -> str:
        return f"{self.name}-seed{self.seed}"


def list_lengths(size: int, factor: float = 1.0) -> tuple[int, int]:
    """Texts and images of a list.

    >>> [list_lengths(size) for size in SIZES]
    [(5, 1), (10, 2), (20, 4), (40, 8)]
    """
    return max(1, round(5 * size * TEXTS_SHARE * factor)), max(1, round(size * IMAGES_SHARE * factor))


def rows() -> list[Row]:
    claims = (hrem, mmca, dual_path, aoq_others)  # the first of each paper before the tables of any
    found = [*aoq(), *chain.from_iterable(rows(first=True) for rows in claims)]
    found += chain.from_iterable(rows(first=False) for rows in claims)
    found += aoq_search()
    known = {row.id for row in found}
    if len(known) < len(found):
        raise ValueError("two rows of one name")
    missing = {need for row in found for need in row.needs} - known
    if missing:
        raise ValueError(f"rows that nothing makes: {sorted(missing)[:3]}")
    return found


# AOQ


def aoq() -> Iterator[Row]:
    for seed in SEEDS:  # when do offline negatives help?
        for size in SIZES:
            for batch in BATCHES:
                yield first_round(size, batch, seed)
                yield mining(size, batch, seed)
                yield second_round(size, batch, seed, "AdapOffQuin")
                yield second_round(size, batch, seed, "AdapOffQuin", lists="truth")
    for seed in SEEDS:
        for size in reversed(SIZES):
            yield first_round(size, 128, seed, epochs=2)
            for lists in ("plain", "truth"):
                yield second_round(size, 128, seed, "OffTri", lists=lists)
                yield second_round(size, 128, seed, "OffQuin", lists=lists)
    for seed in SEEDS:  # the same three learning rates and warm-ups for the compared methods
        for lr in (1e-3, 4e-3):
            yield first_round(MIDDLE, 128, seed, lr=lr)
            yield second_round(MIDDLE, 128, seed, "AdapOffQuin", lr=lr)
            yield second_round(MIDDLE, 128, seed, "AdapOffQuin", lists="truth", lr=lr)
        for start in ("none", "mean"):
            yield first_round(MIDDLE, 128, seed, start=start)
            yield second_round(MIDDLE, 128, seed, "AdapOffQuin", lists="truth", start=start)
    for seed in SEEDS:  # filters that need no truth
        for lists in FILTERS[2:]:
            yield second_round(MIDDLE, 128, seed, "AdapOffQuin", lists=lists)
    for seed in SEEDS:  # Table 3, on lists that can help
        for loss in ("OnlyOffline", "OnlineQuin", "w/o OfflineAdap"):
            yield second_round(MIDDLE, 128, seed, loss, lists="truth")
        yield second_round(MIDDLE, 128, seed, "AdapOffQuin", lists="truth", fine_tune=True)
        for factor in (0.25, 4.0):
            yield second_round(MIDDLE, 128, seed, "AdapOffQuin", lists="truth", length=factor)
            yield second_round(MIDDLE, 128, seed, "AdapOffQuin", lists="plain", length=factor)
        yield first_round(MIDDLE, 384, seed)  # as many pairs a step as AOQ encodes
    for seed in SEEDS:  # the supplement's sweep
        for alpha, beta in ((0.2, 1.5), (0.5, 1.5), (0.3, 1.0), (0.3, 2.0)):
            yield second_round(MIDDLE, 128, seed, "AdapOffQuin", lists="truth", alpha=alpha, beta=beta)
    for seed in SEEDS:
        for size in SIZES:
            for loss in ("OffTri", "OffQuin"):
                yield second_round(size, 32, seed, loss)


def aoq_search() -> Iterator[Row]:
    """Half and twice the learning rate, for both rounds of every point but the one that has more rows of this kind."""
    for seed in SEEDS:
        for size in SIZES:
            for batch in BATCHES:
                for factor in (0.5, 2.0) if (size, batch) != (MIDDLE, 128) else ():
                    yield first_round(size, batch, seed, lr=factor * LR[batch])
                    yield second_round(size, batch, seed, "AdapOffQuin", lr=factor * LR[batch])


def aoq_others(first: bool) -> Iterator[Row]:
    """The other matchers of the paper, and VSE++ beside them, where 62 batches make an epoch, as in COCO 885."""
    for seed in SEEDS if first else ():
        for matcher in ("vse++", "scan", "bfan", "vsrn"):
            yield first_round(4000, 64, seed, matcher)
            yield mining(4000, 64, seed, matcher)
            for lists in ("plain", "truth"):
                yield second_round(4000, 64, seed, "AdapOffQuin", matcher=matcher, lists=lists)
    for seed in () if first else SEEDS:
        for matcher in ("vse++", "scan", "bfan", "vsrn"):
            yield second_round(4000, 64, seed, "OffTri", matcher=matcher, lists="truth")


MATCHERS: dict[str, dict[str, Any]] = {
    "vse++": {"name": "vse++", "text_pooling": "max", "bidirectional": True, "embed_dim": 256, "word_dim": 100},
    "scan": {"name": "scan", "lambda_softmax": 9, "relu_slope": 0.1, "embed_dim": 256, "word_dim": 100},
    "bfan": {"name": "bfan", "lambda_softmax": 20, "relu_slope": 0.1, "embed_dim": 256, "word_dim": 100},
    "vsrn": {
        **{"name": "vsrn", "variant": "f30k", "embed_dim": 256, "word_dim": 100},
        **{"region_memory": 36, "word_memory": 12},
    },
}
FEATURES = {"vse++": "mean"}


def recipe(name: str, matcher: dict[str, Any], size: int, stage: dict[str, Any], **data: Any) -> dict[str, Any]:
    return {
        "name": name,
        "data": {
            "features": FEATURES.get(matcher["name"], "cells"),
            "limit": size,
            "tokenizer": {"kind": "words", "min_count": 2},
            **data,
        },
        "matcher": matcher,
        "stages": [stage],
    }


def stage(epochs: int, batch: int, loss: dict[str, Any], validations: int = 10, **more: Any) -> dict[str, Any]:
    return {
        "name": "only",
        "loss": loss,
        "batches": {"size": batch, "per": "images", "drop_last": True},
        "optimizer": {"name": "adam", "lr": LR[batch]},
        "schedule": {"kind": "cosine", "warmup_steps": 50},
        "epochs": epochs,
        "validate_every": max(1, epochs // validations),
        "clip": 2.0,
        "checkpoint_every": 1_000_000,
        "log_every": 50,
        **more,
    }


def epochs_of(size: int, batch: int) -> int:
    return EPOCHS[size] // 2 if batch < 128 else EPOCHS[size]


def warm(epochs: float, start: str = "softmax") -> dict[str, Any]:
    return {} if start == "none" else {"warmup": start, "warmup_epochs": round(WARMUP * epochs, 1)}


def first_round(
    size: int, batch: int, seed: int, matcher: str = "vse++", epochs: int = 1, lr: float | None = None,
    start: str = "softmax",
) -> Row:  # fmt: skip
    number = epochs * epochs_of(size, batch)
    loss = {"triplet": {"margin": 0.2, "negatives": "hardest", **warm(number, start)}}
    name = f"{matcher.replace('+', '')}-{size}-b{batch}-online" + (f"-x{epochs}" if epochs > 1 else "")
    name += _more(lr, start)
    facts = {"matcher": matcher, "size": size, "batch": batch, "loss": "online", "epochs": epochs}
    content = recipe(name, MATCHERS[matcher], size, _with_lr(stage(number, batch, loss, **_speed(matcher)), lr))
    return Row(name, _part(matcher, batch), seed, recipe=content, facts=facts | {"lr": lr, "start": start})


def mining(size: int, batch: int, seed: int, matcher: str = "vse++") -> Row:
    first = first_round(size, batch, seed, matcher)
    texts, images = list_lengths(size, LONG)
    facts = {"matcher": matcher, "size": size, "batch": batch, "top_texts": texts, "top_images": images}
    return Row(first.name.replace("online", "lists"), _part(matcher, batch), seed, needs=(first.id,), facts=facts)


def second_round(
    size: int,
    batch: int,
    seed: int,
    loss: str,
    *,
    matcher: str = "vse++",
    lists: str = "plain",
    length: float = 1.0,
    alpha: float = 0.3,
    beta: float = 1.5,
    fine_tune: bool = False,
    lr: float | None = None,
    start: str = "softmax",
) -> Row:
    first, mined = first_round(size, batch, seed, matcher), mining(size, batch, seed, matcher)
    epochs = epochs_of(size, batch)
    own: dict[str, Any] = {"variant": LOSSES[loss], "margin_online": 0.2, "margin_offline": 0.0}
    if loss in ("AdapOffQuin", "w/o OfflineAdap"):
        own |= {"alpha": alpha, "beta": beta}
    if loss != "OnlyOffline" and not fine_tune:  # nothing online to warm up with; warm already
        own |= warm(epochs, start)
    texts, images = list_lengths(size, length)
    more: dict[str, Any] = {"negatives": {"from": f"@{mined.id}/{lists}", "top_texts": texts, "top_images": images}}
    if fine_tune:
        more["init"] = f"@{first.id}"
    parts = [first.name.removesuffix("-online"), loss.lower().replace("/", "").replace(" ", "-"), lists]
    parts += [f"h{length:g}"] * (length != 1) + ["fine-tuned"] * fine_tune
    parts += [f"alpha{alpha:g}-beta{beta:g}"] * ((alpha, beta) != (0.3, 1.5))
    name = "-".join(parts) + _more(lr, start)
    facts = {
        **{"matcher": matcher, "size": size, "batch": batch, "loss": loss, "lists": lists, "length": length},
        **{"alpha": alpha, "beta": beta, "fine_tune": fine_tune, "lr": lr, "start": start, "epochs": 1},
    }
    only = _with_lr(stage(epochs, batch, {"quintuplet": own}, **more, **_speed(matcher)), lr)
    content = recipe(name, MATCHERS[matcher], size, only)
    return Row(name, _part(matcher, batch), seed, recipe=content, needs=(first.id, mined.id), facts=facts)


def _part(matcher: str, batch: int) -> str:
    return "aoq" if matcher == "vse++" and batch != 64 else "aoq-others"


def _speed(matcher: str) -> dict[str, Any]:
    optimizer = {"name": "adam", "lr": 7e-4}  # as their recipes, for the smaller batch
    return {} if matcher == "vse++" else {"precision": "tf32", "validations": 5, "optimizer": optimizer}


def _with_lr(stage: dict[str, Any], lr: float | None) -> dict[str, Any]:
    return stage if lr is None else stage | {"optimizer": stage["optimizer"] | {"lr": lr}}


def _more(lr: float | None, start: str) -> str:
    return (f"-lr{lr:g}" if lr is not None else "") + (f"-start-{start}" if start != "softmax" else "")


# Dual-Path


def dual_path(first: bool) -> Iterator[Row]:
    for seed in SEEDS if first else ():  # Table II
        yield _dual_path(seed, "instance-1", {"instance": {}})
        yield _dual_path(seed, "ranking-1", {"ranking": {}})
        yield _dual_path(seed, "full", {"instance": {}, "ranking": {}}, after="instance-1")
        yield _dual_path(seed, "instance-2", {"instance": {}}, after="instance-1")
        yield _dual_path(seed, "ranking-2", {"ranking": {}}, after="ranking-1")
        yield _dual_path(seed, "instance-ranking", {"ranking": {}}, after="instance-1")
    for seed in () if first else SEEDS:  # Tables III to VI, each stage I with one thing changed
        yield _dual_path(seed, "left", {"instance": {}}, matcher={"alignment": "left", "test_positions": "left"})
        yield _dual_path(seed, "words", {"instance": {}}, vectors=True)
        yield _dual_path(seed, "published-cnn", {"instance": {}}, matcher={"text_layout": "resnet50", "text_width": 64})
        for number in (200, 700):
            yield _dual_path(seed, f"categories-{number}", {"instance": {"categories": number}})


def _dual_path(
    seed: int,
    label: str,
    losses: dict[str, Any],
    after: str | None = None,
    matcher: dict[str, Any] | None = None,
    vectors: bool = False,
) -> Row:
    size, batch, name = 2000, 64, f"dual-path-{label}"
    own = {
        **{"name": "dual-path", "tower": "efficientnet-lite0", "embed_dim": 512, "word_dim": 100, "flip_test": False},
        **{"text_layout": "small", "text_width": 32, "view": "squeeze"},
        **(matcher or {}),
    }
    loss = {
        key: {"dropout": 0.1, "image_weight": 0.1, **value} if key == "instance" else {"margin": 1.0, **value}
        for key, value in losses.items()
    }
    tower = "matcher.image_encoder.tower.*"
    first: dict[str, Any] = {"freeze": [tower], "optimizer": {"name": "adam", "lr": 1e-3}}
    groups = [{"match": tower, "lr_scale": 0.1}]
    second = {"init": f"@dual-path-{after}-seed{seed}", "optimizer": {"name": "adam", "lr": 2e-4, "groups": groups}}
    more = {"reduction": "mean", "clip": 5.0, "precision": "bfloat16", **(second if after else first)}
    tokenizer: dict[str, Any] = {"kind": "words", "min_count": 2, "special_tokens": False, "unknown": "drop"}
    if vectors:
        tokenizer["word_vectors"] = "benchmarks/grids/scenes_words.txt"
    only = stage(10 if after else 40, batch, loss, 5, **more)
    content = recipe(name, own, size, only, tokenizer=tokenizer, features=None)
    facts = {"size": size, "batch": batch, "label": label, "stage": 2 if after else 1}
    needs = (f"dual-path-{after}-seed{seed}",) if after else ()
    return Row(name, "dual-path", seed, recipe=content, needs=needs, facts=facts)


# HREM


def hrem(first: bool) -> Iterator[Row]:
    for seed in SEEDS if first else ():  # relations, and the same encoders for as long
        yield _hrem(seed, "none", {"relations": "none"})
        yield _hrem(seed, "fusion")
        yield _hrem(seed, "none-x3", {"relations": "none"}, epochs=90)
    for seed in () if first else SEEDS:  # Table 3a
        yield _hrem(seed, "standalone", {"mechanism": "standalone"})
        yield _hrem(seed, "intra", {"relations": "intra"})
        yield _hrem(seed, "inter", {"relations": "inter"})
        yield _hrem(seed, "no-fragments", matcher={"image_relation": False, "text_relation": False})
        yield _hrem(seed, "no-visual", matcher={"image_relation": False})
        yield _hrem(seed, "no-textual", matcher={"text_relation": False})
    for seed in () if first else SEEDS:  # Table 3b
        yield _hrem(seed, "no-connection", {"neighbours": 1})
        yield _hrem(seed, "no-relevance", {"relevance_weight": 0, "regularisation": 0})
        yield _hrem(seed, "no-consistency", {"consistency": False})
        yield _hrem(seed, "no-regularisation", {"regularisation": 0})
    for seed in () if first else SEEDS:  # Figure 6
        for number in (0.5, 2.5):
            yield _hrem(seed, f"lambda-{number}", {"relevance_weight": number})
        for number in (5, 20):
            yield _hrem(seed, f"top-{number}", {"top": number})
        for number in (0.1, 0.9):
            yield _hrem(seed, f"tau-{number}", {"neighbours": number})


def _hrem(
    seed: int, label: str, loss: dict[str, Any] | None = None, epochs: int = 30, matcher: dict[str, Any] | None = None
) -> Row:
    size, batch, name = 4000, 128, f"hrem-{label}"
    own = {"name": "hrem", "embed_dim": 256, "word_dim": 100, **(matcher or {})}
    relation = {"matching": "cosine", "detach_fragments": True, "sampling_dim": 128, "warmup_epochs": epochs * WARMUP}
    more = {"optimizer": {"name": "adamw", "lr": 5e-4, "weight_decay": 1e-4}, "precision": "tf32"}
    only = stage(epochs, batch, {"relation": relation | (loss or {})}, 5, **more)
    facts = {"size": size, "batch": batch, "label": label}
    return Row(name, "hrem", seed, recipe=recipe(name, own, size, only), facts=facts)


# MMCA


def mmca(first: bool) -> Iterator[Row]:
    for seed in SEEDS if first else ():  # both modules, and each alone
        yield _mmca(seed, "both")
        yield _mmca(seed, "self", cross=False)
        yield _mmca(seed, "cross", self_attention=False, alpha=1)
    for seed in () if first else SEEDS:  # Tables 4 to 6
        for alpha in (0.1, 0.4, 0.8):
            yield _mmca(seed, f"alpha-{alpha}", alpha=alpha)
        for dim in (64, 256):
            yield _mmca(seed, f"dim-{dim}", embed_dim=dim)


def _mmca(seed: int, label: str, **matcher: Any) -> Row:
    size, batch, epochs, name = 2000, 64, 30, f"mmca-{label}"
    own = {
        **{"name": "mmca", "text": "small", "text_dim": 128, "text_dropout": True, "embed_dim": 128, "heads": 8},
        **{"filters": 128, "alpha": 0.2, "image_dropout": 0.2, "precision": "bfloat16"},
        **matcher,
    }
    loss = {"triplet": {"margin": 0.2, "negatives": "hardest", **warm(epochs)}}
    only = stage(epochs, batch, loss, 3, optimizer={"name": "adam", "lr": 5e-4})
    tokenizer = {"kind": "words", "min_count": 2, "max_length": 32}
    facts = {"size": size, "batch": batch, "label": label}
    content = recipe(name, own, size, only, tokenizer=tokenizer)
    return Row(name, "mmca", seed, "small", content, facts=facts)
