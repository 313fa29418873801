"""Analyses of trained runs, by name: each makes numbers and figures. A new one is a function and a line below."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from quintet.errors import QuintetError
from quintet.evaluation.result import provenance
from quintet.files import write_json
from quintet.registry import Registry
from quintet.report.analysis.subject import Finding, Options, Subject
from quintet.report.figures import save_figure

_HERE = "quintet.report.analysis."
ANALYSES = Registry(
    "analysis",
    {
        "distributions": _HERE + "similarity:distributions",
        "correlation": _HERE + "similarity:correlation",
        "words": _HERE + "words:words",
        "curves": _HERE + "training:curves",
        "errors": _HERE + "training:errors",
        "hardness": _HERE + "training:hardness",
        "ranks": _HERE + "ranks:ranks",
        "negatives": _HERE + "ranks:negatives",
        "mined": _HERE + "offline:mined",
        "timing": _HERE + "offline:timing",
    },
)
ONLY_ON_REQUEST = ("timing",)  # a measurement of the machine: it wants the machine for itself
FORMAT, VERSION = "quintet-analysis", 1


def analyse(
    subjects: Sequence[Subject],
    out: Path | str,
    kinds: Sequence[str] | None = None,
    *,
    options: Options | None = None,
    formats: Sequence[str] = ("svg",),
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Write OUT/KIND.json and the figures of each kind, and return the contents of the JSON files by kind.

    Without `kinds` everything that applies to these runs is made, and what does not apply has a `reason` instead of
    numbers. Kinds that are named must apply.
    """
    chosen = list(dict.fromkeys(kinds)) if kinds else [name for name in ANALYSES.entries if name not in ONLY_ON_REQUEST]
    makers = {kind: ANALYSES.builder(kind) for kind in chosen}  # a typo is answered before anything is encoded
    found: dict[str, Any] = {}
    for kind, make in makers.items():
        if progress is not None:
            progress(kind)
        try:
            finding = make(subjects, options or Options())
        except QuintetError as error:
            if kinds:
                raise
            found[kind] = {"reason": str(error)}
            continue
        found[kind] = _write(Path(out), kind, finding, subjects, formats)
    return found


def _write(
    out: Path, kind: str, finding: Finding, subjects: Sequence[Subject], formats: Sequence[str]
) -> dict[str, Any]:
    figures = [
        path.name for name, figure in finding.figures.items() for path in save_figure(figure, out / name, formats)
    ]
    split = subjects[0].split
    content = {
        "format": FORMAT,
        "version": VERSION,
        "kind": kind,
        "corpus": subjects[0].corpus.name,
        "split": split.name,
        "split_checksum": split.checksum,
        **finding.numbers,
        "figures": figures,
        "provenance": provenance()
        | {"runs": [{"name": one.label, "weights_sha256": one.run.weights_checksum} for one in subjects]},
    }
    write_json(out / f"{kind}.json", content)
    return content
