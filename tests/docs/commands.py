"""The shell commands of the documentation, as lists of words."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
)
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^ {4}\S.*\n(?:^ {4,}\S.*\n|^ *\n(?= {4}))*)", re.MULTILINE)


@dataclass(frozen=True)
class Line:
    """One command of a page, without its comment."""

    page: str
    number: int  # of the line in the page
    words: tuple[str, ...]

    @property
    def quintet(self) -> tuple[str, ...] | None:
        """The words after `quintet`, or None for another program's command."""
        if self.words[0] == "quintet":
            return self.words[1:]
        for start in range(len(self.words) - 2):
            if self.words[start : start + 2] == ("-m", "quintet"):  # torchrun, python
                return self.words[start + 2 :]
        return None

    def __str__(self) -> str:
        return f"{self.page}:{self.number}: {shlex.join(self.words)}"


def commands(page: str) -> list[Line]:
    """Every shell command of a page, in order: fenced blocks without a language (or sh), and indented blocks."""
    text = (ROOT / page).read_text(encoding="utf-8")
    shell = ("", "sh", "bash", "console")
    blocks = [(match.start(2), match.group(2)) for match in _FENCED.finditer(text) if match.group(1) in shell]
    # Blank the fences, so that an indented line inside one is not found twice.
    plain = _FENCED.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
    blocks += [(match.start(), match.group()) for match in _INDENTED.finditer(plain)]
    found = []
    for start, block in sorted(blocks):
        first = text.count("\n", 0, start) + 1
        joined = re.sub(r"\\\n", lambda _: "  ", block)
        for offset, line in enumerate(joined.splitlines()):
            try:
                words = shlex.split(line.strip().removeprefix("$ "), comments=True)
            except ValueError:  # not a shell command: prose with an apostrophe in an indented block
                continue
            if words and re.fullmatch(r"quintet|torchrun|python|make|pip|source|curl", words[0]):
                found.append(Line(page, first + offset, tuple(words)))
    return found
