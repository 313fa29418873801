"""Where the images of an index come from: folders, corpora, tar shards."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from quintet.data.corpus import Corpus, Image
from quintet.data.formats.webdataset import PATTERNS
from quintet.data.images import IMAGE_SUFFIXES
from quintet.search.errors import SearchError
from quintet.search.found import Found, Sources, file_stamp
from quintet.search.items import Entry
from quintet.search.metadata import file_facts, plain_fields, sidecar
from quintet.search.shards import find_in_shards

# Images to a person, but not to Pillow as it is installed: named, not passed over in silence.
OTHER_IMAGES = (".heic", ".heif", ".jxl", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".psd")
Before = Mapping[tuple[str, str], Entry]  # images of the last build by the path of their root and their own


def find_images(sources: Sequence[Path], index: Path, *, split: str | None, before: Before) -> Sources:
    """Everything in the sources that looks like an image. `split`: of corpora, only this split.

    An empty source is refused: it may be a disk that is not mounted, and would empty the index.
    """
    found = Sources()
    for source in dict.fromkeys(sources):
        if not source.exists():
            raise SearchError(f"{source} does not exist; the index is as it was")
        count = len(found.images)
        if (source / "corpus.json").is_file():
            _find_in_corpus(found, source.resolve(), split)
        elif source.is_dir():
            _find_in_folder(found, source, index, before)
        elif _is_shard(source):
            find_in_shards(found, source.parent, [source], index, before)
        else:
            _add_file(found, found.add_root("folder", source.parent), source.parent, source)
        if len(found.images) == count:
            refused = f", the first because: {found.unreadable[0][1]}" if found.unreadable else ""
            raise SearchError(
                f"{source} holds no images ({', '.join(IMAGE_SUFFIXES)}) and no tar shards{refused}; "
                "the index is as it was"
            )
    return found


def _find_in_folder(found: Sources, source: Path, index: Path, before: Before) -> None:
    files = list(_walk(source))
    shards = [path for path in files if _is_shard(path)]
    pictures = [path for path in files if path.suffix.lower() in (*IMAGE_SUFFIXES, *OTHER_IMAGES)]
    if shards and not pictures:
        find_in_shards(found, source, shards, index, before)
        return
    root = found.add_root("folder", source)
    for path in pictures:
        _add_file(found, root, source, path)


def _walk(folder: Path) -> Iterator[Path]:
    """Files in a stable order; hidden ones are passed over."""
    for name, folders, files in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        yield from (Path(name) / file for file in sorted(files) if not file.startswith("."))


def _is_shard(path: Path) -> bool:
    return any(path.match(pattern) for pattern in PATTERNS)


def _add_file(found: Sources, root: int, start: Path, path: Path) -> None:
    why = _refusal(path, start)
    if why is not None:
        found.unreadable.append((os.fsencode(path).decode("utf-8", "replace"), why))
        return
    facts = path.stat()
    metadata = sidecar(path) | file_facts(facts.st_size, facts.st_mtime_ns)
    found.images.append(Found(root, path.relative_to(start).as_posix(), path, file_stamp(facts), metadata=metadata))


def _refusal(path: Path, start: Path) -> str | None:
    if path.suffix.lower() in OTHER_IMAGES:
        return f"{path.suffix} images cannot be read; export it as JPEG or PNG"
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8; rename it"
    if not path.resolve().is_relative_to(start.resolve()):
        return "a link that leads out of the indexed folder; index the folder it leads to"
    if not path.is_file():
        return "a link to nothing, or not a file"
    return None


def _find_in_corpus(found: Sources, source: Path, split: str | None) -> None:
    corpus = Corpus.open(source)
    images = corpus.images if split is None else corpus.split(split).images
    paths = {image.id: corpus.image_path(image).resolve() for image in images if image.path is not None}
    outside = [path.parent for path in paths.values() if not path.is_relative_to(source)]
    inside_root = _add_corpus_root(found, corpus, source)
    # Imported images may have stayed where they were: that folder is then a root of its own.
    elsewhere = Path(os.path.commonpath(outside)) if outside else source
    outside_root = _add_corpus_root(found, corpus, elsewhere) if outside else inside_root
    for image in images:
        if image.path is None:
            found.images.append(Found(inside_root, "", None, "", metadata=_corpus_facts(image), image=image))
            continue
        path = paths[image.id]
        if not path.is_file():
            found.unreadable.append((str(path), "does not exist; was it moved or deleted since the import?"))
            continue
        here, start = (inside_root, source) if path.is_relative_to(source) else (outside_root, elsewhere)
        facts = path.stat()
        metadata = _corpus_facts(image) | file_facts(facts.st_size, facts.st_mtime_ns)
        name = path.relative_to(start).as_posix()
        found.images.append(Found(here, name, path, file_stamp(facts), metadata=metadata, image=image))


def _add_corpus_root(found: Sources, corpus: Corpus, folder: Path) -> int:
    root = found.add_root("corpus", folder)
    found.corpora[root] = corpus
    return root


def _corpus_facts(image: Image) -> dict[str, str | int | float | bool]:
    return plain_fields(image.extra) | {"image": image.id, "group": image.group}
