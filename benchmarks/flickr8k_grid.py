"""What `benchmarks/flickr8k.py` trains: methods, losses, towers, ensembles and seeds, as data.

`GRIDS` has the grid of Flickr8k, a smaller one of the generated scenes, what was tried before recipes were settled, and
a small one for two processor cores.
"""

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


EVERY = (FIRST, "both")
BEST = ("both",)  # the best towers that can be had
ONLINE: dict[str, Any] = {"study": "aoq", "variants": ("online",)}
GPO = ("matcher.pooling=gpo", "matcher.text_pooling=gpo")
I2T = ("matcher.direction=i2t", "matcher.lambda_softmax=4")
PROB = ("matcher.focal=prob",)
SEEN = ("matcher.image_dropout=0.0",)
SIZES = ("data.augment.regions=0.2", "data.augment.words=0.1")
# SCAN's recipe until its warm-up was a softmax: what its rows over these towers were measured with.
MEAN = (*SIZES, *SEEN, "stages.online.loss.triplet.warmup=mean", "stages.offline.loss.quintuplet.warmup=mean")
NO_RELATIONS = ("stages.online.loss.relation.relations=none",)

METHODS = (
    Method("vse-avg", "VSE++ (average pooling)", "aoq-vse-flickr8k", (), "aoq", EVERY),
    Method("vse-gpo", "VSE++ (GPO)", "aoq-vse-flickr8k", GPO, "aoq", EVERY),
    Method("scan-t2i", "SCAN t2i, warm-up by the mean", "aoq-scan-flickr8k", MEAN, "aoq", EVERY),
    Method("scan-i2t", "SCAN i2t, warm-up by the mean", "aoq-scan-flickr8k", (*MEAN, *I2T), "aoq", EVERY),
    # The tower of the earlier figures in docs/results.md.
    Method("vse-avg", "VSE++ (average pooling)", "aoq-vse-flickr8k", **ONLINE, series=("lite2",)),
    Method("scan-t2i", "SCAN t2i", "aoq-scan-flickr8k", **ONLINE, series=("lite2",)),
    Method("bfan-equal", "BFAN equal", "aoq-bfan-flickr8k", (), "aoq"),
    Method("bfan-prob", "BFAN prob", "aoq-bfan-flickr8k", PROB, "aoq"),
    Method("bfan-equal-seen", "BFAN equal, all channels seen", "aoq-bfan-flickr8k", SEEN, "aoq"),
    Method("vsrn", "VSRN", "aoq-vsrn-flickr8k", (), "aoq"),
    Method("dual-path", "Dual-Path", "dual-path-flickr8k", (), "dual-path", ()),
    Method("mmca", "MMCA", "mmca-flickr8k", series=EVERY),
    Method("hrem-fusion", "HREM fusion", "hrem-fusion-flickr8k", series=EVERY),
    Method("hrem-standalone", "HREM standalone", "hrem-standalone-flickr8k", series=EVERY),
    Method("hrem-none", "HREM's encoders without relations", "hrem-fusion-flickr8k", NO_RELATIONS, series=EVERY),
    Method("heads", "Heads over frozen towers", "heads-flickr8k", series=EVERY),
    Method("vse-minilm", "VSE-infinity, MiniLM fine-tuned", "vse-infinity-minilm-flickr8k", series=BEST),
    Method("hrem-minilm-fusion", "HREM fusion, MiniLM fine-tuned", "hrem-fusion-minilm-flickr8k", series=BEST),
    Method(
        "hrem-minilm-standalone", "HREM standalone, MiniLM fine-tuned", "hrem-standalone-minilm-flickr8k", series=BEST
    ),
)

ENSEMBLES = (
    Ensemble("scan", "SCAN t2i + i2t, warm-up by the mean", ("scan-t2i", "scan-i2t"), "aoq", EVERY),
    Ensemble("bfan", "BFAN equal + prob", ("bfan-equal", "bfan-prob"), "aoq"),
    Ensemble("vsrn", "VSRN, two seeds", ("vsrn",), "aoq", next_seed=True),
    Ensemble("hrem", "HREM fusion + standalone", ("hrem-fusion", "hrem-standalone"), series=EVERY),
    Ensemble(
        "hrem-minilm",
        "HREM fusion + standalone, MiniLM fine-tuned",
        ("hrem-minilm-fusion", "hrem-minilm-standalone"),
        series=BEST,
    ),
    Ensemble(
        "best",
        "Heads + VSE-infinity + HREM fusion + standalone, all with MiniLM",
        ("heads", "vse-minilm", "hrem-minilm-fusion", "hrem-minilm-standalone"),
        series=BEST,
    ),
    Ensemble(
        "widest",
        "the same and VSE++ with AdapOffQuin, which learns its words",
        ("heads", "vse-minilm", "hrem-minilm-fusion", "hrem-minilm-standalone", "vse-avg-adap-off-quin"),
        series=BEST,
    ),
)

# From the same features, but for Dual-Path, which reads pixels.
SCENES_METHODS = (
    Method("vse-avg", "VSE++ (average pooling)", "aoq-vse-scenes", ("matcher.tower=null",), "aoq"),
    Method("scan-t2i", "SCAN t2i", "aoq-scan-scenes", (), "aoq"),
    Method("mmca", "MMCA", "mmca-scenes"),
    Method("hrem-fusion", "HREM fusion", "hrem-fusion-scenes"),
    Method("hrem-standalone", "HREM standalone", "hrem-standalone-scenes"),
    Method("hrem-none", "HREM's encoders without relations", "hrem-fusion-scenes", NO_RELATIONS),
    Method("dual-path", "Dual-Path", "dual-path-scenes", (), "dual-path", ()),
)
SCENES_ENSEMBLES = (Ensemble("hrem", "HREM fusion + standalone", ("hrem-fusion", "hrem-standalone")),)

# What was tried on Flickr8k before settings were chosen, by the validation split. `vse-avg` and `scan-t2i` are what the
# others differ from: the recipes as they were then.
CONTRASTIVE = (
    "stages.online.precision=float32",
    "stages.online.validate_every=1",
    "stages.online.loss={contrastive: {temperature: 0.05}}",
    "stages.online.reduction=mean",
    "stages.online.batches={size: 256, per: images}",
    "stages.online.optimizer.weight_decay=0.01",
)


def _third(name: str, label: str, *overrides: str) -> Method:
    """SCAN with two epochs of warm-up and channels hidden, without size augmentation, on the earlier figures' tower."""
    return _online(
        f"scan-3-{name}",
        f"SCAN t2i, 2 of 8, d = 512, hidden, {label}",
        "scan",
        EARLY,
        PLAIN,
        HIDDEN,
        *overrides,
        series=LITE2,
    )


def _vsrn(name: str, label: str, *overrides: str) -> Method:
    """VSRN in three epochs with half the channels and no captions."""
    return _online(f"vsrn-{name}", f"VSRN, d = 256, 3 epochs, {label}", "vsrn", *overrides)


def _online(name: str, label: str, matcher: str, *overrides: str, series: tuple[str, ...] = (FIRST,)) -> Method:
    settings = (*BEFORE[matcher], *overrides)
    stage = ("loss", "optimizer", "epochs", "validate_every", "precision")
    found = tuple(f"stages.online.{setting}" if setting.startswith(stage) else setting for setting in settings)
    return Method(name, label, f"aoq-{matcher}-flickr8k", found, **ONLINE, series=series)


HREM_SEEN = (*NO_RELATIONS, *SEEN)
BEFORE = {
    "vse": ("matcher.dropout=0.0",),
    "scan": (
        "loss.triplet.warmup_epochs=5",
        "loss.triplet.warmup=mean",
        *SIZES,
        "matcher.embed_dim=512",
        "epochs=8",
        *SEEN,
    ),
    "vsrn": (
        "loss={triplet: {margin: 0.2, negatives: hardest, warmup_epochs: 2, warmup: softmax}}",
        "matcher.embed_dim=256",
        "matcher.image_dropout=0.2",
        "matcher.region_memory=null",
        "matcher.word_memory=null",
        "data.augment={}",
        "optimizer.lr=1e-3",
        "epochs=3",
        "validate_every=1",
        "precision=bfloat16",
    ),
    "bfan": ("loss.triplet.warmup_epochs=2", *SIZES, "matcher.embed_dim=512", "epochs=8", *SEEN),
}
EARLY, LONG = "loss.triplet.warmup_epochs=2", ("epochs=12", "loss.triplet.warmup_epochs=8")
PLAIN, WIDE, HIDDEN = "data.augment={}", "matcher.embed_dim=1024", "matcher.image_dropout=0.2"
LATER, LONGER = "loss.triplet.warmup_epochs=3", ("epochs=12", "loss.triplet.warmup_epochs=3")
LITE2 = ("lite2",)
SOFTMAX, REGIONS = "loss.triplet.warmup=softmax", "matcher.normalise_over=regions"
MEMORY = ("matcher.region_memory=36", "matcher.word_memory=12")
HIDE = "matcher.dropout=0.2"  # as VSE++ calls it
TRIALS = (
    _online("vse-avg", "VSE++, five epochs of warm-up", "vse"),
    _online("vse-avg-dropout", "VSE++, features dropped out (chosen)", "vse", "matcher.dropout=0.3"),
    _online("vse-avg-early", "VSE++, two epochs of warm-up", "vse", EARLY),
    _online("vse-avg-softmax", "VSE++, dropped out, warm-up by softmax", "vse", "matcher.dropout=0.3", SOFTMAX),
    _online("scan-t2i", "SCAN t2i, five epochs of warm-up", "scan"),
    _online("scan-t2i", "SCAN t2i, five epochs of warm-up", "scan", series=("lite2",)),
    _online("scan-marks", "SCAN t2i with <start>, <end>", "scan", "data.tokenizer.marks=true"),
    _online("scan-plain", "SCAN t2i, no augmentation", "scan", "data.augment={}"),
    _online("scan-more", "SCAN t2i, twice the augmentation", "scan", "data.augment={regions: 0.4, words: 0.2}"),
    _online("scan-dropout", "SCAN t2i, words dropped out", "scan", "matcher.dropout=0.3"),
    _online("scan-early", "SCAN t2i, two epochs of warm-up (chosen)", "scan", EARLY),
    _online("scan-long", "SCAN t2i, 12 epochs, 8 of warm-up", "scan", *LONG),
    _online("scan-wide", "SCAN t2i, d = 1024", "scan", "matcher.embed_dim=1024"),
    _online("scan-slow", "SCAN t2i, learning rate 2e-4", "scan", "optimizer.lr=2e-4"),
    _online("scan-fast", "SCAN t2i, learning rate 1e-3", "scan", "optimizer.lr=1e-3"),
    # A second round: what helped in the first, together, on the tower of the earlier figures.
    _online("scan-2-wide", "SCAN t2i, 2 of 8 epochs warm-up, d = 1024", "scan", EARLY, WIDE, PLAIN, series=LITE2),
    _online("scan-2-later", "SCAN t2i, 3 of 8 epochs warm-up, d = 1024", "scan", LATER, WIDE, PLAIN, series=LITE2),
    _online("scan-2-hidden", "SCAN t2i, 2 of 8, d = 1024, hidden", "scan", EARLY, WIDE, PLAIN, HIDDEN, series=LITE2),
    _online("scan-2-sizes", "SCAN t2i, 2 of 8, d = 1024, hidden, augmented", "scan", EARLY, WIDE, HIDDEN, series=LITE2),
    _online("scan-2-long", "SCAN t2i, 3 of 12, d = 1024", "scan", WIDE, PLAIN, *LONGER, series=LITE2),
    _online("scan-2-all", "SCAN t2i, 3 of 12, d = 1024, hidden", "scan", WIDE, PLAIN, HIDDEN, *LONGER, series=LITE2),
    _online("scan-2-narrow", "SCAN t2i, 3 of 12, d = 512, hidden", "scan", PLAIN, HIDDEN, *LONGER, series=LITE2),
    _third("more", "40 % of the channels hidden", "matcher.image_dropout=0.4"),
    _third("one-way", "words read in one direction", "matcher.bidirectional=false"),
    _third("softmax", "warm-up by softmax (chosen)", SOFTMAX),
    _online("bfan-equal", "BFAN equal, all channels seen", "bfan"),
    _online("bfan-hidden", "BFAN equal, channels hidden (chosen)", "bfan", HIDDEN),
    _online("bfan-plain", "BFAN equal, no augmentation, d = 1024", "bfan", PLAIN, WIDE),
    # Where the warm-up by softmax and hidden channels might help, too.
    _online("scan-i2t-softmax", "SCAN i2t, 2 of 8, hidden, by softmax", "scan", EARLY, PLAIN, HIDDEN, SOFTMAX, *I2T),
    _online("bfan-softmax", "BFAN equal, channels hidden, warm-up by softmax", "bfan", HIDDEN, SOFTMAX),
    # VSRN in three epochs, without captions: what keeps it from learning.
    _vsrn("short", "GRUs as torch starts them"),
    _vsrn("memory", "GRUs that remember all places (chosen)", *MEMORY),
    _vsrn("memory-regions", "the same, normalised over regions", *MEMORY, REGIONS),
    _vsrn("memory-sizes", "the same, augmented", *MEMORY, *SIZES),
    Method("mmca-softmax", "MMCA, warm-up by softmax", "mmca-flickr8k", (f"stages.online.{SOFTMAX}",)),
    Method("vse-minilm-hidden", "VSE-infinity, MiniLM, hidden", "vse-infinity-minilm-flickr8k", (HIDE,), series=BEST),
    Method("hrem-minilm-hidden", "HREM fusion, MiniLM, hidden", "hrem-fusion-minilm-flickr8k", (HIDDEN,), series=BEST),
    Method("hrem-fusion", "HREM fusion, all channels seen", "hrem-fusion-flickr8k", SEEN),
    Method("hrem-none", "HREM's encoders without relations, all channels seen", "hrem-fusion-flickr8k", HREM_SEEN),
    Method(
        "vse-minilm-contrastive",
        "VSE-infinity, MiniLM fine-tuned with the contrastive loss, batches of 256",
        "vse-infinity-minilm-flickr8k",
        CONTRASTIVE,
        series=BEST,
    ),
    Method(
        "hrem-minilm-contrastive",
        "HREM's encoders with the contrastive loss, batches of 256",
        "hrem-fusion-minilm-flickr8k",
        (*CONTRASTIVE, "stages.online.epochs=30"),
        series=BEST,
    ),
)


# Small enough for two processor cores. HREM: an epoch visits each image once, a quarter of the parameters. Dual-Path:
# its image CNN is fixed in both stages, so its features are computed once.
SMALL = (
    *SEEN,
    "matcher.embed_dim=256",
    "matcher.word_dim=100",
    "stages.online.batches={size: 64, per: images}",
    "stages.online.epochs=18",
    "stages.online.validate_every=3",
    "stages.online.precision=float32",
)
FIXED_CNN = (
    "data.augment={}",
    "data.keep=auto",
    "matcher.tower=null",
    "stages.instance.freeze=[]",
    "stages.ranking.optimizer.groups=[]",
    "stages.*.precision=float32",
)
SMALL_METHODS = (
    Method("hrem-fusion", "HREM fusion", "hrem-fusion-flickr8k", SMALL),
    Method("hrem-standalone", "HREM standalone", "hrem-standalone-flickr8k", SMALL),
    Method("hrem-none", "HREM's encoders without relations", "hrem-fusion-flickr8k", (*SMALL, *NO_RELATIONS)),
    Method("dual-path", "Dual-Path, image CNN fixed", "dual-path-flickr8k", FIXED_CNN, "dual-path"),
)


class Grid(NamedTuple):
    methods: tuple[Method, ...]
    ensembles: tuple[Ensemble, ...]
    seeds: tuple[int, ...] = SEEDS
    corpus: str = "flickr8k"


GRIDS = {
    "flickr8k": Grid(METHODS, ENSEMBLES),
    "scenes": Grid(SCENES_METHODS, SCENES_ENSEMBLES, corpus="scenes"),
    "trials": Grid(TRIALS, (), seeds=(0,)),
    "small": Grid(SMALL_METHODS, ()),
}


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


def grid_rows(grid: str) -> list[Row]:
    """Everything that a grid has."""
    return rows(GRIDS[grid].methods, GRIDS[grid].ensembles, GRIDS[grid].seeds)


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
