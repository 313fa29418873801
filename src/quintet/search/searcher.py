"""`Searcher`: an index, opened. Used by the command line, the server and anyone's own program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintet.codes import Codes
from quintet.errors import QuintetError
from quintet.protocols import ShowsAttention
from quintet.runs.run import open_run
from quintet.search.encoder import Encoder
from quintet.search.errors import MissingImage, SearchError, StaleIndex
from quintet.search.explain import Explanation, explain
from quintet.search.items import KINDS, Entry, Hit, Item, Kind
from quintet.search.manifest import Manifest
from quintet.search.queries import check_text
from quintet.search.roles import first_vectors
from quintet.search.shards import unpacked
from quintet.search.stages import Stages
from quintet.search.store_choice import is_ours
from quintet.search.stores import Where
from quintet.search.stores.address import Address

if TYPE_CHECKING:
    from PIL.Image import Image as PILImage

ATTEMPTS = 3  # to open an index that is exchanged in the same moment


class Searcher:
    """Searches one generation of an index; any number of threads may use it at once.

    A rebuilt index is not noticed by itself: `current()` says whether this is still the newest generation.
    """

    def __init__(self, index: Path, manifest: Manifest, encoder: Encoder, rerank: Sequence[int]) -> None:
        """Use `Searcher.open`."""
        self.index, self.manifest, self.encoder = index, manifest, encoder
        self.generation = manifest.generation
        self._rerank = tuple(rerank)
        self._stages = Stages(index, manifest)

    @classmethod
    def open(cls, index: Path | str, *, device: str = "auto", rerank_with: Path | str | None = None) -> Searcher:
        """`rerank_with`: of the runs that the index holds, the one to re-rank with (default: all meant for it)."""
        index = Path(index).resolve()
        for attempt in range(ATTEMPTS):
            manifest = Manifest.read(index)
            try:
                encoder = _open_encoder(index, manifest, device)
                rerank = manifest.rerank if rerank_with is None else (_number_of(manifest, Path(rerank_with)),)
                return cls(index, manifest, encoder, rerank)
            except (QuintetError, OSError):
                # A build may have exchanged the index since the manifest was read: then, and only then, look again.
                if attempt + 1 == ATTEMPTS or Manifest.read(index).generation == manifest.generation:
                    raise
        raise AssertionError("not reached")

    def current(self) -> bool:
        """Whether the index has not been rebuilt since this was opened."""
        try:
            return Manifest.read(self.index).generation == self.generation
        except QuintetError:
            return True  # nothing newer can be opened

    def search_text(
        self,
        texts: Sequence[str],
        *,
        k: int = 20,
        kind: Kind = "image",
        where: Where | None = None,
        rerank: int | None = None,
    ) -> list[list[Hit]]:
        """For each text the k best items of a kind, best first.

        `rerank=K` puts the K best of the first stage (at least k) in the order of the whole score, which is of a
        image and a text: between texts, or between images, the first stage's order stands.
        """
        self._check(k, kind, rerank)
        for text in texts:
            check_text(text, self.encoder.tokenizers)
        codes = self.encoder.encode_texts(texts) if texts else []
        return self._search(codes, len(texts), "text", kind, k, where, rerank)

    def search_image(
        self,
        images: Sequence[PILImage],
        *,
        k: int = 20,
        kind: Kind = "image",
        where: Where | None = None,
        rerank: int | None = None,
    ) -> list[list[Hit]]:
        """For each image (as `quintet.data.images.open_image` gives it) the k best items of a kind."""
        self._check(k, kind, rerank)
        self.encoder.require_views()
        prepared = [self.encoder.prepare(image) for image in images]
        codes = self.encoder.encode_pictures(prepared) if prepared else []
        return self._search(codes, len(images), "image", kind, k, where, rerank)

    def similar(self, item_id: str, *, k: int = 20, kind: Kind = "image", where: Where | None = None) -> list[Hit]:
        """The items of a kind nearest to one of the index, without itself."""
        entry = self._stages.items.entry(item_id)
        self._check(k, kind, None)
        if not self.manifest.first:
            raise SearchError(_NO_EMBEDDING)
        (hits,) = self._stages.nearest(self._stages.vector(entry), k + 1, kind, where)
        return [hit for hit in hits if hit.item.id != item_id][:k]

    def explain(self, query: str, item_id: str) -> Explanation:
        """Which words of a text mattered for an item and, for cross-attention matchers, where they look."""
        check_text(query, self.encoder.tokenizers)
        entry = self._stages.items.entry(item_id)
        members = self._rerank if self._rerank and entry.item.kind == "image" else self.manifest.first
        if not members:
            raise SearchError(_NO_EMBEDDING)
        codes = {member: self._stages.tables[entry.item.kind].codes(member, [entry.place]) for member in members}
        return explain(self.encoder, codes, query, entry.item.kind)

    def item(self, item_id: str) -> Item:
        return self._stages.items.entry(item_id).item

    def items(self, item_ids: Sequence[str]) -> dict[str, Item]:
        """Those of the ids that the index has."""
        return {id_: entry.item for id_, entry in self._stages.items.entries(item_ids).items()}

    def image_path(self, item_id: str) -> Path:
        """The image file of an item: it exists and lies inside an indexed folder, or this raises."""
        entry = self._stages.items.entry(item_id)
        path, top = self._place_of(entry)
        if not path.resolve().is_relative_to(top.resolve()):
            raise MissingImage(f"the image of item {item_id!r} lies outside the indexed folders")
        if not path.is_file():
            raise MissingImage(
                f"{path} is gone since it was indexed; run `quintet index` again to bring the index up to date"
            )
        return path.resolve()

    def _place_of(self, entry: Entry) -> tuple[Path, Path]:
        """The image file, and the folder it must lie in."""
        item = entry.item
        if item.path is None or item.root is None:
            raise MissingImage(f"item {item.id!r} has no image file")
        root = self.manifest.roots[item.root]
        if root.kind == "shards":
            return unpacked(self.index, entry), self.index / "pictures"
        return Path(root.path) / item.path, Path(root.path)

    def describe(self) -> dict[str, Any]:
        """What this index is, in plain values."""
        manifest = self.manifest
        named = [{"name": run.name, "matcher": run.model, "weights": run.weights} for run in manifest.runs]
        return {
            "index": self.index.name,
            "generation": self.generation,
            "matcher": " + ".join(manifest.runs[number].model for number in manifest.first or self._rerank),
            "runs": named,
            "rerank": [manifest.runs[number].model for number in self._rerank],
            "counts": dict(manifest.counts),
            "store": _shown(manifest.store) if manifest.first else "none: every item is scored",
            "dim": manifest.dim,
            "can_rerank": bool(self._rerank and manifest.first),
            "can_explain_regions": self._can_explain_regions(),
            "can_search_by_picture": self.encoder.sees_images,
        }

    def _can_explain_regions(self) -> bool:
        return any(isinstance(self.encoder.runs[number].matcher, ShowsAttention) for number in self._rerank)

    def close(self) -> None:
        self._stages.close()

    def __enter__(self) -> Searcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _search(
        self, codes: list[Codes], queries: int, asked: Kind, kind: Kind, k: int, where: Where | None, rerank: int | None
    ) -> list[list[Hit]]:
        if not queries or not self.manifest.counts[kind]:
            return [[] for _ in range(queries)]
        if not self.manifest.first:
            self._require_scores(asked, kind)
            entries = [entry for entry in self._stages.items.all(kind) if _fits(entry, where)]
            return [self._in_order(codes, row, entries, kind)[:k] for row in range(queries)]
        vectors = first_vectors(codes, self.manifest.first).numpy()
        if rerank is None or asked == kind:
            return self._stages.nearest(vectors, k, kind, where)
        self._require_scores(asked, kind)
        found = []
        for row, hits in enumerate(self._stages.nearest(vectors, max(k, rerank), kind, where)):
            entries = list(self._stages.items.entries([hit.item.id for hit in hits]).values())
            found.append(self._in_order(codes, row, entries, kind)[:k])
        return found

    def _in_order(self, codes: list[Codes], row: int, entries: Sequence[Entry], kind: Kind) -> list[Hit]:
        matchers = {member: self.encoder.runs[member].matcher for member in self._rerank}
        queries = {member: codes[member][row] for member in self._rerank}
        return self._stages.in_order(matchers, queries, entries, kind)

    def _check(self, k: int, kind: str, rerank: int | None) -> None:
        if k < 1 or (rerank is not None and rerank < 1):
            raise SearchError("ask for at least one result, and re-rank at least one candidate")
        if kind not in KINDS:
            raise SearchError(f"an index holds {' and '.join(KINDS)} items, not {kind!r}")

    def _require_scores(self, asked: Kind, kind: Kind) -> None:
        """A whole score is of an image and a text."""
        if asked == kind:
            raise SearchError(_NO_EMBEDDING)
        if not self._rerank:
            raise SearchError(
                "this index cannot re-rank: it holds no fragments of a cross-attention matcher; build it again with "
                "--rerank-with RUN"
            )


_NO_EMBEDDING = (
    "this index was built by cross-attention matchers only, which compare images with texts: images cannot be "
    "compared with images, nor texts with texts; build it with an embedding matcher (VSE++, VSRN, HREM, MMCA)"
)


def _shown(store: str) -> str:
    """An address for people, without the password that may be in it."""
    return store if is_ours(store) else str(Address.parse(store))


def _fits(entry: Entry, where: Where | None) -> bool:
    return where is None or where.matches(entry.item.facts())


def _open_encoder(index: Path, manifest: Manifest, device: str) -> Encoder:
    runs = []
    for run in manifest.runs:
        opened = open_run(index / "runs" / run.weights)
        if opened.weights_checksum != run.weights:
            raise StaleIndex(
                f"the weights in {index / 'runs' / run.weights} are not those the index was built with; "
                "build it again with --overwrite"
            )
        runs.append(opened)
    return Encoder(runs, device=device, towers=index / "towers")


def _number_of(manifest: Manifest, folder: Path) -> int:
    weights = open_run(folder).weights_checksum
    for number, run in enumerate(manifest.runs):
        if run.weights == weights:
            return number
    raise StaleIndex(
        f"the index holds no codes of run {folder}; build it again with --rerank-with {folder} "
        f"(it was built with {', '.join(run.name for run in manifest.runs)})"
    )


def open_index(index: Path | str, *, device: str = "auto", rerank_with: Path | str | None = None) -> Searcher:
    """Open an index to search it: `Searcher.open`."""
    return Searcher.open(index, device=device, rerank_with=rerank_with)
