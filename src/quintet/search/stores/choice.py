"""Which store an index keeps its vectors in, and by which address it is opened."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from urllib.parse import parse_qsl, quote

from quintet.errors import suggest
from quintet.search import SearchError, StoreError
from quintet.search.items import Kind
from quintet.search.stores import open_store
from quintet.search.stores.store import Address, required
from quintet.search.vector_search import FAISS_KINDS, HNSW_FROM, FaissKind, kind_for

OWN = ("exact", "faiss")  # in the index itself
PASSWORD_VARIABLE = "QUINTET_STORE_PASSWORD"


def choose_store(store: str, items: int, owner: str) -> str:
    """What an index remembers of its store. "auto": every vector is compared as long as that is quick.

    `owner` tells this index, and its runs, from others that use the same engine.
    """
    if store == "auto":
        return "exact" if items < HNSW_FROM else "faiss"
    if not is_own(store):
        return _engine(Address.parse(store), hashlib.sha256(owner.encode()).hexdigest()[:8]).text
    name, _, query = store.partition("?")
    if name not in OWN:
        raise SearchError(
            f"there is no store {store!r}; use auto, exact, faiss, or the address of an engine (milvus:FILE.db, "
            "milvus+http://HOST:PORT, postgresql://HOST/DATABASE)"
        )
    known = ["kind"] if name == "faiss" else []
    for option, value in parse_qsl(query, keep_blank_values=True):
        if option not in known:
            raise StoreError(f"the store {name} has no option {option!r:.80}; {suggest(option, known)}")
        if value not in FAISS_KINDS:
            raise StoreError(f"the store faiss has no kind {value!r:.80}; {suggest(value, FAISS_KINDS)}")
    return store


def _engine(address: Address, owner: str) -> Address:
    """Without a password, with names of the index's own; a file or folder is found from wherever one searches."""
    if address.name_and_password()[1]:
        raise SearchError(
            f"the address {address} holds a password, which would stay in the index and in the list of processes; "
            f"leave it out and set {PASSWORD_VARIABLE} when you index, search and serve"
        )
    if address.scheme in ("local", "milvus"):
        address = replace(address, location=quote(str(address.path().resolve())))
    return address.named(owner)


def faiss_kind(store: str, rows: int) -> FaissKind:
    """The index that a store of our own keeps for so many vectors.

    >>> faiss_kind("exact", 10**6), faiss_kind("faiss", 10**6), faiss_kind("faiss?kind=hnsw", 10)
    ('flat', 'ivf', 'hnsw')
    """
    name, _, asked = store.partition("?kind=")
    return "flat" if name == "exact" else next((kind for kind in FAISS_KINDS if kind == asked), kind_for(rows))


def is_own(store: str) -> bool:
    """Whether the vectors stay in the index itself: "exact", "faiss?kind=hnsw"; not "milvus:all.db"."""
    return ":" not in store.partition("?")[0]


def takes_many_writers(store: str) -> bool:
    """Whether several processes may write to it at once: servers, not files."""
    return Address.parse(store).scheme not in ("local", "milvus")


def store_address(store: str, kind: Kind) -> str:
    """The address of one kind's vectors in an engine: images and texts are kept apart.

    Where a server is asked by somebody with a name, the password is taken from the environment.
    """
    address = Address.parse(store).named(kind)
    name, _ = address.name_and_password()
    if name and (password := os.environ.get(PASSWORD_VARIABLE)):
        before, _, after = address.location.partition("@")
        address = replace(address, location=f"{before.rstrip(':')}:{quote(password, safe='')}@{after}")
    return address.text


def try_store(store: str, dim: int, items: int) -> None:
    """Before hours are spent on codes: a missing package or a server that is away is reported at once."""
    if not is_own(store):
        open_store(store_address(store, "image"), dim, create=True).close()
    elif faiss_kind(store, items) != "flat":
        required("faiss", "index")
