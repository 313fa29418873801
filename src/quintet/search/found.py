"""What is found in the sources of an index: images, and the folders, corpora and shards that they are in."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from quintet.data.corpus import Corpus, Image
from quintet.data.remote import RemoteFile
from quintet.search.index_folder import Root, RootKind, path_text, text_path
from quintet.search.items import Entry
from quintet.search.kept import Earlier, Unlisted, key
from quintet.search.stores import Scalar


@dataclass(frozen=True)
class Packed:
    """A shard, or an image behind a URL, whose images are still to be unpacked into the index."""

    root: int
    name: str  # below the root
    stamp: str
    file: Path | RemoteFile


@dataclass(frozen=True)
class Found:
    """An image of a source."""

    root: int
    path: str  # relative to the root, as `path_text` writes it; of a shard's member "shard.tar/name.jpg"
    file: Path | None  # where its bytes are; None: only features are known
    stamp: str  # the same stamp, the same content
    content: str | None = None  # checksum, where it is known already
    metadata: dict[str, Scalar] = field(default_factory=dict)
    image: Image | None = None  # the row of a corpus
    kept: Unlisted | None = None  # it was not seen now, but is in the index
    packed: Packed | None = None  # it stands for what is still to be unpacked


@dataclass
class Sources:
    """`earlier`: what the index holds. `prune`: nothing is kept of folders that are empty or missing."""

    earlier: Earlier = field(default_factory=Earlier)
    prune: bool = False
    roots: list[Root] = field(default_factory=list)
    images: list[Found] = field(default_factory=list)
    corpora: dict[int, Corpus] = field(default_factory=dict)  # by root
    unreadable: list[tuple[str, str]] = field(default_factory=list)  # path, why
    unlisted: dict[str, Unlisted] = field(default_factory=dict)  # by path
    videos: int = 0  # in folders; passed over

    def add_root(self, kind: RootKind, path: Path | str) -> int:
        self.roots.append(Root(kind, path_text(os.path.realpath(path))))
        return len(self.roots) - 1

    def key(self, image: Found) -> tuple[RootKind, str]:
        return key(self.roots[image.root], image.path)

    def keep(
        self,
        path: str,
        folder: Path,
        why: str,
        index: Path,
        *,
        gone: bool,
        root: int | None = None,
        image: Image | None = None,
    ) -> bool:
        """Keep the images of the index at or below a path, because of a folder; whether there are any.

        `path`: absolute, as `path_text` writes it. `gone`: nothing is there, so there may be nothing to list.
        `root`: what they belong to now, unless it is of another kind. `image`: of a corpus, its row.
        """
        below = list(self.earlier.below(path, *(("folder", "shards") if image is None else ("corpus",))))
        if image is not None:
            below = [each for each in below if each[1].item.metadata.get("image") == image.id]
        if gone and (self.prune or not below):
            return bool(below)
        unlisted = self.unlisted.setdefault(str(folder), Unlisted(str(folder), why, gone))
        for before, entry in below:
            number = root
            if number is None or self.roots[number].kind != before.kind:
                if before not in self.roots:
                    self.roots.append(before)
                number = self.roots.index(before)
            self.add_again(number, before, entry, index, unlisted, image)
        return bool(below)

    def add_again(
        self,
        root: int,
        before: Root,
        entry: Entry,
        index: Path,
        kept: Unlisted | None = None,
        image: Image | None = None,
    ) -> None:
        """An image of the last build, where it was below the root `before`, as it was."""
        whole = key(before, entry.item.path or "")[1]
        path = whole[len(self.roots[root].path.rstrip("/")) + 1 :]
        file = unpacked(index, entry) if before.kind == "shards" else Path(text_path(whole))
        metadata = dict(entry.item.metadata)
        self.images.append(Found(root, path, file, entry.stamp, entry.content, metadata, image, kept))

    def without_moved(self, contents: Sequence[str | None]) -> list[str | None]:
        """The contents of the images that stay: what an empty or missing folder had, and a new path has, was moved."""
        both = list(zip(self.images, contents, strict=True))
        new = {content for image, content in both if image.kept is None and self.key(image) not in self.earlier}
        both = [(image, content) for image, content in both if not (image.kept and image.kept.gone and content in new)]
        self.images = [image for image, _ in both]
        for image, content in both:
            if image.kept is not None and content is not None:
                image.kept.kept += 1
        return [content for _, content in both]


def file_stamp(facts: os.stat_result) -> str:
    """Size and time of change of a file."""
    return f"{facts.st_size}:{facts.st_mtime_ns}"


def why_not(error: Exception) -> tuple[str, bool]:
    """Why a file or folder cannot be looked at, and whether nothing is there."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "does not exist", True
    if isinstance(error, OSError):
        return (error.strerror or str(error)), False
    return "its name is none that a file can have", False


def unpacked(index: Path, entry: Entry) -> Path:
    """Where the image of a shard's member is."""
    return unpacked_path(index, entry.content, PurePosixPath(entry.item.path or "").suffix)


def unpacked_path(index: Path, content: str, suffix: str) -> Path:
    return index / "images" / content[:2] / f"{content}{suffix.lower()}"
