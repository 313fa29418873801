"""The part of docs/reliability.md between its markers, from benchmarks/results/torture.json.

python -m benchmarks.pages.reliability_page
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.pages.plain_table import table

ROOT = Path(__file__).resolve().parents[2]
RESULT, PAGE = ROOT / "benchmarks/results/torture.json", ROOT / "docs/reliability.md"
BEGIN, END = "<!-- campaign: begin (generated) -->", "<!-- campaign: end -->"
TITLES = {
    "interruptions": "Kills, power failures, failing writes",
    "damage": "Damaged files",
    "sharing": "Several processes at one folder",
    "hostile": "Hostile files and command lines",
    "belongings": "A person's files in the way",
    "server": "A running server",
}


def section(found: dict[str, Any]) -> str:
    """All tries, then every way that something was lost."""
    every = [attack for attacks in found["attacks"].values() for attack in attacks.values()]
    tries, lost = (sum(attack[key] for attack in every) for key in ("tries", "lost"))
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    parts = [
        f"`{found['command']}`: {found['minutes']:g} minutes on {found['processors']} processors, "
        f"seed {found['seed']}, {found['device']}, {versions}. "
        f"{tries:,} tries, {tries - lost:,} survived, **{lost:,} lost**."
    ]
    for family, attacks in found["attacks"].items():
        if not attacks:
            continue
        rows = [(name, one["tries"], one["survived"], one["lost"]) for name, one in attacks.items()]
        parts.append(f"### {TITLES[family]}\n\n" + table(("attack", "tries", "survived", "lost"), _text(rows)))
        losses = [(loss["target"], loss["what"], loss["count"]) for one in attacks.values() for loss in one["losses"]]
        if losses:
            together: dict[tuple[str, str], int] = {}
            for target, what, count in losses:
                together[target, what] = together.get((target, what), 0) + count
            lost_rows = [(*key, count) for key, count in sorted(together.items(), key=lambda item: (-item[1], item[0]))]
            parts.append("Lost:\n\n" + table(("what was attacked", "how it was lost", "times"), _text(lost_rows)))
    return "\n\n".join(parts)


def _text(rows: list[tuple[Any, ...]]) -> list[tuple[str, ...]]:
    return [tuple(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row) for row in rows]


def page(text: str, found: dict[str, Any]) -> str:
    before, _, rest = text.partition(BEGIN)
    _, marker, after = rest.partition(END)
    if not marker:
        raise SystemExit(f"{PAGE} has no markers for the table")
    return f"{before}{BEGIN}\n\n{section(found)}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(
        page(PAGE.read_text(encoding="utf-8"), json.loads(RESULT.read_text(encoding="utf-8"))), encoding="utf-8"
    )
