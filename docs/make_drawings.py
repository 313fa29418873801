"""Draws the SVG files of the documentation: `python -m docs.make_drawings`, from the root.

Pipelines and the architecture are lists of boxes in docs/drawings.yaml. Charts and the strip of mined images are drawn
from result files under benchmarks/results. A drawing is 360 pixels wide, so that its text keeps its size on a phone,
and has a light and a dark form in one file.
"""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import yaml
from PIL import Image

from benchmarks.grids.evidence_grid import BATCHES, SIZES
from benchmarks.measure.scenes_mining import train_scenes
from benchmarks.pages.evidence_claims import searched
from benchmarks.pages.evidence_numbers import Effect, Runs, gain, name_of, read_runs
from quintet.data.scenes.generate import SCENES, SPLITS
from quintet.data.scenes.render import draw
from quintet.data.scenes.scene import generator
from quintet.files import read_json, write_text

HERE = Path(__file__).parent
RESULTS = HERE.parent / "benchmarks/results"
WIDTH, EDGE = 360, 8  # of a drawing; the part inside its edges is 344 wide
FONT, SMALL = 12.5, 11.5  # pixels: titles, and the text below them
LINE, GAP, PAD = 15.5, 18, 7  # of text; between rows; inside a box
SPANS = {"left": (0, 48.5), "right": (51.5, 100), "wide": (0, 100)}  # percent of the width
NARROWEST = 10  # percent: a box that another sees less of has no arrow to it

# Colours by class: what is filled and stroked in light, then in dark.
FILLS = {
    "given": ("#eef1f4", "#8a97a3", "#2b333c", "#76838f"),
    "image": ("#e3effb", "#3f7db8", "#1c3550", "#5c9ad6"),
    "text": ("#fdf0dc", "#b67d20", "#45351a", "#cf9a45"),
    "both": ("#eceafb", "#7566c2", "#302b52", "#9588e0"),
    "right": ("#e2f4e6", "#2e8b4d", "#1c3d29", "#55b877"),
    "wrong": ("#fbe6e4", "#c0453b", "#4a2220", "#e07a70"),
}
INKS = {"ink": ("#1b232b", "#eaf0f5"), "soft": ("#51606d", "#b3c0cb"), "axis": ("#d3dae0", "#3d4852")}
LINES = (("#2266a8", "#6db1f2"), ("#b5600a", "#f0a94e"), ("#6a55c4", "#a99bf2"))  # of a chart
PANEL = ("#ffffff", "#171c22")


def style() -> str:
    light, dark = ([f".panel{{fill:{fill}}}.label{{stroke:{fill}}}"] for fill in PANEL)
    for name, (fill, stroke, dark_fill, dark_stroke) in FILLS.items():
        light.append(f".{name}{{fill:{fill};stroke:{stroke}}}")
        dark.append(f".{name}{{fill:{dark_fill};stroke:{dark_stroke}}}")
    for name, (by_day, by_night) in INKS.items():
        light.append(f".{name}{{fill:{by_day}}}.{name}-line{{stroke:{by_day};fill:none}}")
        dark.append(f".{name}{{fill:{by_night}}}.{name}-line{{stroke:{by_night}}}")
    for number, (by_day, by_night) in enumerate(LINES):
        light.append(f".line{number}{{stroke:{by_day};fill:none}}.dot{number}{{fill:{by_day}}}")
        dark.append(f".line{number}{{stroke:{by_night}}}.dot{number}{{fill:{by_night}}}")
    always = f"text{{font:{SMALL}px system-ui,sans-serif}}.title{{font-weight:600;font-size:{FONT}px}}"
    always += ".dashed{stroke-dasharray:5 3}.label{stroke-width:4px;paint-order:stroke}"  # no line runs through a label
    return f"<style>{always}{''.join(light)}@media(prefers-color-scheme:dark){{{''.join(dark)}}}</style>"


def svg(title: str, height: float, parts: Iterable[str]) -> str:
    marker = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="soft" d="M0 0L8 4L0 8Z"/></marker></defs>'
    )
    size = f'width="{WIDTH}" height="{_n(height)}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {WIDTH} {_n(height)}" role="img">'
    panel = f'<rect class="panel" {size} rx="8"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", style(), marker, panel, *parts, "</svg>"]) + "\n"


def _n(value: float) -> str:
    """A number with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def words(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    """One line of text. `x_i` and `x_{off}` have subscripts, `x^T` has a superscript, `~` is a space that stays."""
    marked = escape(text.replace("~", " "), quote=False)
    for mark, shift in ((r"(?<!\w\w)_", 3), (r"\^", -4)):  # file_names keep their underscores
        marked = re.sub(
            mark + r"(?:\{(.+?)\}|(\w))",
            lambda found, shift=shift: (
                f'<tspan dy="{shift}" font-size="11">{found[1] or found[2]}</tspan><tspan dy="{-shift}">\u200b</tspan>'
            ),
            marked,
        )
    where = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text class="{kind}" x="{_n(x)}" y="{_n(y)}"{where}>{marked}</text>'


def wrap(text: str, width: float, size: float) -> list[str]:
    """Lines of at most a width, by the mean width of a character."""
    lines = [""]
    text = re.sub(r"Eq\. \d+(?:(?:,| to) \d+)?", lambda found: found[0].replace(" ", "~"), text)
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and len(re.sub(r"[_^{}]", "", longer)) * size * 0.535 > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


# Boxes and arrows


def boxes(drawing: Mapping[str, Any]) -> str:
    parts: list[str] = []
    skyline: list[tuple[float, float, float]] = []  # from, to (percent), lower edge: what a new box sees
    rows: list[list[dict[str, Any]]] = []
    for box in drawing["boxes"]:
        low, high = SPANS[box["at"]] if isinstance(box["at"], str) else box["at"]
        if not rows or low < rows[-1][-1]["high"]:
            rows.append([])
        rows[-1].append({**box, "low": low, "high": high})
    top: float = EDGE
    for row in rows:
        texts = [_lines(box) for box in row]
        height = max(map(len, texts)) * LINE + 2 * PAD
        for box, lines in zip(row, texts, strict=True):
            left, right = _x(box["low"]), _x(box["high"])
            for low, high, bottom in skyline:
                seen = max(low, box["low"]), min(high, box["high"])
                if seen[1] - seen[0] >= NARROWEST:
                    x = _n(_x(sum(seen) / 2))
                    parts.append(
                        f'<path class="soft-line" d="M{x} {_n(bottom)}V{_n(top - 1)}" marker-end="url(#tip)"/>'
                    )
            dashed = " dashed" if "when" in box else ""
            parts.append(
                f'<rect class="{box["of"]}{dashed}" x="{_n(left)}" y="{_n(top)}" width="{_n(right - left)}" '
                f'height="{_n(height)}" rx="5"/>'
            )
            y = top + (height - len(lines) * LINE) / 2 + 12
            for kind, line in lines:
                parts.append(words((left + right) / 2, y, line, kind, "middle"))
                y += LINE
        for box in row:
            skyline = [rest for old in skyline for rest in _uncovered(old, box["low"], box["high"])]
            skyline.append((box["low"], box["high"], top + height))
        top += height + GAP
    return svg(drawing["title"], top - GAP + EDGE, parts)


def _x(percent: float) -> float:
    return EDGE + (WIDTH - 2 * EDGE) * percent / 100


def _lines(box: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Class and text of each line of a box."""
    width = _x(box["high"]) - _x(box["low"]) - 12
    lines = [("title ink", line) for line in wrap(box["title"], width / 1.06, FONT)]
    for key in ("text", "when", "in"):
        if key in box:
            given = [box[key]] if isinstance(box[key], str) else box[key]
            lines += [("ink" if key == "text" else "soft", line) for part in given for line in wrap(part, width, SMALL)]
    return lines


def _uncovered(old: tuple[float, float, float], low: float, high: float) -> list[tuple[float, float, float]]:
    """What remains in sight of a lower edge when a box from low to high stands below it."""
    left, right = (old[0], min(old[1], low), old[2]), (max(old[0], high), old[1], old[2])
    return [rest for rest in (left, right) if rest[1] > rest[0]]


# Charts


class Axes:
    """A frame with labelled grid lines; `log` is of the horizontal axis."""

    left, right, top, height = 42.0, 344.0, 40.0, 190.0

    def __init__(self, xs: Sequence[float], ys: Sequence[float], *, log: bool = False) -> None:
        self.scale = math.log10 if log else float
        self.xs = self.scale(xs[0]), self.scale(xs[-1])
        self.ys = ys[0], ys[-1]
        self.parts: list[str] = []
        bottom = self.top + self.height
        for value in ys:
            y = self.y(value)
            self.parts.append(f'<path class="axis-line" d="M{_n(self.left)} {_n(y)}H{_n(self.right)}"/>')
            self.parts.append(words(self.left - 5, y + 4, f"{value:g}", "soft", "end"))
        for value in xs:
            x = self.x(value)
            self.parts.append(f'<path class="axis-line" d="M{_n(x)} {_n(bottom)}v4"/>')
            label = f"10^{{{round(math.log10(value))}}}" if log else f"{value:g}"
            self.parts.append(words(x, bottom + 17, label, "soft", "middle"))

    def x(self, value: float) -> float:
        return self.left + (self.right - self.left) * (self.scale(value) - self.xs[0]) / (self.xs[1] - self.xs[0])

    def y(self, value: float) -> float:
        return self.top + self.height * (self.ys[1] - value) / (self.ys[1] - self.ys[0])

    def finish(self, title: str, y: str, x: str, notes: Sequence[str] = ()) -> str:
        bottom = self.top + self.height + 34
        self.parts += [words(EDGE, 17, title, "title ink"), words(EDGE, 32, y, "soft")]
        self.parts.append(words(self.right, bottom, x, "soft", "end"))
        for number, note in enumerate(notes):
            self.parts.append(words(EDGE, bottom + 20 + 15 * number, note, "ink"))
        return svg(title, bottom + 14 + 15 * len(notes), self.parts)


SHORT = {  # recipe -> what it is called in a chart, and the side of the point that the name is on
    "aoq-vse-flickr8k": ("VSE++", "above"),
    "aoq-vse-flickr8k matcher.pooling=gpo matcher.text_pooling=gpo": ("VSE∞", "below"),
    "aoq-scan-flickr8k": ("SCAN t2i", "left"),
    "aoq-scan-flickr8k matcher.direction=i2t matcher.lambda_softmax=4": ("SCAN i2t", "left"),
    "aoq-bfan-flickr8k": ("BFAN", "left"),
    "aoq-vsrn-flickr8k": ("VSRN", "right"),
    "mmca-flickr8k": ("MMCA", "right"),
    "hrem-fusion-flickr8k": ("HREM", "right"),
    "heads-flickr8k matcher.text=hf:sentence-transformers/all-MiniLM-L6-v2": ("heads", "right"),
}
SIDES = {"left": (-8, 4, "end"), "right": (8, 4, "start"), "above": (0, -9, "middle"), "below": (0, 17, "middle")}


def accuracy_speed(name: str, machine: str) -> str:
    """rsum over pairs per second, of the methods' main settings; all rows are in docs/benchmarks.md."""
    rows = [
        (*SHORT[row["recipe"]], row["pairs_per_second"], row["accuracy"]["rsum"])
        for row in read_json(RESULTS / name)["rows"]
        if row["recipe"] in SHORT and "pairs_per_second" in row and row["accuracy"]
    ]
    low, high = (f(math.log10(row[2]) for row in rows) for f in (min, max))
    axes = Axes([10.0**power for power in range(math.floor(low), math.ceil(high) + 1)], range(250, 320, 10), log=True)
    for label, side, speed, rsum in rows:
        x, y = axes.x(speed), axes.y(rsum)
        axes.parts.append(f'<circle class="dot0" cx="{_n(x)}" cy="{_n(y)}" r="4.5"/>')
        right, down, anchor = SIDES[side]
        axes.parts.append(words(x + right, y + down, label, "ink label", anchor))
    return axes.finish(f"Accuracy against speed, {machine}", "rsum on Flickr8k, mean of the seeds", "pairs per second")


WARMUP = 15  # epochs of the recipe aoq-vse-scenes in which both rounds learn from all violations of a batch
CURVES_NOTE = [
    "Left of the line both rounds learn from the mean of all",
    "violations of a batch, right of it from hard negatives.",
]


def curves(content: Mapping[str, Any]) -> str:
    """Validation rsum of the two rounds."""
    found = content["curves"]
    peak = max(max(curve["rsum"]) for curve in found.values())
    axes = Axes(range(0, 21, 5), range(0, math.ceil(peak / 50) * 50 + 1, 50))
    x, low, high = (_n(each) for each in (axes.x(WARMUP), axes.y(60), axes.y(axes.ys[1])))
    axes.parts.append(f'<path class="soft-line dashed" d="M{x} {low}V{high}"/>')
    names = {"online": "round 1: online", "offline": "round 2: online and mined"}
    for number, (stage, label) in enumerate(names.items()):
        points = " ".join(
            f"{_n(axes.x(x))},{_n(axes.y(y))}" for x, y in zip(found[stage]["epoch"], found[stage]["rsum"], strict=True)
        )
        dashed = " dashed" if number else ""
        axes.parts.append(f'<polyline class="line{number}{dashed}" stroke-width="2.2" points="{points}"/>')
        y = axes.y(36 - 24 * number)
        axes.parts.append(f'<path class="line{number}{dashed}" stroke-width="2.2" d="M166 {_n(y)}h24"/>')
        axes.parts.append(words(196, y + 4, label, "ink"))
    return axes.finish("Two rounds of AOQ on scenes", "rsum on the validation split", "epoch", CURVES_NOTE)


# When offline negatives help, and how many are false

EVIDENCE_NOTES = [
    "Solid: plain lists. Dashed: cleared of false negatives by truth.",
    "Vertical: from the lowest to the highest of three seeds.",
]


def legend(axes: Axes, labels: Sequence[str], left: float, top: float) -> None:
    for number, label in enumerate(labels):
        y = top + 15 * number
        axes.parts.append(f'<path class="line{number}" stroke-width="2.2" d="M{_n(left)} {_n(y)}h20"/>')
        axes.parts.append(words(left + 26, y + 4, label, "ink"))


def polyline(axes: Axes, points: Sequence[tuple[float, float]], number: int, dashed: bool) -> None:
    made = " ".join(f"{_n(axes.x(x))},{_n(axes.y(y))}" for x, y in points)
    kind = f"line{number}{' dashed' if dashed else ''}"
    axes.parts.append(f'<polyline class="{kind}" stroke-width="2.2" points="{made}"/>')


def evidence_gain(runs: Runs) -> str:
    """The gain of AdapOffQuin over the first round, over training scenes / batch size."""
    axes = Axes([10.0, 100.0, 1000.0], range(-50, 21, 10), log=True)
    for number, batch in enumerate(BATCHES):
        for what in ("adapoffquin-plain", "adapoffquin-truth"):
            dashed = what.endswith("truth")
            effects = [
                (size / batch, Effect(runs, gain(size, batch, what) if dashed else searched(runs, size, batch)))
                for size in SIZES
            ]
            measured = [(ratio, effect) for ratio, effect in effects if effect.seeds]
            polyline(axes, [(ratio, effect.mean()) for ratio, effect in measured], number, dashed)
            for ratio, effect in () if dashed else measured:
                x, low, high = (
                    _n(one) for one in (axes.x(ratio), axes.y(min(effect.by_seed())), axes.y(max(effect.by_seed())))
                )
                axes.parts.append(f'<path class="line{number}" stroke-width="1.2" d="M{x} {low}V{high}"/>')
                axes.parts.append(f'<circle class="dot{number}" cx="{x}" cy="{_n(axes.y(effect.mean()))}" r="3.5"/>')
    legend(axes, [f"batches of {batch}" for batch in BATCHES], 215, axes.y(-36))
    y = "test rsum of AdapOffQuin minus that of the first round"
    return axes.finish("When do offline negatives help?", y, "training scenes / batch size", EVIDENCE_NOTES)


def evidence_false(runs: Runs) -> str:
    """The share of mined negatives that are true, by their rank, after first rounds in batches of 128."""
    axes = Axes([1.0, 10.0, 100.0, 1000.0], range(0, 41, 10), log=True)
    sizes = (SIZES[0], SIZES[1], SIZES[3])
    for number, size in enumerate(sizes):
        made = [one["false_by_rank"] for one in runs[name_of(size, 128, "lists")].values()]
        for side in ("texts", "images"):
            means = [100 * sum(values) / len(made) for values in zip(*(one[side] for one in made), strict=True)]
            ranks = sorted({round(10 ** (step / 12)) for step in range(40)})  # evenly along the axis
            polyline(axes, [(at, means[at - 1]) for at in ranks if at <= len(means)], number, side == "images")
    legend(axes, [f"{size:,} scenes" for size in sizes], 245, axes.y(38))
    notes = ["Solid: texts of an image. Dashed: images of a text."]
    return axes.finish("How many mined negatives are true?", "per cent, mean of three seeds", "rank in the list", notes)


# The strip of mined images

THUMB = 72


def mined(content: Mapping[str, Any]) -> str:
    """An anchor, the hardest images of its text and the hardest texts of its image, each with its score and truth."""
    made, parts = train_scenes(), []

    def thumb(row: int, x: float, y: float, kind: str) -> None:
        pixels = draw(made[row], generator(0, SCENES, SPLITS.index("train"), row), THUMB).pixels
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, format="PNG", optimize=True)
        data = base64.b64encode(buffer.getvalue()).decode()
        side = f'width="{THUMB + 4}" height="{THUMB + 4}"'
        parts.append(f'<rect class="{kind}" stroke-width="3" x="{_n(x - 2)}" y="{_n(y - 2)}" {side} rx="3"/>')
        side = f'width="{THUMB}" height="{THUMB}"'
        parts.append(f'<image x="{_n(x)}" y="{_n(y)}" {side} href="data:image/png;base64,{data}"/>')

    def heading(text: str, y: float) -> None:
        parts.append(words(EDGE, y, text, "title ink"))

    def block(lines: Sequence[str], x: float, y: float, kind: str = "ink") -> None:
        for number, line in enumerate(lines):
            parts.append(words(x, y + LINE * number, line, kind))

    anchor, beside = content["anchor"], EDGE + THUMB + 14
    heading("The anchor: an image and its text", 19)
    thumb(anchor["image"], EDGE + 2, 30, "given")
    block(wrap(f"“{anchor['text']}”", WIDTH - beside - EDGE, SMALL), beside, 45)
    y = 30.0 + THUMB + 26
    heading("Its text's hardest images", y)
    step = THUMB + 16
    for number, one in enumerate(content["hard_images"]):
        x, at = EDGE + 2 + (number % 4) * step, y + 11 + (number // 4) * (THUMB + 26)
        thumb(one["image"], x, at, "right" if one["true"] else "wrong")
        parts.append(
            words(
                x + THUMB / 2,
                at + THUMB + 15,
                f"{'✓ true' if one['true'] else '✗'} {one['score']:.2f}",
                "ink",
                "middle",
            )
        )
    y += 11 + math.ceil(len(content["hard_images"]) / 4) * (THUMB + 26) + 16
    heading("Its image's hardest texts, and their images", y)
    y += 11
    for one in content["hard_texts"][:4]:
        thumb(one["image"], EDGE + 2, y, "right" if one["true"] else "wrong")
        block(wrap(f"“{one['text']}”", WIDTH - beside - EDGE, SMALL)[:4], beside, y + 12)
        block(
            [f"{'✓ true of the anchor image' if one['true'] else '✗ not true of it'}, score {one['score']:.2f}"],
            beside,
            y + THUMB - 2,
            "soft",
        )
        y += THUMB + 14
    return svg("What mining finds for one anchor", y, parts)


def drawings() -> dict[str, str]:
    """File name -> content."""
    found = {
        f"{name}.svg": boxes(one) for name, one in yaml.safe_load((HERE / "drawings.yaml").read_text("utf-8")).items()
    }
    content = read_json(RESULTS / "scenes_mining.json")
    found["mined-anchor.svg"] = mined(content)
    found["curves-scenes.svg"] = curves(content)
    runs = read_runs()
    found["evidence-gain.svg"] = evidence_gain(runs)
    found["evidence-false.svg"] = evidence_false(runs)
    found["accuracy-speed-h200.svg"] = accuracy_speed("accuracy_speed_flickr8k_h200.json", "one H200")
    found["accuracy-speed-cpu.svg"] = accuracy_speed("accuracy_speed_flickr8k_cpu.json", "two CPU cores")
    return found


def main() -> None:
    for name, content in drawings().items():
        write_text(HERE / "images/drawings" / name, content)


if __name__ == "__main__":
    main()
