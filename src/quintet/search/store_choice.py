"""Which store an index keeps its vectors in, and by which address it is opened."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode

from quintet.search.errors import SearchError
from quintet.search.items import Kind
from quintet.search.stores import file_address, open_store
from quintet.search.stores.address import Address

FOLDERS = ("exact", "faiss")  # stores that are folders
EXACT_UP_TO = 50_000  # items; above, FAISS answers sooner
PASSWORD_VARIABLE = "QUINTET_STORE_PASSWORD"


def choose_store(store: str, items: int, owner: str) -> str:
    """What an index remembers of its store. "auto": every vector is compared as long as that is quick.

    `owner` tells this index, and its runs, from others that use the same engine.
    """
    if store == "auto":
        return "exact" if items <= EXACT_UP_TO else "faiss"
    if is_ours(store) and store.partition("?")[0] not in FOLDERS:
        raise SearchError(
            f"there is no store {store!r}; use auto, exact, faiss, or the address of an engine (milvus:FILE.db, "
            "milvus+http://HOST:PORT, postgresql://HOST/DATABASE)"
        )
    return store if is_ours(store) else _engine(Address.parse(store), hashlib.sha256(owner.encode()).hexdigest()[:8])


def _engine(address: Address, owner: str) -> str:
    """Without a password, with names of the index's own; a file or folder is found from wherever one searches."""
    if address.options.get("password") or _name_and_password(address)[1]:
        raise SearchError(
            f"the address {address} holds a password, which would stay in the index and in the list of processes; "
            f"leave it out and set {PASSWORD_VARIABLE} when you index, search and serve"
        )
    base, options = f"{address.scheme}:{address.place}", dict(address.options)
    if address.scheme in (*FOLDERS, "milvus"):
        base = file_address(address.scheme, address.path().resolve())
    if address.scheme in FOLDERS:
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
    server = address.place[2:].partition("/")[0] if address.place.startswith("//") else ""
    name, _, password = server.partition("@")[0].partition(":") if "@" in server else ("", "", "")
    return name, password


def _naming(scheme: str) -> str:
    """The option that names what an engine keeps vectors in."""
    return "table" if scheme.startswith("postgres") else "collection"


def is_ours(store: str) -> bool:
    """Whether a store lives in the generation's folder: "exact", "faiss?kind=hnsw"; not "milvus:all.db"."""
    return ":" not in store.partition("?")[0]


def store_address(store: str, generation: Path, kind: Kind) -> str:
    """The address of one kind's vectors: images and texts are kept apart.

    >>> store_address("faiss?kind=hnsw", Path("i/generation-2"), "image")
    'faiss:i/generation-2/store-image?kind=hnsw'
    >>> store_address("postgresql://localhost/db?table=holiday", Path("i"), "text")
    'postgresql://localhost/db?table=holiday_text'

    Where a server is asked by somebody with a name, the password is taken from the environment.
    """
    base, _, query = store.partition("?")
    options = dict(parse_qsl(query))
    scheme = base.partition(":")[0]
    if is_ours(store):
        base = file_address(scheme, generation / f"store-{kind}")
    elif scheme in FOLDERS:
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


def try_store(index: Path, store: str, dim: int) -> None:
    """Open it before hours are spent on codes: a missing package or a server that is away is told at once."""
    with tempfile.TemporaryDirectory(dir=index, prefix=".try-") as folder:
        open_store(store_address(store, Path(folder), "image"), dim, create=True).close()
