"""Stores: where vectors are kept and searched. One contract, one address each.

exact:FOLDER                              every vector compared, nothing to install
faiss:FOLDER[?kind=flat|hnsw|ivf]         FAISS, memory-mapped
milvus:FILE.db[?collection=c]             Milvus Lite, embedded
milvus+http://HOST:PORT[?collection=c]    a Milvus server
postgresql://HOST/DATABASE[?table=t]      PostgreSQL with pgvector
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

from quintet.errors import suggest
from quintet.search.errors import StoreError
from quintet.search.stores.address import Address, file_address
from quintet.search.stores.store import Store, StoreHit
from quintet.search.stores.where import Clause, Scalar, Where, parse_where

__all__ = ["Clause", "Scalar", "Store", "StoreHit", "Where", "file_address", "open_store", "parse_where"]

# Scheme to module and function; the module is imported when the scheme is first used.
STORES = {
    "exact": "exact:open_exact",
    "faiss": "faiss_store:open_faiss",
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
    place = Address.parse(address)
    if place.scheme not in STORES:
        raise StoreError(f"there is no store {place.scheme!r:.80}; {suggest(place.scheme, STORES)}")
    module, function = STORES[place.scheme].split(":")
    opener = getattr(import_module(f"{__name__}.{module}"), function)
    parameters = inspect.signature(opener).parameters
    known = [name for name, parameter in parameters.items() if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    given = {**place.options, **options}
    # The options of a PostgreSQL address that are not ours belong to its driver.
    for name in given if place.scheme not in ("postgresql", "postgres") else options:
        if name not in known:
            raise StoreError(f"the store {place.scheme} has no option {name!r:.80}; {suggest(name, known)}")
    store: Store = opener(place, dim, create, **{name: value for name, value in given.items() if name in known})
    return store
