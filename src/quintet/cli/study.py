"""`quintet study`: one command per study, whose options are those of the study's file."""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from quintet.cli.lists import _show
from quintet.cli.options import (
    BlockOption,
    BootstrapOption,
    Command,
    CommandGroup,
    DeviceOption,
    JsonOption,
    complete_recipe,
)
from quintet.cli.progress import TrainingDisplay
from quintet.cli.resume import says_how_to_go_on
from quintet.cli.terminal import print_json, print_text
from quintet.errors import RecipeError, RunError, TrainingError

if TYPE_CHECKING:
    from quintet.studies.study_file import StudyFile
    from quintet.training.recipe_models import Recipe

_NUMBER = re.compile(r"\d+(\.\d+)?")
_PANEL = "Options of this study"


class StudyGroup(CommandGroup):
    """The shipped studies by name, and YAML files; a file is read when its study is asked for."""

    def list_commands(self, ctx):  # type: ignore[no-untyped-def]  # click's own signature
        from quintet.studies.study_file import list_studies

        return list_studies()

    def get_command(self, ctx, cmd_name):  # type: ignore[no-untyped-def]
        from quintet.studies.study_file import load_study

        known = cmd_name in self.list_commands(ctx) or Path(cmd_name).suffix in (".yaml", ".yml")
        return command_of(load_study(cmd_name)) if known else None


study_app = typer.Typer(
    cls=StudyGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Train what a paper's tables compare, under one set of seeds, and fill in the tables.\n\n"
    "`quintet study aoq --corpus corpora/scenes --matcher vsrn --seeds 3 -o studies/aoq-vsrn`\n\n"
    "`quintet study mmca --corpus corpora/f30k --ablations -o studies/mmca`\n\n"
    "`quintet study NAME --help` shows the options of a study. A YAML file of your own is a study, too.",
)


@study_app.callback(invoke_without_command=True)
def studies(
    context: typer.Context,
    list_all: Annotated[bool, typer.Option("--list", help="List the studies.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="List them as JSON.")] = False,
) -> None:
    from quintet.studies.study_file import list_studies, load_study

    if context.invoked_subcommand is None:
        _show({name: load_study(name).about for name in list_studies()}, ("study", "what it trains"), as_json)


class StudyCommand(Command):
    """Options that take several values: `--seeds 0 1 2` is `--seeds 0,1,2`."""

    def parse_args(self, ctx, args):  # type: ignore[no-untyped-def]  # click's own signature
        metavars = {name: str(param.metavar) for param in self.params for name in param.opts}
        lists = {name: metavar == "NAME..." for name, metavar in metavars.items() if metavar.endswith("...")}
        return super().parse_args(ctx, joined(args, lists))


def joined(arguments: list[str], lists: Mapping[str, bool]) -> list[str]:
    """Values that follow a list option become one argument; the first must be there, further ones look like numbers.

    `lists` says of each list option whether it takes words, too.

    >>> joined(["--seeds", "0", "1", "seed=3", "--protocol", "5fold", "5k"], {"--seeds": False, "--protocol": True})
    ['--seeds', '0,1', 'seed=3', '--protocol', '5fold,5k']
    """
    found: list[str] = []
    option = ""
    for argument in arguments:
        more = option and "=" not in argument and not argument.startswith("-")
        if more and found[-1] == option:
            found.append(argument)
        elif more and (_NUMBER.fullmatch(argument) or lists[option]):
            found[-1] += f",{argument}"
        else:
            option = argument if argument in lists else ""
            found.append(argument)
    return found


def command_of(study: StudyFile) -> Any:
    """The command of a study: the options of every study, and those that its file declares."""

    def command(**values: Any) -> None:
        options = {name: values.pop(name) for name in study.options}
        numbers = {"int": int, "float": float}
        for name, option in study.options.items():
            if option.kind == "recipe" and options[name] is not None:
                fitting = _fitting(options[name], values["overrides"] or [])
                options[name] = _base(study, options[name], None, values["corpus"], fitting)
            elif option.kind in numbers:
                options[name] = _numbers(_flag(name, option.flag), options[name], numbers[option.kind])
        _train(study, options, **values)

    hints = typing.get_type_hints(_train, localns={"StudyFile": type(study)}, include_extras=True)
    parameters = [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(_train).parameters.items()
        if name not in ("study", "options")
    ]
    for name, option in study.options.items():
        flag = _flag(name, option.flag)
        if option.kind == "flag":
            kind: Any = Annotated[bool, typer.Option(flag, help=option.help, rich_help_panel=_PANEL)]
            default = False
        elif option.kind == "recipe":
            kind = Annotated[
                str | None,
                typer.Option(
                    flag,
                    metavar=option.metavar,
                    help=option.help,
                    rich_help_panel=_PANEL,
                    autocompletion=complete_recipe,
                ),
            ]
            default = None
        elif option.kind == "file":
            kind = Annotated[
                Path | None, typer.Option(flag, metavar=option.metavar, help=option.help, rich_help_panel=_PANEL)
            ]
            default = None
        else:
            metavar = f"{option.metavar}..."
            kind = Annotated[str | None, typer.Option(flag, metavar=metavar, help=option.help, rich_help_panel=_PANEL)]
            default = None
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    again = "The same command goes on after a stop: finished runs are kept, unfinished ones resumed."
    app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
    app.command(study.name, cls=StudyCommand, help=f"{study.about.rstrip('.')}.\n\n{again}")(command)
    return typer.main.get_command(app)


def _flag(name: str, flag: str | None) -> str:
    return f"--{flag or name.replace('_', '-')}"


def _train(
    study: StudyFile,
    options: Mapping[str, Any],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Fields of the base recipe to change, as in stages.*.epochs=5."),
    ] = None,
    corpus: Annotated[
        Path | None, typer.Option(metavar="CORPUS", help="Corpus folder to train and measure on.")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="RECIPE", help="Base recipe: a shipped one, or a YAML file.", autocompletion=complete_recipe
        ),
    ] = None,
    matcher: Annotated[
        str | None,
        typer.Option(
            metavar="MATCHER",
            help="Instead of --recipe: the shipped recipe of this matcher (scan, vsrn) for the corpus.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FOLDER", help="Folder of the study; the same again continues it."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Instead of --out: continue the study in this folder, which must exist."),
    ] = None,
    seeds: Annotated[
        str, typer.Option(metavar="N | SEED SEED...", help="How many seeds (0, 1 and so on), or which ones.")
    ] = "3",
    seed: Annotated[int | None, typer.Option(min=0, metavar="SEED", help="This one seed only.")] = None,
    protocol: Annotated[
        str, typer.Option(metavar="NAME...", help="full, 5fold (COCO 1K), 5k (COCO 5K), identity.")
    ] = "full",
    block: BlockOption = 1024,
    bootstrap: BootstrapOption = 1000,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    if resume is not None:
        if out is not None:
            raise RecipeError("--resume takes no --out: the study goes on in its own folder")
        if not any((resume / "runs").glob("*/study.json")):
            raise RunError(f"{resume} holds no study to go on with; --out {resume} begins one")
        out = resume
    if out is None:
        raise RecipeError(f"name a folder for the study: `quintet study {study.name} --corpus CORPUS -o OUT`")
    study.given(options)  # mistakes are answered before anything is opened
    from quintet.studies.expand import build_study
    from quintet.studies.runner import Settings, run_study

    expanded = build_study(study, _base(study, recipe, matcher, corpus, overrides or []), **options)
    settings = Settings(
        seeds=(seed,) if seed is not None else _seeds(seeds),
        protocols=tuple(part.strip() for part in protocol.split(",") if part.strip()),
        device=device,
        block=block,
        bootstrap=bootstrap,
    )
    console = Console(stderr=True, quiet=as_json)
    with says_how_to_go_on(console), TrainingDisplay(console) as display:

        def announce(message: str) -> None:
            console.rule(_escape(message), align="left")

        summary = run_study(expanded, out, settings, display=display, announce=announce)
    if as_json:
        print_json(summary)
    else:
        print_text((out / "tables.md").read_text(encoding="utf-8"))
        said = f"written: {out / 'tables.md'} and {out / 'summary.json'}"
        console.print(said, markup=False, highlight=False, soft_wrap=True)
    runs = [run for variant in summary["variants"].values() for run in variant["runs"]]
    if not any(run["status"] == "trained" for run in runs):
        raise TrainingError(f"no run of the study finished; the first one said: {runs[0]['reason']}")


def _base(
    study: StudyFile, recipe: str | None, matcher: str | None, corpus: Path | None, overrides: list[str]
) -> Recipe:
    from quintet.studies.expand import choose_recipe
    from quintet.training.recipe import load_recipe

    if recipe is not None and matcher is not None:
        raise RecipeError("name the base recipe with --recipe, or choose it with --matcher (one of the two)")
    chosen = recipe if recipe is not None else choose_recipe(study, matcher, corpus)
    return load_recipe(chosen, [*overrides, *([f"data.corpus={json.dumps(str(corpus))}"] if corpus else [])])


def _fitting(recipe: str, overrides: list[str]) -> list[str]:
    """The overrides of the base recipe that hold for another one, too: no arguments of a matcher or loss it has not."""
    from quintet.models import MODELS
    from quintet.training.recipe import load_recipe

    other = load_recipe(recipe)
    arguments = {"name", *MODELS.parameters(other.matcher.name)}
    losses = {loss for stage in other.stages for loss in stage.loss}

    def holds(override: str) -> bool:
        part, *inside = override.partition("=")[0].split(".")
        if part == "matcher" and inside:
            return inside[0] in arguments
        return part != "stages" or len(inside) < 3 or inside[1] != "loss" or inside[2] in losses

    return [override for override in overrides if holds(override)]


def _seeds(text: str) -> tuple[int, ...]:
    found = _numbers("--seeds", text, int)
    return tuple(range(found[0])) if len(found) == 1 else found


def _numbers(option: str, text: str | None, kind: type) -> tuple[Any, ...]:
    try:
        return tuple(kind(part) for part in re.split(r"[,\s]+", text.strip()) if part) if text else ()
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise RecipeError(f"{option} takes {what} with spaces or commas between them, got {text!r}") from None


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
