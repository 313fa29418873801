"""The grids: Flickr8k, two smaller ones of generated scenes, settings that were tried, a small one for two cores.

`python -m benchmarks.measure.flickr8k --grid NAME` trains and measures the rows of one.
"""

from __future__ import annotations

from benchmarks.grids.rows import BEST, FIRST, I2T, NO_RELATIONS, ONLINE, SEEN, SIZES, Ensemble, Grid, Method, Row, rows
from benchmarks.grids.trials import TRIALS

EVERY = (FIRST, "both")
GPO = ("matcher.pooling=gpo", "matcher.text_pooling=gpo")
PROB = ("matcher.focal=prob",)
# SCAN's recipe until its warm-up was a softmax.
MEAN = (*SIZES, *SEEN, "stages.online.loss.triplet.warmup=mean", "stages.offline.loss.quintuplet.warmup=mean")

METHODS = (
    Method("vse-avg", "VSE++ (average pooling)", "aoq-vse-flickr8k", (), "aoq", EVERY),
    Method("vse-gpo", "VSE++ (GPO)", "aoq-vse-flickr8k", GPO, "aoq"),
    Method("scan-t2i", "SCAN t2i", "aoq-scan-flickr8k", (), "aoq"),
    Method("scan-i2t", "SCAN i2t", "aoq-scan-flickr8k", I2T, "aoq"),
    Method("scan-t2i-mean", "SCAN t2i, warm-up by the mean", "aoq-scan-flickr8k", MEAN, "aoq"),
    Method("scan-i2t-mean", "SCAN i2t, warm-up by the mean", "aoq-scan-flickr8k", (*MEAN, *I2T), **ONLINE),
    # The tower of the earlier figures in docs/results.md.
    Method("vse-avg", "VSE++ (average pooling)", "aoq-vse-flickr8k", **ONLINE, series=("lite2",)),
    Method("scan-t2i", "SCAN t2i", "aoq-scan-flickr8k", **ONLINE, series=("lite2",)),
    Method("bfan-equal", "BFAN equal", "aoq-bfan-flickr8k", (), "aoq"),
    Method("bfan-prob", "BFAN prob", "aoq-bfan-flickr8k", PROB, "aoq"),
    Method("bfan-equal-seen", "BFAN equal, all channels seen", "aoq-bfan-flickr8k", SEEN, "aoq"),
    Method("vsrn", "VSRN", "aoq-vsrn-flickr8k", (), "aoq"),
    Method("dual-path", "Dual-Path", "dual-path-flickr8k", (), "dual-path", ()),
    Method("mmca", "MMCA", "mmca-flickr8k"),
    Method("hrem-fusion", "HREM fusion", "hrem-fusion-flickr8k"),
    Method("hrem-standalone", "HREM standalone", "hrem-standalone-flickr8k"),
    Method("hrem-none", "HREM's encoders without relations", "hrem-fusion-flickr8k", NO_RELATIONS),
    Method("heads", "Heads over frozen towers", "heads-flickr8k", series=EVERY),
    Method("vse-minilm", "VSE-infinity, MiniLM fine-tuned", "vse-infinity-minilm-flickr8k", series=BEST),
    Method("hrem-minilm-fusion", "HREM fusion, MiniLM fine-tuned", "hrem-fusion-minilm-flickr8k", series=BEST),
    Method(
        "hrem-minilm-standalone", "HREM standalone, MiniLM fine-tuned", "hrem-standalone-minilm-flickr8k", series=BEST
    ),
)

ENSEMBLES = (
    Ensemble("scan", "SCAN t2i + i2t", ("scan-t2i", "scan-i2t"), "aoq"),
    Ensemble("bfan", "BFAN equal + prob", ("bfan-equal", "bfan-prob"), "aoq"),
    Ensemble("vsrn", "VSRN, two seeds", ("vsrn",), "aoq", next_seed=True),
    Ensemble("hrem", "HREM fusion + standalone", ("hrem-fusion", "hrem-standalone")),
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

# Dual encoders from scratch.
CLIP_METHODS = (
    Method("clip", "CLIP, contrastive loss", "clip-scenes", (), "clip", ()),
    Method("siglip", "SigLIP, sigmoid loss", "siglip-scenes", (), "clip", ()),
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


GRIDS = {
    "flickr8k": Grid(METHODS, ENSEMBLES),
    "scenes": Grid(SCENES_METHODS, SCENES_ENSEMBLES, corpus="scenes"),
    "clip": Grid(CLIP_METHODS, (), corpus="scenes"),
    "trials": Grid(TRIALS, (), seeds=(0,)),
    "small": Grid(SMALL_METHODS, ()),
}


def grid_rows(grid: str) -> list[Row]:
    """Everything that a grid has."""
    return rows(GRIDS[grid].methods, GRIDS[grid].ensembles, GRIDS[grid].seeds)
