"""What the papers claim, as orderings of rows of the Flickr8k grid: the better one first."""

from __future__ import annotations

from dataclasses import dataclass

AOQ = ("vse-avg", "vse-gpo", "scan-t2i", "scan-i2t", "bfan-equal", "bfan-prob", "vsrn")
LOSSES = ("online", "off-tri", "off-quin", "adap-off-quin")


@dataclass(frozen=True)
class Claim:
    """One statement: each pair is (better, worse), as names of rows without series and seed."""

    title: str
    source: str  # the paper, with its own numbers
    pairs: tuple[tuple[str, str], ...]
    note: str = ""


def _rounds(better: str, worse: str) -> tuple[tuple[str, str], ...]:
    return tuple((f"{method}-{better}", f"{method}-{worse}") for method in AOQ)


def _ensembles(name: str, *members: str) -> tuple[tuple[str, str], ...]:
    return tuple((f"{name}-ensemble-{loss}", f"{member}-{loss}") for loss in LOSSES for member in members)


CLAIMS = (
    Claim(
        "OffTri beats the online triplet loss",
        "AOQ, Table 1 (COCO 1K, rsum): SCAN 507.9 to 508.5, BFAN 510.7 to 513.4, VSRN 516.8 to 518.6",
        _rounds("off-tri", "online"),
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
    ),
    Claim(
        "The instance loss beats the ranking loss in stage I",
        "Dual-Path, Table II (Flickr30k validation, R@1): 6.1 to 39.9 and 4.9 to 28.2",
        (("dual-path-instance-1", "dual-path-ranking-1"),),
    ),
    Claim(
        "Instance and ranking loss together beat the ranking loss alone (stage II)",
        "Dual-Path, Table II: 47.5 to 55.4 and 29.0 to 39.7",
        (("dual-path-full", "dual-path-ranking-2"), ("dual-path-full", "dual-path-instance-ranking")),
        "The paper does not say whether the ranking loss alone starts stage II from itself or from the instance loss.",
    ),
    Claim(
        "Instance and ranking loss together beat the instance loss alone (stage II)",
        "Dual-Path, Table II: 50.5 to 55.4 and 34.9 to 39.7",
        (("dual-path-full", "dual-path-instance-2"),),
    ),
    Claim(
        "Stage II beats stage I",
        "Dual-Path, Table II, instance loss: 39.9 to 50.5 and 28.2 to 34.9",
        (("dual-path-instance-2", "dual-path-instance-1"),),
    ),
    Claim(
        "Relations among samples help",
        "HREM, Table 3a (Flickr30K, R@1), without and with instance-level relations: 80.1 to 83.3 and 60.9 to 63.5",
        (("hrem-fusion", "hrem-none"), ("hrem-standalone", "hrem-none")),
    ),
    Claim(
        "MMCA beats SCAN",
        "MMCA, Table 1 (Flickr30K, R@1): SCAN 67.4 and 48.6, MMCA 74.2 and 54.8",
        (("mmca", "scan-t2i-online"), ("mmca", "scan-i2t-online")),
        "MMCA reads words from a pretrained encoder here as in its paper; SCAN learns them. The comparison is of the "
        "two as published, not of their attention. The encoder's training pairs included captions of COCO and "
        "Flickr30k.",
    ),
    Claim(
        "GPO beats average pooling",
        "VSE-infinity, as cited by HREM's Table 2 among embedding methods",
        tuple((f"vse-gpo-{loss}", f"vse-avg-{loss}") for loss in LOSSES),
    ),
    Claim(
        "Attention between regions and words beats one vector each",
        "SCAN against VSE++, as in MMCA's Table 1 (Flickr30K, R@1): 52.9 to 67.4 and 39.6 to 48.6",
        (("scan-t2i-online", "vse-avg-online"), ("scan-i2t-online", "vse-avg-online")),
    ),
    Claim(
        "BFAN beats SCAN",
        "AOQ, Table 2 (Flickr30K, rsum): 465.0 to 470.4, ensembles",
        tuple((f"bfan-ensemble-{loss}", f"scan-ensemble-{loss}") for loss in LOSSES),
    ),
    Claim(
        "An ensemble beats its members",
        "HREM, Table 1 (COCO 5K, BiGRU, rsum): 427.6 and 428.1 alone, 435.1 together",
        (
            *_ensembles("scan", "scan-t2i", "scan-i2t"),
            *_ensembles("bfan", "bfan-equal", "bfan-prob"),
            *_ensembles("vsrn", "vsrn"),
            ("hrem-ensemble", "hrem-fusion"),
            ("hrem-ensemble", "hrem-standalone"),
        ),
    ),
    Claim(
        "The methods earn something over small heads on frozen towers",
        "No paper's claim: two-layer heads over the frozen tower and a frozen sentence encoder",
        tuple((name, "heads") for name in ("vse-gpo-online", "scan-t2i-adap-off-quin", "mmca", "hrem-fusion")),
    ),
)
