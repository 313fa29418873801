from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_what_the_script_writes(script: Any) -> None:
    text = (ROOT / "docs/choosing.md").read_text(encoding="utf-8")
    assert script("choosing_page").page(text) == text, "run python -m benchmarks.pages.choosing_page"


def test_costs_are_of_one_text_and_of_a_thousand_images(script: Any) -> None:
    found = json.loads((ROOT / "benchmarks/results/accuracy_speed_flickr8k_cpu.json").read_text())
    (bfan,) = (row for row in found["rows"] if row["recipe"] == "aoq-bfan-flickr8k")
    texts, images = found["settings"]["texts"], found["settings"]["images"]
    (line,) = (line for line in script("choosing_page").methods().splitlines() if "[BFAN]" in line)
    rsum, text, scores = map(float, line.split("|")[3:6])
    files = [ROOT / "benchmarks/results/flickr8k" / f"bfan-equal-online-seed{seed}.json" for seed in range(3)]
    assert abs(rsum - sum(json.loads(file.read_text())["metrics"]["rsum"] for file in files) / 3) < 0.051
    assert abs(text - bfan["encode_texts_seconds"] / texts * 1000) < 0.051
    assert abs(scores - bfan["score_seconds"] / (texts * images) * 1000 * 1000) < 0.051
