"""`make torture`: attacks the commands and files of Quintet until the time is up, and says what survived.

    python -m benchmarks.torture.campaign --minutes 30 --seed 0 --out benchmarks/results/torture.json
    python -m benchmarks.torture.campaign --only "bit flip: index" --turn 17 --seed 0     # one try again

A try is a function of seed, attack and turn; only kills at random times depend on the speed of the machine as well.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.torture import belongings, damage, hostile, interruptions, server, sharing
from benchmarks.torture.attack import Attack, Outcome, in_child
from benchmarks.torture.material import Material, make_material
from quintet.evaluation.result import provenance
from quintet.files import write_json

ATTACKS: dict[str, Attack] = {
    **interruptions.ATTACKS,
    **damage.ATTACKS,
    **sharing.ATTACKS,
    **hostile.ATTACKS,
    **belongings.ATTACKS,
    **server.ATTACKS,
}
FAMILIES = {
    "interruptions": interruptions.ATTACKS,
    "damage": damage.ATTACKS,
    "sharing": sharing.ATTACKS,
    "hostile": hostile.ATTACKS,
    "belongings": belongings.ATTACKS,
    "server": server.ATTACKS,
}


@dataclass
class Score:
    tries: int = 0
    lost: int = 0
    losses: Counter[tuple[str, str]] = field(default_factory=Counter)
    examples: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)  # the first of each kind

    def add(self, name: str, outcome: Outcome, turn: int, folder: Path) -> None:
        self.tries += 1
        if not outcome.what:
            return
        self.lost += 1
        print(f"lost: {name}, turn {turn}: {outcome.target}: {outcome.what}", file=sys.stderr, flush=True)
        key = outcome.target, outcome.what
        self.losses[key] += 1
        detail = re.sub(r"\.[a-z0-9_]{8}\.partial", ".*.partial", outcome.detail.replace(str(folder), ""))
        detail = re.sub(r"0x[0-9a-f]+|[0-9a-f]{16,}", "*", detail).replace(tempfile.gettempdir(), "")
        self.examples.setdefault(key, {"turn": turn, "detail": detail.encode("utf-8", "replace").decode()})

    def as_json(self) -> dict[str, Any]:
        losses = [
            {"target": target, "what": what, "count": count, **self.examples[target, what]}
            for (target, what), count in self.losses.most_common()
        ]
        return {"tries": self.tries, "survived": self.tries - self.lost, "lost": self.lost, "losses": losses}


def one_try(name: str, seed: int, turn: int, made: Material, folder: Path, score: Score) -> None:
    """One turn of one attack, in a folder of its own."""
    at = folder / "try"
    at.mkdir()
    try:
        for outcome in ATTACKS[name](random.Random(f"{seed} {name} {turn}"), made, at):
            score.add(name, outcome, turn, at)
    finally:
        shutil.rmtree(at)


def run(minutes: float, seed: int, names: list[str], turn: int | None = None) -> dict[str, Score]:
    """Every attack has its turn, in an order of the seed's, until the time is up. `turn`: this one only, of each."""
    end = time.monotonic() + 60 * minutes
    order = random.Random(seed).sample(names, len(names))
    turns = itertools.count() if turn is None else [turn]
    scores = {name: Score() for name in names}
    with tempfile.TemporaryDirectory(prefix="quintet-torture-") as name:
        made = Material(Path(name) / "material")
        made.folder.mkdir()
        ending = in_child(make_material, made.folder, seconds=300)
        if ending.kind != "done":
            raise SystemExit(f"the material could not be made: {ending.what} {ending.detail}")
        for number in turns:
            for attack in order:
                if turn is None and time.monotonic() > end:
                    return scores
                one_try(attack, seed, number, made, Path(name), scores[attack])
    return scores


def table(scores: dict[str, Score]) -> str:
    width = max(map(len, scores))
    lines = [f"{'attack':{width}}  tries  survived  lost"]
    for name, score in scores.items():
        lines.append(f"{name:{width}}  {score.tries:5}  {score.tries - score.lost:8}  {score.lost:4}")
        lines += [f"    lost {count}: {target}: {what}" for (target, what), count in score.losses.most_common()]
    tries, lost = sum(score.tries for score in scores.values()), sum(score.lost for score in scores.values())
    return "\n".join([*lines, f"{'all':{width}}  {tries:5}  {tries - lost:8}  {lost:4}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long, beside making the material")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", metavar="TEXT", help="attacks or families whose name holds TEXT")
    parser.add_argument("--turn", type=int, help="do this turn only: a try again")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    wanted = options.only or [""]
    names = [
        name
        for family, attacks in FAMILIES.items()
        for name in attacks
        if any(text in f"{family} {name}" for text in wanted)
    ]
    if not names:
        sys.exit(f"no attack is called {options.only}; there are:\n" + "\n".join(ATTACKS))
    began = time.monotonic()
    scores = run(options.minutes, options.seed, names, options.turn)
    print(table(scores))
    if options.out:
        result = provenance() | {
            "seed": options.seed,
            "minutes": round((time.monotonic() - began) / 60, 1),
            "device": "cpu",
            "processors": os.cpu_count(),
            "attacks": {
                family: {name: scores[name].as_json() for name in attacks if name in scores}
                for family, attacks in FAMILIES.items()
            },
        }
        write_json(options.out, result)


if __name__ == "__main__":
    main()
