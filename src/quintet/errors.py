"""Errors that are meant for people: what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


class QuintetError(Exception):
    """Anything the user can mend. The command line prints its message and exits with status 1."""


class CorpusError(QuintetError):
    """A corpus, a feature file or a source of either is not as it should be."""


class ImageError(QuintetError):
    """An image cannot be read."""


class RecipeError(QuintetError):
    """A recipe, an override or a model argument is not valid."""


class RunError(QuintetError):
    """A run folder is missing, unfinished, damaged or from another version."""


class ArgumentError(QuintetError, TypeError):
    """A function was given something it does not take: another type, an empty list, codes of another run."""


class TrainingError(QuintetError):
    """Training cannot go on: NaN, collapse, a batch that makes no sense."""


def suggest(name: str, valid: Iterable[str]) -> str:
    """A text that names the nearest valid spelling, or all of them when none is near.

    Names that begin as `name` does come first, where its first part is one of theirs.

    >>> suggest("scna", ["scan", "bfan"])
    "did you mean 'scan'?"
    >>> suggest("hrem-scenes", ["hrem", "hrem-fusion-scenes", "vse-scenes"])
    "did you mean 'hrem-fusion-scenes'?"
    >>> suggest("zzz", ["scan", "bfan"])
    'choose one of: bfan, scan'
    """
    options = sorted(valid)
    first = re.split(r"[-_.]", name, maxsplit=1)[0]
    kin = [option for option in options if first and option.startswith((f"{first}-", f"{first}_", f"{first}."))]
    near = difflib.get_close_matches(name, kin, n=1, cutoff=0.5) or difflib.get_close_matches(name, options, n=1)
    return f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(options)}"


def first_line(error: BaseException) -> str:
    """The first line of an error's message, short enough to quote."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
