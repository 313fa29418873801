"""What a build keeps of the one before: images that cannot be looked at now, and an index whose sources went away.

A folder that cannot be listed keeps its images. So does one that is empty or missing, where images were: it may be a
disk that is not mounted. And a build that would drop more than a share of an index is refused, unless `prune` is given.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from quintet.search import SearchError
from quintet.search.index_folder import Root, RootKind
from quintet.search.items import Entry, Kind

SHARE, HANDFUL = 0.2, 10  # what is dropped without `prune`: up to this share, and up to so many anyway
Key = tuple[RootKind, str]  # a file by the kind of its root and its absolute path


@dataclass
class Unlisted:
    """A folder (or shard) that could not be listed, or is empty or missing where images were."""

    path: str
    why: str
    gone: bool  # it is not there, or nothing is in it: its images may also have been moved or deleted
    kept: int = 0  # images of the index that were in it


class Earlier:
    """The images of the last build, by their files."""

    def __init__(self, roots: Sequence[Root] = (), entries: Iterable[Entry] = ()) -> None:
        self.roots = tuple(roots)
        self._entries: dict[Key, list[tuple[Root, Entry]]] = defaultdict(list)
        for entry in entries:
            if entry.item.root is not None and entry.item.path is not None:
                root = self.roots[entry.item.root]
                self._entries[key(root, entry.item.path)].append((root, entry))
        self._keys = sorted(self._entries)

    def __contains__(self, at: Key) -> bool:
        return at in self._entries

    def keys(self) -> set[Key]:
        return set(self._keys)

    def at(self, at: Key) -> Entry | None:
        return self._entries[at][0][1] if at in self._entries else None

    def below(self, path: str, *kinds: RootKind) -> Iterator[tuple[Root, Entry]]:
        """Those of a file, or in a folder or shard, in the order in which equal ones are numbered."""
        for kind in kinds:
            found = list(self._entries.get((kind, path), ()))
            start = bisect_left(self._keys, (kind, f"{path.rstrip('/')}/"))
            stop = bisect_left(self._keys, (kind, f"{path.rstrip('/')}0"))  # 0 comes behind /
            for at in self._keys[start:stop]:
                found += self._entries[at]
            yield from sorted(found, key=lambda each: (each[1].content, len(each[1].item.id), each[1].item.id))


def key(root: Root, path: str) -> Key:
    """Of a file below a root."""
    return root.kind, f"{root.path.rstrip('/')}/{path}"


def check_dropped(kind: Kind, count: int, of: int, example: str, prune: bool) -> None:
    """Refuse to drop more than a share of the items of a kind."""
    if prune or count <= max(HANDFUL, SHARE * of):
        return
    what = "in the sources" if kind == "image" else "among the texts"
    raise SearchError(
        f"{count:,} of {of:,} {kind}s of the index are not {what} any more, such as {example:.200}; the index is as it "
        "was. Is a disk not mounted, or a source not named? To drop them, add --prune (from Python: prune=True)"
    )
