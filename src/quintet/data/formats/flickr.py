"""Flickr8k and Flickr30k as distributed: a token file, lists of pictures for each split, a folder of pictures.

Flickr8k.token.txt           1000268201_693b08cb0e.jpg#0 TAB a caption
Flickr_8k.trainImages.txt    a picture's file name (with or without .jpg) on each line
"""

from __future__ import annotations

from pathlib import Path

from quintet.data.corpus import Corpus
from quintet.data.formats.assembly import Entry, Notes, assemble, given_or_found, read_lines
from quintet.errors import CorpusError

TOKENS = (
    "Flickr8k.token.txt",
    "Flickr30k.token.txt",
    "results_20130124.token",
    "results*.token",
    "*.token",
    "*.token.txt",
)
PICTURES = (
    "images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset", "flickr8k-images",
    "flickr30k-images", "flickr30k_images", "Flickr30k_Dataset", "pictures",
)  # fmt: skip
LISTS = {
    "train": ("Flickr_*k.trainImages.txt", "*trainImages.txt", "*train.txt"),
    "dev": ("Flickr_*k.devImages.txt", "*devImages.txt", "*val.txt", "*dev.txt"),
    "test": ("Flickr_*k.testImages.txt", "*testImages.txt", "*test.txt"),
}
OPTIONS = {
    "tokens": "the token file, where it has an unusual name",
    "pictures": "the folder of pictures",
    "train": "the list of training pictures",
    "dev": "the list of validation pictures",
    "test": "the list of test pictures",
    "strict": "true: a missing picture or an empty caption is an error instead of a note",
}


def read(
    source: Path,
    *,
    tokens: Path | None = None,
    pictures: Path | None = None,
    train: Path | None = None,
    dev: Path | None = None,
    test: Path | None = None,
    strict: bool = False,
) -> Corpus:
    notes = Notes(strict)
    folder = source if source.is_dir() else source.parent
    token_file = source if source.is_file() else given_or_found(tokens, folder, TOKENS, "token file", "tokens")
    picture_folder = given_or_found(pictures, folder, PICTURES, "folder of pictures", "pictures")
    captions = _read_captions(token_file)
    lists = {
        split: read_lines(given_or_found(given, folder, LISTS[split], f"list of {split} pictures", split))
        for split, given in (("train", train), ("dev", dev), ("test", test))
    }
    entries = _entries(lists, captions, picture_folder, notes)
    return assemble(folder.resolve().name, entries, notes, splits=tuple(LISTS))


def _read_captions(path: Path) -> dict[str, dict[int, str]]:
    """Picture -> number -> caption."""
    captions: dict[str, dict[int, str]] = {}
    for number, line in enumerate(read_lines(path), 1):
        if not line:
            continue
        key, _, caption = line.partition("\t")
        picture, mark, place = key.rpartition("#")
        if not mark or not place.isdigit():
            raise CorpusError(f"{path}, line {number}: expected PICTURE#NUMBER TAB CAPTION, found {line[:60]!r}")
        if int(place) in captions.setdefault(picture, {}):
            raise CorpusError(f"{path}, line {number}: the id {key!r} occurs a second time; ids must be unique")
        captions[picture][int(place)] = caption
    return captions


def _entries(
    lists: dict[str, list[str]], captions: dict[str, dict[int, str]], pictures: Path, notes: Notes
) -> list[Entry]:
    by_stem = {Path(picture).stem: picture for picture in captions}  # some lists leave out the .jpg
    split_of: dict[str, str] = {}
    entries = []
    for split, names in lists.items():
        for name in filter(None, names):
            picture = name if name in captions else by_stem.get(name)
            if picture is None:
                notes.skip(f"pictures of split {split!r} without a caption in the token file", name)
                continue
            if picture in split_of:
                raise CorpusError(
                    f"picture {picture!r} is listed twice, in split {split_of[picture]!r} and in split {split!r}"
                )
            split_of[picture] = split
            numbers = sorted(captions[picture])
            texts = [captions[picture][number] for number in numbers]
            entries.append(Entry(picture, texts, split, pictures / picture, numbers=numbers))
    for picture in captions:
        if picture not in split_of:
            notes.leave_out("pictures of the token file that are in no split", picture)
    return entries
