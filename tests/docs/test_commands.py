"""Every command in the documentation is one that the program takes: its name, its options and its recipe exist."""

from __future__ import annotations

import pkgutil
import re
from itertools import chain
from pathlib import Path

import pytest
import typer
from tests.docs.commands import PAGES, ROOT, Line, commands
from tests.docs.conftest import fenced_blocks

import quintet
from quintet.cli.main import app
from quintet.losses import OBJECTIVES
from quintet.models import MODELS
from tools import reference_pages

LINES = [line for page in PAGES for line in commands(page)]
QUINTET = [line for line in LINES if line.quintet is not None]


def parse(words: tuple[str, ...]) -> None:
    """Go down to the subcommand and let its own parser read the options; nothing runs."""
    command = typer.main.get_command(app)
    context = command.make_context("quintet", [], resilient_parsing=True)
    rest = list(words)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        command = command.get_command(context, name)
        assert command is not None, f"there is no command {name!r}"
        context = command.make_context(name, [], parent=context, resilient_parsing=True)
    context.resilient_parsing = False  # the parser reads the options strictly; only their values are not looked at
    # A placeholder such as [--copy] or RUN... documents a form; its brackets are not typed.
    command.make_parser(context).parse_args([word.strip("[]").removesuffix("...") for word in rest if word != "..."])


@pytest.mark.parametrize("line", QUINTET, ids=str)
def test_a_documented_command_has_options_that_exist(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert line.quintet is not None
    if "mine.yaml" in line.words:  # the study of the page, whose options are read from its file
        monkeypatch.chdir(tmp_path)
        Path("mine.yaml").write_text(fenced_blocks(line.page, "yaml")[0].text)
    parse(line.quintet)


def test_a_wrong_option_is_noticed() -> None:
    for words in (("train", "--corpsu", "x"), ("serach", "x"), ("data", "imprt")):
        with pytest.raises(Exception, match=r"(?i)no such|there is no"):
            parse(words)


def test_commands_are_found_in_every_kind_of_block() -> None:
    pages = {line.page for line in QUINTET}
    assert {"README.md", "docs/search.md", "docs/training.md", "docs/evaluation.md", "docs/mining.md"} <= pages
    assert len(QUINTET) > 80


def test_a_shell_block_after_a_python_block_is_found() -> None:
    """Both have fences, and the end of the one is no beginning of the other."""
    lines = [line.quintet[:2] for line in commands("README.md") if line.quintet]
    assert ("index", "quintet-small") in lines
    assert ("train", "demo-scenes") in lines


def test_python_scripts_that_are_named_exist() -> None:
    scripts = [word for line in LINES for word in line.words if word.endswith(".py")]
    assert scripts
    missing = [word for word in scripts if not (ROOT / word).is_file() and not word.startswith(("my", "your"))]
    assert not missing


def test_pages_that_are_linked_exist() -> None:
    broken = []
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for target in chain(re.findall(r"\]\(([^)#\s]+)", text), re.findall(r'(?:src|href)="([^"#]+)"', text)):
            if "://" in target or target.startswith("mailto:"):
                continue
            if not (ROOT / Path(page).parent / target).exists():
                broken.append(f"{page}: {target}")
    assert not broken


def test_modules_and_names_that_are_named_exist() -> None:
    missing = []
    for page in PAGES:
        if page.startswith("docs/results"):
            continue
        text = (ROOT / page).read_text(encoding="utf-8")
        for name in set(re.findall(r"`(quintet(?:\.[A-Za-z_]\w*)+)", text)):
            try:
                pkgutil.resolve_name(name)
            except (ImportError, AttributeError):
                missing.append(f"{page}: {name}")
    assert not missing


def test_source_files_that_the_architecture_names_exist() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", text))
    assert len(named) > 15
    assert not [name for name in named if not (ROOT / "src/quintet" / name).exists() and not (ROOT / name).exists()]


@pytest.mark.parametrize("name", reference_pages.PAGES)
def test_the_reference_is_that_of_the_code(name: str) -> None:
    written = (reference_pages.REFERENCE / f"{name}.md").read_text(encoding="utf-8")
    assert written == reference_pages.PAGES[name](), "run `make reference` and commit what it writes"


def test_the_reference_has_every_command_option_field_matcher_and_public_name() -> None:
    commands_page, recipe, models, python = (
        (reference_pages.REFERENCE / f"{name}.md").read_text(encoding="utf-8")
        for name in ("commands", "recipe", "models", "python")
    )
    for line in QUINTET:  # what other pages use is explained there
        assert line.quintet is not None
        if line.quintet and line.quintet[0] in ("index", "search", "train", "mine", "evaluate"):
            assert f"## quintet {line.quintet[0]}\n" in commands_page
    for field in ("select_after", "false_negative_margin", "max_length", "warmup_steps"):
        assert f"| `{field}` |" in recipe
    for name in (*MODELS.names(), *OBJECTIVES.names()):
        assert f"### {name}\n" in models
    for name in quintet.__all__:
        assert name.startswith("_") or f"## {name}\n" in python


def test_signatures_are_as_in_the_source() -> None:
    assert reference_pages.signature(fenced_blocks) == "fenced_blocks(page: str, language: str) -> list[Block]"
    assert reference_pages.signature(Line).splitlines()[:2] == ["class Line", "    page: str"]

    def long(
        first: dict[str, list[int]], *more: int, second: float = 1.0, third: str = "a text that is long", **rest: str
    ) -> None: ...

    assert reference_pages.signature(long).splitlines() == [
        "long(",
        "    first: dict[str, list[int]],",
        "    *more: int,",
        "    second: float = 1.0,",
        "    third: str = 'a text that is long',",
        "    **rest: str,",
        ") -> None",
    ]
