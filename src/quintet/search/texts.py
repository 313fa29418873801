"""Where the texts of an index come from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from quintet.data.corpus import Corpus
from quintet.data.formats.assembly import read_lines
from quintet.files import read_jsonl
from quintet.search.errors import SearchError
from quintet.search.metadata import plain_fields
from quintet.search.queries import MAX_CHARACTERS
from quintet.search.stores import Scalar
from quintet.search.stores.check import is_text


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
        found = [IndexedText(text.text, {"sentence": text.id, "group": text.group}) for text in texts]
    elif not source.is_file():
        raise SearchError(f"{source} is neither a file of texts nor a corpus; the index is as it was")
    elif source.suffix.lower() == ".jsonl":
        found = [_from_row(source, number, row) for number, row in enumerate(read_jsonl(source), 1)]
    else:
        found = [IndexedText(line) for line in read_lines(source)]
    found = [sentence for sentence in found if sentence.text.strip()]
    if not found:
        raise SearchError(f"{source} holds no texts; the index is as it was")
    for number, sentence in enumerate(found, 1):
        if not is_text(sentence.text) or len(sentence.text) > MAX_CHARACTERS:
            raise SearchError(f"{source}, text {number}: no text, or more than {MAX_CHARACTERS:,} characters")
    return found


def _from_row(source: Path, number: int, row: dict[str, object]) -> IndexedText:
    text = row.get("text")
    if not isinstance(text, str):
        raise SearchError(f"{source}, row {number}: no field `text` with a text")
    return IndexedText(text, plain_fields({key: row[key] for key in row if key != "text"}))
