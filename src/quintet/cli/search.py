"""`quintet search`."""

from __future__ import annotations

import os
import shutil
import tempfile
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from quintet.cli.options import OUTPUT, DeviceOption, JsonOption
from quintet.cli.terminal import print_json, print_path, shown
from quintet.errors import QuintetError
from quintet.files import atomic_write, user_path
from quintet.search import MOST_RERANKED, MOST_RESULTS, SearchError

if TYPE_CHECKING:
    from quintet.search.explain import Explanation
    from quintet.search.items import Hit, Kind
    from quintet.search.searcher import Searcher

EXPLAINED = 5  # results of each query


class Find(StrEnum):
    IMAGES = "images"
    TEXTS = "texts"


def _find(text: str) -> Find:
    known = {"pictures": Find.IMAGES, "sentences": Find.TEXTS} | {find.value: find for find in Find}
    if text not in known:
        raise typer.BadParameter(f"{text!r} is neither 'images' nor 'texts'")
    return known[text]


@dataclass(frozen=True)
class _Answer:
    query: str
    image: Path | None  # the query image
    hits: list[Hit]


def search_command(
    index: Annotated[
        Path, typer.Argument(metavar="INDEX", help="Folder written by `quintet index`.", show_default=False)
    ],
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT]...", help="What to search for, in words: one text.", show_default=False),
    ] = None,
    text: Annotated[str | None, typer.Option("--text", metavar="TEXT", help="The same, as an option.")] = None,
    image: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", exists=True, dir_okay=False, help="Search for what is like this image, and fits the text."
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option("--not", metavar="TEXT", help="What results should not show; may be repeated."),
    ] = None,
    queries: Annotated[
        Path | None,
        typer.Option(metavar="FILE", exists=True, dir_okay=False, help="File with one query text per line."),
    ] = None,
    k: Annotated[
        int, typer.Option("-k", metavar="K", min=1, max=MOST_RESULTS, help="Number of results per query.")
    ] = 20,
    find: Annotated[
        Find | None,
        typer.Option(
            metavar="images|texts",
            parser=_find,
            autocompletion=lambda: list(Find),
            help="What to find; default: images, or texts where the index has only texts.",
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="FILTER", help="""Search a part only, as in 'path~"holiday/*" and year>=2024 or camera~"Apple*"'."""
        ),
    ] = None,
    duplicates: Annotated[
        bool, typer.Option("--duplicates", help="Also show images that nearly equal a better result.")
    ] = False,
    rerank: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            min=1,
            max=MOST_RERANKED,
            help="Re-rank the first K results with a cross-attention run of the index.",
        ),
    ] = None,
    rerank_with: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Run to re-rank with, of those in the index.")
    ] = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help=f"Show the weight of each query word, for the first {EXPLAINED} results.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    open_sheet: Annotated[
        bool, typer.Option("--open", help="Show the results on a page in the browser.", rich_help_panel=OUTPUT)
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Write the results as a page to this .html file.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    paths: Annotated[
        bool,
        typer.Option("--paths", help="Print the paths of the images and nothing else.", rich_help_panel=OUTPUT),
    ] = False,
    copy_to: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Copy the images that were found into a folder.", rich_help_panel=OUTPUT),
    ] = None,
    as_json: JsonOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Search an index for photos, by text, by image, or by both.

    `quintet search holiday a brown dog runs through water --open`

    `quintet search holiday --image dog.jpg --text "in the snow" --not "a ball"`

    `quintet search holiday --image photo.jpg --find texts` finds texts that describe an image.
    """
    from quintet.search.index_folder import check_marker
    from quintet.search.stores.where import parse_where

    words = " ".join([*(texts or []), *([text] if text is not None else [])])
    asked = [*([words] if texts or text is not None else []), *(_read_queries(queries) if queries is not None else [])]
    if not asked and image is None:
        raise QuintetError("name what to search for: a text, --image FILE or --queries FILE")
    if explain and (image is not None or exclude):
        raise QuintetError("--explain weighs the words of a text query; it cannot be used with --image or --not")
    if paths and as_json:
        raise QuintetError("--paths and --json are two forms of one output; choose one")
    condition = None if where is None else parse_where(where)
    check_marker(index)

    from quintet.search.searcher import Searcher

    with Searcher.open(index, device=device, rerank_with=rerank_with) as searcher:
        kind: Kind = _kind(find, searcher)
        if rerank is not None and (kind == "image" if image else kind == "text"):
            raise QuintetError("--rerank scores images against texts; it cannot be used where both are of one kind")
        options: dict[str, Any] = {"k": k, "kind": kind, "where": condition, "rerank": rerank}
        options |= {"image": image if asked else None, "exclude": exclude or (), "duplicates": duplicates}
        wanted: list[Any] = asked or [image]
        found = searcher.search(wanted, **options)
        names = asked or [image.name if image is not None else ""]
        answers = [_Answer(name, image, hits) for name, hits in zip(names, found, strict=True)]
        reasons = _explain(searcher, answers) if explain else {}
        _warn(searcher, asked)
        if as_json:
            print_json([_as_json(searcher, answer, reasons) for answer in answers], indent=2)
        elif paths:
            _print_paths(answers)
        else:
            _print(answers, reasons)
        if copy_to is not None:
            _copy(searcher, answers, copy_to)
        if open_sheet or out is not None:
            _show(searcher, answers, reasons, out, open_sheet)


def _warn(searcher: Searcher, texts: Sequence[str]) -> None:
    """Of words that no run knows, and of a query in another language."""
    for text in texts:
        if note := searcher.query_note(text):
            Console(stderr=True).print(shown(f"note: {note}"), markup=False, highlight=False, soft_wrap=True)


def _read_queries(path: Path) -> list[str]:
    from quintet.data.formats.assembly import read_lines

    found = [line for line in read_lines(path) if line]
    if not found:
        raise QuintetError(f"{path} holds no texts")
    return found


def _kind(find: Find | None, searcher: Searcher) -> Kind:
    counts = searcher.manifest.counts
    if find is None:
        return "image" if counts["image"] else "text"
    kind: Kind = "image" if find is Find.IMAGES else "text"
    if not counts[kind]:
        how = "name image folders after RUN" if kind == "image" else "use --texts FILE"
        raise QuintetError(f"the index holds no {find.value}; when you build it, {how}")
    return kind


def _explain(searcher: Searcher, answers: Sequence[_Answer]) -> dict[tuple[str, str], Explanation]:
    return {
        (answer.query, hit.item.id): searcher.explain(answer.query, hit.item.id)
        for answer in answers
        for hit in answer.hits[:EXPLAINED]
    }


def _name(hit: Hit) -> str:
    item = hit.item
    return shown(item.text or item.path or item.metadata.get("image", item.id))


def _print(answers: Sequence[_Answer], reasons: dict[tuple[str, str], Explanation]) -> None:
    console = Console()
    for answer in answers:
        console.print(shown(answer.query), style="bold", markup=False, highlight=False)
        if not answer.hits:
            console.print("  no results", style="yellow")
        is_weak = False
        for rank, hit in enumerate(answer.hits, 1):
            if hit.weak and not is_weak:
                is_weak = True
                console.print("  ---- weak: random words score as high ----", style="yellow", highlight=False)
            more = f"  (and {len(hit.duplicates)} nearly the same)" if hit.duplicates else ""
            line = f"  {rank:>3}. {hit.score:6.3f}  {_name(hit)}{more}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)
            reason = reasons.get((answer.query, hit.item.id))
            if reason is not None:
                words = "  ".join(f"{word.word} {word.weight:+.3f}" for word in reason.words)
                console.print(f"               {words}", style="dim", markup=False, highlight=False, soft_wrap=True)


def _print_paths(answers: Sequence[_Answer]) -> None:
    """Each once, as the system has them, for other programs."""
    for path in dict.fromkeys(hit.path for answer in answers for hit in answer.hits if hit.path is not None):
        print_path(path)


def _copy(searcher: Searcher, answers: Sequence[_Answer], folder: Path) -> None:
    found = [(hit.item.id, hit) for answer in answers for hit in answer.hits if hit.item.kind == "image"]
    images = [path for id_, hit in dict(found).items() if (path := _image(searcher, hit)) is not None]
    copied = _copy_images(images, folder)
    console = Console(stderr=True)
    there = f"; {len(images) - copied} are there already" if copied < len(images) else ""
    console.print(f"{copied} images copied to {shown(folder)}{there}", markup=False, highlight=False, soft_wrap=True)
    if missing := len(dict(found)) - len(images):
        console.print(f"{missing} of the images found are gone; run `quintet index` again", style="yellow")


def _copy_images(images: Sequence[Path], folder: Path) -> int:
    """Copy image files into a folder, which is made; how many were copied.

    Nothing in the folder is replaced: of two files of one name the second gets a number. A file of the same name, size
    and time is the same file, and is not copied again.
    """
    folder = user_path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SearchError(f"the folder {folder} cannot be made: {error.strerror or error}") from None
    copied = 0
    for image in images:
        try:
            target = _free_name(image, folder)
            if target is not None:
                with atomic_write(target) as temporary:
                    shutil.copy2(image, temporary)
                copied += 1
        except OSError as error:
            raise SearchError(
                f"{image} could not be copied to {folder}: {error.strerror or error}; {copied} of {len(images)} were"
            ) from None
    return copied


def _free_name(image: Path, folder: Path) -> Path | None:
    """Where the copy goes; None where it is there already."""
    facts = image.stat()
    for number in count(1):
        target = folder / (image.name if number == 1 else f"{image.stem}-{number}{image.suffix}")
        if not os.path.lexists(target):
            return target
        there = target.lstat()
        if (there.st_size, there.st_mtime_ns) == (facts.st_size, facts.st_mtime_ns):
            return None
    return None


def _as_json(searcher: Searcher, answer: _Answer, reasons: dict[tuple[str, str], Explanation]) -> dict[str, Any]:
    hits = []
    for rank, hit in enumerate(answer.hits, 1):
        item = hit.item
        row: dict[str, Any] = {"rank": rank, "score": hit.score, "id": item.id, "kind": item.kind}
        row |= {"path": item.path, "text": item.text, "metadata": item.metadata}
        if item.root is not None:
            row["root"] = searcher.manifest.roots[item.root].path
        row |= {
            "weak": hit.weak or None,
            "duplicates": [str(each.path) for each in hit.duplicates if each.path] or None,
        }
        reason = reasons.get((answer.query, item.id))
        if reason is not None:
            row["words"] = [{"word": word.word, "weight": word.weight} for word in reason.words]
        hits.append({key: value for key, value in row.items() if value is not None})
    return {"query": answer.query, "hits": hits}


def _show(
    searcher: Searcher,
    answers: Sequence[_Answer],
    reasons: dict[tuple[str, str], Explanation],
    path: Path | None,
    in_browser: bool,
) -> None:
    from quintet.report.search_sheet import Answers, Result, write_search_sheet

    if path is None:
        path = Path(tempfile.mkdtemp(prefix="quintet-")) / "results.html"
    sheets = [
        Answers(
            answer.query,
            [
                Result(hit.score, _image(searcher, hit), _name(hit), reasons.get((answer.query, hit.item.id)))
                for hit in answer.hits
            ],
            answer.image,
        )
        for answer in answers
    ]
    write_search_sheet(path, sheets)
    Console(stderr=True).print(f"results: {path.resolve()}", highlight=False, markup=False, soft_wrap=True)
    if in_browser:
        webbrowser.open(path.resolve().as_uri())


def _image(searcher: Searcher, hit: Hit) -> Path | None:
    from quintet.search import MissingImage

    try:
        return searcher.image_path(hit.item.id)
    except MissingImage:
        return None
