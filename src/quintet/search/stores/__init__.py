"""Stores: where vectors are kept and searched. One contract, one address each.

local:FOLDER[?kind=flat|hnsw|ivf]         a folder of ours: SQLite, a file of vectors, FAISS where there are many
milvus:FILE.db[?collection=c]             Milvus Lite, embedded
milvus+http://HOST:PORT[?collection=c]    a Milvus server
postgresql://HOST/DATABASE[?table=t]      PostgreSQL with pgvector
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

from quintet.errors import suggest
from quintet.search import StoreError
from quintet.search.stores.store import Address, Store, StoreHit, file_address
from quintet.search.stores.where import Clause, Scalar, Where, parse_where

__all__ = ["Clause", "Scalar", "Store", "StoreHit", "Where", "file_address", "open_store", "parse_where"]

# Scheme to module and function; the module is imported when the scheme is first used.
STORES = {
    "local": "local:open_local",
    "milvus": "milvus:open_lite",
    "milvus+http": "milvus:open_server",
    "milvus+https": "milvus:open_server",
    "postgresql": "postgres:open_postgres",
    "postgres": "postgres:open_postgres",
}


def open_store(address: str, dim: int | None = None, *, create: bool = False, **options: Any) -> Store:
    """Open the store at an address; with `create` make it where there is none, for vectors of `dim` numbers.

    Options are those of the address (`?kind=hnsw`), given here they come first.
    """
    target = Address.parse(address)
    if target.scheme not in STORES:
        raise StoreError(f"there is no store {target.scheme!r:.80}; {suggest(target.scheme, STORES)}")
    module, function = STORES[target.scheme].split(":")
    opener = getattr(import_module(f"{__name__}.{module}"), function)
    parameters = inspect.signature(opener).parameters
    known = [name for name, parameter in parameters.items() if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    given = {**target.options, **options}
    # The options of a PostgreSQL address that are not ours belong to its driver.
    for name in given if target.scheme not in ("postgresql", "postgres") else options:
        if name not in known:
            raise StoreError(f"the store {target.scheme} has no option {name!r:.80}; {suggest(name, known)}")
    store: Store = opener(target, dim, create, **{name: value for name, value in given.items() if name in known})
    return store
