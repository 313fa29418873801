"""Files behind URLs, with servers that stop in the middle, do not answer, or change a file."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from tests.data.formats.sources import as_parquet, as_shards
from tests.data.formats.test_routes import content
from tests.data.servers import serving, serving_gs

from quintet.data import remote
from quintet.data.formats import import_corpus
from quintet.data.formats.shards import DOWNLOADS
from quintet.data.remote import RemoteError, expand_braces, fetched, is_url, list_files
from quintet.errors import CorpusError, QuintetError

pytest.importorskip("aiohttp")
CONTENT = bytes(itertools.islice(itertools.cycle(range(251)), 10_000))


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "BLOCK", 1000)
    monkeypatch.setattr(remote, "FIRST_PAUSE", 0.001)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "no ranges"])
@pytest.mark.parametrize("drop", [0, 2, 3])
def test_what_comes_is_whole(tmp_path: Path, drop: int, ranges: bool) -> None:
    files = {f"{number}.tar": CONTENT[number:] for number in range(6)}
    with serving(files, drop, ranges) as server:
        listed = list_files(f"{server.url}/{{0..5}}.tar", ("*.tar",))
        with fetched(listed, tmp_path / "d") as copies:
            found = [(file.name, path.read_bytes()) for file, path in copies]
    assert found == sorted(files.items())
    assert not (tmp_path / "d").exists()


def test_a_dropped_connection_costs_a_block(tmp_path: Path) -> None:
    with serving({"a.tar": CONTENT}, drop=4) as server:
        with fetched(list_files(f"{server.url}/a.tar", ("*.tar",)), tmp_path / "d") as copies:
            assert next(copies)[1].read_bytes() == CONTENT
        asked = [range_ for _, range_ in server.asked if range_ is not None and range_ != "bytes=0-0"]
    assert 11 <= len(asked) <= 15  # ten blocks, and those that were dropped


def test_few_files_lie_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "SPACE", 25_000)
    with serving({f"{number}.tar": CONTENT for number in range(8)}) as server:
        listed = list_files(f"{server.url}/{{0..7}}.tar", ("*.tar",))
        with fetched(listed, tmp_path / "d") as copies:
            for _ in copies:
                sizes = [path.stat().st_size for path in (tmp_path / "d").iterdir() if path.suffix != ".json"]
                assert sum(sizes) <= 25_000 + len(CONTENT)


def test_what_is_fetched_is_kept_for_the_next_time(tmp_path: Path) -> None:
    with serving({"a.tar": CONTENT}) as server:
        listed = list_files(f"{server.url}/a.tar", ("*.tar",))
        server.drop = 4
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(remote, "ATTEMPTS", 1)
            with (
                pytest.raises(RemoteError, match="goes on"),
                fetched(listed, tmp_path / "d") as copies,
            ):
                next(copies)
        server.drop = 0
        server.asked.clear()
        with fetched(listed, tmp_path / "d") as copies:
            assert next(copies)[1].read_bytes() == CONTENT
        assert "bytes=0-999" not in [range_ for _, range_ in server.asked]


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    with serving({"a.tar": CONTENT}) as server:
        listed = list_files(f"{server.url}/a.tar", ("*.tar",))
        server.files["a.tar"] = CONTENT[::-1]
        with pytest.raises(RemoteError, match="was changed"), fetched(listed, tmp_path / "d") as copies:
            next(copies)


def test_what_is_not_there_and_who_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({}) as server:
        with pytest.raises(QuintetError, match="does not exist"):
            list_files(f"{server.url}/a.tar", ("*.tar",))
        monkeypatch.setattr(remote, "ATTEMPTS", 2)
        server.down = True
        with pytest.raises(RemoteError, match="2 attempts"):
            list_files(f"{server.url}/a.tar?X-Signature=secret", ("*.tar",))
    with pytest.raises(QuintetError, match="nonsense"):
        list_files("nonsense://a/b.tar", ("*.tar",))
    for braces in ("{3..1}", "{0..99999999999}"):
        with pytest.raises(QuintetError, match="is no range"):
            expand_braces(f"s3://b/{braces}.tar")


def test_no_message_has_a_password(tmp_path: Path) -> None:
    with serving({}) as server, pytest.raises(QuintetError) as told:
        list_files(f"{server.url.replace('://', '://me:secret@')}/a.tar?sig=secret", ("*.tar",))
    assert "secret" not in str(told.value)


@pytest.mark.parametrize("format", ["webdataset", "parquet"])
def test_an_import_from_a_server_is_that_of_the_files(tmp_path: Path, format: str) -> None:
    source = (as_shards if format == "webdataset" else as_parquet)(tmp_path / "s")
    local = import_corpus(format, source, tmp_path / "local")
    with serving(files_of(source), drop=5) as server:
        urls = [f"{server.url}/{name}" for name in sorted(server.files)]
        assert content(import_corpus(format, urls, tmp_path / "out")) == content(local)
    assert not (tmp_path / "out" / DOWNLOADS).exists()


def test_an_import_goes_on_when_the_server_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "ATTEMPTS", 1)
    monkeypatch.setattr(remote, "AHEAD", 1)
    source = as_shards(tmp_path / "s")
    local = import_corpus("webdataset", source, tmp_path / "local")
    with serving(files_of(source)) as server:
        url = f"{server.url}/{{train,val}}-000.tar"
        val = server.files["val-000.tar"]
        server.files["val-000.tar"] = val[:-1]  # another length than what was listed
        listed = remote.list_files

        def list_and_mend(*given: object) -> object:
            found = [
                file if "train" in file.name else type(file)(file.url, file.name, len(val), file.stamp)
                for file in listed(*given)
            ]  # type: ignore[arg-type]
            return found

        monkeypatch.setattr("quintet.data.formats.shards.list_files", list_and_mend)
        with pytest.raises(CorpusError, match="goes on"):
            import_corpus("webdataset", url, tmp_path / "out")
        monkeypatch.setattr("quintet.data.formats.shards.list_files", listed)
        server.files["val-000.tar"] = val
        server.asked.clear()
        assert content(import_corpus("webdataset", url, tmp_path / "out")) == content(local)


def test_urls_are_for_formats_that_read_them(tmp_path: Path) -> None:
    assert is_url("s3://bucket/a")
    with pytest.raises(CorpusError, match="of this machine"):
        import_corpus("flickr", "https://example.org/flickr8k", tmp_path / "out")


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server_module = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
    }.items():
        monkeypatch.setenv(name, value)
    yield f"http://{host}:{port}"
    server.stop()


def upload(bucket: str, files: dict[str, bytes]) -> None:
    import s3fs

    storage = s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)
    if not storage.exists(bucket):
        storage.mkdir(bucket)
    for name, data in files.items():
        storage.pipe_file(f"{bucket}/{name}", data)


@pytest.mark.slow
def test_a_bucket_is_a_folder(tmp_path: Path, s3: str) -> None:
    source = as_shards(tmp_path / "s")
    upload("shop", {f"shards/{name}": data for name, data in files_of(source).items()})
    local = import_corpus("webdataset", source, tmp_path / "local")
    for number, url in enumerate(("s3://shop/shards", "s3://shop/shards/{train,val}-000.tar")):
        assert content(import_corpus("webdataset", url, tmp_path / str(number))) == content(local)
    with pytest.raises(CorpusError, match="no files named"):
        import_corpus("parquet", "s3://shop/shards", tmp_path / "none")


def test_a_bucket_of_google_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gcsfs")
    source = as_shards(tmp_path / "s")
    with serving_gs("shop", {f"shards/{name}": data for name, data in files_of(source).items()}) as url:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
        local = import_corpus("webdataset", source, tmp_path / "local")
        for number, address in enumerate(("gs://shop/shards", "gs://shop/shards/{train,val}-000.tar")):
            assert content(import_corpus("webdataset", address, tmp_path / str(number))) == content(local)


@pytest.mark.parametrize(("url", "module"), [("https://x.org/a.tar", "aiohttp"), ("gs://b/a.tar", "gcsfs")])
def test_what_is_not_installed_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    known = import_module("fsspec.registry")._registry  # where it remembers what it has imported
    monkeypatch.delitem(known, url.partition(":")[0], raising=False)
    with pytest.raises(CorpusError, match=r"quintet-retrieval\[remote\]"):
        import_corpus("webdataset", url, tmp_path / "out")
