"""The schemas of requests and responses; the OpenAPI document is made of them."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from quintet.search.explain import Explanation
from quintet.search.items import Hit, Item, Kind
from quintet.search.stores.where import Scalar
from quintet.serve.thumbnails import SIZES

LONGEST_LIST, LAST_OFFSET = 100, 900  # results per response; largest offset
ThumbnailSize = IntEnum("ThumbnailSize", {f"of_{size}": size for size in SIZES})  # type: ignore[misc]


def _characters(text: str) -> str:
    """JSON can write half of a surrogate pair, which is no character and cannot be encoded."""
    if any("\ud800" <= each <= "\udfff" for each in text):
        raise ValueError("the text has half of a surrogate pair, which is no character")
    return text


Text = Annotated[str, AfterValidator(_characters)]
ItemId = Field(description="An item's id, as a search gives it.", max_length=4096)


class Window(BaseModel):
    """Which results to return."""

    model_config = ConfigDict(extra="forbid")

    kind: Kind = Field("image", description="What to search for: images or texts.")
    limit: int = Field(40, ge=1, le=LONGEST_LIST, description="How many results.")
    offset: int = Field(0, ge=0, le=LAST_OFFSET, description="Results to skip.")
    where: Text | None = Field(
        None,
        max_length=1000,
        description="A filter on an item's metadata.",
        examples=['year=2024 and path~"holiday/*"'],
    )


class SimilarQuery(Window):
    id: Text = ItemId


class Parts(Window):
    exclude: list[Text] = Field([], max_length=5, description="Texts that results should fit less.")
    duplicates: bool = Field(True, description="Also return items that nearly equal a better one.")


class ImageQuery(Parts):
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
    score: float
    weak: bool = Field(False, description="Random words reach such a score, too.")
    duplicates: int = Field(0, description="How many items that nearly equal it are left out.")


class Results(BaseModel):
    hits: list[HitAnswer] = Field(description="Best first.")
    more: bool = Field(description="Whether a larger offset would give more.")
    seconds: float = Field(description="How long the search took.")

    @classmethod
    def of(cls, hits: list[Hit], window: Window, seconds: float) -> Results:
        """The window of a list that has one hit more than the window needs, if there are so many."""
        end = window.offset + window.limit
        shown = [
            HitAnswer(item=ItemAnswer.of(hit.item), score=hit.score, weak=hit.weak, duplicates=len(hit.duplicates))
            for hit in hits[window.offset : end]
        ]
        return cls(hits=shown, more=len(hits) > end and end <= LAST_OFFSET, seconds=round(seconds, 4))


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
