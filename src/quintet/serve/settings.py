"""Settings of a server: address, token and limits."""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from quintet.errors import QuintetError
from quintet.files import read_bytes

TOKEN_VARIABLE, READ_TOKEN_VARIABLE = "QUINTET_TOKEN", "QUINTET_READ_TOKEN"
SHORTEST_TOKEN = 16  # characters; what `secrets.token_urlsafe()` gives has 43
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def default_cache() -> Path:
    """The default folder for thumbnails, in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quintet" / "thumbnails"


@dataclass(frozen=True, slots=True)
class Settings:
    """The default limits suit one computer with a personal collection; a larger server may raise them."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    read_token: str | None = None  # may search and look
    tls: ssl.SSLContext | None = None
    proxies: tuple[str, ...] = ()  # addresses whose X-Forwarded-For and X-Forwarded-Proto are believed
    client_rate: float | None = None  # requests a second of one client; None: see `Clients`; 0: no limit
    client_concurrency: int | None = None  # requests at a time of one client; likewise
    max_upload_bytes: int = 20 * 2**20
    max_uploads_bytes: int = 256 * 2**20  # total of the uploads in progress
    max_download_bytes: int = 2 * 2**30  # of several images in one file
    max_body_bytes: int = 2**20  # of requests that are not uploads
    max_pixels: int = 40_000_000  # of an upload; of a JPEG, which is decoded at a fraction of its size, MAX_PIXELS
    decoders: int = 2  # images decoded at a time
    decode_s: float = 20.0
    upload_queue: int = 32  # uploads that may wait to be decoded
    search_threads: int = 4
    search_queue: int = 256  # searches that may wait; a further one gets status 503
    image_threads: int = 2
    image_queue: int = 4096
    timeout_s: float = 30.0
    drain_s: float = 0.0  # from SIGTERM, while `/ready` says no, until no more connections are accepted
    shutdown_s: float = 30.0  # time for requests in progress at shutdown
    max_connections: int = 1000  # fewer where the limit of descriptors is lower
    idle_s: float = 15.0  # a connection without a request
    header_s: float = 10.0  # from the first byte of a request to the end of its header; a TLS handshake
    body_s: float = 20.0  # a request's body, and the time that its bytes take at the slowest allowed rate
    slowest_upload: int = 64 * 2**10  # bytes a second
    write_s: float = 30.0  # an answer of which the client takes nothing
    watch_s: float = 1.0  # interval at which the index is polled
    rerank: int | None = None
    cache: Path = field(default_factory=default_cache)
    cache_bytes: int = 512 * 2**20

    def __post_init__(self) -> None:
        for token in (self.token, self.read_token):
            if token is not None and len(token) < SHORTEST_TOKEN:
                raise QuintetError(
                    f"a token of {len(token)} characters can be guessed; use {SHORTEST_TOKEN} or more, as this makes: "
                    'python -c "import secrets; print(secrets.token_urlsafe())"'
                )
        if self.token is not None and self.token == self.read_token:
            raise QuintetError("the read-only token is the token; make another one")
        if self.token is None and self.read_token is None and not is_loopback(self.host):
            raise QuintetError(
                f"{self.host} can be reached from other computers, so a token is needed: set {TOKEN_VARIABLE}, or name "
                "a file that holds one with --token-file"
            )
        for proxy in self.proxies:
            try:
                ipaddress.ip_network(proxy)
            except ValueError:
                raise QuintetError(f"{proxy!r} is not the address or network of a proxy; try 127.0.0.1") from None


def is_loopback(host: str) -> bool:
    """Whether only this computer can reach the address.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host or "0.0.0.0", None)}
    except (OSError, UnicodeError) as error:
        raise QuintetError(f"{host!r} is not an address of this computer ({error}); try 127.0.0.1") from None
    return all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in found)


def read_token(file: Path | None, variable: str = TOKEN_VARIABLE) -> str | None:
    """A token from a file, or from an environment variable."""
    if file is None:
        return os.environ.get(variable, "").strip() or None
    try:
        token = read_bytes(file, 10_000).decode("utf-8").strip()
    except UnicodeDecodeError:
        raise QuintetError(f"could not read {file}: it is not UTF-8 text") from None
    if not token:
        raise QuintetError(f"{file} is empty; write a token into it")
    return token


def tls_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """`certificate`: a PEM file with the chain, and the key unless it is in a file of its own."""
    if certificate is None:
        if key is not None:
            raise QuintetError("--tls-key needs --tls-cert, the certificate of the key")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ValueError) as error:
        raise QuintetError(
            f"cannot use the certificate {certificate}{f' and the key {key}' if key else ''}: {error}; both are PEM "
            "files, and the key has no passphrase"
        ) from None
    return context
