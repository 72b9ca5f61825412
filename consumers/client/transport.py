"""Connections to inference servers: how they are opened and kept, and what their ends mean."""

from __future__ import annotations

import io
import random
import socket
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final, Self
from urllib.parse import urlsplit

import aiohttp
import msgspec

from common.errors import UsageError
from common.settings import redact_url
from consumers.client.outcome import SLOT_RELEASE_S, Failure, FailureKind

KEEPALIVE_S: Final = 3.0
"""How long an idle connection is kept: less than the 5 s after which servers close theirs."""

CONNECT_TIMEOUT_S: Final = 10.0

_LARGE_BODY: Final = 1 << 20


class Reply(msgspec.Struct, frozen=True):
    """A whole HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Connecting:
    """Watches whether the request made within opens a connection of its own, or is given a kept one."""

    __slots__ = ("_token", "fresh")

    def __init__(self) -> None:
        """Nothing was opened yet."""
        self.fresh = False

    def __enter__(self) -> Self:
        """Begin to watch in this task."""
        self._token = _connecting.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Watch no longer."""
        _connecting.reset(self._token)


_connecting: ContextVar[Connecting | None] = ContextVar("connecting", default=None)


def new_rid() -> str:
    """A request id that was never used. All are of one width: SGLang aborts by prefix."""
    return f"{random.getrandbits(128):032x}"  # seeded anew in every process, forked ones too


def base_url(url: str) -> str:
    """The server's root, from a URL with or without `/v1`, a trailing slash or a scheme.

    Raises:
        UsageError: no host can be read from it.
    """
    full = url.strip() if "://" in url else f"http://{url.strip()}"
    try:
        parts = urlsplit(full)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise UsageError("a server URL cannot be read: use one like http://localhost:30000") from None
    if not usable:
        raise UsageError(f"{redact_url(full)!r} is no server URL: use one like http://localhost:30000")
    return full.rstrip("/").removesuffix("/v1").rstrip("/")


def open_session(*, api_key: str | None, keep: bool) -> aiohttp.ClientSession:
    """A session that keeps its connections for a while, or one that uses each for one request."""
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json",
        "Accept-Encoding": "identity",
    }
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    connector = (
        aiohttp.TCPConnector(
            limit=0, keepalive_timeout=KEEPALIVE_S, ttl_dns_cache=60, socket_factory=_open_socket
        )
        if keep
        else aiohttp.TCPConnector(limit=0, force_close=True, ttl_dns_cache=60, socket_factory=_open_socket)
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
        # A request may wait for minutes without a byte: its one limit is the caller's deadline.
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
    )


def payload(data: bytes | None) -> Any:
    """Large bodies go as a file, which aiohttp writes piece by piece instead of warning about them."""
    return io.BytesIO(data) if data is not None and len(data) >= _LARGE_BODY else data


def failure_of(error: BaseException) -> Failure:
    """The failure that a connection event is."""
    words = str(error) or type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return Failure(kind=FailureKind.UNREACHABLE, message=f"cannot be reached ({words})")
    if isinstance(error, aiohttp.ServerDisconnectedError) and not broke_without_a_byte(error):
        return Failure(kind=FailureKind.DISCONNECTED, message="the connection broke within the answer's head")
    if isinstance(error, aiohttp.ClientPayloadError):
        words = f"the connection broke within the answer ({words})"
        return Failure(kind=FailureKind.DISCONNECTED, message=words)
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError):
        words = f"the connection broke before the answer ({words})"
        return Failure(kind=FailureKind.DISCONNECTED, message=words)
    if isinstance(error, TimeoutError):
        return Failure(kind=FailureKind.TIMEOUT, message="no answer in time", hold_s=SLOT_RELEASE_S)
    return Failure(kind=FailureKind.SERVER_FAULT, message=f"the answer is no HTTP ({words})")


def broke_without_a_byte(error: BaseException) -> bool:
    """Whether a connection ended before any part of an answer: a partial head is in the error's `message`."""
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return isinstance(error.message, str)
    return isinstance(error, aiohttp.ClientOSError) and not isinstance(error, aiohttp.ClientConnectorError)


def _open_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket for aiohttp: marks the request as having its own, and finds out when the far end has vanished.

    Without keep-alive probes a request to a host that lost its power would wait out its whole deadline.
    """
    mark = _connecting.get()
    if mark is not None:
        mark.fresh = True
    made = socket.socket(family=address[0], type=address[1], proto=address[2])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        option = getattr(socket, name, None)  # macOS lacks the first
        if option is not None:
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made
