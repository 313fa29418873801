"""Losses by the names that recipes use. A new one is a file in this folder and a line in `OBJECTIVES`."""

from __future__ import annotations

from quintet.registry import Registry

# name -> "module:class"; the class is an nn.Module whose forward(step) returns dict[str, Term]
OBJECTIVES = Registry(
    "loss",
    {
        "triplet": "quintet.losses.triplet:TripletObjective",
        "quintuplet": "quintet.losses.quintuplet:QuintupletObjective",
        "caption": "quintet.losses.caption:CaptionObjective",
        "relation": "quintet.losses.relation:RelationObjective",
        "instance": "quintet.losses.instance:InstanceObjective",
        "ranking": "quintet.losses.ranking:RankingObjective",
        "contrastive": "quintet.losses.contrastive:ContrastiveObjective",
        "distill": "quintet.losses.distill:DistillObjective",
        "sigmoid": "quintet.losses.contrastive:SigmoidObjective",
    },
)
