"""Which store an index keeps its vectors in, and by which address it is opened."""

from __future__ import annotations

import hashlib
import os
from urllib.parse import parse_qsl, quote, urlencode

from quintet.errors import suggest
from quintet.search import SearchError, StoreError
from quintet.search.items import Kind
from quintet.search.stores import open_store
from quintet.search.stores.store import Address, file_address, required
from quintet.search.vector_search import FAISS_KINDS, HNSW_FROM, FaissKind, kind_for

OWN = ("exact", "faiss")  # in the index itself
FILES = ("local", "milvus")  # engines in a folder or a file
PASSWORD_VARIABLE = "QUINTET_STORE_PASSWORD"


def choose_store(store: str, items: int, owner: str) -> str:
    """What an index remembers of its store. "auto": every vector is compared as long as that is quick.

    `owner` tells this index, and its runs, from others that use the same engine.
    """
    if store == "auto":
        return "exact" if items < HNSW_FROM else "faiss"
    if not is_own(store):
        return _engine(Address.parse(store), hashlib.sha256(owner.encode()).hexdigest()[:8])
    name, _, query = store.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if name not in OWN:
        raise SearchError(
            f"there is no store {store!r}; use auto, exact, faiss, or the address of an engine (milvus:FILE.db, "
            "milvus+http://HOST:PORT, postgresql://HOST/DATABASE)"
        )
    known = ["kind"] if name == "faiss" else []
    for option, value in options.items():
        if option not in known:
            raise StoreError(f"the store {name} has no option {option!r:.80}; {suggest(option, known)}")
        if value not in FAISS_KINDS:
            raise StoreError(f"the store faiss has no kind {value!r:.80}; {suggest(value, FAISS_KINDS)}")
    return store


def faiss_kind(store: str, rows: int) -> FaissKind:
    """The index that a store of our own keeps for so many vectors.

    >>> faiss_kind("exact", 10**6), faiss_kind("faiss", 10**6), faiss_kind("faiss?kind=hnsw", 10)
    ('flat', 'ivf', 'hnsw')
    """
    name, _, query = store.partition("?")
    if name == "exact":
        return "flat"
    asked = dict(parse_qsl(query)).get("kind")
    return next((kind for kind in FAISS_KINDS if kind == asked), kind_for(rows))


def _engine(address: Address, owner: str) -> str:
    """Without a password, with names of the index's own; a file or folder is found from wherever one searches."""
    if address.options.get("password") or _name_and_password(address)[1]:
        raise SearchError(
            f"the address {address} holds a password, which would stay in the index and in the list of processes; "
            f"leave it out and set {PASSWORD_VARIABLE} when you index, search and serve"
        )
    base, options = f"{address.scheme}:{address.location}", dict(address.options)
    if address.scheme in FILES:
        base = file_address(address.scheme, address.path().resolve())
    if address.scheme == "local":
        base += f"-{owner}"
    else:
        name = _naming(address.scheme)
        options[name] = f"{options.get(name, 'quintet')}_{owner}"
    return f"{base}?{urlencode(options)}" if options else base


def _name_and_password(address: Address) -> tuple[str, str]:
    """Of somebody who asks a server; empty where the address does not say.

    >>> _name_and_password(Address.parse("postgresql://me:secret@host/db"))
    ('me', 'secret')
    """
    server = address.location[2:].partition("/")[0] if address.location.startswith("//") else ""
    name, _, password = server.partition("@")[0].partition(":") if "@" in server else ("", "", "")
    return name, password


def _naming(scheme: str) -> str:
    """The option that names what an engine keeps vectors in."""
    return "table" if scheme.startswith("postgres") else "collection"


def is_own(store: str) -> bool:
    """Whether the vectors stay in the index itself: "exact", "faiss?kind=hnsw"; not "milvus:all.db"."""
    return ":" not in store.partition("?")[0]


def store_address(store: str, kind: Kind) -> str:
    """The address of one kind's vectors in an engine: images and texts are kept apart.

    >>> store_address("postgresql://localhost/db?table=holiday", "text")
    'postgresql://localhost/db?table=holiday_text'

    Where a server is asked by somebody with a name, the password is taken from the environment.
    """
    base, _, query = store.partition("?")
    options = dict(parse_qsl(query))
    scheme = base.partition(":")[0]
    if scheme == "local":
        base = f"{base}-{kind}"
    else:
        name = _naming(scheme)
        options[name] = f"{options.get(name, 'quintet')}_{kind}"
        base = _with_password(base)
    return f"{base}?{urlencode(options)}" if options else base


def _with_password(base: str) -> str:
    name, _ = _name_and_password(Address.parse(base))
    password = os.environ.get(PASSWORD_VARIABLE)
    if not name or not password:
        return base
    before, _, after = base.partition("@")
    return f"{before.rstrip(':')}:{quote(password, safe='')}@{after}"


def try_store(store: str, dim: int, items: int) -> None:
    """Before hours are spent on codes: a missing package or a server that is away is told at once."""
    if not is_own(store):
        open_store(store_address(store, "image"), dim, create=True).close()
    elif faiss_kind(store, items) != "flat":
        required("faiss", "index")
