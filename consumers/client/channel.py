"""POST after POST to one URL, on aiohttp's connections and parser but past its session.

`ClientSession` works out anew for every request what never changes here (URL, headers, cookies, redirects,
traces, a task to write the body): that is two thirds of a request's CPU time. Here a request is its body, put
behind a head that aiohttp wrote once. Opening and keeping connections, TLS and reading answers are aiohttp's.

What this takes for granted of aiohttp beyond its documentation is `Connection.protocol` with its
`set_response_params` and `read`, and how a `ClientRequest` and a `StreamWriter` are made;
`tests/integration/test_client_channel.py` notices if an update changes that.
"""

from __future__ import annotations

import asyncio
from typing import Final, Self

import aiohttp
from aiohttp.base_protocol import BaseProtocol
from aiohttp.connector import Connection
from aiohttp.http import HttpProcessingError, StreamWriter
from yarl import URL

from consumers.client.transport import Reply

_INFORMATIONAL: Final = range(100, 200)
_SWITCHED: Final = 101


class _Head(asyncio.Transport):
    """Takes what aiohttp writes of a head."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False


class Channel:
    """Sends bodies to one URL, as many at once as are asked for."""

    def __init__(self, session: aiohttp.ClientSession, request: aiohttp.ClientRequest, head: bytes) -> None:
        """Use `open`."""
        connector = session.connector
        if connector is None:
            raise RuntimeError("the session is closed")
        self._connector = connector
        self._timeout = session.timeout
        self._request = request
        self._head = head

    @classmethod
    async def open(cls, session: aiohttp.ClientSession, url: str) -> Self:
        """A channel to `url` on a session's connections, with its headers and time to connect."""
        loop = asyncio.get_running_loop()
        full = URL(url)
        target, own = full.with_user(None), session.headers.copy()
        if full.user or full.password:
            own["Authorization"] = aiohttp.encode_basic_auth(full.user or "", full.password or "", "latin1")
        request = aiohttp.ClientRequest("POST", target, headers=own, session=session, loop=loop)
        headers = request.headers
        del headers["Content-Length"]
        if session.connector is not None and session.connector.force_close:
            headers["Connection"] = "close"
        protocol = BaseProtocol(loop)
        protocol.transport = written = _Head()
        writer = StreamWriter(protocol, loop)
        await writer.write_headers(f"POST {request.url.raw_path_qs} HTTP/1.1", headers)
        writer.send_headers()
        return cls(session, request, written.written.removesuffix(b"\r\n"))

    async def post(self, body: bytes) -> Reply:
        """The whole answer to one body. Cancelled, it closes its connection.

        Raises:
            aiohttp.ClientError: what `ClientSession.post` raises for the same.
        """
        try:
            connection = await self._connector.connect(self._request, [], self._timeout)
        except TimeoutError as error:
            host = self._request.url.host
            raise aiohttp.ConnectionTimeoutError(f"Connection timeout to host {host}") from error
        try:
            reply = await self._exchange(connection, body)
        except HttpProcessingError as error:
            connection.close()
            asked = self._request.request_info
            raise aiohttp.ClientResponseError(asked, (), status=error.code, message=error.message) from error
        except BaseException:
            connection.close()
            raise
        connection.release()
        return reply

    async def _exchange(self, connection: Connection, body: bytes) -> Reply:
        protocol, transport = connection.protocol, connection.transport
        if protocol is None:
            raise RuntimeError("the connection was released")
        protocol.set_response_params(read_until_eof=True)
        if transport is not None and not transport.is_closing():
            # Else the connection was lost just now, and its error comes out of `read`.
            transport.write(b"%bContent-Length: %d\r\n\r\n%b" % (self._head, len(body), body))
        message, content = await protocol.read()
        while message.code in _INFORMATIONAL and message.code != _SWITCHED:
            message, content = await protocol.read()
        reply = Reply(message.code, message.headers, await content.read())
        if transport is not None and transport.get_write_buffer_size():
            # Answered before the body was read, as too large: the rest would be taken for the next request.
            protocol.force_close()
        return reply
