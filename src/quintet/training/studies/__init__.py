"""Studies: what a paper's tables compare, trained under one set of seeds. A new one is a file here and a line below."""

from __future__ import annotations

from quintet.registry import Registry

# name -> "module:builder"; the builder takes a base Recipe and plain options and returns a `Study`
STUDIES = Registry(
    "study",
    {
        "aoq": "quintet.training.studies.aoq:aoq_study",
        "dual-path": "quintet.training.studies.dual_path:dual_path_study",
        "hrem": "quintet.training.studies.hrem:hrem_study",
        "mmca": "quintet.training.studies.mmca:mmca_study",
    },
)
