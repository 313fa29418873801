"""Which columns of a table of images and captions mean what, and its rows as entries. `parquet` and `hf` share it.

Columns are found by their types and usual names, or named by an option. Nothing is guessed between two candidates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from quintet.data.formats.assembly import Entry, ImageFolder, Notes, split_name
from quintet.data.images import IMAGE_SUFFIXES
from quintet.errors import CorpusError, suggest
from quintet.files import lies_in

if TYPE_CHECKING:
    import pyarrow

PATH_NAMES = ("image", "image_path", "img_path", "image_file", "file_path", "file_name", "filename", "path", "img")
URL_NAMES = ("url", "image_url", "img_url", "coco_url", "flickr_url")
CAPTION_NAMES = (
    "caption", "captions", "text", "texts", "sentence", "sentences", "alt_text", "description", "raw", "txt",
)  # fmt: skip
NUMBERED = re.compile(r"(captions?|texts?|sentences?|descriptions?)_?(\d+)")
INNER_NAMES = ("raw", "caption", "text", "sentence")  # fields of a caption that is a struct
INNER_IDS = ("sentid", "caption_id", "id")
SPLIT_NAMES = ("split", "subset", "partition")
GROUP_NAMES = ("group", "identity", "person_id", "pid")
ID_NAMES = (
    "cocoid", "image_id", "img_id", "image_name", "file_name", "filename", "file_path", "img_path", "image_path",
    "key", "__key__", "id", "imgid",
)  # fmt: skip
CAPTION_IDS = ("sentids", "caption_ids", "caption_id", "sentid")
LANGUAGES = ("language", "lang")
RESTVAL = ("train", "drop", "keep")
FETCH = "fetch them with img2dataset, and import what it writes with the format img2dataset"
MAGIC = {
    b"\xff\xd8\xff": ".jpg", b"\x89PNG": ".png", b"GIF8": ".gif", b"BM": ".bmp", b"II*\0": ".tif", b"MM\0*": ".tif",
    b"P5": ".pgm", b"P6": ".ppm", b"\xff\x0a": ".jxl", b"\0\0\0\x0cJXL ": ".jxl",
}  # fmt: skip
OPTIONS = {
    "image": "the column with the images: bytes, {bytes, path} or paths; found by its type",
    "caption": "the column with the caption or the list of captions; several columns as A,B,C",
    "split": "the column with the split; without one the names of the files say it",
    "id": "the column with the ids of the images; row: number them",
    "group": "the column that says which images belong together; without one every image is a group",
    "language": "the column with the language of the captions",
    "keep": "columns to keep in images.jsonl, as A,B,C",
    "images": "the folder that paths of images start from",
    "restval": "rows of COCO's split `restval`: train (joined to the training split), drop, or keep",
    "max_captions": "keep the first N captions of an image",
    "fractions": "shares of train, dev and test where neither a column nor a file name says the split",
    "seed": "another number gives another split by hash",
    "strict": "true: a row without an image or a caption is an error instead of a note",
}


@dataclass(frozen=True)
class Asked:
    """The options above that name columns and say what is done with rows."""

    image: str | None = None
    caption: str | None = None
    split: str | None = None
    id: str | None = None
    group: str | None = None
    language: str | None = None
    keep: str | None = None
    images: Path | None = None
    restval: str = "train"
    max_captions: int | None = None

    def __post_init__(self) -> None:
        if self.restval not in RESTVAL:
            raise CorpusError(f"restval={self.restval}: {suggest(self.restval, RESTVAL)}")


@dataclass(frozen=True)
class Columns:
    image: list[str]  # several: parts of a path
    captions: list[str]
    split: str | None
    id: str | None  # None: the path in the image column, else the number of the row
    group: str | None
    caption_ids: str | None
    language: str | None
    keep: list[str]
    split_labels: list[str] | None  # of a split column of class numbers

    @property
    def all(self) -> list[str]:
        named = (self.split, self.id, self.group, self.caption_ids, self.language)
        return list(dict.fromkeys([*self.image, *self.captions, *filter(None, named), *self.keep]))


def find_columns(schema: pyarrow.Schema, asked: Asked, where: str) -> Columns:
    types = {field.name: field.type for field in schema}
    features = _features(schema)
    split = _one(types, asked.split, SPLIT_NAMES, "split", where, _is_label)
    labels = features.get(split or "", {}).get("names")
    numbered = asked.id == "row"
    found = Columns(
        _image(types, asked.image, features, where),
        _captions(types, asked.caption, where),
        split if split is None or labels or _is_string(types[split]) else None,
        None if numbered else _one(types, asked.id, ID_NAMES, "id", where, _is_label, first=True),
        _one(types, asked.group, GROUP_NAMES, "group", where, _is_label),
        next((name for name in CAPTION_IDS if name in types), None),
        _one(types, asked.language, LANGUAGES, "language", where, _is_string),
        [] if asked.keep is None else [_kept(types, name, where) for name in asked.keep.split(",")],
        labels,
    )
    if found.id in found.captions:  # `text` cannot be both
        raise CorpusError(f"{where}: column {found.id!r} is the caption; name another for the option id")
    return found


def image_column(schema: pyarrow.Schema, where: str) -> tuple[str, list[str]]:
    """The column with the bytes of images, and those with a text, a number, true or false."""
    types = {field.name: field.type for field in schema}
    found = _image(types, None, _features(schema), where)
    if len(found) > 1 or not _holds_image(types[found[0]]):
        raise CorpusError(f"{where} has paths of images (column {found[0]!r}) instead of images; name their folder")
    return found[0], [name for name, type_ in types.items() if name not in found and _is_plain(type_)]


def named_images(column: Any) -> Iterator[tuple[bytes, str] | None]:
    """The bytes of each row's image, and its path or the ending of one; None: the row has no image."""
    for content, path in _images(column):
        suffix = None if content is None else _suffix(content, path)
        if content is None or suffix is None:
            yield None
        else:
            named = path is not None and PurePosixPath(path).suffix.lower() in IMAGE_SUFFIXES
            yield bytes(content), path if named and path is not None else suffix


def _features(schema: pyarrow.Schema) -> dict[str, dict[str, Any]]:
    """What `datasets` says of the columns: which are images, and the names of class numbers."""
    try:
        known = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        return {name: feature for name, feature in known.items() if isinstance(feature, dict)}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _image(types: dict[str, Any], asked: str | None, features: dict[str, Any], where: str) -> list[str]:
    if asked is not None:
        names = [_known(types, name, where) for name in asked.split(",")]
        for name in names:
            if not (_is_string(types[name]) or (len(names) == 1 and _holds_image(types[name]))):
                raise CorpusError(
                    f"{where}: column {name!r} ({types[name]}) holds no images: expected bytes, a struct of bytes and "
                    f"path, or paths; {_candidates(types)}"
                )
        return names
    found = [name for name in types if features.get(name, {}).get("_type") == "Image" and _holds_image(types[name])]
    found = found or [name for name in types if _holds_image(types[name])]
    found = found or [name for name in types if name.lower() in PATH_NAMES and _is_string(types[name])]
    if found == ["filename"] and "filepath" in types:
        found, joined = ["filepath"], ["filepath", "filename"]  # Karpathy's: the folder and the name
        return joined
    if len(found) == 1:
        return found
    if found:
        raise CorpusError(
            f"{where}: which column has the images: {', '.join(found)}? Say it with the option image=COLUMN"
        )
    urls = [name for name in types if name.lower() in URL_NAMES]
    if urls:
        raise CorpusError(f"{where} has URLs of images (column {urls[0]!r}) instead of images; {FETCH}")
    raise CorpusError(f"{where}: no column holds images; name one with the option image=COLUMN; {_candidates(types)}")


def _captions(types: dict[str, Any], asked: str | None, where: str) -> list[str]:
    if asked is not None:
        names = [_known(types, name, where) for name in asked.split(",")]
    else:
        names = [name for name in types if name.lower() in CAPTION_NAMES and _problem(types[name]) is None]
        if not names:
            several: dict[str, list[tuple[int, str]]] = {}
            for name in types:
                match = NUMBERED.fullmatch(name.lower())
                if match and _problem(types[name]) is None:
                    several.setdefault(match[1], []).append((int(match[2]), name))
            if len(several) == 1:
                return [name for _, name in sorted(next(iter(several.values())))]
            names = [name for rows in several.values() for _, name in rows]
        if len(names) > 1:
            raise CorpusError(
                f"{where}: which column has the captions: {', '.join(names)}? Say it with the option caption=COLUMN, "
                "or caption=A,B to take several"
            )
        names = names or [name for name in types if name.lower() in CAPTION_NAMES]  # of a wrong type: named below
        if not names:
            raise CorpusError(
                f"{where}: no column holds captions; name one with the option caption=COLUMN; {_candidates(types)}"
            )
    for name in names:
        problem = _problem(types[name])
        if problem is not None:
            raise CorpusError(
                f"{where}: column {name!r} ({types[name]}) {problem}; expected text, a list of texts, or a list of "
                f"structs with one of {', '.join(INNER_NAMES)}"
            )
    return names


def _problem(type_: Any) -> str | None:
    """Why a column of this type holds no captions."""
    from pyarrow import types as kinds

    if _is_string(type_):
        return None
    if kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_):
        inner = type_.value_type
        nested = kinds.is_list(inner) or kinds.is_large_list(inner)
        return "holds lists in lists" if nested else _problem(inner)
    if kinds.is_struct(type_):
        names = [type_.field(number).name for number in range(type_.num_fields)]
        inner_name = next((name for name in INNER_NAMES if name in names), None)
        return f"has none of the fields {', '.join(INNER_NAMES)}" if inner_name is None else None
    return "holds no text"


def _one(
    types: dict[str, Any],
    asked: str | None,
    usual: tuple[str, ...],
    role: str,
    where: str,
    fits: Any,
    first: bool = False,
) -> str | None:
    if asked is not None:
        name = _known(types, asked, where)
        if not fits(types[name]):
            raise CorpusError(f"{where}: column {name!r} ({types[name]}) cannot be the {role}; {_candidates(types)}")
        return name
    lower = {name.lower(): name for name in types}
    found = [lower[name] for name in usual if name in lower and fits(types[lower[name]])]
    if len(found) > 1 and not first:
        raise CorpusError(
            f"{where}: which column is the {role}: {', '.join(found)}? Say it with the option {role}=COLUMN"
        )
    return found[0] if found else None


def _is_plain(type_: Any) -> bool:
    from pyarrow import types as kinds

    return bool(_is_label(type_) or kinds.is_floating(type_) or kinds.is_boolean(type_))


def _kept(types: dict[str, Any], name: str, where: str) -> str:
    type_ = types[_known(types, name, where)]
    if not _is_plain(type_):
        raise CorpusError(f"{where}: column {name!r} ({type_}) cannot be kept: only texts, numbers, true and false can")
    return name


def _known(types: dict[str, Any], name: str, where: str) -> str:
    if name not in types:
        raise CorpusError(f"{where} has no column {name!r}; {suggest(name, types)}")
    return name


def _candidates(types: dict[str, Any]) -> str:
    return f"its columns are {', '.join(f'{name} ({type_})'[:80] for name, type_ in types.items()) or 'none'}"


def _is_string(type_: Any) -> bool:
    from pyarrow import types as kinds

    if kinds.is_dictionary(type_):
        type_ = type_.value_type
    return bool(kinds.is_string(type_) or kinds.is_large_string(type_) or kinds.is_string_view(type_))


def _is_label(type_: Any) -> bool:
    from pyarrow import types as kinds

    return bool(_is_string(type_) or kinds.is_integer(type_))


def _is_bytes(type_: Any) -> bool:
    from pyarrow import types as kinds

    return bool(kinds.is_binary(type_) or kinds.is_large_binary(type_) or kinds.is_binary_view(type_))


def _holds_image(type_: Any) -> bool:
    from pyarrow import types as kinds

    if kinds.is_struct(type_):
        fields = {type_.field(number).name: type_.field(number).type for number in range(type_.num_fields)}
        return "bytes" in fields and set(fields) <= {"bytes", "path"} and _is_bytes(fields["bytes"])
    return _is_bytes(type_)


class Rows:
    """The rows of tables as entries. An id that comes again with the same image has further captions of it."""

    def __init__(self, folder: ImageFolder, asked: Asked, notes: Notes) -> None:
        self._folder, self._asked, self._notes = folder, asked, notes
        self._seen: dict[str, str] = {}  # id -> where its image is
        self._counts: dict[str, int] = {}  # id -> how many captions it has, where it is not one

    def know(self, entry: Entry) -> None:
        """An entry of an import that was killed."""
        self._seen.setdefault(entry.id, "" if entry.path is None else str(entry.path))
        self._count(entry)

    def entries(
        self, batch: pyarrow.RecordBatch, columns: Columns, first: int, where: str, stem: str, split: str | None
    ) -> Iterator[Entry]:
        """`first`: the number of the first row in its file; `stem` begins the ids of rows without one."""
        others = [name for name in columns.all if name not in columns.image]
        values = {name: batch.column(name).to_pylist() for name in others}
        if len(columns.image) > 1:
            parts = [batch.column(name).to_pylist() for name in columns.image]
            images = _paths(["/".join(filter(None, row)) or None for row in zip(*parts, strict=True)])
        else:
            images = _images(batch.column(columns.image[0]))
        for row, (content, path) in enumerate(images):
            at = f"{where}, row {first + row}"
            found = self._split(values[columns.split][row] if columns.split else None, columns, split)
            if found == "restval" and self._asked.restval != "keep":
                if self._asked.restval == "drop":
                    self._notes.leave_out("rows of split 'restval'", at)
                    continue
                found = "train"
            given = values[columns.id][row] if columns.id else None if self._asked.id == "row" else self._named(path)
            id_ = f"{stem}/{first + row:06d}" if given in (None, "") else str(given)
            captions, facts = self._captions(values, columns, row, at)
            if content is None and path is None:
                self._notes.skip("rows without an image", at)
                continue
            group = values[columns.group][row] if columns.group else None
            entry = Entry(
                id_,
                captions[: self._asked.max_captions],
                found,
                group=None if group is None else str(group),
                extra={name: values[name][row] for name in columns.keep if values[name][row] is not None},
                caption_facts=facts[: self._asked.max_captions] if facts else None,
            )
            if self._place(entry, content, path, at):
                yield entry

    def _place(self, entry: Entry, content: Any, path: str | None, at: str) -> bool:
        """Write the image of an entry, or find it; whether there is one."""
        before = self._seen.get(entry.id)
        if content is None:
            located = self._located(path or "", at)
            if located is None:
                return False
            entry.path = located
            same = before == str(entry.path)
        elif before is not None:
            entry.path = Path(before)
            same = self._folder.holds(entry.path, content)
        else:
            suffix = _suffix(content, path)
            if suffix is None:
                self._notes.skip("rows whose bytes are no image", at)
                return False
            entry.path, copied = self._folder.add(entry.id, suffix, content)
            entry.extra = entry.extra | copied if entry.extra else copied
            same = True
        if before is not None and not same:
            raise CorpusError(
                f"{at}: the id {entry.id!r} came before with another image; name a column of unique ids with the "
                "option id=COLUMN, or number the rows with id=row"
            )
        entry.more = before is not None
        if entry.more:
            first = self._counts.get(entry.id, 1)
            entry.numbers = list(range(first, first + len(entry.captions)))
        else:
            self._seen[entry.id] = str(entry.path)
        self._count(entry)
        return True

    def _count(self, entry: Entry) -> None:
        count = len(entry.captions) + (self._counts.get(entry.id, 1) if entry.more else 0)
        if count != 1:
            self._counts[entry.id] = count

    def _named(self, path: str | None) -> str | None:
        """An image's id by its path: below the folder of images, as where the images themselves are in the file."""
        root = self._asked.images
        return path if path is None or root is None else path.removeprefix(f"{root.absolute()}/")

    def _located(self, name: str, at: str) -> Path | None:
        if re.match(r"https?://", name):
            raise CorpusError(f"{at}: the image is a URL ({name:.80}); {FETCH}")
        root = self._asked.images
        if root is None:
            known = f", for instance images={PurePosixPath(name).parent}" if name.startswith("/") else ""
            raise CorpusError(
                f"{at}: the image is a path ({name:.80}); say where paths start with the option images=FOLDER{known}"
            )
        path = root.absolute() / name
        if not lies_in(path, str(root.resolve())):
            self._notes.skip("images outside of the folder of images", f"{at}: {name}")
            return None
        return path

    def _split(self, value: Any, columns: Columns, of_file: str | None) -> str | None:
        if isinstance(value, int) and columns.split_labels and 0 <= value < len(columns.split_labels):
            value = columns.split_labels[value]
        return of_file if value is None else split_name(str(value))

    def _captions(
        self, values: dict[str, list[Any]], columns: Columns, row: int, at: str
    ) -> tuple[list[str], list[dict[str, Any]] | None]:
        texts: list[str] = []
        numbers: list[Any] = []
        for name in columns.captions:
            found, inner = _texts(values[name][row])
            texts += found
            numbers += inner
        if columns.caption_ids and not any(number is not None for number in numbers):
            given = values[columns.caption_ids][row]
            given = given if isinstance(given, list) else [given]
            numbers = given if len(given) == len(texts) else numbers
        language = values[columns.language][row] if columns.language else None
        if language is None and not any(number is not None for number in numbers):
            return texts, None
        spoken = {} if language is None else {"language": language}
        return texts, [({} if id_ is None else {"caption_id": _number(id_)}) | spoken for id_ in numbers]


def _texts(value: Any) -> tuple[list[str], list[Any]]:
    """The captions in a cell, and what numbers them."""
    if value is None:
        return [], []
    if isinstance(value, dict):
        name = next(name for name in INNER_NAMES if name in value)
        inner = value[name]
        if isinstance(inner, list):  # a sequence of structs, as earlier `datasets` wrote it
            ids = next((value[key] for key in INNER_IDS if isinstance(value.get(key), list)), [None] * len(inner))
            return [text or "" for text in inner], list(ids) if len(ids) == len(inner) else [None] * len(inner)
        return [inner or ""], [next((value[key] for key in INNER_IDS if value.get(key) is not None), None)]
    if isinstance(value, list):
        both = [_texts("" if each is None else each) for each in value]
        return [text for texts, _ in both for text in texts], [id_ for _, ids in both for id_ in ids]
    return [value], [None]


def _number(id_: Any) -> Any:
    return int(id_) if isinstance(id_, str) and id_.isascii() and id_.isdigit() else id_


def _images(column: Any) -> Iterator[tuple[Any, str | None]]:
    """(bytes without a copy, path) of each row."""
    from pyarrow import types as kinds

    if kinds.is_struct(column.type):
        parts = {column.type.field(number).name: part for number, part in enumerate(column.flatten())}
        paths = parts["path"].to_pylist() if "path" in parts else repeat(None)
        for content, path in zip(parts["bytes"], paths, strict="path" in parts):
            yield _view(content), path
    elif _is_bytes(column.type):
        for content in column:
            yield _view(content), None
    else:
        yield from _paths(column.to_pylist())


def _paths(names: list[str | None]) -> Iterator[tuple[None, str | None]]:
    for name in names:
        yield None, name


def _view(scalar: Any) -> memoryview | None:
    buffer = scalar.as_buffer()
    return None if buffer is None or not buffer.size else memoryview(buffer).cast("B")  # or it compares as signed


def _suffix(content: memoryview, path: str | None) -> str | None:
    """The kind of an image by its first bytes, else by the name that comes with it."""
    start = bytes(content[:16])
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return ".webp"
    if start[4:8] == b"ftyp":
        return ".avif" if start[8:12] in (b"avif", b"avis") else ".heic"
    named = PurePosixPath(path).suffix.lower() if path else ""
    for magic, suffix in MAGIC.items():
        if start.startswith(magic):
            return named if (suffix, named) in ((".jpg", ".jpeg"), (".tif", ".tiff"), *_RAW) else suffix
    return named if named in IMAGE_SUFFIXES else None


_RAW = [(".tif", suffix) for suffix in IMAGE_SUFFIXES if suffix not in (".tif", ".tiff")]  # raw photos are TIFF inside
