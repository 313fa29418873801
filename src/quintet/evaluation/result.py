"""`Result`: numbers with everything needed to judge and to repeat them."""

from __future__ import annotations

import hashlib
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

import quintet
from quintet.errors import QuintetError
from quintet.evaluation.metrics import Metrics
from quintet.evaluation.ranks import Ranks
from quintet.evaluation.relevance import JudgedResult
from quintet.evaluation.significance import Difference, Interval
from quintet.evaluation.slices import SliceResult
from quintet.files import MARK, json_text, output_text, write_output

FORMAT, VERSION = "quintet-result", 1
_RANK_FIELDS = ("image_groups", "text_groups", "pair_image", "pair_text", "pair_i2t", "pair_t2i")


@dataclass(frozen=True)
class Result:
    """One measurement: a matcher or an ensemble on a split, under a protocol."""

    protocol: str
    split: str
    split_checksum: str  # of the ids and groups, in order: two results with the same one are comparable
    members: tuple[str, ...]  # one name: a single model; several: an ensemble
    metrics: Metrics
    intervals: dict[str, Interval]  # 95 % bootstrap; empty where none was asked for
    chance: Metrics
    counts: dict[str, Any]
    settings: dict[str, Any]  # block, bootstrap, seed, device
    ranks: tuple[Ranks, ...]  # one a fold
    judged: dict[str, JudgedResult] = field(default_factory=dict, kw_only=True)  # "eccv", "cxc", "relevance"
    slices: tuple[SliceResult, ...] = field(default=(), kw_only=True)

    @property
    def kind(self) -> str:
        return "single model" if len(self.members) == 1 else f"ensemble of {len(self.members)}"

    @property
    def rsum(self) -> float:
        """The sum of the six recalls, at most 600."""
        return self.metrics["rsum"]

    def table(self, width: int = 100) -> str:
        """Both directions with their intervals, and the chance level, as text."""
        return printed([results_table({" + ".join(self.members): self})], width)

    def save(self, path: Path | str) -> None:
        """Write one JSON file: the result and how it was made."""
        write_result(path, self)

    def to_json(self) -> dict[str, Any]:
        """Everything but the ranks, as JSON values."""
        more: dict[str, Any] = (
            {"judged": {name: found.to_json() for name, found in self.judged.items()}} if self.judged else {}
        )
        if self.slices:
            more["slices"] = [found.to_json() for found in self.slices]
        return {
            "format": FORMAT,
            "version": VERSION,
            "kind": self.kind,
            "members": list(self.members),
            "protocol": self.protocol,
            "split": self.split,
            "split_checksum": self.split_checksum,
            "metrics": self.metrics,
            "intervals": {name: list(interval) for name, interval in self.intervals.items()},
            "chance": self.chance,
            "counts": self.counts,
            "settings": self.settings,
            **more,
        }

    def save_ranks(self, path: Path | str) -> None:
        """The rank of every positive pair in both directions, as one .npz file."""
        arrays = {
            f"fold{k}_{name}": getattr(ranks, name) for k, ranks in enumerate(self.ranks) for name in _RANK_FIELDS
        }
        with write_output(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **{MARK: np.array(VERSION)} | arrays)


def load_ranks(path: Path | str) -> tuple[Ranks, ...]:
    """What `Result.save_ranks` wrote: the ranks of each fold, for a paired test without scoring again."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            folds = max(1, len(arrays.files) // len(_RANK_FIELDS))  # beside the mark
            return tuple(Ranks(*(arrays[f"fold{k}_{name}"] for name in _RANK_FIELDS)) for k in range(folds))
    except FileNotFoundError:
        raise QuintetError(f"{path} does not exist") from None
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise QuintetError(f"{path} does not hold ranks saved by Quintet: {error}") from None


def provenance() -> dict[str, Any]:
    """How this process was started, with what, on what."""
    versions = {"quintet": quintet.__version__, "torch": torch.__version__, "numpy": np.__version__}
    return {
        "command": _command(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {**versions, "python": platform.python_version()},
        "code": code_version(),
        "machine": {
            "system": platform.system(),
            "processor": platform.machine(),
            "threads": torch.get_num_threads(),
            "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }


@cache
def code_version() -> dict[str, str | None]:
    """The commit where the package runs from a git checkout, and a checksum of its Python files in any case."""
    package = Path(quintet.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()} {len(path.read_bytes())}\n".encode() + path.read_bytes())
    return {"commit": _commit(package), "sources_sha256": digest.hexdigest()}


def _commit(package: Path) -> str | None:
    """With "+changed" behind it where files of the package differ from it."""
    if not (package.parents[1] / ".git").exists():  # installed, or a part of another repository
        return None
    git = ["git", "-C", str(package)]
    try:
        found = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run([*git, "status", "--porcelain", "--", "."], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found + ("+changed" if changed.stdout.strip() else "")


def _command() -> str:
    """As it was typed: an installed program without the folder of the environment that it happens to be in."""
    program, *arguments = sys.argv or [""]
    line = shlex.join([Path(program).name if Path(program).is_absolute() else program, *arguments])
    return line.encode("utf-8", "backslashreplace").decode()  # arguments that are not UTF-8


def write_result(path: Path | str, result: Result, **more: Any) -> None:
    """Write one JSON file: the result, how it was made, and what the caller adds.

    Callers add what a result cannot know: `corpus` (name), `runs` (names and checksums of their weights), `recipe`.
    """
    output_text(path, json_text({**result.to_json(), "provenance": {**provenance(), **more}}))


DIRECTION_WORDS = {"i2t": "image to text", "t2i": "text to image"}
HEADINGS = {"r1": "R@1", "r5": "R@5", "r10": "R@10", "medr": "medr", "meanr": "meanr", "map_at_r": "mAP@R"}
JUDGED_HEADINGS = HEADINGS | {"rprecision": "R-Precision", "ndcg10": "nDCG@10", "ndcg": "nDCG"}
WITH_INTERVAL = ("r1", "r5", "r10")
LABEL_WIDTH = 15  # with it the table fits 80 columns


def results_table(results: Mapping[str, Result], title: str | None = None) -> Table:
    """One table for any number of results on the same split: both directions, intervals below, chance last."""
    table = Table(
        title=escape(title) if title else None,
        box=None,
        header_style="bold",
        padding=(0, 1, 0, 0),
        title_justify="left",
    )
    table.add_column("", min_width=LABEL_WIDTH, max_width=LABEL_WIDTH, overflow="fold")  # a long name costs lines only
    for heading in (*HEADINGS.values(), "rsum"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, result in results.items():
        table.add_row(f"[bold]{escape(name)}[/]" if len(result.members) == 1 else f"[bold]{result.kind}[/]")
        for direction, words in DIRECTION_WORDS.items():
            cells = [_cell(result, f"{direction}_{metric}", metric in WITH_INTERVAL) for metric in HEADINGS]
            table.add_row(f"  {words}", *cells, _cell(result, "rsum", True) if direction == "t2i" else "")
    chance = next(iter(results.values())).chance
    table.add_row("[dim]chance[/]")
    for direction, words in DIRECTION_WORDS.items():
        cells = [_number(chance[f"{direction}_{metric}"], metric) for metric in HEADINGS]
        row = (f"  {words}", *cells, _number(chance["rsum"], "rsum") if direction == "t2i" else "")
        table.add_row(*row, style="dim")
    intervals = any(result.intervals for result in results.values())
    notes = [f"{result.kind}: {escape(name)}" for name, result in results.items() if len(result.members) > 1]
    table.caption = "\n".join([*notes, *(["below the number: its 95 % bootstrap interval"] if intervals else [])])
    table.caption_justify = "left"
    return table


def judged_tables(results: Mapping[str, Result]) -> list[Table]:
    """A table for each further set of relevant pairs: both directions of every result, intervals below."""
    tables = []
    for name in dict.fromkeys(name for result in results.values() for name in result.judged):
        found = {label: result.judged[name] for label, result in results.items()}
        first = next(iter(found.values()))
        measures = dict.fromkeys(metric.split("_", 1)[1] for metric in first.metrics)
        counts = (f"{first.counts[f'{d}_queries']:,} queries {words}" for d, words in DIRECTION_WORDS.items())
        table = Table(
            title=escape(first.title), box=None, header_style="bold", padding=(0, 1, 0, 0), title_justify="left"
        )
        table.add_column("", min_width=LABEL_WIDTH, max_width=LABEL_WIDTH, overflow="fold")
        for measure in measures:
            table.add_column(JUDGED_HEADINGS[measure], justify="right", no_wrap=True)
        for label, each in found.items():
            table.add_row(f"[bold]{escape(label)}[/]")
            for direction, words in DIRECTION_WORDS.items():
                if f"{direction}_{next(iter(measures))}" in each.metrics:
                    names = [f"{direction}_{measure}" for measure in measures]
                    table.add_row(
                        f"  {words}", *(_with_interval(each.metrics[n], each.intervals.get(n), n) for n in names)
                    )
        table.caption = "\n".join([", ".join(counts), *first.notes])
        table.caption_justify = "left"
        tables.append(table)
    return tables


def slice_tables(results: Mapping[str, Result]) -> list[Table]:
    """A table for each way of slicing: the recalls of every slice with their intervals, and how many queries it has."""
    tables = []
    for name, result in results.items():
        for slicing in dict.fromkeys(found.slicing for found in result.slices):
            title = f"{name}, by {slicing}" if len(results) > 1 else f"by {slicing}"
            table = Table(
                title=escape(title), box=None, header_style="bold", padding=(0, 1, 0, 0), title_justify="left"
            )
            table.add_column("", min_width=LABEL_WIDTH, overflow="fold")
            for heading in ("queries", *(HEADINGS[measure] for measure in WITH_INTERVAL)):
                table.add_column(heading, justify="right", no_wrap=True)
            for direction, words in DIRECTION_WORDS.items():
                rows = [found for found in result.slices if found.slicing == slicing]
                rows = [found for found in rows if found.counts[f"{direction}_queries"]]
                if rows:
                    table.add_row(f"[bold]{words}[/]")
                for found in rows:
                    names = [f"{direction}_{measure}" for measure in WITH_INTERVAL]
                    cells = [_with_interval(found.metrics[each], found.intervals.get(each), each) for each in names]
                    table.add_row(f"  {escape(found.label)}", f"{found.counts[f'{direction}_queries']:,}", *cells)
            tables.append(table)
    return tables


def comparison_table(label: str, differences: Mapping[str, Difference]) -> Table:
    """How much two results differ on the same queries, and the p-value of that."""
    table = Table(title=escape(label), box=None, header_style="bold", padding=(0, 1, 0, 0), title_justify="left")
    for heading in ("", "difference", "95 % interval", "p"):
        table.add_column(heading, justify="right" if heading else "left")
    own = [f"{direction}_{measure}" for direction in DIRECTION_WORDS for measure in HEADINGS]
    order = [name for name in (*own, "rsum") if name in differences]
    before = ""
    for name in [*order, *(name for name in differences if ": " in name)]:
        part, _, metric = name.rpartition(": ")
        direction, _, measure = metric.partition("_")
        if "," in part and measure not in WITH_INTERVAL:  # as in the tables of slices; all are in the file
            continue
        if part != before:
            table.add_row(f"[bold]{escape(part)}[/]")
            before = part
        words = f"{DIRECTION_WORDS[direction]} {JUDGED_HEADINGS[measure]}" if measure else metric
        found = differences[name]
        low, high = found.interval
        shown = f"{found.difference:+.2f}", f"{low:+.2f} to {high:+.2f}", f"{found.p_value:.4f}"
        table.add_row(f"  {words}" if part else words, *shown)
    table.caption = "paired by group: bootstrap interval, p by sign flips"
    table.caption_justify = "left"
    return table


def _cell(result: Result, name: str, with_interval: bool) -> str:
    return _with_interval(result.metrics[name], result.intervals.get(name) if with_interval else None, name)


def _with_interval(value: float, interval: Interval | None, name: str) -> str:
    number = _number(value, name)
    if interval is None:
        return number
    low, high = interval
    return f"{number}\n[dim]{_short(low)}-{_short(high)}[/]"


def _number(value: float, name: str) -> str:
    if name.endswith("medr"):
        return f"{value:g}"
    return f"{value:.2f}" if round(abs(value), 2) < 1 else f"{value:.1f}"


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") if value >= 99.95 else f"{value:.1f}"


def special_samples_table(found: Mapping[str, Any]) -> Table:
    """R@1 of each run on the hard and on the infrequent queries."""
    title = f"R@1 on hard and infrequent queries, chosen by {escape(found['chosen_by'])}"
    table = Table(title=title, box=None, header_style="bold", padding=(0, 1, 0, 0), title_justify="left")
    for heading in ("", "per cent", "", "image to text", "text to image"):
        table.add_column(heading, justify="right" if heading else "left")
    for row in found["rows"]:
        recalls = (f"{row['i2t_r1']:.1f}", f"{row['t2i_r1']:.1f}")
        table.add_row(row["samples"], str(row["percent"]), escape(row["run"]), *recalls)
    return table


def printed(tables: Sequence[RenderableType], width: int = 100) -> str:
    """What rich draws, as text without colours."""
    text = StringIO()
    console = Console(file=text, width=width, color_system=None)
    for table in tables:
        console.print(table)
    return text.getvalue().rstrip()
