"""Multi30k: captions in several languages, as its repository has them.

task1/raw/train.en, train.de, val.en, test_2016_flickr.en ... one caption a line (task2: train.1.en ... train.5.en),
and image_splits/train.txt ... with the image of each line. Files may be packed (.gz).
"""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path

from quintet.data.corpus import Corpus
from quintet.data.formats.assembly import (
    IMAGE_FOLDERS,
    LARGEST_TEXT,
    Entry,
    Notes,
    assemble,
    decode,
    files_below,
    given_or_found,
    read_text,
    split_name,
)  # fmt: skip
from quintet.errors import CorpusError, suggest

# train.en, test_2016_flickr.1.de.gz: split, number of the caption, language
CAPTIONS = re.compile(r"([a-z][a-z0-9_]*?)(?:\.(\d+))?\.([a-z]{2,3}(?:[-_][A-Za-z]+)?)(?:\.gz)?")
LISTS = ("{}.txt", "{}_images.txt", "{}.images", "{}.lst")
TEST = "test_2016_flickr"
OPTIONS = {
    "languages": "the languages to import, as en,de; default: all that are there",
    "task": "task1 (one caption in each language) or task2 (five), where the folder has both",
    "images": "the folder of images (Flickr30k's)",
    "test": "the set that becomes the split test; others keep their names",
    "strict": "true: a missing image or an empty caption is an error instead of a note",
}


def read(
    source: Path,
    *,
    languages: str | None = None,
    task: str = "task1",
    images: Path | None = None,
    test: str = TEST,
    strict: bool = False,
) -> Corpus:
    notes = Notes(strict)
    if not source.is_dir():
        raise CorpusError(f"{source} is a file; SOURCE is the folder that holds train.en, val.en and image_splits")
    paths = files_below(source, notes)
    if any(task in path.parts for path in paths):
        paths = [path for path in paths if task in path.parts]
    files: dict[str, dict[tuple[str, int], Path]] = {}  # split -> (language, number) -> file
    for path in paths:
        match = CAPTIONS.fullmatch(path.name)
        if match and match[3] not in ("txt", "lst", "csv", "md", "py", "sh", "gz", "jpg", "png", "tok", "bpe"):
            files.setdefault(match[1], {}).setdefault((match[3], int(match[2] or 1)), path)
    found = sorted({language for rows in files.values() for language, _ in rows})
    if not found:
        raise CorpusError(f"{source} holds no captions of Multi30k (train.en, train.de, val.en ...)")
    wanted = found if languages is None else languages.split(",")
    for language in wanted:
        if language not in found:
            raise CorpusError(f"languages={language}: {source} has no captions in it; {suggest(language, found)}")
    root = given_or_found(images, source, IMAGE_FOLDERS, "folder of images", "images")
    lists = {path.name: path for path in paths}
    entries: list[Entry] = []
    for split in sorted(files):
        rows = {key: path for key, path in sorted(files[split].items()) if key[0] in wanted}
        if rows:
            names = next((name.format(split) for name in LISTS if name.format(split) in lists), None)
            if names is None:
                raise CorpusError(f"{source} has no list of the images of {split} ({split}.txt, in image_splits)")
            target = "test" if split == test else split_name(split)
            entries += _entries(lists[names], rows, target, root)
    return assemble("multi30k", entries, notes, splits=("train", "dev", "test"))


def _entries(list_: Path, rows: dict[tuple[str, int], Path], split: str, root: Path) -> list[Entry]:
    # "100.jpg#0" in some lists: the number of the caption that was translated
    names = [line.split("#")[0].strip() for line in _lines(list_)]
    entries = [Entry(name, [], split, root / name, caption_facts=[]) for name in names]
    for (language, _), path in rows.items():
        captions = _lines(path)
        if len(captions) != len(names):
            raise CorpusError(f"{path} has {len(captions):,} captions, but {list_} names {len(names):,} images")
        for entry, caption in zip(entries, captions, strict=True):
            entry.captions.append(caption)
            assert entry.caption_facts is not None
            entry.caption_facts.append({"language": language})
    return entries


def _lines(path: Path) -> list[str]:
    if path.suffix != ".gz":
        text = read_text(path)
    else:
        try:
            with gzip.open(path) as file:
                content = file.read(LARGEST_TEXT + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise CorpusError(f"{path} is damaged or cut short: {error}; fetch it again") from None
        if len(content) > LARGEST_TEXT:
            raise CorpusError(f"{path} is too large: {LARGEST_TEXT:,} bytes are the most that is read")
        text = decode(content, str(path))
    lines = text.split("\n")
    return [line.strip() for line in (lines if lines[-1] else lines[:-1])]
