"""Claims of the papers, as orderings of rows of the grids: the better one first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.grids.catalogue import GRIDS
from benchmarks.grids.rows import STUDIES

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


DUAL_PATH = PaperTable(
    "Dual-Path, Table II: losses and stages",
    "Dual-Path, Table II (Flickr30k validation, R@1)",
    {
        "dual-path-full": (55.4, 39.7),
        "dual-path-instance-2": (50.5, 34.9),
        "dual-path-ranking-2": (47.5, 29.0),
        "dual-path-instance-ranking": (47.5, 29.0),
        "dual-path-instance-1": (39.9, 28.2),
        "dual-path-ranking-1": (6.1, 4.9),
    },
    "The paper does not say whether the ranking loss alone starts stage II from its own stage I or from that of the "
    "instance loss: both are rows, with the same published numbers. Its Figure 5 has S 0.0914 for the full model, "
    "0.1633 for the instance loss alone and 0.2563 for the ranking loss alone.",
)
MMCA = PaperTable(
    "MMCA, Table 1: against SCAN and VSE++",
    "MMCA, Table 1 (Flickr30K, R@1)",
    {
        "mmca": (74.2, 54.8),
        "scan-t2i-online": (67.4, 48.6),
        "scan-i2t-mean-online": (67.4, 48.6),
        "vse-avg-online": (52.9, 39.6),
    },
    "The paper has one row of SCAN, and VSE++ from whole images; here all read the same features.",
)
HREM = PaperTable(
    "HREM, Table 3a: with and without relations among samples",
    "HREM, Table 3a (Flickr30K, R@1)",
    {"hrem-fusion": (83.3, 63.5), "hrem-standalone": None, "hrem-none": (80.1, 60.9)},
    "The paper's ablation is of the fusion mechanism. It claims no order of the two mechanisms; in its Table 1 (COCO "
    "5K, rsum) standalone has 427.6 and fusion 428.1 over a BiGRU, 443.1 and 444.1 over BERT.",
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
        "AOQ, Table 1 (COCO 1K, rsum): SCAN 507.9 to 508.5, BFAN 510.7 to 513.4, VSRN 516.8 to 518.6",
        _rounds("off-tri", "online"),
        grid_notes=I2T_LEFT_OUT,
    ),
    Claim(
        "OffQuin beats OffTri",
        "AOQ, Table 1: SCAN 508.5 to 510.2, BFAN 513.4 to 514.7, VSRN 518.6 to 519.7",
        _rounds("off-quin", "off-tri"),
    ),
    Claim(
        "AdapOffQuin beats OffQuin",
        "AOQ, Table 1: SCAN 510.2 to 511.2, BFAN 514.7 to 517.2, VSRN 519.7 to 521.4",
        _rounds("adap-off-quin", "off-quin"),
    ),
    Claim(
        "AdapOffQuin beats the online triplet loss",
        "AOQ, Table 2 (Flickr30K, rsum): SCAN 465.0 to 473.2, BFAN 470.4 to 486.7, VSRN 482.6 to 486.3",
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
        Claim(title, f"{SEPARABILITY}: {numbers}", pairs, S_STAGES, {"small": FIXED_TOO}, by_overlap=True)
        for title, numbers, pairs in (
            (
                "S of both losses together is below that of the instance loss alone",
                "0.1633 to 0.0914",
                (("dual-path-full", "dual-path-instance-2"),),
            ),
            (
                "S of the instance loss alone is below that of the ranking loss alone",
                "0.2563 to 0.1633",
                (("dual-path-instance-1", "dual-path-ranking-1"), ("dual-path-instance-2", "dual-path-ranking-2")),
            ),
            (
                "S of both losses together is below that of the ranking loss alone",
                "0.2563 to 0.0914",
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
        "AOQ, Table 2 (Flickr30K, rsum): 465.0 to 470.4, ensembles",
        tuple((f"bfan-ensemble-{loss}", f"scan-ensemble-{loss}") for loss in LOSSES),
    ),
    Claim(
        "An ensemble beats its members",
        "HREM, Table 1 (COCO 5K, BiGRU, rsum): 427.6 and 428.1 alone, 435.1 together",
        _ensembles(),
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
