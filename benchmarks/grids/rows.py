"""What a grid is made of: methods and ensembles, and the rows that they make: one result file per row and seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

SEEDS = (0, 1, 2)

# The first series has no suffix in the names of its runs.
SERIES = {
    "lite0": ("EfficientNet-Lite0", ("data.features=efficientnet-lite0",)),
    "both": ("EfficientNet-Lite0 + ResNet-50", ("data.features=efficientnet-lite0-resnet50-v1",)),
    "lite2": ("EfficientNet-Lite2", ("data.features=efficientnet-lite2",)),
}
FIRST = next(iter(SERIES))


@dataclass(frozen=True)
class Variant:
    """A variant of a study (`quintet study`): how it is called here, and which others of its seed it starts from."""

    label: str
    needs: tuple[str, ...] = ()


STUDIES: dict[str, dict[str, Variant]] = {
    "aoq": {
        "online": Variant("online triplet"),
        "off-tri": Variant("OffTri", ("online",)),
        "off-quin": Variant("OffQuin", ("online",)),
        "adap-off-quin": Variant("AdapOffQuin", ("online",)),
    },
    "dual-path": {
        "instance-1": Variant("instance, stage I"),
        "ranking-1": Variant("ranking, stage I"),
        "instance-2": Variant("instance, stage II", ("instance-1",)),
        "ranking-2": Variant("ranking, stage II", ("ranking-1",)),
        "instance-ranking": Variant("ranking, stage II after instance", ("instance-1",)),
        "full": Variant("instance + ranking, stage II", ("instance-1",)),
    },
    "clip": {
        "online": Variant("first round"),
        "longer": Variant("second round without mined negatives", ("online",)),
        "mined": Variant("second round with mined negatives", ("online",)),
        "adap-off-quin": Variant("second round with AdapOffQuin", ("online",)),
    },
}
STUDY_OPTIONS: dict[str, dict[str, Any]] = {"dual-path": {"tables": (2,)}}


@dataclass(frozen=True)
class Method:
    """A way of training: a recipe, or with `study` every variant of that study made of the recipe."""

    name: str
    label: str
    recipe: str
    overrides: tuple[str, ...] = ()
    study: str | None = None
    series: tuple[str, ...] = (FIRST,)  # empty: the matcher reads pixels
    variants: tuple[str, ...] = ()  # of the study; empty: all


@dataclass(frozen=True)
class Ensemble:
    """The mean score of several runs; with `study` one ensemble for every variant, members named without it."""

    name: str
    label: str
    members: tuple[str, ...]
    study: str | None = None
    series: tuple[str, ...] = (FIRST,)
    next_seed: bool = False  # one run under two seeds: its own and the next


class Grid(NamedTuple):
    methods: tuple[Method, ...]
    ensembles: tuple[Ensemble, ...]
    seeds: tuple[int, ...] = SEEDS
    corpus: str = "flickr8k"


# Settings that several grids share.
BEST = ("both",)  # the best towers that can be had
ONLINE: dict[str, Any] = {"study": "aoq", "variants": ("online",)}
I2T = ("matcher.direction=i2t", "matcher.lambda_softmax=4")
SEEN = ("matcher.image_dropout=0.0",)
SIZES = ("data.augment.regions=0.2", "data.augment.words=0.1")
NO_RELATIONS = ("stages.online.loss.relation.relations=none",)


@dataclass(frozen=True)
class Row:
    """One result file: a run or an ensemble under one seed."""

    name: str
    seed: int
    label: str
    loss: str | None  # the label of the variant
    series: str | None
    needs: tuple[str, ...] = ()  # rows whose runs must be there first; of an ensemble its members
    recipe: str | None = None  # None: an ensemble
    overrides: tuple[str, ...] = ()
    study: str | None = None
    variant: str | None = None

    @property
    def id(self) -> str:
        return f"{self.name}-seed{self.seed}"

    @property
    def trains(self) -> bool:
        return self.recipe is not None


def rows(methods: Sequence[Method], ensembles: Sequence[Ensemble], seeds: Sequence[int] = SEEDS) -> list[Row]:
    """Everything, in an order in which it can be made: whole seeds one after the other, ensembles of two seeds last."""
    found: list[Row] = []
    late: list[Row] = []
    for number, seed in enumerate(seeds):
        for method in methods:
            found += _method_rows(method, seed)
        after = seeds[(number + 1) % len(seeds)]
        for ensemble in ensembles:
            (late if ensemble.next_seed else found).extend(_ensemble_rows(ensemble, seed, after))
    found += late
    known = {row.id for row in found}
    unknown = sorted({need for row in found for need in row.needs} - known)
    if unknown or len(known) < len(found):
        raise ValueError(f"the grid names rows that it does not have: {unknown}" if unknown else "two rows of one name")
    return found


def _method_rows(method: Method, seed: int) -> list[Row]:
    found = []
    for series in method.series or (None,):
        overrides = (*(SERIES[series][1] if series else ()), *method.overrides)
        for key, variant in _variants(method.study):
            if method.variants and key not in method.variants:
                continue
            needs = tuple(f"{_name(method.name, need, series)}-seed{seed}" for need in variant.needs)
            name, loss = _name(method.name, key, series), variant.label or None
            run = (method.recipe, overrides, method.study, key)
            found.append(Row(name, seed, method.label, loss, series, needs, *run))
    return found


def _ensemble_rows(ensemble: Ensemble, seed: int, after: int) -> list[Row]:
    found = []
    seeds = [seed, after] if ensemble.next_seed else [seed]
    if len(set(seeds)) * len(ensemble.members) < 2:
        return []  # one seed alone makes no ensemble of two
    for series in ensemble.series or (None,):
        for key, variant in _variants(ensemble.study):
            needs = tuple(f"{_name(member, key, series)}-seed{one}" for one in seeds for member in ensemble.members)
            name, loss = _name(f"{ensemble.name}-ensemble", key, series), variant.label or None
            found.append(Row(name, seed, ensemble.label, loss, series, needs))
    return found


def _variants(study: str | None) -> list[tuple[str | None, Variant]]:
    return [(None, Variant(""))] if study is None else list(STUDIES[study].items())


def _name(method: str, variant: str | None, series: str | None) -> str:
    """
    >>> _name("scan-t2i", "off-tri", "both"), _name("mmca", None, FIRST)
    ('scan-t2i-off-tri-both', 'mmca')
    """
    return "-".join(part for part in (method, variant, series if series != FIRST else None) if part)
