"""What is known of an image besides its pixels: size and date from the file, all else from a JSON file beside it."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from PIL import ExifTags
from PIL.Image import Exif

from quintet.search.stores import Scalar
from quintet.search.stores.check import is_text
from quintet.search.stores.where import FIELD, LARGEST_INTEGER

LONGEST = 1_000  # characters of a value; a filter needs no more
# Dates as cameras write them: when it was taken, when it was digitised, when the file was changed.
_DATES = (ExifTags.Base.DateTimeOriginal, ExifTags.Base.DateTimeDigitized, ExifTags.Base.DateTime)


def image_facts(size: tuple[int, int], exif: Exif) -> dict[str, Scalar]:
    """Fields from the image itself; `date`, `time` and `year` only where its EXIF says when it was taken."""
    facts: dict[str, Scalar] = {"width": size[0], "height": size[1]}
    taken = exif_date(exif)
    if taken is not None:
        facts |= {"date": taken.date().isoformat(), "time": taken.time().isoformat("seconds"), "year": taken.year}
    return facts


def exif_date(exif: Exif) -> datetime | None:
    """When an image was taken.

    >>> exif = Exif()
    >>> exif[ExifTags.Base.DateTime] = "2024:05:01 10:11:12"
    >>> exif_date(exif)
    datetime.datetime(2024, 5, 1, 10, 11, 12)
    """
    found: dict[int, Any] = dict(exif)
    with contextlib.suppress(KeyError, ValueError, TypeError, OSError, SyntaxError):  # damaged EXIF is no EXIF
        found |= exif.get_ifd(ExifTags.IFD.Exif)
    for tag in _DATES:
        with contextlib.suppress(ValueError):
            return datetime.strptime(str(found.get(tag, "")).strip("\0 ")[:19], "%Y:%m:%d %H:%M:%S")
    return None


def file_facts(size: int, changed_ns: int) -> dict[str, Scalar]:
    """
    >>> file_facts(1024, 1714557600 * 10**9)
    {'bytes': 1024, 'modified': '2024-05-01'}
    """
    return {"bytes": size, "modified": datetime.fromtimestamp(changed_ns / 1e9, UTC).date().isoformat()}


def sidecar(image: Path) -> dict[str, Scalar]:
    """The fields of `photo.jpg.json` or `photo.json` beside `photo.jpg`; none where there is no such file."""
    for path in (image.with_name(image.name + ".json"), image.with_suffix(".json")):
        try:
            value = json.loads(path.read_bytes())
        except (OSError, ValueError):
            continue
        return plain_fields(value)
    return {}


def plain_fields(value: Any) -> dict[str, Scalar]:
    """The fields that filters can compare: texts, numbers, true and false. Lists and objects are left out.

    >>> plain_fields({"album": "sea", "taken at": 4, "tags": ["a"], "none": None})
    {'album': 'sea', 'taken_at': 4}
    """
    if not isinstance(value, Mapping):
        return {}
    return {_field_name(str(key)): field for key, field in value.items() if _is_plain(field)}


def _field_name(name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return plain if FIELD.fullmatch(plain) else f"_{plain}"


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= LONGEST and is_text(value)
    if isinstance(value, int):  # booleans too
        return abs(value) <= LARGEST_INTEGER
    return isinstance(value, float) and math.isfinite(value)
