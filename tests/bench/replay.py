"""A server that costs nearly nothing: real answers of the simulator, recorded once and played again.

`replay.py` prints its URL and serves until it is stopped. A request is cut off its connection and answered
with the next recorded response, bytes as they came, without being read: what is left to measure is the
client.
"""

from __future__ import annotations

import asyncio
import http.client
from itertools import cycle
from typing import Final
from urllib.parse import urlsplit

import msgspec
import uvloop
from harness import prompts, simulators

ANSWERS: Final = 600
"""More than the quality gate compares an answer with."""

ASKED: Final = (
    "/ready",
    "/health",
    "/v1/models",
    "/v1/loads?include=core,spec",
    "/get_load",
    "/metrics",
    "/slots",
    "/server_info",
    "/get_server_info",
    "/model_info",
    "/version",
    "/props",
)
"""Whatever a consumer may ask besides completions."""

_LENGTH: Final = b"Content-Length: "
_GONE: Final = b'HTTP/1.1 404 Not Found\r\ncontent-length: 22\r\n\r\n{"detail":"Not Found"}'


def record(server: str) -> tuple[list[bytes], dict[bytes, bytes]]:
    """The answers to as many prompts, and those at every other path by the request's first line."""
    link = http.client.HTTPConnection(urlsplit(server).netloc)
    answers, others = [], {}
    for text in prompts(ANSWERS):
        body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 4096}
        told = msgspec.json.encode({**body, "return_spec_tokens_details": True})
        answers.append(_ask(link, "POST", "/v1/chat/completions", told))
    for path in ASKED:
        others[f"GET {path} HTTP/1.1".encode()] = _ask(link, "GET", path)
    link.close()
    return answers, others


def _ask(link: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None) -> bytes:
    """One response as the server wrote it, but for the case of its headers."""
    link.request(method, path, body, {"Content-Type": "application/json"})
    reply = link.getresponse()
    data = reply.read()
    head = [f"HTTP/1.1 {reply.status} {reply.reason}", *(f"{k}: {v}" for k, v in reply.getheaders())]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + data


class Replay(asyncio.Protocol):
    """One connection."""

    def __init__(self, answers: cycle[bytes], others: dict[bytes, bytes]) -> None:
        self.answers = answers
        self.others = others
        self.kept = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.WriteTransport = transport  # type: ignore[assignment]  # as it always is

    def data_received(self, data: bytes) -> None:
        data = self.kept + data if self.kept else data
        while (head := data.find(b"\r\n\r\n")) > 0:
            if data.startswith(b"GET "):
                end = head + 4
                answer = self.others.get(data[: data.index(b"\r\n")], _GONE)
            else:
                at = data.index(_LENGTH) + len(_LENGTH)
                end = head + 4 + int(data[at : data.index(b"\r", at)])
                if len(data) < end:
                    break
                answer = next(self.answers)
            self.transport.write(answer)
            data = data[end:]
        self.kept = data


async def serve(answers: list[bytes], others: dict[bytes, bytes]) -> None:
    """Listen on a free port until cancelled."""
    order = cycle(answers)
    server = await asyncio.get_running_loop().create_server(
        lambda: Replay(order, others),
        "127.0.0.1",
        0,
        backlog=1024,  # all connect at once: one that is turned away tries again a second later
    )
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    async with server:
        await server.serve_forever()


def main() -> None:
    with simulators("--instant") as (url,):
        recorded = record(url)
    uvloop.run(serve(*recorded))


if __name__ == "__main__":
    main()
