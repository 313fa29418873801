"""`quintet search`."""

from __future__ import annotations

import json
import tempfile
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from quintet.errors import QuintetError

if TYPE_CHECKING:
    from quintet.search.explain import Explanation
    from quintet.search.items import Hit, Kind
    from quintet.search.searcher import Searcher

EXPLAINED = 5  # results of each query


class Find(StrEnum):
    IMAGES = "pictures"
    TEXTS = "sentences"


@dataclass(frozen=True)
class _Answer:
    query: str
    image: Path | None  # that was asked with
    hits: list[Hit]


def search_command(
    index: Path = typer.Argument(..., metavar="INDEX", help="What `quintet index` wrote.", show_default=False),
    texts: list[str] = typer.Argument(None, metavar="SENTENCE...", help="What to look for.", show_default=False),
    image: list[Path] = typer.Option([], help="Look for what is like this image."),
    queries: Path | None = typer.Option(None, help="A file with one text a line."),
    k: int = typer.Option(20, "-k", min=1, help="How many results."),
    find: Find | None = typer.Option(None, help="What to find; images, unless the index holds only texts."),
    where: str | None = typer.Option(None, help="""A filter: 'path~"holiday/*" and date>=2024-01-01'."""),
    rerank: int | None = typer.Option(None, min=1, metavar="K", help="Order the K best by the whole score."),
    rerank_with: Path | None = typer.Option(None, metavar="RUN", help="Of the index's runs the one to re-rank with."),
    explain: bool = typer.Option(False, "--explain", help=f"Say which words mattered, for the first {EXPLAINED}."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON and nothing else."),
    open_sheet: bool = typer.Option(False, "--open", help="Show the results on a page, in a browser."),
    sheet: Path | None = typer.Option(None, metavar="FILE", help="Write that page here."),
    device: str = typer.Option("auto", help="cpu, cuda, cuda:1 ...; auto takes a GPU where there is one."),
) -> None:
    """Search an index by texts or by images.

    `quintet search holiday "a brown dog runs through water" --open` shows what it finds.

    `quintet search holiday --image photo.jpg --find texts` finds texts that fit an image.
    """
    from quintet.search.searcher import Searcher
    from quintet.search.stores.where import parse_where

    for path in image:
        if not path.is_file():
            raise QuintetError(f"there is no image {path}")
    asked = [*(texts or []), *(_read_queries(queries) if queries is not None else [])]
    if not asked and not image:
        raise QuintetError("say what to look for: a text, --image FILE or --queries FILE")
    if explain and image:
        raise QuintetError("--explain is about the words of a text; leave it out with --image")
    with Searcher.open(index, device=device, rerank_with=rerank_with) as searcher:
        kind: Kind = _kind(find, searcher)
        if rerank is not None and (kind == "image" if image else kind == "text"):
            raise QuintetError("--rerank compares images with texts; leave it out where both are of one kind")
        wish: dict[str, Any] = {
            "k": k,
            "kind": kind,
            "where": None if where is None else parse_where(where),
            "rerank": rerank,
        }
        answers = _search(searcher, asked, image, wish)
        reasons = _explain(searcher, answers) if explain else {}
        if as_json:
            print(json.dumps([_as_json(searcher, answer, reasons) for answer in answers], indent=2, ensure_ascii=False))
        else:
            _print(answers, reasons)
        if open_sheet or sheet is not None:
            _show(searcher, answers, reasons, sheet, open_sheet)


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
        how = "name some after RUN" if kind == "image" else "use --texts FILE"
        raise QuintetError(f"the index holds no {find.value}; when you build it, {how}")
    return kind


def _search(searcher: Searcher, texts: Sequence[str], pictures: Sequence[Path], wish: dict[str, Any]) -> list[_Answer]:
    from quintet.data.images import open_image

    by_text = searcher.search_text(texts, **wish) if texts else []
    by_image = searcher.search_image([open_image(path) for path in pictures], **wish) if pictures else []
    return [
        *(_Answer(sentence, None, hits) for sentence, hits in zip(texts, by_text, strict=True)),
        *(_Answer(path.name, path, hits) for path, hits in zip(pictures, by_image, strict=True)),
    ]


def _explain(searcher: Searcher, answers: Sequence[_Answer]) -> dict[tuple[str, str], Explanation]:
    return {
        (answer.query, hit.item.id): searcher.explain(answer.query, hit.item.id)
        for answer in answers
        for hit in answer.hits[:EXPLAINED]
    }


def _name(hit: Hit) -> str:
    item = hit.item
    return item.text or item.path or str(item.metadata.get("image", item.id))


def _print(answers: Sequence[_Answer], reasons: dict[tuple[str, str], Explanation]) -> None:
    console = Console()
    for answer in answers:
        console.print(answer.query, style="bold", markup=False, highlight=False)
        if not answer.hits:
            console.print("  nothing was found", style="yellow")
        for place, hit in enumerate(answer.hits, 1):
            line = f"  {place:>3}. {hit.score:6.3f}  {_name(hit)}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)
            reason = reasons.get((answer.query, hit.item.id))
            if reason is not None:
                words = "  ".join(f"{word.word} {word.weight:+.3f}" for word in reason.words)
                console.print(f"               {words}", style="dim", markup=False, highlight=False, soft_wrap=True)


def _as_json(searcher: Searcher, answer: _Answer, reasons: dict[tuple[str, str], Explanation]) -> dict[str, Any]:
    hits = []
    for place, hit in enumerate(answer.hits, 1):
        item = hit.item
        row: dict[str, Any] = {"rank": place, "score": hit.score, "id": item.id, "kind": item.kind}
        row |= {"path": item.path, "text": item.text, "metadata": item.metadata}
        if item.root is not None:
            row["root"] = searcher.manifest.roots[item.root].path
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
    from quintet.search.errors import MissingImage

    try:
        return searcher.image_path(hit.item.id)
    except MissingImage:
        return None
