"""An import that was killed goes on where it stopped, and ends as one that was not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.data.formats.sources import as_parquet, as_shards

from quintet.data.corpus import FORMAT, HEADER, TABLES
from quintet.data.formats import import_corpus
from quintet.data.formats.assembly import ImageFolder
from quintet.data.formats.import_journal import NAME
from quintet.errors import CorpusError
from quintet.files import header_format

FORMATS: dict[str, Callable[[Path], Path]] = {"parquet": lambda path: as_parquet(path, 1), "webdataset": as_shards}


def tables(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in (*TABLES, HEADER)}


class Killed(BaseException):
    pass


def kill_at(monkeypatch: pytest.MonkeyPatch, image: int, read: list[str]) -> None:
    """Stop in the middle of the writing of an image, as a kill does: nothing is undone."""
    add = ImageFolder.add

    def failing(self: ImageFolder, id_: str, suffix: str, content: Any) -> Any:
        read.append(id_)
        if len(read) == image:
            path = self.out / "images" / f"{id_}{suffix}"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(bytes(content)[:100])
            raise Killed
        return add(self, id_, suffix, content)

    monkeypatch.setattr(ImageFolder, "add", failing)
    monkeypatch.setattr(ImageFolder, "undo", lambda self: None)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("image", [1, 3, 5, 6])
def test_a_killed_import_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, image: int) -> None:
    monkeypatch.setattr("quintet.data.formats.parquet.PART", 1)  # every row group is a part
    source = FORMATS[format](tmp_path / "s")
    import_corpus(format, source, tmp_path / "whole")
    with monkeypatch.context() as killing:
        kill_at(killing, image, [])
        with pytest.raises(Killed):
            import_corpus(format, source, tmp_path / "out")
    assert not (tmp_path / "out" / HEADER).exists()
    read: list[str] = []
    with monkeypatch.context() as counting:
        kill_at(counting, 100, read)
        import_corpus(format, source, tmp_path / "out")
    assert tables(tmp_path / "out") == tables(tmp_path / "whole")
    assert len(read) == (7 - image if format == "parquet" else 6 if image <= 4 else 2)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"images", *TABLES, HEADER}


def test_another_source_starts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards, out = as_shards(tmp_path / "s"), tmp_path / "out"
    with monkeypatch.context() as killing:
        kill_at(killing, 6, [])
        with pytest.raises(Killed):
            import_corpus("webdataset", shards, out)
    assert (out / NAME).exists()
    (shards / "train-000.tar").rename(shards / "dev-000.tar")
    corpus = import_corpus("webdataset", shards, out)
    assert list(corpus.splits) == ["dev"]
    assert not (out / NAME).exists()


def test_a_journal_of_someone_else_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / NAME).write_text("mine\n")
    with pytest.raises(CorpusError, match="in the way"):
        import_corpus("webdataset", as_shards(tmp_path / "s"), out)
    assert (out / NAME).read_text() == "mine\n"


def test_a_stop_by_hand_keeps_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = as_shards(tmp_path / "s"), tmp_path / "out"

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as stopping:
        stopping.setattr("quintet.data.formats.webdataset.assemble", stop)
        with pytest.raises(KeyboardInterrupt):
            import_corpus("webdataset", source, out)
    assert len(list((out / "images").iterdir())) == 6
    assert len(import_corpus("webdataset", source, out).images) == 6


@pytest.mark.slow
def test_killed_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintet.data.formats.parquet.PART", 1)
    source = as_parquet(tmp_path / "s", 1)
    import_corpus("parquet", source, tmp_path / "whole")
    program = (
        "import sys, threading, os, time\n"
        "threading.Timer(float(sys.argv[3]), lambda: os._exit(9)).start()\n"
        "import quintet.data.formats.parquet as parquet\n"
        "parquet.PART = 1\n"
        "from quintet.data.formats import import_corpus\n"
        "from quintet.data.formats.assembly import ImageFolder\n"
        "add = ImageFolder.add\n"
        "ImageFolder.add = lambda *given: (time.sleep(0.05), add(*given))[1]\n"
        "import_corpus('parquet', sys.argv[1], sys.argv[2])\n"
        "os._exit(0)\n"
    )
    for tenth in range(4, 16, 2):
        out = tmp_path / str(tenth)
        subprocess.run([sys.executable, "-c", program, source, out, str(tenth / 10)], check=False)
        if header_format(out / HEADER) != FORMAT:
            import_corpus("parquet", source, out)
        assert tables(out) == tables(tmp_path / "whole")
