from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.data.servers import serving

from quintet.search import SearchError
from quintet.search import shard_sources as module
from quintet.search.indexing import build_index
from quintet.search.searcher import Searcher
from quintet.search.stores import parse_where


def pack(path: Path, files: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


@pytest.fixture
def shards(pictures: Path, tmp_path: Path) -> Path:
    data = {path.name: path.read_bytes() for path in pictures.iterdir()}
    folder = tmp_path / "shards"
    pack(folder / "a.tar", {"0.png": data["0.png"], "0.json": b'{"album": "sea"}', "x/1.png": data["1.png"]})
    pack(folder / "deep" / "b.tgz", {"2.png": data["2.png"], "2.txt": b"a caption"})
    return folder


def build(run: Path, source: Path, index: Path) -> Any:
    return build_index(run, [source], index, device="cpu")


def test_images_of_shards_are_found_and_can_be_shown(
    pixel_vse: Path, shards: Path, pictures: Path, tmp_path: Path
) -> None:
    assert build(pixel_vse, shards, tmp_path / "index").added == 3
    with Searcher.open(tmp_path / "index", device="cpu") as searcher:
        (hits,) = searcher.search_text(["a red thing"])
        assert {hit.item.path for hit in hits} == {"a.tar/0.png", "a.tar/x/1.png", "deep/b.tgz/2.png"}
        (hit,) = searcher.search_text(["a red thing"], where=parse_where("album=sea"))[0]
        assert searcher.image_path(hit.item.id).read_bytes() == (pictures / "0.png").read_bytes()
        assert hit.item.metadata["width"] == 50


def test_images_of_parquet_files_are_found_with_the_fields_of_their_rows(
    pixel_vse: Path, pictures: Path, tmp_path: Path
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    data = [path.read_bytes() for path in sorted(pictures.glob("*.png"))][:3]
    images = [{"bytes": part, "path": path} for part, path in zip(data, ("/x/a.png", "/y/a.png", None), strict=True)]
    images += [images[0], {"bytes": None, "path": "gone.png"}, {"bytes": b"text", "path": "b.txt"}]
    (tmp_path / "files").mkdir()
    table = pyarrow.table({"image": images, "album": ["sea", "snow", "sea", "sea", "", ""], "tags": [["x"]] * 6})
    parquet.write_table(table, tmp_path / "files/one.parquet", row_group_size=2)
    (tmp_path / "files/two.parquet").write_bytes(b"PAR1, but nothing that follows")
    report = build(pixel_vse, tmp_path / "files", tmp_path / "index")
    assert report.added == 3
    assert {path.rpartition("/")[2] for path, _ in report.unreadable} == {"one.parquet", "two.parquet"}
    with Searcher.open(tmp_path / "index", device="cpu") as searcher:
        (hits,) = searcher.search_text(["a red thing"])
        names = {"one.parquet/a.png", "one.parquet/000001-a.png", "one.parquet/000002.png"}
        assert {hit.item.path for hit in hits} == names
        (snow,) = searcher.search_text(["a red thing"], where=parse_where("album=snow"))[0]
        assert searcher.image_path(snow.item.id).read_bytes() == data[1]
    with pytest.raises(SearchError, match="holds no images"):
        build(pixel_vse, tmp_path / "files/two.parquet", tmp_path / "none")


def test_a_build_that_was_stopped_does_not_read_a_shard_again(
    pixel_vse: Path, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stop(Exception):  # noqa: N818
        pass

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise Stop

    with pytest.raises(Stop):
        build_index(pixel_vse, [shards], tmp_path / "index", device="cpu", batch_size=1, progress=stop)
    assert (tmp_path / "index" / module.UNPACKED).is_dir()
    with monkeypatch.context() as patch:
        patch.setattr(module, "shard_files", None)
        assert build(pixel_vse, shards, tmp_path / "index").added == 3
    assert not (tmp_path / "index" / module.UNPACKED).exists()
    build(pixel_vse, shards, tmp_path / "whole")
    with Searcher.open(tmp_path / "index", device="cpu") as one, Searcher.open(tmp_path / "whole", device="cpu") as two:
        wanted, found = (each.search_text(["a red thing"])[0] for each in (two, one))
        assert [(hit.item.path, hit.item.metadata) for hit in found] == [
            (hit.item.path, hit.item.metadata) for hit in wanted
        ]


def test_a_shard_that_did_not_change_is_not_read_again(
    pixel_vse: Path, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(pixel_vse, shards, tmp_path / "index")
    read: list[str] = []
    original = module.shard_files

    def watched(shard: Path, notes: Any, shown: str) -> Any:
        read.append(shard.name)
        return original(shard, notes, shown)

    monkeypatch.setattr(module, "shard_files", watched)
    report = build(pixel_vse, shards, tmp_path / "index")
    assert (report.added, report.kept, report.dropped, read) == (0, 3, 0, [])
    pack(shards / "a.tar", {"0.png": (tmp_path / "pictures" / "5.png").read_bytes()})
    report = build(pixel_vse, shards, tmp_path / "index")
    assert (report.added, report.kept, report.dropped, read) == (1, 1, 2, ["a.tar"])
    assert len(list((tmp_path / "index" / "images").glob("*/*"))) == 2  # what is gone is not kept unpacked


def test_one_shard_is_a_source_too(pixel_vse: Path, shards: Path, tmp_path: Path) -> None:
    assert build(pixel_vse, shards / "a.tar", tmp_path / "index").added == 2


def test_damage_and_traversal_in_shards_are_listed(
    pixel_vse: Path, shards: Path, pictures: Path, tmp_path: Path
) -> None:
    pack(shards / "evil.tar", {"../../out.png": (pictures / "3.png").read_bytes(), "4.jpg": b"no image"})
    whole = (shards / "a.tar").read_bytes()
    (shards / "cut.tar").write_bytes(whole[: len(whole) // 4])
    report = build(pixel_vse, shards, tmp_path / "index")
    assert report.added == 4  # the cut one begins with a good image
    reasons = json.dumps(report.unreadable)
    assert "out of the shard" in reasons
    assert "cut short" in reasons
    assert "not an image" in reasons
    assert not (tmp_path / "out.png").exists()
    assert "cut short" in json.dumps(build(pixel_vse, shards, tmp_path / "index").unreadable)


def test_shards_and_images_behind_urls(pixel_vse: Path, shards: Path, pictures: Path, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    files = {"s/a.tar": (shards / "a.tar").read_bytes(), "photos/2.png": (pictures / "2.png").read_bytes()}
    with serving(files, drop=3) as server:
        urls = [f"{server.url}/s/a.tar", f"{server.url}/photos/2.png"]
        report = build_index(pixel_vse, urls, tmp_path / "index", device="cpu")
        assert report.added == 3
        with Searcher.open(tmp_path / "index", device="cpu") as searcher:
            assert {root.path for root in searcher.manifest.roots} == {f"{server.url}/s", f"{server.url}/photos"}
            (hits,) = searcher.search_text(["a red thing"])
            by_path = {hit.item.path: hit.item.id for hit in hits}
            assert set(by_path) == {"a.tar/0.png", "a.tar/x/1.png", "2.png"}
            assert searcher.image_path(by_path["2.png"]).read_bytes() == files["photos/2.png"]

        server.asked.clear()
        assert build_index(pixel_vse, urls, tmp_path / "index", device="cpu").kept == 3
        assert not server.asked  # nothing was fetched again

        server.files["photos/2.png"] = (pictures / "0.png").read_bytes()
        changed = build_index(pixel_vse, urls, tmp_path / "index", device="cpu")
        assert (changed.added, changed.kept, changed.dropped) == (1, 2, 1)

        del server.files["photos/2.png"]
        with pytest.raises(SearchError, match="does not exist"):
            build_index(pixel_vse, urls, tmp_path / "index", device="cpu")
        assert build_index(pixel_vse, urls[:1], tmp_path / "index", device="cpu").dropped == 1
    assert not (tmp_path / "index" / module.DOWNLOADS).exists()
