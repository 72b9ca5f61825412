"""A listening socket that can be closed and opened again on its port, and connections that can be reset."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_BACKLOG: Final = 1024
_NO_LINGER: Final = struct.pack("ii", 1, 0)


class Listener:
    """One port. While it is down, the port stays ours and connections to it are refused."""

    def __init__(self, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        """Bind the port, 0 for any free one; nothing is accepted before `up`.

        Raises:
            OSError: the port is taken, or the host is none of this machine's.
        """
        self._factory = factory
        self._socket = _bind(host, port)
        self._server: asyncio.Server | None = None
        self.host = host
        self.port: int = self._socket.getsockname()[1]

    async def up(self) -> None:
        """Accept connections."""
        if self._server is not None:
            return
        self._socket.listen(_BACKLOG)
        # The loop closes what it is given, so it gets a duplicate; ours keeps the port.
        self._server = await asyncio.get_running_loop().create_server(
            self._factory, sock=self._socket.dup(), backlog=_BACKLOG
        )

    def down(self) -> None:
        """Refuse connections from now on; those that exist are left alone."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            # Only Linux lets a listening socket go back to being merely bound.
            self._socket.close()
            self._socket = _bind(self.host, self.port)

    def close(self) -> None:
        """Give the port up."""
        self.down()
        self._socket.close()


def _bind(host: str, port: int) -> socket.socket:
    """A bound socket. A free port is found, then bound by number, or the kernel would change it later."""
    family, kind, proto, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with contextlib.ExitStack() as stack:
        if port == 0:
            finder = stack.enter_context(_reusable(family, kind, proto))
            finder.bind(address)
            address = finder.getsockname()
        bound = _reusable(family, kind, proto)
        try:
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    return bound


def _reusable(family: int, kind: int, proto: int) -> socket.socket:
    made = socket.socket(family, kind, proto)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setblocking(False)  # noqa: FBT003 - the standard library's own signature
    return made


def reset(transport: asyncio.BaseTransport | None) -> None:
    """End a connection as a killed process does: the peer sees a reset, not an end."""
    if transport is None:
        return
    found = transport.get_extra_info("socket")
    if found is not None:
        with contextlib.suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    if isinstance(transport, asyncio.Transport) or hasattr(transport, "abort"):
        transport.abort()
