"""What an index is made of: images of folders, corpora and shards with what is known of them, and texts."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path, PurePosixPath

from quintet.cluster import Pool
from quintet.data.corpus import Corpus, Image
from quintet.data.formats.assembly import read_lines
from quintet.data.images import IMAGE_SUFFIXES
from quintet.errors import QuintetError
from quintet.files import lies_in, read_jsonl
from quintet.search import SearchError
from quintet.search.fields import file_date, file_facts, plain_fields, sidecar
from quintet.search.found import Found, Sources, file_stamp, why_not
from quintet.search.index_folder import Root, RootKind, path_text, text_path
from quintet.search.kept import Earlier
from quintet.search.shard_sources import find_in_shard, find_remote, is_shard, unpack
from quintet.search.stores import Scalar
from quintet.search.stores.store import is_text

# Images to a person, but not to Pillow as it is installed: named, not passed over in silence.
OTHER_IMAGES = (".psd", ".svg", ".eps", ".xcf", ".ico", ".jp2", ".3fr", ".iiq", ".x3f")
VIDEOS = (".mov", ".mp4", ".m4v", ".avi", ".mkv", ".webm", ".3gp")
LONGEST_TEXT = 10_000  # characters of a text, of an index or a query


def numbered(contents: Sequence[str]) -> list[str]:
    """Ids from contents: equal ones are distinguished by a number, in order.

    >>> numbered(["ab", "cd", "ab"])
    ['ab', 'cd', 'ab-2']
    """
    seen: dict[str, int] = {}
    ids = []
    for content in contents:
        seen[content] = seen.get(content, 0) + 1
        ids.append(content if seen[content] == 1 else f"{content}-{seen[content]}")
    return ids


def find_images(
    sources: Sequence[Path | str],
    index: Path,
    *,
    split: str | None,
    earlier: Earlier | None = None,
    prune: bool = False,
    pool: Pool | None = None,
) -> Sources:
    """Everything in the sources that looks like an image. A string is a URL. `split`: of corpora, only this split.

    A source without images is refused, unless the index has some of it. `pool`: workers that unpack shards.
    """
    found = Sources(earlier or Earlier(), prune)
    of_sources: dict[Path | str, list[Found]] = {}
    known: dict[Path | str, bool] = {}  # whether the index has images of it
    for source in dict.fromkeys(sources):
        found.images = of_sources[source] = []
        if isinstance(source, str):
            find_remote(found, source, index)
        else:
            known[source] = _find(found, source, index, split)
    packed = [each.packed for images in of_sources.values() for each in images if each.packed is not None]
    with closing(unpack(found, packed, index, pool)) as unpacked:
        for source, images in of_sources.items():
            of_sources[source] = [each for one in images for each in ([one] if one.packed is None else next(unpacked))]
    for source, images in of_sources.items():
        if not images and not known.get(source):
            unlisted = [*found.unlisted.values()]
            refused = f", the first because: {found.unreadable[0][1]}" if found.unreadable else ""
            refused = f"; {unlisted[0].path}: {unlisted[0].why}" if unlisted else refused
            raise SearchError(
                f"{source} holds no images ({', '.join(IMAGE_SUFFIXES)}) and no tar shards or Parquet files{refused}; "
                "the index is as it was"
            )
    found.images = list(chain.from_iterable(of_sources.values()))
    found.images = list(_once(found))
    return found


def _once(found: Sources) -> Iterator[Found]:
    """The images without those of folders that a source before has named: a folder inside another, or a file of one."""
    seen: set[tuple[RootKind, str]] = set()
    for image in found.images:
        at = found.key(image)
        if at in seen and (at[0] == "folder" or (at[0] == "shards" and image.kept is not None)):
            continue
        seen.add(at)
        yield image


def _find(found: Sources, source: Path, index: Path, split: str | None) -> bool:
    """Whether the index has images of the source, though none may be there now."""
    top = os.path.realpath(source)
    try:
        facts = source.stat()
        has_corpus = stat.S_ISDIR(facts.st_mode) and (source / "corpus.json").is_file()
    except (OSError, ValueError) as error:
        why, gone = why_not(error)
        if not found.keep(path_text(top), source, why, index, gone=gone):
            raise SearchError(f"{source}: {why}; the index is as it was") from None
        return True
    if has_corpus:
        _find_in_corpus(found, Path(top), split, index)
    elif Root("corpus", path_text(top)) in found.earlier.roots and not found.prune:
        raise SearchError(
            f"{source} was a corpus when it was indexed, and has no corpus.json now; the index is as it was. Is its "
            "disk not mounted? With --prune (prune=True) it is indexed as what it is now"
        )
    elif stat.S_ISDIR(facts.st_mode):
        return _find_in_folder(found, source, top, index)
    elif is_shard(source.name):
        find_in_shard(found, found.add_root("shards", source.parent), source, source.name, index)
    else:
        _add_file(found, found.add_root("folder", source.parent), source.parent, source.name, index)
    return False


# Folders


def _find_in_folder(found: Sources, source: Path, top: str, index: Path) -> bool:
    known = False
    images: list[tuple[str, os.DirEntry[str] | None, Exception | None]] = []
    shards: list[str] = []
    for folder, files, error in _walk(source):
        if error is not None or files is None:  # not listed, or nothing in it
            images.append((folder, None, error))
            continue
        for each in files:
            suffix = PurePosixPath(each.name).suffix.lower()
            if suffix in IMAGE_SUFFIXES or suffix in OTHER_IMAGES:
                images.append((os.path.join(folder, each.name), each, None))  # noqa: PTH118  # many
            elif suffix in VIDEOS:
                found.videos += 1
            elif is_shard(each.name):
                shards.append(os.path.join(folder, each.name))  # noqa: PTH118
    only_shards = shards and not any(file for _, file, _ in images)
    root = found.add_root("shards" if only_shards else "folder", top)
    for shard in shards if only_shards else ():
        find_in_shard(found, root, source / shard, shard, index)
    for path, file, error in images:
        if file is not None:
            _add_file(found, root, source, path, index, is_link=file.is_symlink())
            continue
        why, gone = ("is empty", True) if error is None else why_not(error)
        at = f"{found.roots[root].path.rstrip('/')}/{path_text(path)}".rstrip("/")
        known |= found.keep(at, source / path, why, index, gone=gone, root=root)
    return known


def _walk(source: Path) -> Iterator[tuple[str, list[os.DirEntry[str]] | None, Exception | None]]:
    """The folders of a source, itself included, by their path in it, with their files in a stable order.

    Hidden ones are passed over. No files and no error: nothing is in the folder.
    """
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(source / folder) as listed:
                entries = sorted((each for each in listed if not each.name.startswith(".")), key=lambda each: each.name)
            folders = [each.name for each in entries if each.is_dir(follow_symlinks=False)]
            files = [each for each in entries if not each.is_dir(follow_symlinks=False)]
        except (OSError, ValueError) as error:
            yield folder, None, error
            continue
        yield folder, files if entries else None, None
        waiting += [os.path.join(folder, name) for name in reversed(folders)]  # noqa: PTH118


def _add_file(found: Sources, root: int, source: Path, name: str, index: Path, *, is_link: bool | None = None) -> None:
    path, top = source / name, text_path(found.roots[root].path)
    suffix = path.suffix.lower()
    try:
        if suffix in OTHER_IMAGES:
            raise _Refused(f"{path.suffix} images cannot be read; export it as JPEG or PNG")
        if (path.is_symlink() if is_link is None else is_link) and not lies_in(path, top):
            raise _Refused("a link that leads out of the indexed folder; index the folder it leads to")
        facts = path.stat()
        if not stat.S_ISREG(facts.st_mode):
            raise _Refused("not a file")
    except _Refused as refused:
        found.unreadable.append((str(path), str(refused)))
        return
    except (OSError, ValueError) as error:
        why, gone = why_not(error)
        if gone or getattr(error, "errno", None) == errno.ELOOP:
            found.unreadable.append((str(path), "a link to nothing" if gone else "a link to itself"))
        else:
            at = f"{found.roots[root].path.rstrip('/')}/{path_text(name)}"
            found.keep(at, path.parent, why, index, gone=False, root=root)
        return
    fields, refused_sidecars = sidecar(path, top)
    found.unreadable += refused_sidecars
    metadata = _with_date(fields, facts) | file_facts(facts)
    found.images.append(Found(root, path_text(name), path, file_stamp(facts), metadata=metadata))


def _with_date(fields: dict[str, Scalar], facts: os.stat_result) -> dict[str, Scalar]:
    """The date of the file comes last: behind what is written beside it, and behind the image's own EXIF data."""
    return fields if "date" in fields or "year" in fields else file_date(facts) | fields


class _Refused(Exception):  # noqa: N818
    """Why a file is not indexed."""


# Corpora


def _find_in_corpus(found: Sources, source: Path, split: str | None, index: Path) -> None:
    corpus = Corpus.open(source)
    images = corpus.images if split is None else corpus.split(split).images
    paths = {image.id: Path(os.path.realpath(corpus.image_path(image))) for image in images if image.path is not None}
    outside = [path.parent for path in paths.values() if not path.is_relative_to(source)]
    inside_root = _add_corpus_root(found, corpus, source)
    # Imported images may have stayed where they were: that folder is then a root of its own.
    elsewhere = Path(os.path.commonpath(outside)) if outside else source
    outside_root = _add_corpus_root(found, corpus, elsewhere) if outside else inside_root
    gone = cache(_is_gone)
    for image in images:
        metadata = _corpus_facts(found, image)
        if image.path is None:
            found.images.append(Found(inside_root, "", None, "", metadata=metadata, image=image))
            continue
        path = paths[image.id]
        try:
            facts = path.stat()
            if not stat.S_ISREG(facts.st_mode):
                found.unreadable.append((str(path), "not a file"))
                continue
        except (OSError, ValueError) as error:
            why, is_gone = why_not(error)
            folder_why = gone(path.parent) if is_gone else why
            if folder_why is None:
                found.unreadable.append((str(path), "does not exist; was it moved or deleted?"))
            elif not found.keep(path_text(path), path.parent, folder_why, index, gone=is_gone, image=image):
                found.unreadable.append((str(path), why))
            continue
        root, start = (inside_root, source) if path.is_relative_to(source) else (outside_root, elsewhere)
        name = path_text(path.relative_to(start))
        metadata = _with_date(metadata, facts) | file_facts(facts)
        found.images.append(Found(root, name, path, file_stamp(facts), metadata=metadata, image=image))


def _add_corpus_root(found: Sources, corpus: Corpus, folder: Path) -> int:
    root = found.add_root("corpus", folder)
    found.corpora[root] = corpus
    return root


def _is_gone(folder: Path) -> str | None:
    """Why nothing of a folder can be seen."""
    try:
        with os.scandir(folder) as listed:
            return None if any(not each.name.startswith(".") for each in listed) else "is empty"
    except (OSError, ValueError) as error:
        return why_not(error)[0]


def _corpus_facts(found: Sources, image: Image) -> dict[str, Scalar]:
    try:
        fields = plain_fields(image.extra)
    except QuintetError as error:
        found.unreadable.append((f"image {image.id!r:.80}", f"{error}; it is indexed without these fields"))
        fields = {}
    return fields | {"image": image.id, "group": image.group}


# Texts


@dataclass(frozen=True)
class IndexedText:
    text: str
    metadata: dict[str, Scalar] = field(default_factory=dict)

    @property
    def content(self) -> str:
        """The checksum by which a text is known."""
        return f"text-{hashlib.sha256(self.text.encode()).hexdigest()[:32]}"


def find_texts(source: Path, *, split: str | None = None) -> list[IndexedText]:
    """Of a corpus; of a .jsonl file, whose rows have `text` and any other fields; or of a file with one a line."""
    if (source / "corpus.json").is_file():
        corpus = Corpus.open(source)
        texts = corpus.texts if split is None else corpus.split(split).texts
        found = [IndexedText(text.text, {"caption": text.id, "group": text.group}) for text in texts]
    elif not source.is_file():
        raise SearchError(f"{source} is neither a file of texts nor a corpus; the index is as it was")
    elif source.suffix.lower() == ".jsonl":
        found = [_from_row(source, number, row) for number, row in enumerate(read_jsonl(source), 1)]
    else:
        found = [IndexedText(line) for line in read_lines(source)]
    found = [text for text in found if text.text.strip()]
    if not found:
        raise SearchError(f"{source} holds no texts; the index is as it was")
    for number, text in enumerate(found, 1):
        if not is_text(text.text) or len(text.text) > LONGEST_TEXT:
            raise SearchError(f"{source}, text {number}: no text, or more than {LONGEST_TEXT:,} characters")
    return found


def _from_row(source: Path, number: int, row: dict[str, object]) -> IndexedText:
    text = row.get("text")
    if not isinstance(text, str):
        raise SearchError(f"{source}, row {number}: no field `text` with a text")
    return IndexedText(text, plain_fields({key: row[key] for key in row if key != "text"}))
