"""The schemas of requests and responses; the OpenAPI document is made of them."""

from __future__ import annotations

from dataclasses import asdict
from enum import IntEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from quintet.search.explain import Explanation
from quintet.search.facets import Facet
from quintet.search.items import Hit, Item, Kind
from quintet.search.stores.where import Scalar
from quintet.serve.thumbnails import SIZES

LONGEST_LIST, LAST_OFFSET = 100, 900  # results per response; largest offset
LAST_ITEM = 10_000_000  # largest offset in the list of the newest items
MOST_FILES = 200  # of a download
ThumbnailSize = IntEnum("ThumbnailSize", {f"of_{size}": size for size in SIZES})  # type: ignore[misc]


def _characters(text: str) -> str:
    """JSON can write half of a surrogate pair, which is no character and cannot be encoded."""
    if any("\ud800" <= each <= "\udfff" for each in text):
        raise ValueError("the text has half of a surrogate pair, which is no character")
    return text


Text = Annotated[str, AfterValidator(_characters)]
ItemId = Field(description="An item's id, as a search gives it.", max_length=4096)
WHERE = Field(
    None,
    max_length=1000,
    description="A filter on an item's metadata.",
    examples=['year=2024 and path~"holiday/*"'],
)


class Window(BaseModel):
    """Which results to return."""

    model_config = ConfigDict(extra="forbid")

    kind: Kind = Field("image", description="What to search for: images or texts.")
    limit: int = Field(40, ge=1, le=LONGEST_LIST, description="How many results.")
    offset: int = Field(0, ge=0, le=LAST_OFFSET, description="Results to skip.")
    where: Text | None = WHERE


class NewestQuery(Window):
    offset: int = Field(0, ge=0, le=LAST_ITEM, description="Items to skip.")


class FacetsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    where: Text | None = WHERE


class Files(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: list[Annotated[Text, ItemId]] = Field(min_length=1, max_length=MOST_FILES, description="Ids of images.")


class Parts(Window):
    exclude: list[Text] = Field([], max_length=5, description="Texts that results should fit less.")
    duplicates: bool = Field(True, description="Also return items that nearly equal a better one.")


class ImageQuery(Parts):
    query: Text | None = Field(None, description="A text that results should fit, too.")


class SimilarQuery(Parts):
    id: Text = ItemId
    query: Text | None = Field(None, description="A text that results should fit, too.")


class TextQuery(Parts):
    query: Text = Field(description="A text.", examples=["a brown dog runs through water"])


class ExplainQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    query: Text = Field(description="The text that was searched for.")
    id: Text = ItemId


class Session(BaseModel):
    model_config = ConfigDict(extra="forbid")

    token: Text = Field(max_length=4096)


class ItemAnswer(BaseModel):
    id: str
    kind: Kind
    path: str | None = Field(description="Of an image, relative to its indexed folder.")
    text: str | None = Field(description="Of a text.")
    metadata: dict[str, Scalar]

    @classmethod
    def of(cls, item: Item) -> ItemAnswer:
        return cls(id=item.id, kind=item.kind, path=item.path, text=item.text, metadata=dict(item.metadata))


class HitAnswer(BaseModel):
    item: ItemAnswer
    score: float | None = Field(description="None where nothing was searched for.")
    weak: bool = Field(False, description="Random words reach such a score, too.")
    duplicates: list[ItemAnswer] = Field([], description="Items that nearly equal it and are left out.")

    @classmethod
    def of(cls, hit: Hit) -> HitAnswer:
        duplicates = [ItemAnswer.of(each.item) for each in hit.duplicates]
        return cls(item=ItemAnswer.of(hit.item), score=hit.score, weak=hit.weak, duplicates=duplicates)


class Results(BaseModel):
    hits: list[HitAnswer] = Field(description="Best first; without a query, the newest first.")
    more: bool = Field(description="Whether a larger offset would give more.")
    seconds: float = Field(description="How long the search took.")
    total: int | None = Field(None, description="How many items there are, where nothing was searched for.")
    note: str | None = Field(None, description="Where the index knows half of the query's words or fewer: which.")

    @classmethod
    def of(cls, hits: list[Hit], window: Window, seconds: float, note: str | None = None) -> Results:
        """The window of a list that has one hit more than the window needs, if there are so many."""
        end = window.offset + window.limit
        shown = [HitAnswer.of(hit) for hit in hits[window.offset : end]]
        return cls(hits=shown, more=len(hits) > end and end <= LAST_OFFSET, seconds=round(seconds, 4), note=note)


class ChoiceAnswer(BaseModel):
    label: str
    count: int = Field(description="How many images have it and fit the rest of the filter.")
    where: str = Field(description="The filter with this choice; without it where it is chosen.")
    chosen: bool


class FacetAnswer(BaseModel):
    name: str = Field(examples=["year", "folder", "camera", "orientation", "place"])
    choices: list[ChoiceAnswer]

    @classmethod
    def of(cls, facet: Facet) -> FacetAnswer:
        return cls(name=facet.name, choices=[ChoiceAnswer(**asdict(choice)) for choice in facet.choices])


class Facets(BaseModel):
    facets: list[FacetAnswer]


class Example(BaseModel):
    query: str
    item: ItemAnswer = Field(description="Its best image.")


class Examples(BaseModel):
    examples: list[Example] = Field(description="Queries that fit images of this index well.")


class Paths(BaseModel):
    paths: list[str] = Field(description="Absolute paths on the server's computer.")


class Word(BaseModel):
    word: str
    weight: float = Field(description="How much the score drops without the word.")


Box = tuple[float, float, float, float]


class Regions(BaseModel):
    word: str
    boxes: list[Box] = Field(description="Left, top, right, bottom as fractions of width and height.")
    weights: list[float] = Field(description="Attention of the word to each box.")


class ExplanationAnswer(BaseModel):
    score: float
    words: list[Word]
    regions: list[Regions] | None = Field(description="Attention of each word to image regions, if the matcher has it.")

    @classmethod
    def of(cls, explanation: Explanation) -> ExplanationAnswer:
        words = [Word(word=entry.word, weight=entry.weight) for entry in explanation.words]
        regions = None
        if explanation.regions is not None:
            regions = [
                Regions(word=entry.word, boxes=entry.boxes.tolist(), weights=entry.weights.tolist())
                for entry in explanation.regions
            ]
        return cls(score=explanation.score, words=words, regions=regions)


class IndexAnswer(BaseModel):
    """Facts about the index in use, and the limits of the server."""

    index: dict[str, object] = Field(description="Facts about the index: matcher, counts, store, generation.")
    index_error: str | None = Field(description="Why the index in the folder is not in use.")
    access: Literal["read", "full"] = Field(description="Of the token; `full` where none is needed.")
    session: bool = Field(description="Whether a cookie stands for the token.")
    max_upload_bytes: int


class Health(BaseModel):
    status: Literal["ok", "degraded"] = Field(
        description="`degraded`: the index in the folder is missing, damaged or cannot be opened; what was opened "
        "before is in use."
    )


class Readiness(BaseModel):
    status: Literal["ready"]
