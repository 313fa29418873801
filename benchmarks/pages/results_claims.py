"""Claims of the papers, as orderings of rows of the grids: the better one first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.grids.catalogue import GRIDS
from benchmarks.grids.rows import STUDIES
from quintet.studies.published import counterparts

Pairs = tuple[tuple[str, str], ...]
LOSSES = tuple(STUDIES["aoq"])
# SCAN i2t's first round is 23 rsum below the same round after a warm-up by the mean: any second round beats it.
WEAK_FIRST_ROUND = ("scan-i2t",)
AOQ = tuple(
    dict.fromkeys(
        one.name
        for grid in GRIDS.values()
        for one in grid.methods
        if one.study == "aoq" and not one.variants and one.name not in WEAK_FIRST_ROUND
    )
)


@dataclass(frozen=True)
class Claim:
    """One statement: each pair is (better, worse), as names of rows without series and seed."""

    title: str
    source: str  # the paper, with its own numbers
    pairs: Pairs
    note: str = ""
    grid_notes: Mapping[str, str] = field(default_factory=dict)  # grid -> a note for its page alone
    not_shown: Mapping[str, str] = field(default_factory=dict)  # grid -> why its setting cannot show this
    by_overlap: bool = False  # of S, which is lower for the better row, instead of rsum


@dataclass(frozen=True)
class PaperTable:
    """A table of a paper: its R@1, image to text and text to image, by names of rows without series and seed."""

    title: str
    source: str
    rows: Mapping[str, tuple[float, float] | None]  # None: a row of ours that the paper's table does not have
    note: str = ""

    def claim(
        self,
        title: str,
        *pairs: tuple[str, str],
        note: str = "",
        not_shown: Mapping[str, str] | None = None,
        **grid_notes: str,
    ) -> Claim:
        """A claim that rests on this table; the paper's numbers are those of the first pair."""
        better, worse = (self.rows[name] or () for name in pairs[0])
        numbers = " and ".join(f"{low} to {high}" for low, high in zip(worse, better, strict=True))
        return Claim(title, f"{self.source}: {numbers}", pairs, note, grid_notes, not_shown or {})


def printed(table: str, row: str, *metrics: str) -> tuple[float, ...]:
    """What a paper prints in a row, from the one file that has it."""
    (found,) = counterparts([table], row)
    return tuple(found.values[metric] for metric in metrics)


def r1(table: str, row: str) -> tuple[float, float]:
    of_images, of_texts = printed(table, row, "i2t_r1", "t2i_r1")
    return of_images, of_texts


def gains(table: str, worse: str, better: str) -> str:
    """By how much rsum rises in a table of AOQ, for each method."""
    sums = {
        name: [printed(table, f"{name}{loss}", "rsum")[0] for loss in (worse, better)]
        for name in ("SCAN", "BFAN", "VSRN")
    }
    return ", ".join(f"{name} {low} to {high}" for name, (low, high) in sums.items())


OFF_TRI, OFF_QUIN, ADAPTIVE = " + OffTri", " + OffQuin", " + AdapOffQuin"
RANKING, INSTANCE, BOTH = (
    printed("dual-path-fig5", row, "S")[0]
    for row in ("Only Ranking Loss, stage I", "Only Instance Loss, stage I", "Full model, stage II")
)
MECHANISMS = {
    words: [printed("hrem-1", f"{words}, {kind}", "rsum")[0] for kind in ("standalone", "fusion", "full")]
    for words in ("words", "wordpiece")
}

DUAL_PATH = PaperTable(
    "Dual-Path, Table II: losses and stages",
    "Dual-Path, Table II (Flickr30k validation, R@1)",
    {
        "dual-path-full": r1("dual-path-2", "Full model, stage II"),
        "dual-path-instance-2": r1("dual-path-2", "Only Instance Loss, stage II"),
        "dual-path-ranking-2": r1("dual-path-2", "Only Ranking Loss, stage II"),
        "dual-path-instance-ranking": r1("dual-path-2", "Only Ranking Loss, stage II"),
        "dual-path-instance-1": r1("dual-path-2", "Only Instance Loss, stage I"),
        "dual-path-ranking-1": r1("dual-path-2", "Only Ranking Loss, stage I"),
    },
    "The paper does not say whether the ranking loss alone starts stage II from its own stage I or from that of the "
    f"instance loss: both are rows, with the same published numbers. Its Figure 5 has S {BOTH} for the full model, "
    f"{INSTANCE} for the instance loss alone and {RANKING} for the ranking loss alone.",
)
MMCA = PaperTable(
    "MMCA, Table 1: against SCAN and VSE++",
    "MMCA, Table 1 (Flickr30K, R@1)",
    {
        "mmca": r1("mmca-1", "MMCA"),
        "scan-t2i-online": r1("mmca-1-others", "SCAN"),
        "scan-i2t-mean-online": r1("mmca-1-others", "SCAN"),
        "vse-avg-online": r1("mmca-1-others", "VSE++"),
    },
    "The paper has one row of SCAN, and VSE++ from whole images; here all read the same features.",
)
HREM = PaperTable(
    "HREM, Table 3a: with and without relations among samples",
    "HREM, Table 3a (Flickr30K, R@1)",
    {
        "hrem-fusion": r1("hrem-3a", "HREM"),
        "hrem-standalone": None,
        "hrem-none": r1("hrem-3a", "w/o instances"),
    },
    "The paper's ablation is of the fusion mechanism. It claims no order of the two mechanisms; in its Table 1 (COCO "
    "5K, rsum) standalone has {} and fusion {} over a BiGRU, {} and {} over BERT.".format(
        *MECHANISMS["words"][:2], *MECHANISMS["wordpiece"][:2]
    ),
)
PAPER_TABLES = (DUAL_PATH, MMCA, HREM)

RANKING_ALONE = "One of two readings: the paper does not say what the ranking loss alone starts stage II from."
TWO_STAGES = (
    "There is no pretrained image CNN for scenes, so stage I trains the image CNN as well, and stage II with the same "
    "loss only adds epochs at a lower rate: the gain of fine-tuning in the paper cannot show."
)
FIXED_CNN = (
    "The image CNN is fixed in both stages here, and in the paper stage II gains by training it: stage II is only more "
    "epochs of the same here."
)
SEPARABILITY = "Dual-Path, section IV-B and Fig. 5 (Flickr30k validation, S of Eq. 10)"
S_STAGES = (
    "The paper does not say which stage its figure of a loss alone is of. S is one number of all pairs, so there is no "
    "interval over queries."
)
FIXED_TOO = "The image CNN is fixed in stage II as well here; the paper trains it."
WORDS_FLICKR8K = (
    "MMCA has a pretrained text encoder here as in its paper; the other method learns its word embeddings. This "
    "compares the two as published, not their attention. The encoder's training pairs included captions of COCO and "
    "Flickr30k."
)
WORDS_SCENES = (
    "MMCA has a small text encoder trained from scratch here instead of the pretrained BERT that it is built on, and "
    "every matcher has its own small recipe: this compares the recipes, not the methods."
)

I2T_LEFT_OUT = {
    "flickr8k": "SCAN i2t is left out: its first round with the recipe's warm-up is far below the same round with a "
    "warm-up by the mean (`scan-i2t-mean-online`), and against it any second round wins."
}


def _rounds(better: str, worse: str) -> Pairs:
    return tuple((f"{method}-{better}", f"{method}-{worse}") for method in AOQ)


def _ensembles() -> Pairs:
    """Every ensemble with each of its members, under the same loss."""
    found: dict[tuple[str, str], None] = {}  # in order, each once
    for ensemble in (one for grid in GRIDS.values() for one in grid.ensembles):
        for loss in STUDIES[ensemble.study] if ensemble.study else ("",):
            tail = f"-{loss}" if loss else ""
            found |= {(f"{ensemble.name}-ensemble{tail}", f"{member}{tail}"): None for member in ensemble.members}
    return tuple(found)


CLAIMS = (
    Claim(
        "OffTri beats the online triplet loss",
        f"AOQ, Table 1 (COCO 1K, rsum): {gains('aoq-1-1k', '', OFF_TRI)}",
        _rounds("off-tri", "online"),
        grid_notes=I2T_LEFT_OUT,
    ),
    Claim(
        "OffQuin beats OffTri",
        f"AOQ, Table 1: {gains('aoq-1-1k', OFF_TRI, OFF_QUIN)}",
        _rounds("off-quin", "off-tri"),
    ),
    Claim(
        "AdapOffQuin beats OffQuin",
        f"AOQ, Table 1: {gains('aoq-1-1k', OFF_QUIN, ADAPTIVE)}",
        _rounds("adap-off-quin", "off-quin"),
    ),
    Claim(
        "AdapOffQuin beats the online triplet loss",
        f"AOQ, Table 2 (Flickr30K, rsum): {gains('aoq-2', '', ADAPTIVE)}",
        _rounds("adap-off-quin", "online"),
        grid_notes=I2T_LEFT_OUT,
    ),
    DUAL_PATH.claim(
        "The instance loss beats the ranking loss in stage I", ("dual-path-instance-1", "dual-path-ranking-1")
    ),
    DUAL_PATH.claim(
        "Both losses together beat the instance loss alone (stage II)",
        ("dual-path-full", "dual-path-instance-2"),
        small=FIXED_TOO,
    ),
    DUAL_PATH.claim(
        "Both losses together beat the ranking loss alone (stage II, ranking in both stages)",
        ("dual-path-full", "dual-path-ranking-2"),
        note=RANKING_ALONE,
        small=FIXED_TOO,
    ),
    DUAL_PATH.claim(
        "Both losses together beat the ranking loss alone (stage II, instance loss in stage I)",
        ("dual-path-full", "dual-path-instance-ranking"),
        note=RANKING_ALONE,
        small=FIXED_TOO,
    ),
    DUAL_PATH.claim(
        "The instance loss alone beats the ranking loss alone (stage II, ranking in both stages)",
        ("dual-path-instance-2", "dual-path-ranking-2"),
        note=RANKING_ALONE,
        small=FIXED_TOO,
    ),
    DUAL_PATH.claim(
        "The instance loss alone beats the ranking loss alone (stage II, instance loss in stage I)",
        ("dual-path-instance-2", "dual-path-instance-ranking"),
        note=RANKING_ALONE,
        small=FIXED_TOO,
    ),
    DUAL_PATH.claim(
        "Stage II beats stage I (instance loss)",
        ("dual-path-instance-2", "dual-path-instance-1"),
        not_shown={"scenes": TWO_STAGES, "small": FIXED_CNN},
    ),
    *(
        Claim(title, f"{SEPARABILITY}: {above} to {below}", pairs, S_STAGES, {"small": FIXED_TOO}, by_overlap=True)
        for title, (above, below), pairs in (
            (
                "S of both losses together is below that of the instance loss alone",
                (INSTANCE, BOTH),
                (("dual-path-full", "dual-path-instance-2"),),
            ),
            (
                "S of the instance loss alone is below that of the ranking loss alone",
                (RANKING, INSTANCE),
                (("dual-path-instance-1", "dual-path-ranking-1"), ("dual-path-instance-2", "dual-path-ranking-2")),
            ),
            (
                "S of both losses together is below that of the ranking loss alone",
                (RANKING, BOTH),
                (("dual-path-full", "dual-path-ranking-2"), ("dual-path-full", "dual-path-instance-ranking")),
            ),
        )
    ),
    HREM.claim(
        "Relations among samples help",
        ("hrem-fusion", "hrem-none"),
        ("hrem-standalone", "hrem-none"),
        note="Only the relations differ: encoders, sampling of negatives and neighbour batches are the same.",
    ),
    MMCA.claim(
        "MMCA beats SCAN",
        ("mmca", "scan-t2i-online"),
        ("mmca", "scan-i2t-mean-online"),
        not_shown={"scenes": WORDS_SCENES},
        flickr8k=WORDS_FLICKR8K,
    ),
    MMCA.claim(
        "MMCA beats VSE++",
        ("mmca", "vse-avg-online"),
        not_shown={"scenes": WORDS_SCENES},
        flickr8k=WORDS_FLICKR8K,
    ),
    MMCA.claim(
        "Attention between regions and words (SCAN) beats one vector each (VSE++)",
        ("scan-t2i-online", "vse-avg-online"),
        ("scan-i2t-mean-online", "vse-avg-online"),
    ),
    Claim(
        "GPO beats average pooling",
        "VSE-infinity, as cited by HREM's Table 2 among embedding methods",
        tuple((f"vse-gpo-{loss}", f"vse-avg-{loss}") for loss in LOSSES),
    ),
    Claim(
        "BFAN beats SCAN",
        "AOQ, Table 2 (Flickr30K, rsum): {} to {}, ensembles".format(
            *(printed("aoq-2", name, "rsum")[0] for name in ("SCAN", "BFAN"))
        ),
        tuple((f"bfan-ensemble-{loss}", f"scan-ensemble-{loss}") for loss in LOSSES),
    ),
    Claim(
        "An ensemble beats its members",
        "HREM, Table 1 (COCO 5K, BiGRU, rsum): {} and {} alone, {} together".format(*MECHANISMS["words"]),
        _ensembles(),
    ),
    *(
        Claim(
            f"{what} of a dual encoder",
            "No paper's claim: the same second round, as long and from the same weights, without mined negatives",
            tuple((f"{name}-{better}", f"{name}-longer") for name in ("clip", "siglip")),
        )
        for better, what in (
            ("mined", "Mined hard negatives beside the batch help the contrastive and sigmoid losses"),
            ("adap-off-quin", "AdapOffQuin as the second round improves on the losses"),
        )
    ),
    Claim(
        "The methods improve on small heads over frozen towers",
        "No paper's claim: two-layer heads over the frozen tower and a frozen text encoder",
        tuple(
            (name, "heads")
            for name in (
                "vse-gpo-online",
                "scan-t2i-adap-off-quin",
                "mmca",
                "hrem-fusion",
                "vse-minilm",
                "hrem-minilm-fusion",
            )
        ),
    ),
)
