"""The parts of docs/reliability.md between their markers, from benchmarks/results/torture.json and fuzz.json.

python -m benchmarks.pages.reliability_page
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.pages.generated_part import fill
from benchmarks.pages.plain_table import table

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reliability.md"
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


def fuzz_section(found: dict[str, Any]) -> str:
    """A row a target, then what was found."""
    targets = found["targets"]
    rows = [
        (name, one["seconds"], f"{one['executions']:,}", one["edges"], one["inputs"], len(one["crashes"]))
        for name, one in targets.items()
    ]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    executions, seconds = (sum(one[key] for one in targets.values()) for key in ("executions", "seconds"))
    crashes = [
        (name, each["where"], each["what"], each["said"]) for name, one in targets.items() for each in one["crashes"]
    ]
    parts = [
        f"{found['processors']} processors, {versions}: {executions:,} executions in {seconds / 60:.0f} minutes of "
        f"fuzzing, **{len(crashes)} crashes** of different kinds.",
        table(("target", "seconds", "executions", "edges", "inputs kept", "crashes"), _text(rows)),
    ]
    if crashes:
        parts.append(table(("target", "line", "crash", "message"), _text(crashes)))
    return "\n\n".join(parts)


PARTS = {"campaign": ("torture.json", section), "fuzz": ("fuzz.json", fuzz_section)}


def page(text: str, part: str, found: dict[str, Any]) -> str:
    return fill(PAGE, text, part, PARTS[part][1](found))


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    for part, (result, _) in PARTS.items():
        path = ROOT / "benchmarks/results" / result
        text = page(text, part, json.loads(path.read_text(encoding="utf-8")))
    PAGE.write_text(text, encoding="utf-8")
