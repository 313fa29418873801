"""A part of a page that a script writes; the rest of the page is written by hand."""

from __future__ import annotations

from pathlib import Path


def fill(page: Path, text: str, part: str, content: str) -> str:
    """The text of a page with this content between the markers of the part."""
    begin, end = f"<!-- {part}: begin (generated) -->", f"<!-- {part}: end -->"
    before, _, rest = text.partition(begin)
    _, marker, after = rest.partition(end)
    if not marker:
        raise SystemExit(f"{page} has no markers for {part}")
    return f"{before}{begin}\n\n{content}\n\n{end}{after}"
