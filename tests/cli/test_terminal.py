"""What is printed: names that hold escape codes, streams that cannot be written, locales without the letters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

from quintet.cli import main, terminal
from quintet.errors import QuintetError

EVIL = "a\x1b[2J\x9b31m\x07\r\x7f\u202eb\udcff"
ESCAPED = r"a\x1b[2J\x9b31m\x07\r\x7f\u202eb\udcff"


def may_print(letter: str) -> bool:
    return letter in "\n\t" or not (ord(letter) < 32 or 127 <= ord(letter) < 160 or 0xD800 <= ord(letter) < 0xE000)


def quintet(*words: str, stdout: int | None = None, **variables: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "quintet", *words],
        stdout=subprocess.PIPE if stdout is None else stdout,
        stderr=subprocess.PIPE,
        env=os.environ | variables,
        check=False,
    )


def test_a_name_is_one_line_without_control_characters() -> None:
    assert terminal.shown(EVIL + "\n") == ESCAPED + r"\n"
    assert terminal.shown("größe 1.jpg") == "größe 1.jpg"


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(codec=None), max_size=20))
def test_no_way_of_printing_lets_a_control_character_through(
    text: str,
) -> None:
    console = Console(width=200, color_system=None)
    with console.capture() as captured:
        console.print(text, markup=False, soft_wrap=True)
        console.print(Text.assemble(text, ("-", "bold"), text))
        console.print(Text("x").append(text))
    assert all(map(may_print, captured.get()))
    assert all(map(may_print, terminal.shown(text)))


def test_texts_for_pipes_and_json_are_safe_too(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_text(EVIL)
    assert capsys.readouterr().out == ESCAPED + "\n"
    terminal.print_json({"name": EVIL + "é"})
    said = capsys.readouterr().out
    assert said.isascii()
    assert all(map(may_print, said))
    assert json.loads(said) == {"name": EVIL + "é"}


def test_wrong_usage_names_the_word_without_its_escape_codes() -> None:
    result = CliRunner().invoke(main.app, ["no\x1b[2Jsuch"], env={"TERM": "dumb", "COLUMNS": "200"})
    assert result.exit_code == 2
    assert r"'no\x1b[2Jsuch'" in result.output
    assert "\x1b" not in result.output


def run_that_raises(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> object:
    def fail(prog_name: str) -> None:
        raise error

    monkeypatch.setattr(main, "app", fail)
    with pytest.raises(SystemExit) as stop:
        main.run()
    return stop.value.code


def test_errors_name_files_without_their_escape_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_that_raises(QuintetError(f"{EVIL} is [/gone]"), monkeypatch) == 1
    assert capsys.readouterr().err == f"error: {ESCAPED} is [/gone]\n"
    assert run_that_raises(BrokenPipeError(32, "Broken pipe"), monkeypatch) == 1
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(13, "Permission denied", EVIL), f"Permission denied: {EVIL}"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (MemoryError(), "there is not enough memory"),
    ],
)
def test_what_the_system_refuses_is_an_error_with_its_words(
    error: BaseException, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr("quintet.training.recipe.list_recipes", fail)
    with pytest.raises(QuintetError) as told:
        main.app(["recipes"])
    assert str(told.value) == said


@pytest.mark.parametrize("words", [["--version"], ["models"], ["recipes", "show", "vse-scenes", "--json"]])
def test_an_output_that_is_full_is_an_error(words: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = quintet(*words, stdout=full.fileno())
    assert done.returncode == 1
    assert b"No space left" in done.stderr
    assert b"Traceback" not in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_reader_that_went_away_is_no_error_message() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = quintet("models", "--json", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_locale_without_the_letters_shows_escapes(tmp_path: Path) -> None:
    place = str(tmp_path / "größe\udcff")
    done = quintet("search", place, "x", LC_ALL="C", PYTHONIOENCODING="ascii")
    assert done.returncode == 1
    assert rb"gr\xf6\xdfe\udcff is not an index" in done.stderr
    assert quintet("--help", LC_ALL="C", PYTHONIOENCODING="ascii").returncode == 0
