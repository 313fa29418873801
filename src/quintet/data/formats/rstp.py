"""RSTPReid: data_captions.json, a list as CUHK-PEDES has it, with two captions an image and `img_path`."""

from __future__ import annotations

from pathlib import Path

from quintet.data.corpus import Corpus
from quintet.data.formats import cuhk

OPTIONS = {"images": "the folder that `img_path` starts from (usually imgs)", "strict": cuhk.OPTIONS["strict"]}


def read(source: Path, *, images: Path | None = None, strict: bool = False) -> Corpus:
    return cuhk.read_people("rstpreid", source, ("data_captions.json",), "img_path", images, strict)
