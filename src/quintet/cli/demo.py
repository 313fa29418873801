"""`quintet demo`: from nothing to a trained, measured, searchable matcher."""

from __future__ import annotations

import time
from pathlib import Path

import typer
from rich.console import Console

from quintet.cli.display import TrainingDisplay
from quintet.errors import QuintetError

SEARCH_DEPTH = 6


def demo_command(
    out: Path = typer.Option(Path("demo"), "--out", "-o", help="Where corpus, run, index and page go."),
    seed: int = typer.Option(0, help="Another seed, another corpus and another training."),
    recipe: str = typer.Option("vse-scenes", help="The recipe to train."),
) -> None:
    """Make a small corpus, train a matcher on it, measure it, and search it: about two minutes on two cores.

    Everything happens in one folder, with nothing downloaded. The last line names a page to open in a browser.
    """
    from quintet.data.formats.scenes import make_scenes
    from quintet.evaluation.evaluate import encode_split, evaluate_members
    from quintet.evaluation.result import write_result
    from quintet.evaluation.scoring import Member
    from quintet.report.page import write_search_page
    from quintet.search.exact import ExactIndex
    from quintet.training.recipe import load_recipe
    from quintet.training.run import open_run
    from quintet.training.stages import train

    if (out / "page.html").exists() or (out / "run").exists():
        raise QuintetError(f"{out} holds an earlier demo; remove it or choose another folder with --out")
    console = Console()
    began = time.monotonic()

    console.rule("1  a corpus of generated scenes")
    corpus = make_scenes(out / "corpus", seed=seed)
    counts = ", ".join(f"{name} {len(groups)}" for name, groups in corpus.splits.items())
    console.print(f"{len(corpus.images)} pictures ({counts}), {len(corpus.texts)} sentences; e.g. {corpus.texts[0].text!r}")

    console.rule("2  training")
    settings = [f"data.corpus={out / 'corpus'}", f"seed={seed}"]
    with TrainingDisplay(console) as display:
        train(load_recipe(recipe, settings), out / "run", device="cpu", display=display)

    console.rule("3  measuring on held-out scenes")
    run = open_run(out / "run")
    split = corpus.split("test")
    images, texts = encode_split(run.matcher, run.image_batches(corpus, split.images), run.text_batches(split.texts), split)
    result = evaluate_members([Member(run.matcher, images, texts, run.name)], split)
    write_result(out / "result.json", result, command="quintet demo", seed=seed, weights=run.weights_checksum)
    console.print(results_table({stage_label(recipe): result}))

    console.rule("4  searching")
    index = ExactIndex([image.id for image in split.images], images, run.weights_checksum)
    index.save(out / "index")
    results = example_queries(run, corpus, split, ExactIndex.open(out / "index", run.weights_checksum))
    for query in results:
        console.print(f"[bold]{query.query}[/]")
        for place, hit in enumerate(query.hits[:3], 1):
            mark = "  <- the picture it was written for" if hit.right else ""
            console.print(f"  {place}. {Path(hit.image_path).name}  score {hit.score:.3f}{mark}", highlight=False)
    write_search_page(out / "page.html", "Quintet demo", results, results_html({stage_label(recipe): result}))
    console.rule(f"done in {time.monotonic() - began:.0f} s")
    console.print(f"open {(out / 'page.html').resolve()} in a browser", highlight=False, soft_wrap=True)
