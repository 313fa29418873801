"""Who may do what: tokens, the sessions of the page, and the limits of each client."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import math
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from quintet.serve.settings import Settings

SESSION_S = 30 * 24 * 3600.0
SESSIONS = 1000  # more end the oldest
CLIENTS = 10_000  # that are remembered
RATE, AT_ONCE = 100.0, 32  # requests a second, and at a time, of a client on another computer
BURST_S = 4  # so many seconds of its rate may come at once
WRONG, WRONG_EVERY_S = 10, 6.0  # wrong tokens in a row, and how often one more


class Access(IntEnum):
    NONE = 0
    READ = 1
    FULL = 2


class Keys:
    """The tokens of a server, and the sessions that were begun with them. Sessions are kept in memory only."""

    def __init__(self, token: str | None, read_token: str | None) -> None:
        self._tokens = [(token, Access.FULL), (read_token, Access.READ)]
        self._lock = threading.Lock()
        self._sessions: OrderedDict[bytes, tuple[Access, float]] = OrderedDict()  # hash -> access and end, oldest first

    @property
    def needed(self) -> bool:
        return any(token is not None for token, _ in self._tokens)

    def of_token(self, sent: str) -> Access:
        found = [access for token, access in self._tokens if token is not None and _same(sent, token)]
        return max(found, default=Access.NONE)

    def of_session(self, sent: str) -> Access:
        with self._lock:
            access, end = self._sessions.get(_hash(sent), (Access.NONE, 0.0))
        return access if time.monotonic() < end else Access.NONE

    def begin(self, access: Access) -> str:
        """A session: the value of its cookie, which says nothing about the token."""
        value = secrets.token_urlsafe(32)
        with self._lock:
            self._sessions[_hash(value)] = access, time.monotonic() + SESSION_S
            if len(self._sessions) > SESSIONS:
                self._sessions.popitem(last=False)
        return value

    def end(self, sent: str) -> None:
        with self._lock:
            self._sessions.pop(_hash(sent), None)

    def end_all(self) -> None:
        with self._lock:
            self._sessions.clear()


def _hash(value: str) -> bytes:
    return hashlib.sha256(value.encode("utf-8", "surrogatepass")).digest()


def _same(sent: str, expected: str) -> bool:
    return hmac.compare_digest(_hash(sent), _hash(expected))


@dataclass(slots=True)
class _Bucket:
    """A token bucket: `size` at once, then `rate` a second."""

    size: float
    rate: float
    left: float
    at: float

    def wait(self, now: float) -> float:
        """Seconds until there is one."""
        if math.isinf(self.rate):
            return 0.0
        self.left, self.at = min(self.size, self.left + (now - self.at) * self.rate), now
        return 0.0 if self.left >= 1 else (1 - self.left) / self.rate

    def take(self) -> None:
        self.left -= 1


@dataclass(slots=True)
class _Client:
    requests: _Bucket
    wrong: _Bucket
    running: int = 0


class Clients:
    """Limits of each client: an address, or the /64 network of an IPv6 address.

    Clients on this computer have no limit of rate and concurrency unless one is set: it is one person's, or they are
    behind a proxy that is not trusted.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _Client] = OrderedDict()

    def begin(self, address: str) -> float:
        """A request begins: 0, or the seconds after which to try again. `end` follows if it is 0."""
        with self._lock:
            client, now = self._client(address), self._clock()
            if client.running >= _limit(self._settings.client_concurrency, AT_ONCE, address):
                return 1.0
            wait = client.requests.wait(now)
            if not wait:
                client.requests.take()
                client.running += 1
            return wait

    def end(self, address: str) -> None:
        with self._lock:
            self._client(address).running -= 1

    def wrong_wait(self, address: str) -> float:
        """Seconds until a token of this client is looked at again, after too many wrong ones; 0: at once."""
        with self._lock:
            return self._client(address).wrong.wait(self._clock())

    def wrong(self, address: str) -> None:
        with self._lock:
            self._client(address).wrong.take()

    def _client(self, address: str) -> _Client:
        key = client_key(address)
        if key not in self._known:
            now, rate = self._clock(), _limit(self._settings.client_rate, RATE, address)
            burst = max(1.0, BURST_S * rate)
            self._known[key] = _Client(_Bucket(burst, rate, burst, now), _Bucket(WRONG, 1 / WRONG_EVERY_S, WRONG, now))
            self._forget()
        self._known.move_to_end(key)
        return self._known[key]

    def _forget(self) -> None:
        for _ in range(len(self._known) - CLIENTS):
            key, client = self._known.popitem(last=False)
            if client.running:
                self._known[key] = client


def _limit(wanted: float | None, default: float, address: str) -> float:
    if wanted is None:
        return math.inf if _is_loopback(address) else default
    return wanted or math.inf


@lru_cache(CLIENTS)
def client_key(address: str) -> str:
    """
    >>> client_key("192.0.2.7"), client_key("::ffff:192.0.2.7"), client_key("2001:db8:1:2:3:4:5:6")
    ('192.0.2.7', '192.0.2.7', '2001:db8:1:2::/64')
    """
    found = _parse(address)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, 64), strict=False))
    return address[:100] if found is None else str(found)


def _parse(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:  # of a proxy that sends something else
        return None
    return getattr(found, "ipv4_mapped", None) or found


@lru_cache(CLIENTS)
def _is_loopback(address: str) -> bool:
    found = _parse(address)
    return found is not None and found.is_loopback
