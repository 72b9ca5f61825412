"""An HTTP server whose every byte, and every ill turn, is the test's own."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Self


@dataclass
class Asked:
    """One request as it came, and the number of its connection, from 1."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def json(self):
        return json.loads(self.body)


@dataclass
class Wire:
    """The server's end of one connection."""

    writer: asyncio.StreamWriter
    number: int

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def close(self) -> None:
        """End it in good order."""
        self.writer.close()

    def reset(self) -> None:
        """End it with a RST, as the kernel does for a process that was killed."""
        linger = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()


Answer = Callable[[Asked, Wire], Awaitable[bytes | None]]


def reply(status: int = 200, body=b"", **headers: str) -> bytes:
    """A whole response; a body that is not bytes goes as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(data)}", "Content-Type: application/json"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


@dataclass
class WireStub:
    """Answers with `answer`, which returns a response's bytes or `None` if it did all there was to do."""

    answer: Answer
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    tls: ssl.SSLContext | None = None
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task] = field(default_factory=set)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 26, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop_listening()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def stop_listening(self) -> None:
        """Refuse every new connection."""
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        wire = Wire(writer, self.connections)
        try:
            while (asked := await self._read(reader, wire.number)) is not None:
                self.asked.append(asked)
                data = await self.answer(asked, wire)
                if data is not None:
                    await wire.send(data)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, connection: int) -> Asked | None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        method, path, _ = first.split(" ")
        body = await _body(reader, headers)
        return Asked(method, path, headers, body, connection)


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(headers.get("content-length", 0)))
    parts = []
    while size := int(await reader.readline(), 16):
        parts.append((await reader.readexactly(size + 2))[:-2])
    await reader.readline()
    return b"".join(parts)
