from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quintet.errors import QuintetError
from quintet.report import html_report


def test_parts_that_cannot_be_made_are_told_with_their_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(*_: Any) -> str:
        raise QuintetError("figures need matplotlib")

    monkeypatch.setattr(html_report, "PARTS", [("curves", "Training curves", missing)])
    monkeypatch.setattr(html_report, "_body", lambda material, sections: "".join(one.html for one in sections))
    monkeypatch.setattr(html_report, "_made", lambda *_: "")
    monkeypatch.setattr(html_report, "_numbers", lambda *_: {})
    left_out: dict[str, str] = {}
    material: Any = SimpleNamespace(settings=SimpleNamespace(title="t"))
    page = html_report.make_report(material, tmp_path, left_out=left_out)
    assert left_out == {"curves": "figures need matplotlib"}
    assert "figures need matplotlib" in page.read_text()


@pytest.mark.parametrize("name", ["index.html", "report.json"])
def test_a_page_of_somebody_else_is_not_replaced(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(QuintetError, match="is in the way"):
        html_report.make_report(SimpleNamespace(), tmp_path)  # type: ignore[arg-type]
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "mine")]
