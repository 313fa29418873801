"""ICFG-PEDES: ICFG-PEDES.json, a list as CUHK-PEDES has it, with one caption an image and no validation split."""

from __future__ import annotations

from pathlib import Path

from quintet.data.corpus import Corpus
from quintet.data.formats import cuhk

OPTIONS = {key: cuhk.OPTIONS[key] for key in ("images", "strict")}


def read(source: Path, *, images: Path | None = None, strict: bool = False) -> Corpus:
    return cuhk.read_people("icfg-pedes", source, ("ICFG-PEDES.json", "ICFG_PEDES.json"), "file_path", images, strict)
