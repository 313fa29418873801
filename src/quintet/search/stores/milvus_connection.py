"""A line to one Milvus collection: asked with patience, and showing what was written before it is read."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

from quintet.search.stores.extras import required
from quintet.search.stores.patience import Patience

LOAD_SECONDS = 300.0  # a server may take long to bring a large collection into memory


class MilvusConnection:
    def __init__(self, uri: str, collection: str, patience: Patience, token: str = "") -> None:
        self.pymilvus, self._grpc = required("pymilvus", "milvus"), required("grpc", "milvus")
        # It prints a trace of every error that it also raises; ours say what is needed.
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
        self.collection, self.address, self._patience = collection, patience.address, patience
        self._written, self._seen = 1, 0  # others may have written before
        client = self.pymilvus.MilvusClient
        # `dedicated`: closing this connection must not close another store's.
        self.client = self.persist(lambda left: client(uri, token=token, timeout=left / 2, dedicated=True))

    def ask(self, what: str, within: float | None = None, **arguments: Any) -> Any:
        """Call a method of the client on the collection."""
        method = getattr(self.client, what)
        # Half of the time: the driver may begin a last attempt just before its limit.
        return self.persist(lambda left: method(self.collection, timeout=left / 2, **arguments), within)

    def write(self, what: str, **arguments: Any) -> None:
        self.ask(what, **arguments)
        self._written += 1

    def read(self, what: str, **arguments: Any) -> Any:
        """Only the first reading after a change waits until the server shows it: up to a fifth of a second."""
        written = self._written
        level = "Strong" if self._seen < written else "Eventually"
        found = self.ask(what, consistency_level=level, **arguments)
        self._seen = max(self._seen, written)
        return found

    def persist(self, action: Callable[[float], Any], within: float | None = None) -> Any:
        errors = (self.pymilvus.MilvusException, self._grpc.RpcError)
        return self._patience.persist(action, errors, self._may_pass, within)

    def close(self) -> None:
        self.client.close()

    def _may_pass(self, error: Exception) -> bool:
        """Errors of the connection have a code of gRPC, or 2 while it is made; the driver's own limit has none."""
        if isinstance(error, self.pymilvus.MilvusException):
            lost = isinstance(error.code, self._grpc.StatusCode) or error.code == 2
            return lost or "Retry timeout" in error.message
        return True


class LiteConnection(MilvusConnection):
    """Lite serves a file from threads of this process and locks it meanwhile; its last store gives it back."""

    _users: ClassVar[Counter[str]] = Counter()
    _lock: ClassVar = threading.Lock()

    def __init__(self, path: str, collection: str, patience: Patience) -> None:
        self._manager = required("milvus_lite.server_manager", "milvus").server_manager_instance
        self._path = path
        with self._lock:
            self._users[path] += 1
        try:
            super().__init__(path, collection, patience)
        except BaseException:
            self._give_back()
            raise

    def close(self) -> None:
        super().close()
        self._give_back()

    def _give_back(self) -> None:
        with self._lock:
            self._users[self._path] -= 1
            if not self._users[self._path]:
                self._manager.release_server(self._path)
