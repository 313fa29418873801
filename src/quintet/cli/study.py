"""`quintet study`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from quintet.cli.options import Command
from quintet.cli.progress import TrainingDisplay
from quintet.errors import RecipeError, TrainingError, suggest

if TYPE_CHECKING:
    from quintet.training.recipe_models import Recipe

LISTS = (
    *("--seeds", "--top", "--alpha", "--beta", "--batch-size", "--protocol", "--tables", "--categories"),
    *("--dimension", "--lambda", "--tau"),
)
DEFAULT_FORMS = ("fusion-bert", "fusion")  # of a method with several recipes: what HREM's ablations are of
_VALUE = re.compile(r"\d+(\.\d+)?")


class StudyCommand(Command):
    """Options that take several values: `--seeds 0 1 2` is `--seeds 0,1,2`."""

    def parse_args(self, ctx, args):  # type: ignore[no-untyped-def]  # click's own signature
        return super().parse_args(ctx, joined(args))


def joined(arguments: list[str]) -> list[str]:
    """Values that follow a list option become one argument; the first must be there, further ones look like numbers.

    >>> joined(["aoq", "--seeds", "0", "1", "2", "seed=3", "--protocol", "5fold", "5k", "--alpha", ".2"])
    ['aoq', '--seeds', '0,1,2', 'seed=3', '--protocol', '5fold,5k', '--alpha', '.2']
    """
    found: list[str] = []
    option = ""
    for argument in arguments:
        more = option and "=" not in argument and not argument.startswith("-")
        if more and found[-1] == option:
            found.append(argument)
        elif more and (_VALUE.fullmatch(argument) or option == "--protocol"):
            found[-1] += f",{argument}"
        else:
            option = argument if argument in LISTS else ""
            found.append(argument)
    return found


def study_command(
    name: str | None = typer.Argument(None, help="The study; `--list` shows them."),
    overrides: list[str] | None = typer.Argument(
        None, metavar="[KEY=VALUE]...", help="Any field of the base recipe, as in stages.*.epochs=5."
    ),
    corpus: Path | None = typer.Option(None, help="The corpus to train and measure on."),
    recipe: str | None = typer.Option(None, help="The base recipe: a shipped one or a YAML file."),
    matcher: str | None = typer.Option(
        None, help="Instead of --recipe: scan, bfan, vsrn, vse++, dual-path; the corpus does the rest."
    ),
    out: Path | None = typer.Option(
        None, "--out", "-o", help="The folder of the study; the same again goes on with it."
    ),
    seeds: str = typer.Option("3", metavar="N | SEED SEED...", help="How many seeds, or which ones."),
    seed: int | None = typer.Option(None, min=0, help="This one seed only."),
    protocol: str = typer.Option("full", metavar="NAME...", help="full, 5fold (COCO 1K), 5k (COCO 5K), identity."),
    ablations: bool = typer.Option(
        False, "--ablations", help="aoq, hrem: the rows of the paper's Table 3; mmca: all values of Tables 4 to 6."
    ),
    top: str | None = typer.Option(
        None, metavar="N...", help="aoq: lengths of the lists of texts, as in 200 500; hrem: values of K, as in 5 10."
    ),
    alpha: str | None = typer.Option(None, metavar="A...", help="aoq, mmca: values of alpha, as in 0.2 0.5."),
    beta: str | None = typer.Option(None, metavar="B...", help="aoq: values of beta, as in 1.0 2.0."),
    batch_size: str | None = typer.Option(None, metavar="N...", help="aoq: batch sizes of the online loss, as in 192."),
    timing: bool = typer.Option(False, "--timing", help="aoq: seconds per batch of each loss."),
    tables: str | None = typer.Option(
        None, metavar="N...", help="dual-path: which of the paper's tables 2 to 6; default: all."
    ),
    categories: str | None = typer.Option(
        None, metavar="K...", help="dual-path: numbers of pseudo-categories, as in 3000 10000."
    ),
    dimension: str | None = typer.Option(
        None, metavar="D...", help="mmca: dimensions of the hidden space, as in 64 128."
    ),
    without_cross: bool = typer.Option(False, "--without-cross", help="mmca: without the cross-attention module."),
    relevance_weight: str | None = typer.Option(
        None, "--lambda", metavar="L...", help="hrem: values of lambda, as in 0.5 1.0."
    ),
    neighbours: str | None = typer.Option(None, "--tau", metavar="T...", help="hrem: values of tau, as in 0.3 0.7."),
    hard_samples: bool = typer.Option(
        False, "--hard-samples", help="hrem: hard and infrequent test samples (Table 4)."
    ),
    curves: bool = typer.Option(False, "--curves", help="hrem: losses by epoch (Figure 7)."),
    block: int = typer.Option(1024, min=1, help="Images and texts scored at a time when measuring: memory only."),
    bootstrap: int = typer.Option(1000, min=0, help="Resamples behind the intervals of each result; 0: none."),
    device: str = typer.Option("auto", help="cpu, cuda, cuda:1 ...; auto takes a GPU where there is one."),
    list_all: bool = typer.Option(False, "--list", help="List the studies."),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON and nothing else."),
) -> None:
    """Train what a paper's tables compare, under one set of seeds, and fill in the tables.

    `quintet study aoq --corpus corpora/scenes --matcher vsrn --seeds 3 -o studies/aoq-vsrn`

    `quintet study dual-path --corpus corpora/scenes --seeds 3 -o studies/dual-path`

    `quintet study mmca --corpus corpora/f30k --ablations -o studies/mmca`

    `quintet study hrem --corpus corpora/f30k --ablations --lambda 0.5 1 2 --hard-samples --curves -o studies/hrem`

    Finished runs are kept and unfinished ones resumed: the same command goes on after a stop, and trains nothing when
    all is there. OUT/tables.md has the tables, OUT/summary.json all numbers.
    """
    if list_all:
        _list(as_json)
        return
    if name is None or out is None:
        raise RecipeError("name a study and a folder: `quintet study aoq --corpus CORPUS --matcher vsrn -o OUT`")
    options = {
        "ablations": ablations,
        "top": _numbers("--top", top, int),
        "alpha": _numbers("--alpha", alpha, float),
        "beta": _numbers("--beta", beta, float),
        "batch_size": _numbers("--batch-size", batch_size, int),
        "timing": timing,
        "tables": _numbers("--tables", tables, int),
        "categories": _numbers("--categories", categories, int),
        "dimension": _numbers("--dimension", dimension, int),
        "without_cross": without_cross,
        "relevance_weight": _numbers("--lambda", relevance_weight, float),
        "neighbours": _numbers("--tau", neighbours, float),
        "hard_samples": hard_samples,
        "curves": curves,
    }
    from quintet.training.studies import STUDIES
    from quintet.training.studies.engine import Settings, run_study

    STUDIES.builder(name)  # a typo is answered before anything is opened
    base = _base(name, recipe, matcher, corpus, overrides or [])
    study = STUDIES.create(name, base=base, **{key: value for key, value in options.items() if value})
    settings = Settings(
        seeds=(seed,) if seed is not None else _seeds(seeds),
        protocols=tuple(part.strip() for part in protocol.split(",") if part.strip()),
        device=device,
        block=block,
        bootstrap=bootstrap,
    )
    console = Console(stderr=True, quiet=as_json)
    with TrainingDisplay(console) as display:

        def announce(message: str) -> None:
            console.rule(_escape(message), align="left")

        summary = run_study(study, out, settings, display=display, announce=announce)
    if as_json:
        print(json.dumps(summary, ensure_ascii=False))
    else:
        print((out / "tables.md").read_text(encoding="utf-8"))
        console.print(f"written: {out / 'tables.md'} and {out / 'summary.json'}", highlight=False, soft_wrap=True)
    runs = [run for variant in summary["variants"].values() for run in variant["runs"]]
    if not any(run["status"] == "trained" for run in runs):
        raise TrainingError(f"no run of the study finished; the first one said: {runs[0]['reason']}")


def _list(as_json: bool) -> None:
    from quintet.cli.lists import _first_line, _show
    from quintet.training.studies import STUDIES

    _show({name: _first_line(STUDIES.builder(name)) for name in STUDIES.names()}, ("study", "what it trains"), as_json)


def _base(study: str, recipe: str | None, matcher: str | None, corpus: Path | None, overrides: list[str]) -> Recipe:
    from quintet.models import MODELS
    from quintet.training.recipe import load_recipe

    if recipe is None and matcher is None and study in MODELS.entries:
        matcher = study  # a study of one method needs no other word for it
    if (recipe is None) == (matcher is None):
        raise RecipeError("name the base recipe with --recipe, or choose it with --matcher (one of the two)")
    if recipe is None:
        recipe = recipe_of(study, str(matcher), corpus)
    return load_recipe(recipe, [*overrides, *([f"data.corpus={json.dumps(str(corpus))}"] if corpus else [])])


def recipe_of(study: str, matcher: str, corpus: Path | None) -> str:
    """The shipped recipe of a matcher for a corpus: the study's own (aoq-vsrn-f30k) before a plain one (vsrn-f30k)."""
    from quintet.data.corpus import Corpus
    from quintet.training.recipe import list_recipes

    if corpus is None:
        raise RecipeError("--matcher chooses the recipe by the corpus: add --corpus FOLDER, or name the recipe")
    shipped = list_recipes()
    kinds = dict.fromkeys((Corpus.open(corpus).name, corpus.name))
    short = matcher.lower().replace("+", "")
    names = [f"{study}-{short}", short, *(f"{short}-{form}" for form in DEFAULT_FORMS)]
    for wanted in [f"{name}-{kind}" for name in names for kind in kinds]:
        if wanted in shipped:
            return wanted
    fitting = [name for name in shipped if f"-{short}-" in f"-{name}"]
    if not fitting:
        raise RecipeError(f"no shipped recipe is for matcher {matcher!r}; {suggest(short, _matchers(shipped))}")
    raise RecipeError(
        f"there is no shipped recipe of {matcher} for corpus {next(iter(kinds))!r}; take one of another corpus as the "
        f"base, with --recipe: {', '.join(fitting)}"
    )


def _matchers(recipes: dict[str, str]) -> list[str]:
    names = {name.removeprefix("aoq-") for name in recipes}
    return sorted({"dual-path" if name.startswith("dual-path-") else name.partition("-")[0] for name in names})


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
