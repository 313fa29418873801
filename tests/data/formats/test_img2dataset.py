from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.data.formats.sources import jpeg, write_parquet
from tests.data.formats.test_webdataset import write_shard

from quintet.data.formats import import_corpus
from quintet.errors import CorpusError


def facts(number: int) -> bytes:
    row = {"caption": f"Caption {number}.", "url": f"https://example.org/{number}", "key": f"{number:09d}"}
    return json.dumps(row | {"status": "success", "error_message": None, "width": 4, "exif": "{}"}).encode()


def make_source(folder: Path, files: bool = False) -> Path:
    folder.mkdir()
    for shard in range(2):
        members: dict[str, bytes] = {}
        for number in range(shard * 10_000, shard * 10_000 + 2):
            stem = f"{number:09d}"
            members |= {f"{stem}.jpg": jpeg(number % 7), f"{stem}.json": facts(number)}
            members[f"{stem}.txt"] = f"Caption {number}.".encode()
        if files:
            (folder / f"{shard:05d}").mkdir()
            for name, data in members.items():
                (folder / f"{shard:05d}" / name).write_bytes(data)
        else:
            write_shard(folder / f"{shard:05d}.tar", members)
        counts = {"count": 5, "successes": 2, "failed_to_download": 2, "failed_to_resize": 1, "status_dict": {}}
        (folder / f"{shard:05d}_stats.json").write_text(json.dumps(counts))
        write_parquet(folder / f"{shard:05d}.parquet", {"url": ["a"], "status": ["failed_to_download"]})
    return folder


@pytest.mark.parametrize("files", [False, True], ids=["tar shards", "folders"])
def test_what_it_wrote_is_imported_and_its_failures_are_counted(tmp_path: Path, files: bool) -> None:
    corpus = import_corpus("img2dataset", make_source(tmp_path / "s", files), tmp_path / "out")
    assert {text.group: text.text for text in corpus.texts} == {
        f"{number:09d}": f"Caption {number}." for number in (0, 1, 10_000, 10_001)
    }
    assert [corpus.image_path(image).read_bytes() for image in corpus.images] == [jpeg(n % 7) for n in (0, 1, 4, 5)]
    assert any(note.startswith("skipped 4 rows whose images could not be fetched") for note in corpus.notes)
    assert any(note.startswith("skipped 2 rows whose images could not be resized") for note in corpus.notes)


def test_a_shard_that_is_still_written_is_noted(tmp_path: Path) -> None:
    source = make_source(tmp_path / "s")
    (source / "00001_stats.json").unlink()
    corpus = import_corpus("img2dataset", source, tmp_path / "out")
    assert any("still writing" in note and "00001.tar" in note for note in corpus.notes)
    (source / "00000_stats.json").write_text("[")
    notes = import_corpus("img2dataset", source, tmp_path / "other").notes
    assert any("statistics that cannot be read" in note for note in notes)


def test_only_tables_are_no_images(tmp_path: Path) -> None:
    source = make_source(tmp_path / "s")
    for path in source.glob("*.tar"):
        path.unlink()
    with pytest.raises(CorpusError, match="no image was fetched"):
        import_corpus("img2dataset", source, tmp_path / "out")
