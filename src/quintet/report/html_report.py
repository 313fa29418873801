"""`quintet report`: a self-contained page, the figures as files, and all numbers as JSON."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from quintet.errors import QuintetError
from quintet.evaluation.result import provenance
from quintet.files import check_output, json_text, output_text
from quintet.report.analysis import Subject
from quintet.report.html_page import STYLE, document, metrics_table_html
from quintet.report.material import Material
from quintet.report.sections import PARTS, Section

PRIVATE = (
    '<p class="banner" role="note">This page shows images and texts of the corpus. It is for private use: check the '
    "licence of the corpus before you share it.</p>"
)


def make_report(
    material: Material,
    out: Path | str,
    progress: Callable[[str], None] | None = None,
    left_out: dict[str, str] | None = None,
) -> Path:
    """Write OUT/index.html, OUT/figures/*.svg and OUT/report.json; returns the page's path.

    `left_out` is filled with the parts that could not be made, by name, and why.
    """
    out = Path(out)
    page = out / "index.html"
    for path in (page, out / "report.json"):
        check_output(path)
    sections, left_out = [], {} if left_out is None else left_out
    for anchor, title, make in PARTS:
        if progress is not None:
            progress(title)
        try:
            html = make(material, out / "figures")
        except QuintetError as error:  # a run may have no log, no boxes or no tokenizer
            left_out[anchor] = str(error)
            html = f'<p class="soft">Not available: {escape(str(error))}.</p>'
        sections.append(Section(anchor, title, html))
    how = provenance()
    sections.append(Section("made", "How this was made", _made(material, how)))
    output_text(page, document(material.settings.title, _body(material, sections), STYLE + REPORT_STYLE))
    output_text(out / "report.json", json_text(_numbers(material, left_out) | {"provenance": how}))
    return page


def _body(material: Material, sections: list[Section]) -> str:
    split = material.split
    intro = (
        f"{material.corpus.name}, split {split.name}: {len(split.images):,} images, {len(split.texts):,} texts. "
        f"Searches and failures are those of {material.first.label}."
    )
    links = "".join(f'<li><a href="#{one.anchor}">{escape(one.title)}</a></li>' for one in sections)
    parts = "\n".join(
        f'<section class="part" id="{one.anchor}"><h2>{escape(one.title)}</h2>\n{one.html}\n</section>'
        for one in sections
    )
    banner = PRIVATE if material.settings.photographs else ""
    return f'{banner}<p class="intro">{escape(intro)}</p>\n<nav aria-label="Contents"><ul>{links}</ul></nav>\n{parts}'


def _made(material: Material, how: dict[str, Any]) -> str:
    machine = how["machine"]["accelerator"] or how["machine"]["processor"]
    versions = ", ".join(f"{name} {version}" for name, version in how["versions"].items())
    runs = [
        {"run": subject.label, "folder": subject.run.folder.name, "weights, sha256": subject.run.weights_checksum[:16]}
        for subject in _all_subjects(material)
    ]
    facts = f"<p><code>{escape(how['command'])}</code><br>{how['time']}, {escape(machine)}, {escape(versions)}</p>"
    return facts + metrics_table_html(runs, "Runs")


def _all_subjects(material: Material) -> list[Subject]:
    known = {
        id(one): one for one in (*material.subjects, *(one for team in material.ensembles.values() for one in team))
    }
    return list(known.values())


def _numbers(material: Material, left_out: dict[str, str]) -> dict[str, Any]:
    results = material.single_results | material.ensemble_results
    return {
        "format": "quintet-report",
        "version": 1,
        "corpus": material.corpus.name,
        "results": {name: result.to_json() for name, result in results.items()},
        "human_agreement": {name: found.to_json() for name, found in material.agreements.items()},
        "pairs_per_second": material.speeds,
        "special_samples": [] if "special" in left_out else material.special,
        "left_out": left_out,
    }


REPORT_STYLE = """
html { scroll-padding-top: 1rem; }
section.part { margin-top: 3rem; }
.part > h2 { font-size: 1.35rem; margin-bottom: .6rem; }
.part > h2::before, .part > h2::after { content: none; }
h3 { font-size: 1.05rem; line-height: 1.4; margin: 1.4rem 0 .3rem; font-weight: 600; overflow-wrap: anywhere; }
p { max-width: 46rem; }
a { color: inherit; }
code { font-size: .85em; overflow-wrap: anywhere; }
.soft { color: var(--soft); font-size: .88em; font-weight: 400; }
.banner { border: 2px solid var(--right); border-radius: 10px; padding: .6rem .9rem; }
nav ul { list-style: none; display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; padding: 0; margin: 0 0 1rem; }
thead td { border: 0; }
th[scope=colgroup] { text-align: center; }
td, th { vertical-align: top; }
.results td, .results th { padding: .4rem .5rem; }
.results td:first-child, .results th:first-child { padding-left: .9rem; white-space: normal; min-width: 7rem; }
figure.chart { height: auto; margin: 1rem 0; background: #fff; color: #23272b; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr)); gap: .8rem 1rem;
  padding: .6rem; }
.panels img { max-width: 36rem; height: auto; aspect-ratio: auto; margin: 0 auto; background: #fff; }
section.query { margin-top: 1.2rem; }
section.query > p { margin: .1rem 0 .6rem; }
.beside { display: grid; grid-template-columns: minmax(9rem, 14rem) 1fr; gap: 1rem; align-items: start; }
.beside td, .beside th { text-align: left; white-space: normal; padding: .3rem .5rem; }
.beside th, .beside td:nth-child(2) { width: 3.5rem; }
.query > figure { max-width: 14rem; }
.versus { grid-template-columns: 1fr 1fr; margin-top: .6rem; }
.kinds th, .kinds td:nth-child(2) { width: auto; white-space: nowrap; }
h4 { font-size: .95rem; margin: .2rem 0; overflow-wrap: anywhere; }
tr.right td, tr.right th { font-weight: 600; }
tr .mark { float: none; white-space: nowrap; }
.stand-in { display: grid; place-items: center; min-height: 4rem; padding: .5rem; background: var(--line);
  color: var(--soft); font-size: .78rem; text-align: center; overflow-wrap: anywhere; }
ol.small { grid-template-columns: repeat(auto-fill, minmax(7.5rem, 1fr)); }
@media (max-width: 34rem) { .beside { grid-template-columns: 1fr; } .beside figure { max-width: 14rem; } }
@media print { :root { --page: #fff; --card: #fff; --ink: #000; --soft: #444; --line: #bbb; } nav { display: none; }
  main { max-width: none; padding: 0; } figure, section.query, tr { break-inside: avoid; }
  .wide { overflow: visible; } }
"""
