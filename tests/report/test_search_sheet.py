from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from quintet.report.search_sheet import Answers, Result, write_search_sheet
from quintet.search.explain import Explanation, RegionWeights, WordWeight


def test_results_explanations_and_missing_images_are_shown(tmp_path: Path) -> None:
    Image.new("RGB", (300, 200), "teal").save(tmp_path / "a.png")
    (tmp_path / "damaged.png").write_text("nothing")
    boxes = np.array([[0.0, 0.0, 0.5, 1.0], [0.5, 0.0, 1.0, 1.0]])
    why = Explanation(
        (WordWeight("<dog>", 0.5), WordWeight("a", -0.1)), 0.7, (RegionWeights("dog", boxes, boxes[:, 0]),)
    )
    results = [
        Result(0.7, tmp_path / "a.png", "a.png", why),
        Result(0.6, tmp_path / "damaged.png", "damaged.png", why),
        Result(0.5, None, "a text & more", Explanation((WordWeight("a", 0.0),), 0.5)),
    ]
    write_search_sheet(tmp_path / "sheet.html", [Answers("a <dog>", results), Answers("b", [], tmp_path / "a.png")])
    page = (tmp_path / "sheet.html").read_text()
    assert "a &lt;dog&gt;" in page
    assert "a text &amp; more" in page
    assert page.count("data:image/") == 3  # the result, the attention of its word, the query image
    assert "not an image" in page
    assert "No results." in page
    assert "attention of dog" in page
