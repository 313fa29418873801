"""What was found in the sources of an index, before any of it is read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from quintet.data.corpus import Corpus, Image
from quintet.search.manifest import Root, RootKind
from quintet.search.stores import Scalar


@dataclass(frozen=True)
class Found:
    """An image of a source."""

    root: int
    path: str  # relative to the root, with forward slashes; of a shard's member "shard.tar/name.jpg"
    file: Path | None  # where its bytes are; None: only features are known
    stamp: str  # the same stamp, the same content
    content: str | None = None  # checksum, where it is known already
    metadata: dict[str, Scalar] = field(default_factory=dict)
    image: Image | None = None  # the row of a corpus


@dataclass
class Sources:
    roots: list[Root] = field(default_factory=list)
    images: list[Found] = field(default_factory=list)
    corpora: dict[int, Corpus] = field(default_factory=dict)  # by root
    unreadable: list[tuple[str, str]] = field(default_factory=list)  # path, why

    def add_root(self, kind: RootKind, path: Path) -> int:
        self.roots.append(Root(kind, str(path.resolve())))
        return len(self.roots) - 1


def file_stamp(facts: os.stat_result) -> str:
    """Size and time of change of a file."""
    return f"{facts.st_size}:{facts.st_mtime_ns}"


def content_of(data: bytes) -> str:
    """The checksum by which an image is known, wherever it lies."""
    return hashlib.sha256(data).hexdigest()[:32]


def numbered(contents: Sequence[str]) -> list[str]:
    """Ids from contents: equal ones are told apart by a number, in order.

    >>> numbered(["ab", "cd", "ab"])
    ['ab', 'cd', 'ab-2']
    """
    seen: dict[str, int] = {}
    ids = []
    for content in contents:
        seen[content] = seen.get(content, 0) + 1
        ids.append(content if seen[content] == 1 else f"{content}-{seen[content]}")
    return ids
