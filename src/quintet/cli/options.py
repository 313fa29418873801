"""What all commands share: the layout of their help pages, common options, and completion of names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from quintet.errors import QuintetError, suggest

# Panels of the options of a command.
OUTPUT = "Output"
COMPUTE = "Compute"

# Old spellings of options, which scripts may have: they still work and are in no help page.
RENAMED = {"--check-pictures": "--check-images", "--sheet": "--out"}

SIZES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class Command(TyperCommand):
    """A command whose help page shows the names of values (RUN, FILE, N), never their Python types.

    A panel of a single option is not shown as one: the option is listed with the others.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        panels = Counter(getattr(parameter, "rich_help_panel", None) for parameter in self.params)
        for parameter in self.params:
            if isinstance(parameter, TyperOption) and panels[parameter.rich_help_panel] == 1:
                parameter.rich_help_panel = None

    def get_params(self, ctx):  # type: ignore[no-untyped-def]  # click's own signature
        return [_hide_type(parameter) for parameter in super().get_params(ctx)]

    def invoke(self, ctx):  # type: ignore[no-untyped-def]  # click's own signature
        with _explained():
            return super().invoke(ctx)

    def parse_args(self, ctx, args):  # type: ignore[no-untyped-def]  # click's own signature
        known = {name for parameter in self.params for name in parameter.opts}
        return super().parse_args(ctx, [_current_spelling(argument, known) for argument in args])

    def collect_usage_pieces(self, ctx):  # type: ignore[no-untyped-def]  # click's own signature
        pieces = [self.options_metavar or ""]
        for parameter in self.params:
            if parameter.param_type_name == "argument" and not getattr(parameter, "hidden", False):
                name = str(parameter.metavar or parameter.name)
                pieces.append(name if parameter.required or name.startswith("[") else f"[{name}]")
        return pieces


class CommandGroup(TyperGroup):
    """A group of commands. A mistyped one is answered with the nearest name."""

    def get_params(self, ctx):  # type: ignore[no-untyped-def]  # click's own signature
        return [_hide_type(parameter) for parameter in super().get_params(ctx)]

    def invoke(self, ctx):  # type: ignore[no-untyped-def]  # click's own signature
        with _explained():
            return super().invoke(ctx)

    def resolve_command(self, ctx, args):  # type: ignore[no-untyped-def]  # click's own signature
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"there is no command {args[0]!r}; {suggest(args[0], self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


@contextmanager
def _explained() -> Iterator[None]:
    """Errors of the system are reported in its words, where no command has better ones."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise QuintetError(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}") from error
    except MemoryError as error:
        raise QuintetError("there is not enough memory") from error


def _hide_type(parameter: Any) -> Any:
    """Flags have no value to name; typer shows the type of an argument even where it has a metavar."""
    if getattr(parameter, "is_flag", False) and parameter.metavar is None:
        parameter.metavar = ""
    if parameter.param_type_name == "argument":
        parameter.display_type_rich = lambda ctx: ""
    return parameter


def _current_spelling(argument: str, known: set[str]) -> str:
    name, equals, value = argument.partition("=")
    new = RENAMED.get(name)
    return f"{new}{equals}{value}" if new in known and name not in known else argument


def parse_size(text: str) -> int:
    """Bytes from a size with a unit.

    >>> parse_size("8G") == parse_size("8 GiB") == 8 * 2**30
    True
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if match is None:
        raise QuintetError(f"{text!r} is not a size; write bytes or a unit, as in 512M or 8G")
    return int(float(match[1]) * SIZES[match[2].upper()])


def split_names(text: str) -> list[str]:
    """
    >>> split_names("ranks, words")
    ['ranks', 'words']
    """
    return [name for name in re.split(r"[,\s]+", text) if name]


def run_list(text: str) -> list[Path]:
    """The runs of an ensemble: paths with commas between them. A path that exists is one run, commas and all.

    >>> [str(path) for path in run_list("runs/a, runs/b")]
    ['runs/a', 'runs/b']
    """
    whole = Path(text)
    return [whole] if whole.exists() else [Path(part.strip()) for part in text.split(",") if part.strip()]


def ensembles(texts: list[str] | None) -> list[list[Path]]:
    """The runs of each `--ensemble`."""
    teams = [run_list(text) for text in texts or []]
    if any(len(team) < 2 for team in teams):
        raise QuintetError("--ensemble takes two or more runs separated by commas, as in --ensemble runs/a,runs/b")
    return teams


def one_of(kind: str, names: tuple[str, ...], *, several: bool = False) -> dict[str, Any]:
    """Arguments of a `typer.Option` that takes one of the names (`several`: some, with commas): check and completion.

    The names are those of the library, which are not read from there, because that would import torch.
    """

    def check(value: str | None) -> str | None:
        for name in [] if value is None else split_names(value) if several else [value]:
            if name not in names:
                raise typer.BadParameter(f"there is no {kind} {name!r}; {suggest(name, names)}")
        return value

    def complete(incomplete: str) -> Iterator[str]:
        before, comma, last = incomplete.rpartition(",") if several else ("", "", incomplete)
        yield from (f"{before}{comma}{name}" for name in names if name.startswith(last))

    return {"callback": check, "autocompletion": complete}


# Completion: names that begin with what has been typed. Nothing here imports torch.


def complete_run(incomplete: str) -> Iterator[tuple[str, str]]:
    from quintet.data.pretrained import ALIASES, PREFIX
    from quintet.runs.run_folder import shipped_runs

    yield from ((name, "comes with Quintet") for name in shipped_runs() if name.startswith(incomplete))
    names = ((f"{PREFIX}{short}", f"{model.name}, {model.size}") for short, model in ALIASES.items())
    yield from ((name, told) for name, told in names if name.startswith(incomplete))


def complete_recipe(incomplete: str) -> Iterator[str]:
    from quintet.training.recipe import list_recipes

    yield from (name for name in list_recipes() if name.startswith(incomplete))


def complete_format(incomplete: str) -> Iterator[tuple[str, str]]:
    from quintet.data.formats import FORMATS

    yield from ((name, format.help) for name, format in FORMATS.items() if name.startswith(incomplete))


def complete_model(incomplete: str) -> Iterator[str]:
    from quintet.models import MODELS

    yield from (name for name in MODELS.names() if name.startswith(incomplete))


def complete_split(ctx: typer.Context, incomplete: str) -> Iterator[str]:
    """The splits of the corpus that `--corpus` names; else the usual names, as click drops the arguments here."""
    from quintet.files import read_json

    names: Iterable[str] = ("train", "dev", "test")
    with suppress(QuintetError):
        if ctx.params.get("corpus") is not None:
            names = read_json(Path(ctx.params["corpus"]) / "splits.json")
    yield from (name for name in names if name.startswith(incomplete))


def complete_device(incomplete: str) -> Iterator[str]:
    yield from (name for name in ("auto", "cpu", "cuda", "cuda:0") if name.startswith(incomplete))


# Options that several commands have, with one meaning.

RunArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="Run folder, stage of one (RUN/stages/NAME), the name of a run that comes with Quintet, or of one on the "
        "hub: hub:OWNER/NAME, or hf:NAME for CLIP and its kin.",
        show_default=False,
        autocompletion=complete_run,
    ),
]
RunsArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN...",
        help="Run folders, stages of runs (RUN/stages/NAME), names of runs that come with Quintet, or of those on the "
        "hub: hub:OWNER/NAME, or hf:NAME for CLIP and its kin.",
        show_default=False,
        autocompletion=complete_run,
    ),
]
EnsembleOption = Annotated[
    list[str] | None,
    typer.Option(
        "--ensemble",
        metavar="RUN,RUN",
        help="Runs as one ensemble (the mean of their scores), besides each alone; may be repeated.",
    ),
]
CorpusOption = Annotated[
    Path | None,
    typer.Option("--corpus", metavar="CORPUS", help="Corpus folder; default: the one the run was trained on."),
]
SplitOption = Annotated[
    str, typer.Option("--split", metavar="SPLIT", help="Split of the corpus.", autocompletion=complete_split)
]
TestSplitOption = Annotated[
    str | None,
    typer.Option(
        "--split",
        metavar="SPLIT",
        help="Split of the corpus; default: the one that the run's recipe tests on.",
        autocompletion=complete_split,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON and nothing else.", rich_help_panel=OUTPUT)
]
DeviceOption = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="DEVICE",
        help="cpu, cuda or cuda:N; auto: a GPU if there is one.",
        rich_help_panel=COMPUTE,
        autocompletion=complete_device,
    ),
]
BatchSizeOption = Annotated[
    int,
    typer.Option(
        "--batch-size",
        metavar="N",
        min=1,
        help="Images or texts encoded at a time. Changes memory and speed, not the result.",
        rich_help_panel=COMPUTE,
    ),
]
BlockOption = Annotated[
    int,
    typer.Option(
        "--block",
        metavar="N",
        min=1,
        help="Images and texts scored at a time. Changes memory, not the result.",
        rich_help_panel=COMPUTE,
    ),
]
CLUSTER = "Cluster"
RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="auto|local|ray://HOST:PORT",
        help="Share the work out on a Ray cluster: the running one, one of this machine, or one at an address.",
        rich_help_panel=CLUSTER,
    ),
]
RayWorkersOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Workers on Ray; default: one a CPU, or share of a GPU.",
        rich_help_panel=CLUSTER,
    ),
]
RayGpusOption = Annotated[
    float, typer.Option(metavar="N", min=0, help="GPUs of a Ray worker; 0.5: two share one.", rich_help_panel=CLUSTER)
]
WorkersOption = Annotated[
    int,
    typer.Option("--workers", metavar="N", min=1, help="Threads that decode images.", rich_help_panel=COMPUTE),
]
BootstrapOption = Annotated[
    int,
    typer.Option(
        "--bootstrap", metavar="N", min=0, help="Bootstrap resamples behind the 95 % intervals; 0: no intervals."
    ),
]
ExpertAnnotationsOption = Annotated[
    Path | None,
    typer.Option(
        "--expert-annotations",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="Flickr8k's ExpertAnnotations.txt: also measure the agreement with human judgements.",
    ),
]
CrowdAnnotationsOption = Annotated[
    Path | None,
    typer.Option(
        "--crowd-annotations",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="Flickr8k's CrowdFlowerAnnotations.txt: likewise.",
    ),
]
