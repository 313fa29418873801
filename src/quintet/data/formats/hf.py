"""A data set of the hub, or a folder of one, read through `datasets`: streamed, never executed, original bytes.

`quintet data import hf:OWNER/NAME CORPUS`. The columns are found as the format `parquet` finds them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from quintet.data.corpus import Corpus
from quintet.data.formats import columns as columns_file
from quintet.data.formats.assembly import ImageFolder, Notes, assemble, parse_fractions, split_name
from quintet.data.formats.columns import Asked, Columns, Rows, find_columns
from quintet.data.formats.hub_datasets import HUB_DATASETS
from quintet.data.formats.import_journal import Journal
from quintet.data.remote import RemoteError
from quintet.errors import CorpusError, QuintetError, first_line

BATCH = 100  # rows that are decoded at once
PART = 1000  # rows after which an import that is killed goes on
OPTIONS = columns_file.OPTIONS | {
    "config": "the configuration (subset) of the data set, where it has several",
    "revision": "the branch, tag or commit to read",
    "splits": "the splits to read and what they become, as train,validation=dev; default: all, by their names",
}


def read(
    source: str,
    *,
    out: ImageFolder,
    config: str | None = None,
    revision: str | None = None,
    splits: str | None = None,
    image: str | None = None,
    caption: str | None = None,
    split: str | None = None,
    id: str | None = None,
    group: str | None = None,
    language: str | None = None,
    keep: str | None = None,
    images: Path | None = None,
    restval: str = "train",
    max_captions: int | None = None,
    fractions: str = "0.8,0.1,0.1",
    seed: int = 0,
    strict: bool = False,
) -> Corpus:
    notes = Notes(strict)
    shares = parse_fractions(fractions)
    known = HUB_DATASETS.get(source)
    if known is not None and known.refused:
        raise CorpusError(f"{source}: {known.refused}")
    usual = known.options if known is not None else {}
    revision = revision or usual.get("revision")
    asked = Asked(
        image,
        caption or usual.get("caption"),
        split or usual.get("split"),
        id or usual.get("id"),
        group,
        language,
        keep,
        images,
        restval,
        max_captions,
    )
    opened = _open(source, config, revision)
    chosen = _chosen(list(opened), splits, source)
    if asked.images is None and Path(source).is_dir():
        asked = replace(asked, images=Path(source))
    rows = Rows(out, asked, notes)
    identity = [source, config, revision, splits, str((asked, strict)), _version(source, revision), PART]
    journal = Journal(out, {"hub": identity}, notes)
    for entry in journal.entries():
        rows.know(entry)
    for name, target in chosen.items():
        _read_split(opened[name], source, name, target, rows, asked, journal)
    del rows
    name = source.rstrip("/").rpartition("/")[2]
    return assemble(name, journal.all_entries(), notes, fractions=shares, seed=seed, splits=("train", "dev", "test"))


def _open(source: str, config: str | None, revision: str | None) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise CorpusError(
            f"hf:{source} needs the extra `hub`: pip install 'quintet-retrieval[hub]' ({error})"
        ) from None
    try:
        # There is no option to run a script of the data set: `datasets` 4 and later cannot.
        return datasets.load_dataset(source, config, revision=revision, streaming=True)
    except Exception as error:  # noqa: BLE001  # of the hub, of the network, of its readers
        raise _told(error, source) from None


def _told(error: Exception, source: str) -> QuintetError:
    name, said = type(error).__name__, first_line(error)
    if Path(source).exists():
        return CorpusError(f"{source} is no folder that `datasets` can read: {said}")
    if name in ("GatedRepoError",) or "gated" in said.lower():
        return CorpusError(
            f"{source} is given only to those who accepted its terms: accept them on its page, then `hf auth login`"
        )
    if "scripts are no longer supported" in said:
        return CorpusError(
            f"{source} is a script, and scripts of others are never run; if its page offers Parquet files, read them "
            "with --option revision=refs/convert/parquet"
        )
    if "Config name is missing" in str(error) or "config" in said.lower():
        return CorpusError(f"{source}: {' '.join(str(error).split())[:300]}; say it with the option config=NAME")
    if name in ("DatasetNotFoundError", "RepositoryNotFoundError"):
        return CorpusError(f"the hub has no data set {source} (of a private one: log in with `hf auth login`): {said}")
    return RemoteError(
        f"{source} could not be read from the hub ({said}); is there a network, and is HF_HUB_OFFLINE not set? Give "
        "the command again, or the path of a folder that holds the data set"
    )


def _version(source: str, revision: str | None) -> object:
    """What tells one version of the data set from another: its commit, or the files of a folder."""
    folder = Path(source)
    if folder.is_dir():
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    try:
        from huggingface_hub import HfApi

        return HfApi().dataset_info(source, revision=revision).sha
    except Exception:  # noqa: BLE001  # of the hub, of the network
        return time.time_ns()  # then an import that was killed begins anew


def _chosen(names: list[str], asked: str | None, source: str) -> dict[str, str]:
    """The splits to read, by their names, with the splits that they become."""
    if asked is None:
        return {name: split_name(name) for name in names}
    chosen = {}
    for part in asked.split(","):
        name, _, target = part.strip().partition("=")
        if name not in names:
            raise CorpusError(f"{source} has no split {name!r}; it has {', '.join(names)}")
        chosen[name] = target or split_name(name)
    return chosen


def _read_split(data: Any, source: str, name: str, target: str, rows: Rows, asked: Asked, journal: Journal) -> None:
    where = f"{source}, split {name}"
    if f"{name}: all" in journal:
        return
    try:
        data = _as_stored(data)
        first = 0
        while f"{name}: {first}" in journal:
            first += PART
        tables = iter(data.skip(first).with_format("arrow").iter(batch_size=BATCH))
        for table in tables:
            part = itertools.chain([table], itertools.islice(tables, PART // BATCH - 1))
            columns = find_columns(table.schema, asked, where)
            journal.add(f"{name}: {first}", _entries(part, columns, first, where, name, target, rows))
            first += PART
        journal.add(f"{name}: all", ())
    except QuintetError:
        raise
    except Exception as error:  # noqa: BLE001  # of the hub, of the network, of its readers
        raise _told(error, source) from None


def _as_stored(data: Any) -> Any:
    """The data with images as their bytes and paths: nothing is decoded."""
    import datasets

    features = data.features or data._resolve_features().features
    for name, feature in features.items():
        if isinstance(feature, datasets.Image):
            data = data.cast_column(name, datasets.Image(decode=False))
    return data


def _entries(
    tables: Iterable[Any], columns: Columns, first: int, where: str, name: str, target: str, rows: Rows
) -> Iterator[Any]:
    for table in tables:
        for batch in table.to_batches():
            yield from rows.entries(batch, columns, first, where, name, target)
            first += batch.num_rows
