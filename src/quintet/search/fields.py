"""Fields of images, for filters: from their EXIF data, from the file, from a JSON file beside it."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from PIL import ExifTags
from PIL.Image import Exif

from quintet.errors import QuintetError
from quintet.files import lies_in, read_bytes
from quintet.search.stores import Scalar
from quintet.search.stores.store import METADATA_BYTES, is_text
from quintet.search.stores.where import FIELD, LARGEST_INTEGER

LONGEST_VALUE = 1_000  # characters of a value; a filter needs no more
LONGEST_NAME = 100  # of a field
LARGEST_SIDECAR = 2**20  # bytes
ROOM = METADATA_BYTES - 10_000  # bytes of the fields of an item; the rest is for those of its file
# Dates as cameras write them: when it was taken, when it was digitised, when the file was changed.
_DATES = (ExifTags.Base.DateTimeOriginal, ExifTags.Base.DateTimeDigitized, ExifTags.Base.DateTime)


def image_facts(size: tuple[int, int], exif: Exif) -> dict[str, Scalar]:
    """Fields from the image itself: its size and shape, and what its EXIF data say of date, camera and position."""
    width, height = size
    shape = "square" if width == height else "landscape" if width > height else "portrait"
    facts: dict[str, Scalar] = {"width": width, "height": height, "orientation": shape}
    taken = exif_date(exif)
    if taken is not None:
        facts |= _date_fields(taken, "camera")
    if camera := _camera(exif):
        facts["camera"] = camera
    return facts | _position(exif)


def _date_fields(day: datetime, source: str) -> dict[str, Scalar]:
    time = day.time().isoformat("seconds")
    return {"date": day.date().isoformat(), "time": time, "year": day.year, "date_from": source}


def _camera(exif: Exif) -> str:
    """Maker and model; a model that begins with its maker is not repeated.

    >>> exif = Exif()
    >>> exif[ExifTags.Base.Make], exif[ExifTags.Base.Model] = "Canon", "Canon EOS R5"
    >>> _camera(exif)
    'Canon EOS R5'
    """
    parts = []
    for tag in (ExifTags.Base.Make, ExifTags.Base.Model):
        with contextlib.suppress(Exception):  # damaged EXIF is no EXIF
            parts.append(" ".join(str(exif.get(tag) or "").replace("\0", " ").split()))
    maker, model = parts if len(parts) == 2 else ("", "".join(parts))
    name = model if model.lower().startswith(maker.lower()) else f"{maker} {model}".strip()
    return name[:LONGEST_NAME] if is_text(name) else ""


def _position(exif: Exif) -> dict[str, Scalar]:
    """Degrees, north and east positive, and metres above the sea."""
    found: dict[str, Scalar] = {}
    with contextlib.suppress(Exception):  # damaged EXIF is no EXIF
        gps = exif.get_ifd(ExifTags.IFD.GPSInfo)
        latitude = _degrees(gps[ExifTags.GPS.GPSLatitude], gps.get(ExifTags.GPS.GPSLatitudeRef) == "S", 90)
        longitude = _degrees(gps[ExifTags.GPS.GPSLongitude], gps.get(ExifTags.GPS.GPSLongitudeRef) == "W", 180)
        found |= {"latitude": latitude, "longitude": longitude}
        height = float(gps[ExifTags.GPS.GPSAltitude])
        if math.isfinite(height):
            below = gps.get(ExifTags.GPS.GPSAltitudeRef) in (1, b"\x01")
            found["altitude"] = round(-height if below else height, 1)
    return found


def _degrees(parts: Any, negative: bool, most: int) -> float:
    """From degrees, minutes and seconds.

    >>> _degrees((52, 30, 36), False, 90)
    52.51
    """
    value = sum(float(part) / 60**power for power, part in enumerate(parts))
    if not 0 <= value <= most:  # also where it is not a number
        raise ValueError(value)
    return round(-value if negative else value, 6)


def exif_date(exif: Exif) -> datetime | None:
    """When an image was taken.

    >>> exif = Exif()
    >>> exif[ExifTags.Base.DateTime] = "2024:05:01 10:11:12"
    >>> exif_date(exif)
    datetime.datetime(2024, 5, 1, 10, 11, 12)
    """
    found: dict[int, Any] = {}
    for read in (lambda: dict(exif), lambda: exif.get_ifd(ExifTags.IFD.Exif)):
        with contextlib.suppress(Exception):  # damaged EXIF is no EXIF
            found |= read()
    for tag in _DATES:
        with contextlib.suppress(Exception):
            return datetime.strptime(str(found.get(tag, "")).strip("\0 ")[:19], "%Y:%m:%d %H:%M:%S")
    return None


def file_facts(facts: os.stat_result) -> dict[str, Scalar]:
    """Size and day of the last change; no day outside of the years 1 to 9999."""
    found: dict[str, Scalar] = {"bytes": facts.st_size}
    if (changed := _changed(facts)) is not None:
        found["modified"] = changed.date().isoformat()
    return found


def file_date(facts: os.stat_result) -> dict[str, Scalar]:
    """The date of a file, for images that do not say when they were taken."""
    changed = _changed(facts)
    return {} if changed is None else _date_fields(changed, "file")


def _changed(facts: os.stat_result) -> datetime | None:
    with contextlib.suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(facts.st_mtime_ns / 1e9, UTC)
    return None


def sidecar(image: Path, top: str) -> tuple[dict[str, Scalar], list[tuple[str, str]]]:
    """The fields of `photo.jpg.json` or `photo.json` beside `photo.jpg`, and why one of these was not read.

    `top`: the real path of the indexed folder; no link may lead out of it.
    """
    refused: list[tuple[str, str]] = []
    for path in (image.with_name(image.name + ".json"), image.with_suffix(".json")):
        if not os.path.lexists(path):
            continue
        try:
            if path.is_symlink() and not lies_in(path, top):
                raise QuintetError("a link that leads out of the indexed folder")
            return parse_fields(read_bytes(path, LARGEST_SIDECAR)), refused
        except QuintetError as error:
            refused.append((str(path), f"{error}; the image is indexed without these fields"))
    return {}, refused


def parse_fields(data: bytes) -> dict[str, Scalar]:
    """The plain fields of a JSON object."""
    try:
        return plain_fields(json.loads(data))
    except RecursionError:
        raise QuintetError("no JSON that can be read: it is nested too deeply") from None
    except ValueError as error:
        raise QuintetError(f"no JSON: {error}") from None


def plain_fields(value: Any) -> dict[str, Scalar]:
    """The fields that filters can compare: texts, numbers, true and false. Lists and objects are left out.

    >>> plain_fields({"album": "sea", "taken at": 4, "tags": ["a"], "none": None})
    {'album': 'sea', 'taken_at': 4}
    """
    if not isinstance(value, Mapping):
        return {}
    found = {_field_name(str(key)): field for key, field in value.items() if _is_plain(field)}
    if len(json.dumps(found)) > ROOM:
        raise QuintetError(f"fields of more than {ROOM:,} bytes")
    return found


def _field_name(name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name[:LONGEST_NAME])
    return plain if FIELD.fullmatch(plain) else f"_{plain}"


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= LONGEST_VALUE and is_text(value)
    if isinstance(value, int):  # booleans too
        return abs(value) <= LARGEST_INTEGER
    return isinstance(value, float) and math.isfinite(value)
