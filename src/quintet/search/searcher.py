"""`Searcher`: an index, opened. Used by the command line, the server and anyone's own program."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np
from PIL.Image import Image as PILImage

from quintet.data.images import image_format, open_image
from quintet.data.tokenizers import Tokenizer
from quintet.errors import ImageError, QuintetError, suggest
from quintet.files import open_regular, user_path
from quintet.runs.run_folder import locate, weights_identity
from quintet.search import (
    MOST_RERANKED,
    MOST_RESULTS,
    MissingImage,
    SearchError,
    StaleIndex,
    WhereError,
)
from quintet.search.chance import FEW_ITEMS, ChanceScores
from quintet.search.chance import unpacked as unpacked_texts
from quintet.search.explain import Explanation, explain
from quintet.search.facets import Facet, facets
from quintet.search.found import unpacked
from quintet.search.generation import Generation
from quintet.search.index_folder import Manifest, check_kept, check_marker, text_path
from quintet.search.items import KINDS, Entry, Hit, Item, ItemDatabase, Kind
from quintet.search.queries import (
    COMPARED,
    LESS,
    OTHER_LANGUAGES,
    check_query,
    combined,
    near_duplicates,
    strange_words,
    words_of,
)
from quintet.search.stores import Where, parse_where
from quintet.search.stores.choice import is_own
from quintet.search.stores.store import Address
from quintet.search.text_codes import TextCodes
from quintet.search.text_vectors import TextVectors, open_text_vectors
from quintet.search.vectors import products

if TYPE_CHECKING:  # torch is imported where an `Encoder` is needed: often a text needs none
    from quintet.codes import Codes
    from quintet.search.encoder import Encoder

PATIENCE = 60.0  # seconds to open an index that is exchanged again and again
Device: TypeAlias = Any  # a torch.device or its name; torch is imported when it is needed
Image = PILImage | os.PathLike[str]
Query = str | Image
_Found = tuple[Entry, float]


def open_index(path: Path | str, *, device: Device = "auto", rerank_with: Path | str | None = None) -> Searcher:
    """Open what `build_index` made, to search it.

    - `device`: where queries are encoded; "auto" takes a GPU where there is one.
    - `rerank_with`: of the runs that the index holds, the one to re-rank with (default: all meant for it).

    >>> import quintet
    >>> from tempfile import TemporaryDirectory
    >>> from PIL import Image
    >>> with TemporaryDirectory() as folder:
    ...     for colour in ("green", "blue"):
    ...         Image.new("RGB", (64, 48), colour).save(f"{folder}/{colour}.png")
    ...     report = quintet.build_index("quintet-small", folder, f"{folder}.index", device="cpu")
    ...     with open_index(f"{folder}.index", device="cpu") as index:
    ...         [hit.path.name for hit in index.search("green grass", k=1)]
    ['green.png']
    """
    return Searcher.open(path, device=device, rerank_with=rerank_with)


class Searcher:
    """Searches one generation of an index; any number of threads may use it at once.

    A rebuilt index is not noticed by itself: `current()` says whether this is still the newest generation.
    """

    def __init__(
        self,
        index: Path,
        opened: Generation,
        texts: TextVectors | None,
        device: Device,
        rerank: Sequence[int],
    ) -> None:
        """Use `quintet.open_index`."""
        self.index, self.manifest, self.device = index, opened.manifest, device
        self.generation = self.manifest.generation
        self._rerank = tuple(rerank)
        self._opened, self._texts = opened, texts

    @classmethod
    def open(
        cls,
        index: Path | str,
        *,
        device: Device = "auto",
        rerank_with: Path | str | None = None,
        earlier: Searcher | None = None,
    ) -> Searcher:
        """`rerank_with`: of the runs that the index holds, the one to re-rank with (default: all meant for it).

        `earlier`: opened before from the same folder. Its runs, and the codes that they made of texts, are taken over
        where this generation has the very same runs.
        """
        index = user_path(index).resolve()
        end = time.monotonic() + PATIENCE
        while True:
            check_marker(index)
            generation, stack = None, ExitStack()
            try:
                database = stack.enter_context(closing(ItemDatabase.open_snapshot(index / "items.sqlite")))
                manifest = Manifest.of(database)
                generation = manifest.generation
                check_kept(index, manifest)
                rerank = manifest.rerank if rerank_with is None else (_number_of(manifest, Path(rerank_with)),)
                opened = stack.enter_context(closing(Generation(index, database, manifest)))
                if earlier is not None and earlier._has_runs_of(index, manifest, device):
                    searcher = cls(index, opened, earlier._texts, device, rerank)
                    if "encoder" in vars(earlier):
                        searcher.encoder = earlier.encoder
                else:
                    searcher = cls(index, opened, open_text_vectors(index, manifest, str(device)), device, rerank)
                if searcher._texts is None:
                    _ = searcher.encoder  # raises what is wrong with the runs
                stack.pop_all()
                return searcher
            except (QuintetError, OSError) as error:
                # A build may have removed files of this snapshot since it was taken: then, and only then, open again.
                if time.monotonic() < end and _generation(index) not in (None, generation):
                    continue
                if isinstance(error, OSError):
                    raise StaleIndex(f"{error.filename} cannot be read ({error.strerror}); build it again") from error
                raise
            finally:
                stack.close()

    def _has_runs_of(self, index: Path, manifest: Manifest, device: Device) -> bool:
        """By the checksums of all their files."""
        mine = self.manifest
        same = (mine.runs, mine.kept, mine.first) == (manifest.runs, manifest.kept, manifest.first)
        return same and (self.index, self.device) == (index, device)

    @cached_property
    def encoder(self) -> Encoder:
        """The runs of the index, opened when they are first needed: a text has its vector without them where
        `quintet.search.text_vectors` knows its runs.
        """
        from quintet.search.encoder import open_encoder

        return open_encoder(self.index, self.manifest, self.device)

    @property
    def _tokenizers(self) -> Sequence[Tokenizer]:
        return (self._texts or self.encoder).tokenizers

    @property
    def queries(self) -> TextCodes[Any]:
        """What texts that are searched for become."""
        return (self._texts or self.encoder).queries

    def _text_vectors(self, texts: Sequence[str]) -> np.ndarray:
        """(n, dim): as queries of the first stage."""
        if self._texts is None:
            return self._query_vectors(self._text_codes(texts))
        return self._texts.queries.of(texts[0])[None] if len(texts) == 1 else self._texts.vectors(texts)

    def _text_codes(self, texts: Sequence[str]) -> list[Codes]:
        return self.encoder.queries.of(texts[0]) if len(texts) == 1 else self.encoder.encode_texts(texts)

    def _query_vectors(self, codes: Sequence[Codes] | Mapping[int, Codes]) -> np.ndarray:
        from quintet.search.encoder import query_vectors

        return query_vectors(codes, self.manifest.first).numpy()

    def __repr__(self) -> str:
        images, texts = self.manifest.counts["image"], self.manifest.counts["text"]
        return f"<Searcher of {self.index}: {images} images, {texts} texts>"

    def current(self) -> bool:
        """Whether the index has not been rebuilt since this was opened."""
        return _generation(self.index) in (None, self.generation)  # None: nothing newer can be opened

    def check(self) -> None:
        """Raise unless the index answers and, where there is one, the engine that holds its vectors."""
        self._opened.check()

    @overload
    def search(  # type: ignore[overload-overlap]  # a str is also a sequence
        self,
        query: Query | None = ...,
        *,
        k: int = ...,
        kind: Kind | None = ...,
        where: Where | str | None = ...,
        rerank: int | None = ...,
        image: Image | None = ...,
        exclude: str | Sequence[str] = ...,
        duplicates: bool = ...,
    ) -> list[Hit]: ...
    @overload
    def search(
        self,
        query: Sequence[Query],
        *,
        k: int = ...,
        kind: Kind | None = ...,
        where: Where | str | None = ...,
        rerank: int | None = ...,
        image: Image | None = ...,
        exclude: str | Sequence[str] = ...,
        duplicates: bool = ...,
    ) -> list[list[Hit]]: ...

    def search(
        self,
        query: Query | Sequence[Query] | None = None,
        *,
        k: int = 20,
        kind: Kind | None = None,
        where: Where | str | None = None,
        rerank: int | None = None,
        image: Image | None = None,
        exclude: str | Sequence[str] = (),
        duplicates: bool = False,
    ) -> list[Hit] | list[list[Hit]]:
        """The k items that fit a query best, best first; of a list of queries, a list for each.

        - `query`: a text (a string), an image (a PIL image), or the path of an image file (a `Path`).
        - `image`: an image that results should be like, besides fitting the query. Scores of several parts are in
          standard deviations above the mean of the index, added up.
        - `exclude`: texts that results should fit less ("snow").
        - `kind`: "image" or "text"; images, unless the index holds only texts.
        - `where`: a filter, such as 'path~"holiday/*" and year>=2024 or camera~"Apple*"'.
        - `rerank`: put this many candidates in the order of the whole score (see `search_text`).
        - `duplicates`: also give results that nearly equal a better one; else they are its `duplicates`.

        The results from the first with `weak` on have scores that random words reach, too (`quintet.search.chance`).

            hits = index.search("a dog in the snow", k=5, where="year>=2024")
            print(hits[0].path, hits[0].score)
        """
        if query is None or isinstance(query, str | PILImage | os.PathLike):
            parts: dict[str, Any] = {"image": image, "exclude": exclude, "duplicates": duplicates}
            given: list[Any] = [image if query is None else query]
            if query is None:
                parts["image"] = None
            return self.search(given, k=k, kind=kind, where=where, rerank=rerank, **parts)[0]
        queries: list[Any] = list(query) if isinstance(query, Iterable) else [query]
        excluded = [exclude] if isinstance(exclude, str) else list(exclude)
        for each in [*queries, *([] if image is None else [image])]:
            if not isinstance(each, str | PILImage | os.PathLike):
                raise SearchError(
                    f"search for a text, a PIL image or the path of an image, not a {type(each).__name__}"
                )
        kind = kind or ("image" if self.manifest.counts["image"] else "text")
        condition = parse_where(where) if isinstance(where, str) else where
        if image is not None or excluded:
            if rerank is not None:
                raise SearchError("re-ranking takes a query of one part; leave out the image and what to exclude")
            found = [self._search_parts(each, image, excluded, k, kind, condition, duplicates) for each in queries]
            return found
        texts = [each for each in queries if isinstance(each, str)]
        opened = [self.open_image(each) for each in queries if not isinstance(each, str)]
        options: dict[str, Any] = {"k": k, "kind": kind, "where": condition, "duplicates": duplicates}
        by_text = iter(self.search_text(texts, rerank=rerank, **options))
        by_image = iter(self.search_image(opened, rerank=rerank, **options) if opened else [])
        return [next(by_text) if isinstance(each, str) else next(by_image) for each in queries]

    def search_text(
        self,
        texts: Sequence[str],
        *,
        k: int = 20,
        kind: Kind = "image",
        where: Where | None = None,
        rerank: int | None = None,
        duplicates: bool = True,
    ) -> list[list[Hit]]:
        """For each text the k best items of a kind, best first.

        `rerank=K` puts the K best of the first stage (at least k) in the order of the whole score, which is of a
        image and a text: between texts, or between images, the first stage's order stands.
        """
        self._check(k, kind, rerank)
        for text in texts:
            check_query(text, self._tokenizers)
        if self._texts is not None and texts and rerank is None:
            vectors = self._text_vectors(texts)
            return self._search([], len(texts), "text", kind, k, where, None, duplicates, vectors)
        codes = self._text_codes(texts) if texts else []
        return self._search(codes, len(texts), "text", kind, k, where, rerank, duplicates)

    def is_prepared(self, text: str) -> bool:
        """Whether its codes are kept."""
        return text in self.queries

    def prepare(self, text: str, waiting: Iterable[str]) -> None:
        """Encode a text that will be searched for, unless its codes are kept, and those that wait in the same batch.

        What cannot be searched for is left out, and raises when it is searched for.
        """
        if self._searchable(text):
            self.queries.of(text, filter(self._searchable, waiting))

    def _searchable(self, text: str) -> bool:
        with suppress(SearchError):
            check_query(text, self._tokenizers)
            return True
        return False

    def open_image(self, image: Image) -> PILImage:
        """A query image, decoded as the images of the index were: a large JPEG at a part of its size."""
        return open_image(image if isinstance(image, PILImage) else user_path(image), least=self.encoder.least)

    def search_image(
        self,
        images: Sequence[PILImage],
        *,
        k: int = 20,
        kind: Kind = "image",
        where: Where | None = None,
        rerank: int | None = None,
        duplicates: bool = True,
    ) -> list[list[Hit]]:
        """For each image (as `quintet.data.images.open_image` gives it) the k best items of a kind."""
        self._check(k, kind, rerank)
        self.encoder.require_views()
        prepared = [self.encoder.prepare(image) for image in images]
        codes = self.encoder.encode_images(prepared) if prepared else []
        return self._search(codes, len(images), "image", kind, k, where, rerank, duplicates)

    def similar(
        self,
        item_id: str,
        *,
        k: int = 20,
        kind: Kind = "image",
        where: Where | None = None,
        query: str | None = None,
        exclude: Sequence[str] = (),
        duplicates: bool = True,
    ) -> list[Hit]:
        """The items of a kind nearest to one of the index, without itself.

        `query`: a text that results should fit, too. `exclude`, `duplicates`: as in `search`.
        """
        entry = self._opened.items.entry(item_id)
        self._check(k, kind, None)
        if not self.manifest.first:
            raise SearchError(_NO_EMBEDDING)
        first, codes = self.manifest.first, self._opened.codes[entry.item.kind]
        known = {member: codes.codes(member, [entry.row], parts=("embedding",)) for member in first}
        self._check_fields(where)
        vector = self._query_vectors(known)[0]
        if query is not None or exclude:
            parts = [(1.0, vector), *([] if query is None else [(1.0, self._vector(query))])]
            near = self._search_vectors(parts, exclude, k + 1, kind, where, duplicates)
        else:
            (near,) = self._nearest(vector[None], k + 1, kind, where, duplicates, judged=False)
        return _without(near, item_id)[:k]

    def newest(
        self, *, k: int = 20, start: int = 0, kind: Kind = "image", where: Where | None = None
    ) -> tuple[list[Item], int]:
        """The items of a kind that match, from number `start` on, by their date, the latest first; and how many match.

        Of equal images the first is given.
        """
        self._check_fields(where)
        rows = self._opened.newest(kind)
        if where is not None:
            rows = rows[np.isin(rows, self._opened.items.rows(kind, where))]
        wanted = rows[start : start + k].tolist()
        found: dict[int, Item] = {}
        for entry in self._opened.items.at_rows(kind, wanted, where):
            if entry.row not in found or entry.item.id < found[entry.row].id:
                found[entry.row] = entry.item
        return [found[row] for row in wanted if row in found], len(rows)

    def facets(self, where: Where | None = None, kind: Kind = "image") -> list[Facet]:
        """What filters could choose next: years, folders, cameras, orientations and places, with counts."""
        self._check_fields(where)
        return facets(self._opened.items, where, kind)

    def examples(self, count: int = 6) -> list[tuple[str, Item]]:
        """Queries that fit images of this index well, each with its best image."""
        from quintet.search.examples import best_examples, candidates

        if not self.manifest.first or self.manifest.counts["image"] < FEW_ITEMS:
            return []
        texts = [text for text in candidates(self._opened.items) if not self.strange_words(text)]
        return best_examples(texts, self._text_vectors(texts), self._opened)[:count] if texts else []

    def explain(self, query: str, item_id: str) -> Explanation:
        """Which words of a text mattered for an item and, for cross-attention matchers, where they look."""
        check_query(query, self._tokenizers)
        entry = self._opened.items.entry(item_id)
        members = self._rerank if self._rerank and entry.item.kind == "image" else self.manifest.first
        if not members:
            raise SearchError(_NO_EMBEDDING)
        files = self._opened.codes[entry.item.kind]
        codes = {member: files.codes(member, [entry.row]) for member in members}
        return explain(self.encoder, codes, query, entry.item.kind)

    def strange_words(self, text: str) -> list[str]:
        """Words of a text that no run of the index knows whole, where they are half of it or more."""
        found = [strange_words(text, tokenizer) for tokenizer in self._tokenizers]
        return min(found, key=len)

    def query_note(self, text: str) -> str | None:
        """What to tell a person whose query no run of the index understands well; None where there is nothing."""
        strange = self.strange_words(text)
        if not strange:
            return None
        names = " and ".join(run.name for run in self.manifest.runs)
        all_of_them = len(strange) == len(words_of(text))
        known = "no word of the query is known whole" if all_of_them else "such words are known only in pieces"
        if not OTHER_LANGUAGES.isdisjoint(strange):
            known = "this looks like another language"
        return (
            f"{', '.join(map(repr, strange[:5]))}: {known} to {names}, which learned from English captions, so the "
            "results may be by chance; say it in plain English words"
        )

    def item(self, item_id: str) -> Item:
        return self._opened.items.entry(item_id).item

    def items(self, item_ids: Sequence[str]) -> dict[str, Item]:
        """Those of the ids that the index has."""
        return {id_: entry.item for id_, entry in self._opened.items.entries(item_ids).items()}

    def image_path(self, item_id: str) -> Path:
        """The image file of an item: it lies inside an indexed folder and is an image, or this raises.

        An index that somebody else made says itself which folders were indexed; what is no image is never given out.
        """
        entry = self._opened.items.entry(item_id)
        path, top = self._file_of(entry)
        real = Path(os.path.realpath(path))
        if not real.is_relative_to(os.path.realpath(top)):
            raise MissingImage(f"the image of item {item_id!r} lies outside the indexed folders")
        try:
            with open_regular(real) as file:
                image_format(file, path)
        except ImageError as error:
            raise MissingImage(f"{error}; run `quintet index` again to bring the index up to date") from None
        except QuintetError:
            raise MissingImage(
                f"{path} is gone since it was indexed; run `quintet index` again to bring the index up to date"
            ) from None
        return real

    def _file_of(self, entry: Entry) -> tuple[str, str]:
        """The path of the image file, and of the folder it must lie in: plain strings, as every hit has one."""
        item = entry.item
        if item.path is None or item.root is None or not 0 <= item.root < len(self.manifest.roots):
            raise MissingImage(f"item {item.id!r} has no image file")
        root = self.manifest.roots[item.root]
        if root.kind == "shards":
            return str(unpacked(self.index, entry)), str(self.index / "images")
        top = text_path(root.path)
        return os.path.join(top, text_path(item.path)), top  # noqa: PTH118  # a `Path` takes ten times as long

    def files(self) -> list[Path]:
        """The files that searches read, besides the database."""
        return [codes.folder / name for codes in self._opened.codes.values() for name in codes.files.files]

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
            "can_search_by_image": self.encoder.sees_images,
        }

    def _can_explain_regions(self) -> bool:
        from quintet.protocols import ShowsAttention

        return any(isinstance(self.encoder.runs[number].matcher, ShowsAttention) for number in self._rerank)

    def close(self) -> None:
        self._opened.close()

    def __enter__(self) -> Searcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _search(
        self,
        codes: list[Codes],
        queries: int,
        asked: Kind,
        kind: Kind,
        k: int,
        where: Where | None,
        rerank: int | None,
        duplicates: bool,
        vectors: np.ndarray | None = None,
    ) -> list[list[Hit]]:
        """`codes`: of the queries, by each run; none where `vectors` (n, dim) are given, for the first stage alone."""
        self._check_fields(where)
        if not queries or not self.manifest.counts[kind]:
            return [[] for _ in range(queries)]
        if not self.manifest.first:
            self._require_scores(asked, kind)
            entries = self._opened.items.all(kind, where)
            found = [self._reranked(codes, row, entries, kind)[:k] for row in range(queries)]
            return [self._hits([[each] for each in hits]) for hits in found]
        if vectors is None:
            vectors = self._query_vectors(codes)
        if rerank is None or asked == kind:
            return self._nearest(vectors, k, kind, where, duplicates, judged=(asked, kind) == ("text", "image"))
        self._require_scores(asked, kind)
        nearest = self._opened.nearest(vectors, max(k, rerank), kind, where)
        found = [self._reranked(codes, row, [entry for entry, _ in hits], kind) for row, hits in enumerate(nearest)]
        groups = [[[each] for each in hits] if duplicates else self._grouped(hits, kind) for hits in found]
        return [self._hits(each[:k]) for each in groups]

    def _search_parts(
        self,
        query: Query,
        image: Image | None,
        exclude: Sequence[str],
        k: int,
        kind: Kind,
        where: Where | None,
        duplicates: bool,
    ) -> list[Hit]:
        """A query of several parts, by the sum of the deviations of their scores."""
        self._check(k, kind, None)
        self._check_fields(where)
        if not self.manifest.first:
            raise SearchError(_NO_EMBEDDING)
        if not self.manifest.counts[kind]:
            return []
        parts = [(1.0, self._vector(query)), *([] if image is None else [(1.0, self._vector(image))])]
        return self._search_vectors(parts, exclude, k, kind, where, duplicates)

    def _search_vectors(
        self,
        parts: Sequence[tuple[float, np.ndarray]],
        exclude: Sequence[str],
        k: int,
        kind: Kind,
        where: Where | None,
        duplicates: bool,
    ) -> list[Hit]:
        """`parts`: vectors (dim,) with their weights."""
        less = ((-LESS, self._vector(text)) for text in exclude)
        vector, offset = combined([*parts, *less], self._opened.sample(kind))
        (hits,) = self._nearest(vector[None], k, kind, where, duplicates, judged=False)
        return [replace(hit, score=hit.score - offset) for hit in hits]

    def _vector(self, query: Query) -> np.ndarray:
        """(dim,)."""
        if isinstance(query, str):
            check_query(query, self._tokenizers)
            return self._text_vectors([query])[0]
        self.encoder.require_views()
        codes = self.encoder.encode_images([self.encoder.prepare(self.open_image(query))])
        return self._query_vectors(codes)[0]

    def _nearest(
        self, vectors: np.ndarray, k: int, kind: Kind, where: Where | None, duplicates: bool, *, judged: bool
    ) -> list[list[Hit]]:
        """The first stage, with weak results marked where texts ask for images."""
        if duplicates:
            found = [[[hit] for hit in hits] for hits in self._opened.nearest(vectors, k, kind, where)]
        else:
            found = [self._nearest_groups(vector, k, kind, where) for vector in vectors]
        if not judged or self.manifest.counts[kind] < FEW_ITEMS:
            return [self._hits(groups) for groups in found]
        return [self._hits(groups, self._line(vector, groups)) for vector, groups in zip(vectors, found, strict=True)]

    def _line(self, vector: np.ndarray, groups: list[list[_Found]]) -> float:
        """Scores below it are weak."""
        if self._chance is None:
            return -math.inf
        best = np.array([group[0][1] for group in groups])
        scores = products(self._opened.sample("image"), vector[None])[:, 0]  # (m,)
        return self._chance.line(scores, best, self.manifest.counts["image"])

    @cached_property
    def _chance(self) -> ChanceScores | None:
        """None where the vocabulary has too few words to make texts of."""
        kept = self._opened.items.head("random texts")
        first, dim = self.manifest.first, self.manifest.dim
        texts = self.encoder.random_texts(first) if kept is None else unpacked_texts(kept, dim)
        return ChanceScores(texts, self._opened.sample("image")) if len(texts) else None

    def _nearest_groups(self, vector: np.ndarray, k: int, kind: Kind, where: Where | None) -> list[list[_Found]]:
        wanted = k + max(4, k // 8)
        while True:
            (near,) = self._opened.nearest(vector[None], wanted, kind, where)
            groups = self._grouped(near, kind)
            if len(groups) >= k or len(near) < wanted:
                return groups[:k]
            wanted *= 2

    def _grouped(self, found: Sequence[_Found], kind: Kind) -> list[list[_Found]]:
        """Each result with those behind it that nearly equal it."""
        if kind != "image" or len(found) < 2:
            return [[each] for each in found]
        rows = np.array([entry.row for entry, _ in found[:COMPARED]], dtype=np.int64)
        first = near_duplicates(self._opened.vectors(kind, rows), self._opened.near_distance(kind))
        groups: dict[int, list[_Found]] = {}
        for number, each in enumerate(found):
            groups.setdefault(first[number] if number < len(first) else number, []).append(each)
        return list(groups.values())

    def _check_fields(self, where: Where | None) -> None:
        """A field that no item has is a mistake, and so is a word beside a field of numbers: it finds nothing."""
        if where is None or not where.fields:
            return
        known = self._opened.items.field_names()
        for name in where.fields:
            if name not in known:
                near = suggest(name, known)
                near = f"; {near}" if near.startswith("did you") else "."
                raise WhereError(f"filter: nothing in the index has a field {name!r}{near} It has: {', '.join(known)}")
        for clause in (clause for clauses in where.alternatives for clause in clauses if clause.is_of_text):
            lowest = self._opened.items.lowest_number(clause.field)
            if lowest is not None:
                raise WhereError(
                    f"filter: {clause.field!r} holds numbers; compare it with one, as in {clause.field}>={lowest:g}, "
                    f"not by {clause!s:.80}"
                )

    def _hits(self, groups: Sequence[Sequence[_Found]], line: float = -math.inf) -> list[Hit]:
        """The first of each group, with the others as its duplicates. Scores below the line are weak."""
        hits = []
        for (entry, score), *others in groups:
            copies = tuple(Hit(other.item, its_score, self._file(other)) for other, its_score in others)
            hits.append(Hit(entry.item, score, self._file(entry), score < line, copies))
        return hits

    def _reranked(
        self, codes: list[Codes], row: int, entries: Sequence[Entry], kind: Kind
    ) -> list[tuple[Entry, float]]:
        matchers = {member: self.encoder.runs[member].matcher for member in self._rerank}
        queries = {member: codes[member][row] for member in self._rerank}
        return self._opened.rerank(matchers, queries, entries, kind)

    def _file(self, entry: Entry) -> str | None:
        """Of its image file; `image_path` also follows links and looks whether the file is there."""
        try:
            path, top = self._file_of(entry)
        except MissingImage:
            return None
        plain = os.path.normpath(path)
        return plain if plain.startswith(f"{top.rstrip('/')}/") else None

    def _check(self, k: int, kind: str, rerank: int | None) -> None:
        if k < 1 or (rerank is not None and rerank < 1):
            raise SearchError("ask for at least one result, and re-rank at least one candidate")
        if k > MOST_RESULTS or (rerank or 0) > MOST_RERANKED:
            raise SearchError(f"at most {MOST_RESULTS:,} results are found, and {MOST_RERANKED:,} candidates re-ranked")
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


def _without(hits: Sequence[Hit], item_id: str) -> list[Hit]:
    """Without an item; what nearly equals it takes its position."""
    found: list[Hit] = []
    for hit in hits:
        others = tuple(each for each in hit.duplicates if each.item.id != item_id)
        if hit.item.id != item_id:
            found.append(replace(hit, duplicates=others))
        elif others:
            found.append(replace(hit, item=others[0].item, file=others[0].file, duplicates=others[1:]))
    return found


def _shown(store: str) -> str:
    """An address for people, without the password that may be in it."""
    return store if is_own(store) else str(Address.parse(store))


def _generation(index: Path) -> int | None:
    try:
        return Manifest.read(index).generation
    except QuintetError:
        return None


def _number_of(manifest: Manifest, folder: Path) -> int:
    found, stage = locate(folder)
    weights = weights_identity(found, stage)
    for number, run in enumerate(manifest.runs):
        if run.weights == weights:
            return number
    raise StaleIndex(
        f"the index holds no codes of run {folder}; build it again with --rerank-with {folder} "
        f"(it was built with {', '.join(run.name for run in manifest.runs)})"
    )
