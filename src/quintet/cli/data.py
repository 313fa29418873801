"""`quintet data`: import a corpus and inspect it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from quintet.cli.options import (
    COMPUTE,
    OUTPUT,
    Command,
    CommandGroup,
    JsonOption,
    complete_format,
    complete_split,
)
from quintet.cli.progress import work_bar
from quintet.cli.terminal import print_json, shell_quoted
from quintet.errors import CorpusError

data_app = typer.Typer(
    name="data",
    cls=CommandGroup,
    no_args_is_help=True,
    help="Import a corpus of images and texts, and inspect it.",
)


@data_app.command("formats", cls=Command)
def formats_command(as_json: JsonOption = False) -> None:
    """List the formats that `quintet data import` reads, with their options."""
    from quintet.data.formats import FORMATS

    if as_json:
        facts = {
            name: {"help": format.help, "options": {option.name: option.help for option in format.options.values()}}
            for name, format in FORMATS.items()
        }
        print_json(facts, indent=2)
        return
    table = Table("format", "reads", "options", show_lines=True)
    for name, format in FORMATS.items():
        options = (
            f"[bold]{option.name}[/bold]={_shown(option.default)} {escape(option.help)}"
            for option in format.options.values()
        )
        table.add_row(name, escape(format.help), "\n".join(options))
    Console().print(table)


@data_app.command("sets", cls=Command)
def sets_command(as_json: JsonOption = False) -> None:
    """List well-known data sets of the hub, and the columns that `quintet data import hf:OWNER/NAME` reads of them."""
    from quintet.data.formats.hub_datasets import HUB_DATASETS, NOT_ON_THE_HUB

    if as_json:
        print_json({name: asdict(known) for name, known in HUB_DATASETS.items()}, indent=2)
        return
    table = Table("name", "is", "read as", "known from", show_lines=True)
    for name, known in HUB_DATASETS.items():
        options = "\n".join(f"{key}={value}" for key, value in known.options.items())
        source = "its card" if known.known == "card" else "descriptions"
        table.add_row(name, escape(known.about), escape(known.refused or options), source)
    console = Console()
    console.print(table)
    for names, why in NOT_ON_THE_HUB.items():
        console.print(f"{names}: {why}", soft_wrap=True)
    console.print(
        "None of these was downloaded when the list was written; columns are looked for again.", soft_wrap=True
    )


@data_app.command("import", cls=Command)
def import_command(
    format: Annotated[
        str,
        typer.Argument(
            metavar="FORMAT",
            help="Format of the source; `quintet data formats` lists them. hf:OWNER/NAME is a data set of the hub.",
            autocompletion=complete_format,
        ),
    ],
    source: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE... CORPUS",
            help="Folder or file in that format, for some formats several of them or URLs; and the corpus folder to "
            "write, unless --out names it.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="CORPUS", help="Corpus folder to write.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="KEY=VALUE", help="Option of the format; may be repeated."),
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the corpus; default: the format's.")] = None,
    copy: Annotated[
        bool, typer.Option("--copy", help="Copy the images into the corpus, so that its folder can be moved.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing corpus.")] = False,
) -> None:
    """Import a dataset as a corpus folder.

    `quintet data import flickr ~/flickr8k corpora/f8k`

    `quintet data import precomp ~/f30k_precomp corpora/f30k --option dev_images=1000`

    `quintet data import folder ~/holiday corpora/holiday --option fractions=0.9,0.05,0.05`

    `quintet data import parquet ~/flickr30k/train-*.parquet ~/flickr30k/test-*.parquet corpora/f30k`

    `quintet data import hf:jxie/flickr8k corpora/f8k`

    `quintet data import webdataset "s3://bucket/shards/{00000..00099}.tar" corpora/web`

    Images and feature arrays stay where they are and the corpus refers to them, unless `--copy` is given. Rows that
    were skipped are listed with the reason, and the list is kept in the corpus. Images in shards and Parquet files are
    written into the corpus, byte for byte. Such an import that was stopped goes on when the command is given again.
    """
    from quintet.data.formats import import_corpus

    given = list(source or [])
    if format.startswith("hf:"):
        format, given = "hf", [format.removeprefix("hf:"), *given]
    target = out or (Path(given.pop()) if len(given) > 1 else None)
    if not given:
        raise CorpusError("name the source and the corpus folder: `quintet data import FORMAT SOURCE CORPUS`")
    if target is None:
        raise CorpusError("name the corpus folder to write: `quintet data import FORMAT SOURCE -o CORPUS`")
    options: dict[str, Any] = dict(_parse_pairs(option or []))
    console = Console()
    with work_bar(Console(stderr=True), format, "images") as progress:
        common: dict[str, Any] = {"name": name, "copy": copy, "overwrite": overwrite, "progress": progress}
        corpus = import_corpus(format, given, target, **common, **options)
    table = Table("split", "groups", "images", "texts", title=f"{escape(corpus.name)} -> {escape(str(target))}")
    for split in map(corpus.split, corpus.splits):
        table.add_row(escape(split.name), *(f"{len(rows):,}" for rows in (split.groups, split.images, split.texts)))
    console.print(table)
    _print_notes(console, corpus.notes)
    command = f"quintet data inspect {escape(shell_quoted(target))}"
    console.print(f"Next: [bold]{command}[/bold]", highlight=False, soft_wrap=True)


@data_app.command("inspect", cls=Command)
def inspect_command(
    corpus: Annotated[Path, typer.Argument(metavar="CORPUS", help="Corpus folder.")],
    split: Annotated[
        str | None,
        typer.Option(metavar="SPLIT", help="Inspect one split; default: all.", autocompletion=complete_split),
    ] = None,
    check_images: Annotated[
        bool,
        typer.Option("--check-images", help="Decode every image: list unreadable ones (exit status 1) and duplicates."),
    ] = False,
    word_vectors: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Count what is left of the texts when only words with a vector are kept."),
    ] = None,
    min_count: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Or only words that occur N times in the training texts.")
    ] = None,
    case: Annotated[bool, typer.Option("--case", help="Words differ by their capitals there.")] = False,
    sheet: Annotated[
        Path | None,
        typer.Option("--contact-sheet", metavar="FILE", help="Write images and their captions as a .jpg or .png."),
    ] = None,
    count: Annotated[int, typer.Option(metavar="N", min=1, help="Images on the contact sheet.")] = 24,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing contact sheet.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Count and measure a corpus: splits, captions, words, features."""
    if case and word_vectors is None and min_count is None:
        raise CorpusError("--case is about a dictionary: add --word-vectors FILE or --min-count N")
    from quintet.data.corpus import Corpus

    opened = Corpus.open(corpus)

    from quintet.data.overview import contact_sheet, describe

    with Progress(console=Console(stderr=True), transient=True, disable=not check_images) as bar:
        task = bar.add_task("reading images", total=len(opened.images) if split is None else None)
        facts = describe(
            opened,
            split=split,
            check_images=check_images,
            word_vectors=word_vectors,
            min_count=min_count,
            case=case,
            progress=lambda done: bar.update(task, completed=done),
        )
    if as_json:
        print_json(facts, indent=2)
    else:
        _print_facts(Console(), facts)
    if sheet is not None:
        contact_sheet(opened, sheet, count, split, overwrite)
        Console(stderr=True).print(f"contact sheet: {escape(str(sheet))}")
    if facts.get("image_files", {}).get("unreadable"):
        raise typer.Exit(1)


@data_app.command("check", cls=Command)
def check_command(
    corpus: Annotated[Path, typer.Argument(metavar="CORPUS", help="Corpus folder.")],
    images: Annotated[
        bool, typer.Option("--images/--no-images", help="Decode every image: near-duplicates, unreadable files, sizes.")
    ] = True,
    strict: Annotated[bool, typer.Option("--strict", help="End with status 1 where there is any problem.")] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Threads that decode images; default: one a core.", rich_help_panel=COMPUTE
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option("--page", metavar="FILE", help="HTML page with examples.", rich_help_panel=OUTPUT),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="JSON file.", rich_help_panel=OUTPUT)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check a corpus before training: leakage, false negatives, unreadable files, outliers.

    `quintet data check corpora/f8k --page check.html`

    Near-duplicate images in different splits, captions that groups share, splits that overlap, images without a
    caption, odd lengths, sizes and scripts. Features and kept word features are read whole and compared with their
    checksums; they must hold no NaN or infinity. Damaged ones end with status 1, with `--strict` other problems too.
    """
    from quintet.data.corpus import Corpus
    from quintet.files import check_output

    opened = Corpus.open(corpus)
    for file in (page, out):
        if file is not None:
            check_output(file)

    from quintet.report.corpus_check import check_corpus

    with work_bar(Console(stderr=True, quiet=as_json), "reading images", "images") as progress:
        found = check_corpus(opened, images=images, workers=workers, progress=progress)
    if out is not None:
        found.save(out)
    if page is not None:
        found.page(page)
    if as_json:
        print_json(found.to_json(), indent=2)
    else:
        console = Console()
        for name, error in {"tables": None, **found.files}.items():
            console.print(f"{escape(name)}: {escape(error or 'whole')}", highlight=False, soft_wrap=True)
        console.print(f"{found.checked_images:,} images decoded", highlight=False)
        for each in found.findings:
            colour = "red" if each.severity == "problem" else "yellow"
            said = f"[{colour}]{each.severity}[/]: [bold]{escape(each.kind)}[/]: {escape(each.said)}"
            console.print(said, highlight=False, soft_wrap=True)
            for example in each.examples[:3]:
                console.print(f"  {escape(each.line(example))}", highlight=False, soft_wrap=True)
    if any(found.files.values()) or (strict and found.problems):
        raise typer.Exit(1)


def _shown(default: Any) -> str:
    """A default as typed on the command line; empty where the option has none."""
    if isinstance(default, bool):
        return str(default).lower()
    return "" if default is None else escape(str(default))


def _parse_pairs(pairs: list[str]) -> dict[str, str]:
    parsed: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise CorpusError(f"--option {pair}: expected KEY=VALUE")
        if key in parsed:
            raise CorpusError(f"--option {key} is given twice")
        parsed[key] = value
    return parsed


def _print_facts(console: Console, facts: dict[str, Any]) -> None:
    table = Table("split", "groups", "images", "texts", "texts an image", "words a text", "vocabulary")
    table.title = f"{escape(facts['name'])}: {facts['images']:,} images, {facts['texts']:,} texts"
    for name, row in facts["splits"].items():
        counts = (f"{row[key]:,}" for key in ("groups", "images", "texts"))
        per_image = ", ".join(f"{texts} ({images:,}x)" for texts, images in row["images_by_number_of_texts"].items())
        words = row["words_in_a_text"]
        lengths = f"{words['min']} .. {words['median']} .. {words['max']}" if words else "-"
        table.add_row(escape(name), *counts, per_image, lengths, f"{row['vocabulary']:,}")
    console.print(table)
    if "dictionary" in facts:
        _print_dictionary(console, facts["dictionary"])
    for pair, count in facts["groups_in_several_splits"].items():
        console.print(f"[yellow]{count:,} groups are in both splits {escape(pair)}[/yellow]")
    repeated = facts["duplicate_texts"]
    if repeated["texts"]:
        console.print(f"{repeated['texts']:,} texts occur in several groups, most often:")
        for example in repeated["examples"]:
            console.print(f"  {example['groups']} x {escape(example['text'])}", highlight=False, soft_wrap=True)
    for name, row in facts["features"].items():
        said = row.get("error") or "{images:,} images, {fragments} x {dim}; {images_without:,} images without".format(
            **row
        )
        console.print(f"features {escape(name)}: {escape(said)}", highlight=False, soft_wrap=True)
    if "image_files" in facts:
        _print_images(console, facts["image_files"])
    _print_notes(console, facts["notes"])


def _print_dictionary(console: Console, facts: dict[str, Any]) -> None:
    vectors = facts["vectors"]
    said = f"dictionary: {facts['words']:,} words of the training texts"
    if vectors is not None:
        said += f"; {vectors['found']:,} of {vectors['words']:,} have a vector in {vectors['file']}"
        if vectors["other_case"]:
            said += f", {vectors['other_case']:,} in another case only"
    console.print(escape(said), highlight=False, soft_wrap=True)
    table = Table("split", "words a text", "in the dictionary", "texts without")
    for name, row in facts["splits"].items():
        means = (f"{row[key]:.1f}" for key in ("words_written", "words_in_a_text"))
        table.add_row(escape(name), *means, f"{row['texts_without']:,}")
    console.print(table)


def _print_images(console: Console, facts: dict[str, Any]) -> None:
    console.print(f"{facts['checked']:,} images decoded, {len(facts['unreadable']):,} unreadable")
    for row in facts["unreadable"][:20]:
        console.print(f"  [red]{escape(row['reason'])}[/red]", highlight=False, soft_wrap=True)
    if facts["copies"]:
        console.print(f"{len(facts['copies']):,} images exist more than once, for example as:")
        for ids in facts["copies"][:5]:
            console.print(f"  {escape(', '.join(ids[:6]))}", highlight=False, soft_wrap=True)


def _print_notes(console: Console, notes: list[str]) -> None:
    for note in notes:
        console.print(f"note: {escape(note)}", highlight=False, soft_wrap=True)
