"""Settings that were tried on Flickr8k before the recipes were settled, as methods of the grid `trials`.

`vse-avg` and `scan-t2i` are the recipes as they were then, from which the other trials differ.
"""

from __future__ import annotations

from benchmarks.grids.rows import BEST, FIRST, I2T, NO_RELATIONS, ONLINE, SEEN, SIZES, Method

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
    _online("scan-marks", "SCAN t2i with <start>, <end>", "scan", "data.tokenizer.special_tokens=true"),
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
    _vsrn("memory", "GRUs that remember all positions (chosen)", *MEMORY),
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
