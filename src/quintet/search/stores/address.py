"""Where a store is: `SCHEME:PLACE?option=value`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode

from quintet.search.errors import StoreError

PASSWORD = re.compile(r"(?<=:)[^:@/]*(?=@)")


@dataclass(frozen=True)
class Address:
    """
    >>> Address.parse("faiss:holiday/index?kind=hnsw")
    Address(scheme='faiss', place='holiday/index', options={'kind': 'hnsw'})
    >>> str(Address.parse("postgresql://me:secret@db/images?table=t"))
    'postgresql://me:***@db/images?table=t'
    """

    scheme: str
    place: str
    options: dict[str, str]

    @staticmethod
    def parse(text: str) -> Address:
        scheme, colon, rest = text.partition(":")
        if not colon or not scheme:
            raise StoreError(
                f"{text!r:.200} is no address of a store; write for example exact:FOLDER, faiss:FOLDER, "
                "milvus:FILE.db, milvus+http://HOST:PORT or postgresql://HOST/DATABASE"
            )
        place, _, query = rest.partition("?")
        return Address(scheme.lower(), place, dict(parse_qsl(query, keep_blank_values=True)))

    def path(self) -> Path:
        """The place as a folder or file; `%3F` stands for a question mark."""
        if not self.place:
            raise StoreError(f"the address {self} names no folder or file")
        return Path(unquote(self.place)).expanduser()

    def __str__(self) -> str:
        """For people: without the password."""
        options = {name: "***" if name == "password" else value for name, value in self.options.items()}
        query = f"?{urlencode(options, safe='/*')}" if options else ""
        return f"{self.scheme}:{PASSWORD.sub('***', self.place)}{query}"


def file_address(scheme: str, path: Path) -> str:
    """The address of a store in a folder or file, whatever its name.

    >>> file_address("exact", Path("what now?"))
    'exact:what%20now%3F'
    """
    return f"{scheme}:{quote(str(path))}"
