"""Corpora in other people's layouts: `import_corpus` reads one and writes a corpus folder."""

from __future__ import annotations

import inspect
import os
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from quintet.data.corpus import FORMAT, HEADER, TABLES, Corpus, Image
from quintet.data.formats.assembly import COPIED, ImageFolder
from quintet.data.remote import RemoteError, is_url, shown_url
from quintet.errors import CorpusError, QuintetError, suggest
from quintet.files import begin_folder, check_folder, header_format, partials, remove_partials, user_path
from quintet.locks import folder_lock

OLD_OPTIONS = {"pictures": "images"}  # earlier names, still understood


Source = Path | str | Sequence[Path | str]


def import_corpus(
    format: str,
    source: Source,
    out: Path | str,
    *,
    name: str | None = None,
    copy: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int | None], None] | None = None,
    **options: Any,
) -> Corpus:
    """Read a dataset in one of the `FORMATS`, write it as a corpus folder at `out`, and return that corpus.

    The images stay where they are and the corpus points at them. With `copy` they are copied into `out/images`, so
    that the folder can be moved. `options` are those of the format (`quintet data formats` lists them), as values or
    as strings. `source` is a list for formats that take several files, which may be URLs (`s3://`, `gs://`,
    `https://`).

    A corpus at `out` is replaced only with `overwrite`. Files that no import wrote are never replaced: `CorpusError`
    names the one that is in the way. An import of shards or Parquet files that was killed goes on where it stopped
    when it is given again. `progress` is called with (images so far, total or None).

    >>> from tempfile import mkdtemp
    >>> corpus = import_corpus("scenes", "-", mkdtemp(), train=4, dev=2, test=2, size=32)
    >>> len(corpus.images), len(corpus.split("train").texts)
    (8, 20)
    """
    chosen, out = get_format(format), user_path(out)
    sources = _sources(chosen, source)
    parsed = parse_options(chosen, options)
    try:
        if chosen.generated and progress is not None:
            parsed["progress"] = progress
        return _import(chosen, sources, out, parsed, name, copy, overwrite, progress)
    except CorpusError:
        raise
    except QuintetError as error:
        raise CorpusError(str(error)) from None
    except OSError as error:
        raise CorpusError(f"could not import {sources[0]} into {out}: {error}") from error


def _sources(format: Format, source: Source) -> list[Path | str]:
    """URLs and names as strings, files as paths."""
    given = [source] if isinstance(source, str | Path) else list(source)
    if not given or (len(given) > 1 and not format.many):
        found = ", ".join(map(str, given)) or "none"
        raise CorpusError(
            f"format {format.name!r} takes one SOURCE, found {found} (options of a format are --option KEY=VALUE)"
        )
    if format.named:
        return [str(given[0]).removeprefix(f"{format.name}:")]
    urls = [str(each) for each in given if is_url(each)]
    if urls and not format.many:
        many = ", ".join(name for name, each in FORMATS.items() if each.many)
        raise CorpusError(
            f"format {format.name!r} reads files of this machine, not {shown_url(urls[0])}; URLs are for {many}"
        )
    return [each if is_url(each) else user_path(each) for each in given]


def _import(
    format: Format,
    sources: list[Path | str],
    out: Path,
    options: dict[str, Any],
    name: str | None,
    copy: bool,
    overwrite: bool,
    progress: Callable[[int, int | None], None] | None,
) -> Corpus:
    source = sources[0]
    if isinstance(source, Path) and not (format.generated or format.many or source.exists()):
        raise CorpusError(f"{source} does not exist; SOURCE holds {format.help}")
    if out.exists() and not out.is_dir():
        raise CorpusError(f"{out} is a file; OUT is the folder to make")
    check_folder(out, HEADER, FORMAT, TABLES)
    replaces = header_format(out / HEADER) == FORMAT
    if replaces and not overwrite:
        raise CorpusError(f"{out} already holds a corpus; choose another folder, or allow overwriting it")
    if format.generated:
        corpus = format.read(out, overwrite=overwrite, **options)
        if name:
            corpus.name = name
            corpus.save(out)
        return corpus
    with folder_lock(out, "importing a corpus", name=".quintet.lock"):
        folder = ImageFolder(out, progress)
        try:
            if format.needs_out:
                if replaces:
                    begin_folder(out, HEADER, FORMAT, TABLES)  # from here on the old corpus no longer fits its files
                options["out"] = folder
            corpus = format.read(sources if format.many else source, **options)
            point = _copier(folder) if copy else _pointer(out)
            for row, image in enumerate(corpus.images):  # in place: there may be millions
                if image.extra.get(COPIED) and image.path is not None:  # quickly: it is in `out`
                    corpus.images[row] = replace(image, path=image.path.removeprefix(f"{out}/"))
                elif image.path is not None:
                    corpus.images[row] = point(image, corpus.image_path(image))
            os.sync()  # the copied or unpacked images: one sync for all of them, before the tables that name them
            corpus.name, corpus.root = name or corpus.name, out
            corpus.save(out)
        except BaseException as error:
            # What can be continued stays: after a stop by hand, or when a server went away.
            if folder.journal is None or not isinstance(error, KeyboardInterrupt | RemoteError):
                folder.undo()
            raise
        if folder.journal is not None:
            folder.journal.unlink(missing_ok=True)
        _remove_partials(out, corpus.images)
        return corpus


def _remove_partials(out: Path, images: list[Image]) -> None:
    """What imports that were killed left beside the images that this one has written."""
    paths = [image.path for image in images if image.path is not None and image.extra.get(COPIED)]
    for name in {path.rpartition("/")[0] for path in paths}:
        if partials(out / name):
            remove_partials(out / name, {path.rpartition("/")[2] for path in paths})


def _pointer(out: Path) -> Callable[[Image, Path], Image]:
    """Paths inside the corpus folder are relative, others absolute."""
    inside, prefix = out.resolve(), f"{out}/"

    def point(image: Image, path: Path) -> Image:
        if image.extra.get(COPIED):
            return replace(image, path=str(path).removeprefix(prefix))
        resolved = path.resolve()
        if resolved.is_relative_to(inside):
            return replace(image, path=resolved.relative_to(inside).as_posix())
        return replace(image, path=str(path.absolute()))

    return point


def _copier(folder: ImageFolder) -> Callable[[Image, Path], Image]:
    point = _pointer(folder.out)

    def copy(image: Image, path: Path) -> Image:
        if image.extra.get(COPIED):
            return point(image, path)
        target, facts = folder.add(image.id, path.suffix, path)
        return replace(image, path=target.relative_to(folder.out).as_posix(), extra=image.extra | facts)

    return copy


@dataclass(frozen=True)
class Option:
    name: str
    type: Any  # str, int, float, bool or Path, also with `| None`
    default: Any
    help: str

    def parse(self, value: Any) -> Any:
        """A value as typed on a command line, turned into what the reader wants."""
        if not isinstance(value, str):
            return value
        kinds = [kind for kind in (typing.get_args(self.type) or (self.type,)) if kind is not type(None)]
        if bool in kinds:
            known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
            if value.lower() not in known:
                raise CorpusError(f"option {self.name}={value}: expected true or false")
            return known[value.lower()]
        try:
            return kinds[0](value)
        except ValueError:
            raise CorpusError(f"option {self.name}={value}: expected {kinds[0].__name__}") from None


@dataclass(frozen=True)
class Format:
    """A source layout. Its module has `read(source, **options) -> Corpus` and OPTIONS, a help text for each option."""

    name: str
    help: str
    generated: bool = False  # there is no source: `make_scenes(out, **options)` draws the images
    many: bool = False  # `read` takes a list of files, folders and URLs
    named: bool = False  # the source is a name on the hub

    @property
    def _module(self) -> ModuleType:
        return import_module("quintet.data.scenes.generate" if self.generated else f"quintet.data.formats.{self.name}")

    @property
    def read(self) -> Callable[..., Corpus]:
        reader: Callable[..., Corpus] = self._module.make_scenes if self.generated else self._module.read
        return reader

    @property
    def needs_out(self) -> bool:
        """Whether the reader writes files of its own (features, unpacked images) into the corpus folder."""
        return "out" in inspect.signature(self.read).parameters

    @property
    def options(self) -> dict[str, Option]:
        types = typing.get_type_hints(self.read)
        helps: dict[str, str] = self._module.OPTIONS
        parameters = inspect.signature(self.read).parameters
        return {name: Option(name, types[name], parameters[name].default, text) for name, text in helps.items()}


FORMATS = {
    format.name: format
    for format in (
        Format("flickr", "Flickr8k / Flickr30k: token file, split lists, images"),
        Format("karpathy", "Karpathy's dataset_flickr8k.json, dataset_flickr30k.json, dataset_coco.json"),
        Format("precomp", "SCAN's *_precomp folders: captions and region features, used where they lie"),
        Format("coco", "COCO's captions_train2017.json and captions_val2017.json (or 2014) and its images"),
        Format("multi30k", "Multi30k: captions in several languages, one file for each split and language"),
        Format("cuhk", "CUHK-PEDES: images of people, grouped by identity"),
        Format("icfg", "ICFG-PEDES: images of people, grouped by identity"),
        Format("rstp", "RSTPReid: images of people, grouped by identity"),
        Format("folder", "your own images, captions in CSV, TSV, JSONL, Parquet or .txt files beside them"),
        Format("parquet", "Parquet files with the images in them, as `datasets` and the hub write them", many=True),
        Format("hf", "a dataset of the hub by its name OWNER/NAME, or a folder, read by `datasets`", named=True),
        Format("webdataset", "tar shards with key.jpg and key.txt or key.json", many=True),
        Format("img2dataset", "what img2dataset writes: tar shards or folders, with their statistics", many=True),
        Format("scenes", "generated images of coloured shapes with five texts each; SOURCE is -", generated=True),
    )
}


def get_format(name: str) -> Format:
    if name not in FORMATS:
        raise CorpusError(f"unknown corpus format {name!r}; {suggest(name, FORMATS)}")
    return FORMATS[name]


def parse_options(format: Format, options: dict[str, Any]) -> dict[str, Any]:
    """The reader's arguments from options as values or strings."""
    known, parsed = format.options, {}
    for given, value in options.items():
        option = given if given in known else OLD_OPTIONS.get(given, given)
        if option not in known:
            raise CorpusError(f"format {format.name!r} has no option {given!r}; {suggest(given, known)}")
        if option in parsed:
            raise CorpusError(f"option {option!r} is given twice, once as {given!r}")
        parsed[option] = known[option].parse(value)
    return parsed
