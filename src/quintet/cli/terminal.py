"""What commands print: no control character of a name or a message reaches a terminal, whatever a file is called."""

from __future__ import annotations

import json
import os
import shlex
import sys
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

import rich.control
from rich.console import Console

# C0 and C1 controls (escape codes begin with one), DEL, marks that turn the direction of text, and half surrogates,
# which stand for bytes of a name that are not UTF-8.
_CODES = (*range(32), *range(127, 160), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_ESCAPES = {code: chr(code).encode("unicode_escape").decode() for code in (*_CODES, *range(0xD800, 0xE000))}
_IN_TEXT = {code: escape for code, escape in _ESCAPES.items() if code not in (ord("\n"), ord("\t"))}

# Rich takes some control characters out of every text that it renders, its own styles excepted. Here it learns the
# others. So what typer says of wrong usage is safe as well.
rich.control._CONTROL_STRIP_TRANSLATE.update(_IN_TEXT)


def shown(name: object) -> str:
    r"""A name on one line, with escapes where it has control characters.

    >>> shown("a\x1b[2J\n.jpg")
    'a\\x1b[2J\\n.jpg'
    """
    return str(name).translate(_ESCAPES)


def shell_quoted(name: object) -> str:
    """A name as a shell takes it, for commands to copy.

    >>> shell_quoted("My Photos.index")
    "'My Photos.index'"
    """
    return shown(shlex.quote(str(name)))


def print_text(text: str) -> None:
    """Lines as they are, for pipes: not wrapped, without styles."""
    print(text.translate(_IN_TEXT))


def print_path(path: Path) -> None:
    """On a line: to a terminal as it can be shown, to a pipe or file as the system has it."""
    if sys.stdout.isatty():
        print(shown(path))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(os.fsencode(path) + b"\n")
    sys.stdout.buffer.flush()


def print_json(value: Any, indent: int | None = None) -> None:
    """In ASCII, which every locale has, and in which JSON can say any name."""
    print(json.dumps(value, indent=indent).replace("\x7f", r"\u007f"))


def prepare_streams() -> None:
    """A letter that the locale does not have is shown as an escape, instead of ending the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_error(message: str) -> None:
    with suppress(OSError):  # there is nobody to report it to
        errors = Console(stderr=True)
        errors.print("error:", style="bold red", end=" ")
        errors.print(message, markup=False, highlight=False, soft_wrap=True)


def finish_streams() -> bool:
    """Write out what is printed; whether all of it could be written. A reader that went away needs no message."""
    written = True
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError as error:
            written = False
            _discard(stream)
            if not isinstance(error, BrokenPipeError):
                print_error(f"the output could not be written: {error.strerror or error}")
    return written


def _discard(stream: TextIO) -> None:
    """What is left in the stream goes nowhere; Python would try again, and fail, when it ends."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
