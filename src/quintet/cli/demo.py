"""`quintet demo`: make a corpus, train on it, evaluate, index and search."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from quintet.cli.options import complete_recipe
from quintet.cli.progress import TrainingDisplay, work_bar
from quintet.cli.resume import says_how_to_go_on
from quintet.cli.terminal import shell_quoted
from quintet.errors import QuintetError

if TYPE_CHECKING:
    from quintet.data.corpus import Split
    from quintet.evaluation.result import Result
    from quintet.report.analysis import Subject
    from quintet.report.gallery import Retrieval
    from quintet.training.recipe_models import Recipe

PHOTOS = (
    "quintet index quintet-small ~/Pictures -o photos.index",
    'quintet search photos.index "a dog in the snow" --open',
)


def demo_command(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder for the corpus, run, index and page.")
    ] = Path("demo"),
    seed: Annotated[
        int, typer.Option(metavar="SEED", min=0, help="Seed of the generated corpus and of the training.")
    ] = 0,
    recipe: Annotated[
        str, typer.Option(metavar="RECIPE", help="Recipe to train.", autocompletion=complete_recipe)
    ] = "demo-scenes",
    scenes: Annotated[
        int,
        typer.Option(metavar="N", min=50, help="Images to train on; 200 more are for validation and 200 for the test."),
    ] = 800,
) -> None:
    """Train a matcher on a generated corpus, mine hard negatives, train again, and search, in 3 minutes.

    Everything is written to one folder and nothing is downloaded. The page that it writes shows what mining found,
    searches that work, one that fails and why, and where each word looks. The time is for two CPU cores. A demo that
    was stopped goes on with the same command.
    """
    from quintet.files import check_folder, check_output, read_json
    from quintet.training.recipe import load_recipe

    options = {"format": "quintet-demo", "recipe": recipe, "scenes": scenes, "seed": seed}
    begun = out / "demo.json"
    check_folder(out, begun.name, "quintet-demo", ())
    for name in ("page.html", "result-*.json"):
        for path in out.glob(name):
            check_output(path)
    goes_on = begun.is_file() and not (out / "page.html").exists() and read_json(begun) == options
    if not goes_on and ((out / "run").exists() or (out / "corpus").exists()):
        raise QuintetError(f"{out} holds an earlier demo; remove it, or choose another folder with --out")
    plan = load_recipe(recipe, [f"data.corpus={json.dumps(str(out / 'corpus'))}", f"seed={seed}"])

    console = Console()
    with says_how_to_go_on(console):
        _run(plan, out, options, console)


def _run(plan: Recipe, out: Path, options: dict[str, Any], console: Console) -> None:
    from quintet.data.corpus import Corpus
    from quintet.data.scenes.generate import make_scenes
    from quintet.evaluation.result import results_table
    from quintet.features.extract import extract_features
    from quintet.files import write_json
    from quintet.report.analysis import Subject
    from quintet.report.demo_page import write_demo_page
    from quintet.runs.run import load
    from quintet.runs.run_folder import is_begun
    from quintet.search.indexing import build_index
    from quintet.training.stages import resume_run, train_recipe

    began = time.monotonic()

    console.rule("1  a corpus of generated scenes", align="left")
    write_json(out / "demo.json", options)
    has_corpus = (out / "corpus" / "corpus.json").is_file()
    corpus = (
        Corpus.open(out / "corpus")
        if has_corpus
        else make_scenes(out / "corpus", train=options["scenes"], seed=options["seed"])
    )
    counts = ", ".join(f"{name} {len(groups)}" for name, groups in corpus.splits.items())
    console.print(f"{len(corpus.images)} images ({counts}) with {len(corpus.texts)} texts, such as")
    console.print(f"  {corpus.texts[1].text}", style="italic", markup=False)
    if plan.data.features is not None:
        console.print(f"features of {plan.data.features}, for a grid of cells of each image", highlight=False)
        with work_bar(console, plan.data.features, "images") as progress:
            extract_features(corpus, plan.data.features, device="cpu", workers=2, progress=progress)

    console.rule("2  training in two rounds, with mined negatives in the second", align="left")
    with TrainingDisplay(console) as display:
        if is_begun(out / "run"):
            resume_run(out / "run", device="cpu", display=display)
        else:
            train_recipe(plan, out / "run", device="cpu", display=display)

    console.rule("3  evaluating on the test split", align="left")
    split = corpus.split(plan.data.test)
    runs = {stage.name: load(out / "run", stage=stage.name, device="cpu") for stage in plan.stages}
    subjects = [Subject(run, corpus, split, name=run.name, stage=stage) for stage, run in runs.items()]
    results = _measure(out, subjects, options["seed"])
    console.print(results_table(results))

    console.rule("4  searching", align="left")
    build_index(out / "run", [out / "corpus"], out / "index", split=plan.data.test, device="cpu")
    page = out / "page.html"
    working, failing = write_demo_page(page, subjects, results, PHOTOS)
    for search in (*working, *([] if failing is None else [failing])):
        _print_search(search, split, console)
    more = f'quintet search {shell_quoted(out / "index")} "three hearts at sunset" --explain'
    console.print(f"search yourself: {more}", highlight=False, markup=False, soft_wrap=True)
    console.rule("your own photos", align="left")
    for line in PHOTOS:
        console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)
    console.rule(f"done in {time.monotonic() - began:.0f} s", align="left")
    console.print(f"open {page.resolve()} in a browser", highlight=False, markup=False, soft_wrap=True)


def _measure(out: Path, subjects: list[Subject], seed: int) -> dict[str, Result]:
    """Every stage on the test split."""
    from quintet.evaluation.evaluator import evaluate_members
    from quintet.evaluation.result import write_result

    results: dict[str, Result] = {}
    for subject in subjects:
        stage = str(subject.stage)
        results[stage] = evaluate_members(subject.members, subject.split, seed=seed)
        facts = {"corpus": subject.corpus.name, "stage": stage, "weights": subject.run.weights_checksum}
        write_result(out / f"result-{stage}.json", results[stage], **facts)
    return results


def _print_search(search: Retrieval, split: Split, console: Console) -> None:
    console.print(split.texts[search.row].text, style="bold", markup=False)
    for candidate in search.candidates[:3]:
        mark = "  <- the image it was written for" if candidate.correct else ""
        name = Path(split.images[candidate.row].path or "").name
        console.print(f"  {candidate.rank}. {name}  score {candidate.score:.3f}{mark}", markup=False, highlight=False)
    if search.best_correct > 1:
        console.print(f"  its image has rank {search.best_correct}; the page says why", markup=False, highlight=False)
