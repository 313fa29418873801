"""What a server allows itself, and who may ask."""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

from quintet.data.images import MAX_PIXELS
from quintet.errors import QuintetError

TOKEN_VARIABLE = "QUINTET_TOKEN"
SHORTEST_TOKEN = 16  # characters; what `secrets.token_urlsafe()` gives has 43
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def default_cache() -> Path:
    """Where small copies of images are kept: the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quintet" / "thumbnails"


@dataclass(frozen=True, slots=True)
class Settings:
    """The limits are those of one computer with a person's images; a larger one may raise them."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    max_upload_bytes: int = 20 * 2**20
    max_uploads_bytes: int = 256 * 2**20  # of all images that are being sent or searched for at a time
    max_body_bytes: int = 2**20  # of anything that is not an image
    max_pixels: int = MAX_PIXELS
    search_threads: int = 4
    search_queue: int = 256  # searches that may wait; one more is told to come back
    image_threads: int = 2
    image_queue: int = 4096
    timeout_s: float = 30.0
    shutdown_s: float = 30.0  # how long requests in flight may take to end
    watch_s: float = 1.0  # how often the index is looked at
    rerank: int | None = None
    cache: Path = field(default_factory=default_cache)
    cache_bytes: int = 512 * 2**20

    def __post_init__(self) -> None:
        if self.token is not None and len(self.token) < SHORTEST_TOKEN:
            raise QuintetError(
                f"a token of {len(self.token)} characters can be guessed; use {SHORTEST_TOKEN} or more, as this makes: "
                'python -c "import secrets; print(secrets.token_urlsafe())"'
            )
        if self.token is None and not is_loopback(self.host):
            raise QuintetError(
                f"{self.host} can be reached from other computers, so a token is needed: set {TOKEN_VARIABLE}, or name "
                "a file that holds one with --token-file"
            )


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


def read_token(file: Path | None) -> str | None:
    """The token from a file, or else from the environment."""
    if file is None:
        return os.environ.get(TOKEN_VARIABLE, "").strip() or None
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise QuintetError(f"could not read the token in {file}: {error}") from None
    if not token:
        raise QuintetError(f"{file} is empty; write a token into it")
    return token
