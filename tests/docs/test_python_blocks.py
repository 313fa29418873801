"""The Python code of the pages runs as it is written: the blocks of a page, one after the other, are one program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime")

PAGES = ["README.md", "docs/python.md", "docs/search.md", "docs/stores.md", "docs/methods/vse.md"]


@pytest.mark.slow
@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(page: str, blocks_of: Callable[[str, str], list[Any]]) -> None:
    blocks = blocks_of(page, "python")
    assert blocks
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        exec(compile("\n" * (block.line - 1) + block.text, str(block.page), "exec"), names)


def test_blocks_are_found_by_language(tmp_path: Path, blocks_of: Callable[[str, str], list[Any]]) -> None:
    (tmp_path / "page.md").write_text("text\n```python\na = 1\n```\n```sh\nls\n```\n```python\nb = a\n\nc = b\n```\n")
    found = blocks_of(str(tmp_path / "page.md"), "python")
    assert [(block.line, block.text) for block in found] == [(3, "a = 1"), (9, "b = a\n\nc = b")]
    assert [block.text for block in blocks_of(str(tmp_path / "page.md"), "sh")] == ["ls"]
