"""Damage in an index is found and made anew; a copy of an index in use is whole."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import quintet
from quintet.cli.main import app
from quintet.errors import QuintetError
from quintet.search import SearchError, safekeeping
from quintet.search.indexing import BuildReport, build_index
from quintet.search.items import CHECKED
from quintet.search.searcher import Searcher

QUERY = "a red dog runs"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory, make_images: Any) -> Path:
    folder: Path = tmp_path_factory.mktemp("photos")
    make_images(folder, count=8)
    return folder


Make = Callable[..., BuildReport]


@pytest.fixture
def build(vse: Path, scan: Path, photos: Path, tmp_path: Path) -> Make:
    """Build or update `index`: two towers' worth of runs, fragments, texts."""
    (tmp_path / "texts.txt").write_text("a red dog\na house\n")
    extra: dict[str, Any] = {"rerank_with": [scan], "texts": tmp_path / "texts.txt", "device": "cpu", "batch_size": 2}
    return lambda index=tmp_path / "index", **more: build_index(vse, [photos], index, **(extra | more))


@pytest.fixture
def index(build: Make, tmp_path: Path) -> Path:
    build()
    return tmp_path / "index"


def answers(index: Path) -> list[Any]:
    with Searcher.open(index, device="cpu") as searcher:
        found = searcher.search(QUERY, k=99, where="width>=1"), searcher.search(QUERY, k=99, rerank=99)
        texts = searcher.search(QUERY, k=9, kind="text")
        return [[(hit.item, hit.score) for hit in hits] for hits in (*found, texts)]


def flip(path: Path, at: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1 << bit
    path.write_bytes(data)


def kept_files(index: Path) -> list[Path]:
    """The database last."""
    found = [path for path in index.rglob("*") if path.is_file() and path.name != "index.json"]
    return sorted(found, key=lambda path: (path.suffix == ".sqlite", path))


def test_an_index_as_it_was_built_is_whole(index: Path) -> None:
    assert quintet.verify_index(index) == []
    assert CliRunner().invoke(app, ["index", "-o", str(index), "--verify"]).exit_code == 0
    assert CliRunner().invoke(app, ["index", "--verify", str(index)]).exit_code == 0


def test_every_kind_of_file_that_is_damaged_is_named_and_made_anew(index: Path, build: Make) -> None:
    expected, count = answers(index), len(kept_files(index))
    for number in range(count):
        for damage in ("flip", "cut", "gone"):
            path = kept_files(index)[number]
            before, name = path.read_bytes(), str(path.relative_to(index))
            if damage == "flip":
                flip(path, before.index(b'"width"') + 3 if path.suffix == ".sqlite" else len(before) // 2)
            elif damage == "cut":
                os.truncate(path, len(before) // 2)
            else:
                path.unlink()
            found = quintet.verify_index(index)
            assert any(name in line for line in found), (name, damage, found)
            build()
            assert quintet.verify_index(index) == [], (name, damage)
            assert answers(index) == expected, (name, damage)
            if name == "items.sqlite" and damage == "cut":
                break  # nothing knows any more which files in vectors/ were the index's own: they stay
            assert len(kept_files(index)) == count, (name, damage)


def test_only_what_was_lost_is_encoded_again(index: Path, build: Make) -> None:
    (path,) = index.glob("vectors/image-*run0-embedding.bin")
    flip(path, 5 * 8 * 4 + 1)  # a row of the third batch of two
    assert "2 of 8 rows" in quintet.verify_index(index)[0]
    report = build()
    assert report.encoded == 2
    assert report.repaired == [f"vectors/{path.name}"]
    assert build().repaired == []


def test_a_database_that_is_damaged_costs_no_encoding(index: Path, build: Make) -> None:
    expected = answers(index)
    with sqlite3.connect(index / "items.sqlite") as connection:
        connection.execute("UPDATE items SET metadata = replace(metadata, '50', '51') WHERE kind = 'image'")
        connection.execute("DELETE FROM fields WHERE field = 'path'")
    connection.close()
    assert len(quintet.verify_index(index)) == 2
    report = build()
    assert (report.encoded, len(report.repaired)) == (0, 2)
    assert answers(index) == expected


@pytest.mark.parametrize("table", CHECKED)
def test_a_row_that_was_changed_is_found_in_every_table(index: Path, build: Make, table: str) -> None:
    expected = answers(index)
    with sqlite3.connect(index / "items.sqlite") as connection:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        column = {"head": "value", "files": "norm", "blocks": "checksum", "codes": "row", "items": "row"}[table]
        assert column in columns
        connection.execute(f"UPDATE {table} SET {column} = {column} || '1' WHERE rowid = 1" if table == "items" else
                           f"UPDATE {table} SET {column} = {column} || '1'")  # fmt: skip
    connection.close()
    assert quintet.verify_index(index)
    build()
    assert quintet.verify_index(index) == []
    assert answers(index) == expected


@pytest.mark.parametrize("seed", range(3))
def test_no_flipped_bit_changes_an_answer_unseen(index: Path, seed: int) -> None:
    """Whatever bit: an error that explains itself, the same answer, or one that `verify_index` knows of."""
    chance = random.Random(seed)
    expected, paths = answers(index), kept_files(index)
    for _ in range(25):
        path = chance.choice(paths)
        before = path.read_bytes()
        flip(path, chance.randrange(len(before)), chance.randrange(8))
        try:
            same = answers(index) == expected
        except QuintetError:
            same = True
        found = quintet.verify_index(index)
        assert same or found, path
        path.write_bytes(before)
    assert answers(index) == expected


HOSTILE = """
import sys
from pathlib import Path
from quintet.search.searcher import Searcher
with Searcher.open(Path(sys.argv[1]), device="cpu") as searcher:
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        searcher.search("a red dog runs", k=5, rerank=5)
        searcher.search("a red dog runs", k=5, kind="text")
        print("answered")
    except Exception as error:
        print(type(error).__name__)
"""


@pytest.mark.parametrize("store", ["exact", "faiss?kind=hnsw"])
@pytest.mark.parametrize("left", [0, 0.5])
def test_files_cut_short_under_a_reader_do_not_end_it(build: Make, tmp_path: Path, store: str, left: float) -> None:
    if store != "exact":
        pytest.importorskip("faiss")
    index = tmp_path / "index"
    build(store=store)
    with subprocess.Popen(
        [sys.executable, "-c", HOSTILE, str(index)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        for path in (index / "vectors").iterdir():
            os.truncate(path, int(left * path.stat().st_size))
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "StaleIndex\n"
    assert process.returncode == 0


def test_an_approximate_index_that_is_damaged_is_made_anew(build: Make, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    index = tmp_path / "index"
    build(store="faiss?kind=hnsw")
    expected = answers(index)
    for path in index.glob("vectors/*.faiss"):
        flip(path, path.stat().st_size // 2)
    with pytest.raises(SearchError, match="faiss is damaged"):
        answers(index)
    assert len(quintet.verify_index(index)) == 2
    build(store="faiss?kind=hnsw")
    assert quintet.verify_index(index) == []
    assert answers(index) == expected


# What somebody else could have put into an index


def lie(index: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest, with the checksum that belongs to it."""
    from quintet.search.items import ItemDatabase

    database = ItemDatabase.open_writer(index / "items.sqlite")
    manifest = database.head("manifest")
    change(manifest)
    with database.transaction():
        database.set_head("manifest", manifest)
    database.close()


LIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a run outside": lambda manifest: manifest["runs"][0].update(weights="../../../etc"),
    "no runs": lambda manifest: manifest.update(runs=[]),
    "a run that is not there": lambda manifest: manifest.update(first=[7]),
    "a kind that is none": lambda manifest: manifest.update(counts={"sound": 3}),
    "no counts": lambda manifest: manifest.pop("counts"),
    "roots that are none": lambda manifest: manifest.update(roots=["/etc"]),
    "a kept file outside": lambda manifest: manifest["kept"].update({"../../secret": "x"}),
    "faiss outside": lambda manifest: manifest.update(faiss={"image": {"file": "/etc/passwd", "checksum": 1}}),
    "files that are none": lambda manifest: manifest["files"].update(image="image-9"),
    "numbers as texts": lambda manifest: manifest.update(generation="3"),
    "a list": lambda manifest: manifest.update(dim=[1]),
}


@pytest.mark.parametrize("name", LIES)
def test_a_manifest_that_cannot_be_is_an_error_that_explains_itself(index: Path, name: str) -> None:
    lie(index, LIES[name])
    with pytest.raises(QuintetError):
        answers(index)
    quintet.verify_index(index)
    with pytest.raises(QuintetError):
        quintet.backup_index(index, index.parent / "backup")
    assert not (index.parent / "backup").exists()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE items SET metadata = '[' || metadata",
        "UPDATE items SET metadata = '3'",
        "UPDATE items SET row = 'x' || row",
        "UPDATE items SET row = row + 1000",
        "UPDATE items SET row = -1",
        "UPDATE items SET kind = x'00'",
        "UPDATE items SET id = x'00ff'",
        "UPDATE items SET path = x'ff', root = 99",
        "UPDATE items SET metadata = x'ff00'",
        "UPDATE head SET value = x'ff00'",
        "DROP TABLE fields",
        "DROP TABLE items",
        'UPDATE files SET parts = \'{"run0-embedding": {"width": 10, "dtype": "os"}}\'',
    ],
)
def test_a_database_that_cannot_be_is_an_error_that_explains_itself(index: Path, statement: str) -> None:
    with sqlite3.connect(index / "items.sqlite") as connection:
        try:
            connection.execute(statement)
        except sqlite3.IntegrityError:
            connection.execute(f"{statement} WHERE rowid = 1")
    connection.close()
    try:
        answers(index)
        with Searcher.open(index, device="cpu") as searcher:
            for hit in searcher.search(QUERY, k=99):
                try:
                    searcher.image_path(hit.item.id)
                    searcher.similar(hit.item.id)
                except QuintetError:
                    pass
    except QuintetError:
        pass
    assert quintet.verify_index(index)


def test_a_pipe_in_place_of_a_file_is_not_waited_for(index: Path) -> None:
    (path,) = index.glob("vectors/image-*run0-embedding.bin")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(SearchError, match="not a file"):
        answers(index)
    assert quintet.verify_index(index)


def test_a_foreign_index_gives_out_images_only(index: Path, tmp_path: Path, photos: Path) -> None:
    """Whoever made it chose its roots and paths."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "passwd").write_text("root:x:0:0")
    (secret / "passwd.png").write_text("root:x:0:0")
    (secret / "link.png").symlink_to(secret / "passwd")
    shutil.copy(photos / "0.png", secret / "photo.png")
    lie(index, lambda manifest: manifest["roots"][0].update(path=str(secret)))
    with sqlite3.connect(index / "items.sqlite") as connection:
        rows = connection.execute("SELECT id FROM items WHERE kind = 'image' ORDER BY id").fetchall()
        paths = ("passwd", "passwd.png", "link.png", "photo.png", "../index/index.json")
        for (id_,), path in zip(rows, paths, strict=False):
            connection.execute("UPDATE items SET path = ? WHERE id = ?", (path, id_))
    connection.close()
    given = []
    with Searcher.open(index, device="cpu") as searcher:
        for (id_,) in rows:
            with contextlib.suppress(SearchError):
                given.append(searcher.image_path(id_))
    assert given == [secret / "photo.png"]


# Copies


@pytest.mark.parametrize("name", ["copy", "copy.tar"])
def test_a_backup_is_the_index(index: Path, build: Make, tmp_path: Path, name: str) -> None:
    expected = answers(index)
    ended = CliRunner().invoke(app, ["index", "-o", str(index), "--backup", str(tmp_path / name), "--json"])
    assert ended.exit_code == 0, ended.output
    if name.endswith(".tar"):
        with tarfile.open(tmp_path / name) as tar:
            tar.extractall(tmp_path, filter="data")
    shutil.rmtree(index)
    copy = tmp_path / "copy"
    assert answers(copy) == expected
    assert quintet.verify_index(copy) == []
    assert build(copy).encoded == 0
    assert answers(copy) == expected


def test_images_of_shards_are_in_a_backup(pixel_vse: Path, photos: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(photos / "0.png", "0.png")
    build_index(pixel_vse, tmp_path / "a.tar", tmp_path / "index", device="cpu")
    quintet.backup_index(tmp_path / "index", tmp_path / "copy")
    with Searcher.open(tmp_path / "copy", device="cpu") as searcher:
        (hit,) = searcher.search(QUERY)
        assert searcher.image_path(hit.item.id).read_bytes() == (photos / "0.png").read_bytes()
    (image,) = (tmp_path / "copy" / "images").glob("*/*.png")
    flip(image, 30)
    assert quintet.verify_index(tmp_path / "copy") == [f"images/{image.parent.name}/{image.name}: damaged or missing"]


LOOP = """
import sys
from pathlib import Path
from quintet.search.indexing import build_index
for turn in range(1000):
    build_index(Path(sys.argv[1]), [Path(sys.argv[2 + turn % 2])], Path(sys.argv[4]), batch_size=4, workers=1,
                device="cpu", prune=True)
    print(turn, flush=True)
"""


def scores(index: Path) -> dict[str, float]:
    with Searcher.open(index, device="cpu") as searcher:
        return {hit.item.id: hit.score for hit in searcher.search(QUERY, k=99)}


@pytest.mark.slow
def test_copies_and_readers_of_an_index_that_is_rebuilt_again_and_again(
    vse: Path, make_images: Any, tmp_path: Path
) -> None:
    make_images(tmp_path / "many", count=24, seed=1)
    make_images(tmp_path / "few", count=5, seed=1)
    index, expected = tmp_path / "index", []
    for name in ("few", "many"):
        build_index(vse, [tmp_path / name], index, device="cpu", prune=True)
        expected.append(scores(index))
    command = [sys.executable, "-c", LOOP, str(vse), str(tmp_path / "few"), str(tmp_path / "many"), str(index)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for turn in range(40):
            if turn % 4 == 0:
                copy = quintet.backup_index(index, tmp_path / f"copy-{turn}")
                assert quintet.verify_index(copy) == []
                assert quintet.verify_index(index) == []
            else:
                copy = index
            found = scores(copy)
            assert any(found == pytest.approx(each, abs=1e-5) for each in expected)
        process.send_signal(signal.SIGKILL)


def test_a_backup_replaces_nothing(index: Path, tmp_path: Path) -> None:
    (tmp_path / "album").mkdir()
    (tmp_path / "album" / "mine.png").write_bytes(b"mine")
    (tmp_path / "mine.tar").write_bytes(b"mine")
    for out in (tmp_path / "album", tmp_path / "mine.tar", index, index / "copy", tmp_path / "album" / "mine.png"):
        with pytest.raises(QuintetError):
            quintet.backup_index(index, out)
    assert [path.read_bytes() for path in (tmp_path / "album").iterdir()] == [b"mine"]
    assert (tmp_path / "mine.tar").read_bytes() == b"mine"
    assert quintet.verify_index(index) == []


@pytest.mark.parametrize("name", ["copy", "copy.tar"])
def test_a_backup_that_fails_leaves_nothing(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before, calls = sorted(tmp_path.iterdir()), 0
    original = tarfile.copyfileobj  # type: ignore[attr-defined]

    def full(*arguments: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise OSError(28, "No space left on device")
        return original(*arguments, **more)

    monkeypatch.setattr(tarfile, "copyfileobj", full)
    with pytest.raises(QuintetError, match="No space left"):
        quintet.backup_index(index, tmp_path / name)
    assert sorted(tmp_path.iterdir()) == before


def test_a_backup_that_was_killed_is_no_index_and_is_finished_by_the_next(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    killed = (
        "import sys, os, quintet\nfrom quintet.search import safekeeping\n"
        "safekeeping.write_json = lambda *_: os.kill(os.getpid(), 9)\n"
        "quintet.backup_index(sys.argv[1], sys.argv[2])\n"
    )
    ended = subprocess.run([sys.executable, "-c", killed, str(index), str(copy)], check=False)
    assert ended.returncode == -signal.SIGKILL
    with pytest.raises(SearchError):
        answers(copy)
    quintet.backup_index(index, copy)
    assert answers(copy) == answers(index)
    assert sorted(path.name for path in copy.iterdir()) == sorted(path.name for path in index.iterdir())
    assert safekeeping.verify_index(copy) == []


def test_an_empty_row_has_a_checksum_too() -> None:
    from quintet.search.items import row_sum

    assert row_sum(("a", None, 1)) != row_sum(("a", "None1"))
    assert row_sum(np.array([1, 2]).tolist()) == row_sum([1, 2])
