"""`quintet demo`: make a corpus, train on it, evaluate, index and search."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from quintet.cli.options import complete_recipe
from quintet.cli.progress import TrainingDisplay
from quintet.cli.resume import says_how_to_go_on
from quintet.errors import QuintetError

if TYPE_CHECKING:
    from quintet.data.corpus import Corpus, Split
    from quintet.evaluation.result import Result
    from quintet.report.html_page import QueryResult
    from quintet.search.items import Hit as Found
    from quintet.search.searcher import Searcher
    from quintet.training.recipe_models import Recipe

QUERIES, DEPTH = 3, 6


def demo_command(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder for the corpus, run, index and page.")
    ] = Path("demo"),
    seed: Annotated[
        int, typer.Option(metavar="SEED", min=0, help="Seed of the generated corpus and of the training.")
    ] = 0,
    recipe: Annotated[
        str, typer.Option(metavar="RECIPE", help="Recipe to train.", autocompletion=complete_recipe)
    ] = "aoq-vse-scenes",
    scenes: Annotated[
        int,
        typer.Option(metavar="N", min=50, help="Images to train on; 200 more are for validation and 200 for the test."),
    ] = 2000,
) -> None:
    """Train, evaluate and search a small generated corpus in 3 minutes.

    Everything is written to one folder and nothing is downloaded. The last line names a page to open in a browser.
    The time is for two CPU cores. A demo that was stopped goes on with the same command.
    """
    from quintet.files import read_json
    from quintet.training.recipe import load_recipe

    options = {"recipe": recipe, "scenes": scenes, "seed": seed}
    begun = out / "demo.json"
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
    from quintet.files import write_json
    from quintet.report.html_page import write_search_page
    from quintet.runs.run_folder import is_begun
    from quintet.search.indexing import build_index
    from quintet.search.searcher import Searcher
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

    console.rule("2  training", align="left")
    with TrainingDisplay(console) as display:
        if is_begun(out / "run"):
            resume_run(out / "run", device="cpu", display=display)
        else:
            train_recipe(plan, out / "run", device="cpu", display=display)

    console.rule("3  evaluating on the test split", align="left")
    split = corpus.split(plan.data.test)
    results = _measure(out, corpus, split, [stage.name for stage in plan.stages], options["seed"])
    console.print(results_table(results))

    console.rule("4  searching", align="left")
    build_index(out / "run", [out / "corpus"], out / "index", split=plan.data.test, device="cpu")
    with Searcher.open(out / "index", device="cpu") as searcher:
        searches = _search(searcher, split)
    for search in searches:
        console.print(search.query, style="bold", markup=False)
        for rank, hit in enumerate(search.hits[:3], 1):
            mark = "  <- the image it was written for" if hit.right else ""
            line = f"  {rank}. {hit.image_path.name}  score {hit.score:.3f}{mark}"
            console.print(line, markup=False, highlight=False)
    page = out / "page.html"
    write_search_page(page, "Quintet demo", searches, intro=_intro(corpus), above=_table(results))
    console.rule(f"done in {time.monotonic() - began:.0f} s", align="left")
    console.print(f"open {page.resolve()} in a browser", highlight=False, markup=False, soft_wrap=True)


def _measure(out: Path, corpus: Corpus, split: Split, stages: list[str], seed: int) -> dict[str, Result]:
    """Every stage on the test split."""
    from quintet.evaluation.evaluator import evaluate_members
    from quintet.evaluation.result import write_result
    from quintet.evaluation.scoring import Member
    from quintet.runs.run import load

    results: dict[str, Result] = {}
    for stage in stages:
        run = load(out / "run", stage=stage, device="cpu")
        results[stage] = evaluate_members([Member.encode(run, corpus, split, name=stage)], split, seed=seed)
        facts = {"corpus": corpus.name, "stage": stage, "weights": run.weights_checksum}
        write_result(out / f"result-{stage}.json", results[stage], **facts)
    return results


def _search(searcher: Searcher, split: Split) -> list[QueryResult]:
    """Search for the images of a few long texts."""
    from quintet.report.html_page import Hit, QueryResult

    step = len(split.groups) // QUERIES
    texts = [
        max((split.texts[row] for row in split.texts_of_group[g * step]), key=lambda t: len(t.text))
        for g in range(QUERIES)
    ]
    caption_of = {text.group: text.text for text in split.texts}

    def shown(found: Found, wanted: str | None) -> Hit:
        item = found.item
        caption = caption_of[str(item.metadata["group"])]
        return Hit(searcher.image_path(item.id), found.score, caption, item.metadata["image"] == wanted)

    answers = searcher.search_text([text.text for text in texts], k=DEPTH)
    return [
        QueryResult(text.text, [shown(hit, text.image) for hit in hits])
        for text, hits in zip(texts, answers, strict=True)
    ]


def _table(results: dict[str, Result]) -> str:
    from quintet.report.html_page import metrics_table_html

    names = {"i2t": "image to text", "t2i": "text to image"}
    chance = next(iter(results.values())).chance
    rows = [
        {"stage": f"{stage}, {words}"}
        | {f"R@{k}": float(metrics[f"{way}_r{k}"]) for k in (1, 5, 10)}
        | {"median rank": float(metrics[f"{way}_medr"]), "rsum": float(metrics["rsum"])}
        for stage, metrics in [*((stage, result.metrics) for stage, result in results.items()), ("chance", chance)]
        for way, words in names.items()
    ]
    return metrics_table_html(rows, caption="On held-out scenes")


def _intro(corpus: Corpus) -> str:
    return (
        f"A matcher was trained on {len(corpus.splits['train'])} generated scenes. Here it searches the "
        f"{len(corpus.splits['test'])} test scenes, which were not used in training, for the texts of some of them."
    )
