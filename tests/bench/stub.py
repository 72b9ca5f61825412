"""A server that costs next to nothing: every answer comes a fixed time after its request, none ever waits.

`stub.py SECONDS [--log]` prints its URL. It answers `/v1/chat/completions` as vLLM does, thinking and token
ids included, with `reply-N` in the answer to the prompt that begins with the number N. `/stub/stats` tells
how many of those were in it when (others, a probe say, count for nothing), `/stub/log` (with `--log`) their
conversations in the order of arrival.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
import uvloop
from harness import words

if TYPE_CHECKING:
    from collections.abc import Callable

MODEL = "qwen3.6-27b"
CARD = {"id": MODEL, "object": "model", "owned_by": "vllm", "max_model_len": 65536}
_RANDOM = Random(3)
_THOUGHTS = [words(_RANDOM, 900) for _ in range(500)]
_TEXTS = [words(_RANDOM, 400) for _ in range(499)]
_PROMPT_TOKENS, _TOKENS = 300, 320
_WORDS = 100_000
"""Token ids below are those of `reply-N`, from there on those of other words."""
_PROMPT_IDS = json.dumps(list(range(_WORDS, _WORDS + _PROMPT_TOKENS)))
_IDS = json.dumps(list(range(_WORDS, _WORDS + _TOKENS - 1)))[1:]


class _Message(msgspec.Struct):
    role: str
    content: str


class _Body(msgspec.Struct):
    messages: list[_Message] = []
    return_token_ids: bool = False

    @property
    def number(self) -> int | None:
        """That the last message begins with."""
        word = self.messages[-1].content.partition(" ")[0]
        return int(word) if word.isdecimal() else None


_BODY = msgspec.json.Decoder(_Body)


class Counts:
    """What the server saw: requests, and the time that each was in it."""

    def __init__(self) -> None:
        self.requests = self.answered = self.in_flight = self.max_in_flight = 0
        self.busy_s = 0.0
        self.first = self.last = self.changed = 0.0

    def change(self, by: int) -> None:
        """A request came or went."""
        now = time.monotonic()
        self.busy_s += self.in_flight * (now - self.changed)
        self.first = self.first or now
        self.changed = self.last = now
        self.in_flight += by
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        self.requests += by > 0
        self.answered += by < 0

    def as_dict(self) -> dict[str, Any]:
        """The counts as JSON values."""
        span = self.last - self.first
        return {**vars(self), "span_s": span, "mean_in_flight": self.busy_s / span if span else 0.0}


class State:
    """Of the one server."""

    def __init__(self, seconds: float, *, log: bool) -> None:
        self.seconds = seconds
        self.counts = Counts()
        self.log: list[list[str]] | None = [] if log else None
        self.loop = asyncio.get_running_loop()


class Connection(asyncio.Protocol):
    """Just enough of HTTP/1.1: bodies with a length, one request after another."""

    transport: asyncio.Transport

    def __init__(self, state: State) -> None:
        self.state = state
        self.data = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        while (end := self.data.find(b"\r\n\r\n")) >= 0:
            line, _, rest = self.data[:end].partition(b"\r\n")
            pairs = (header.partition(b":") for header in rest.lower().split(b"\r\n"))
            headers = {name: value.strip() for name, _, value in pairs}
            size = int(headers.get(b"content-length", 0))
            if len(self.data) < end + 4 + size:
                return
            body, self.data = self.data[end + 4 : end + 4 + size], self.data[end + 4 + size :]
            self.answer(line.decode().split(" ")[1], body, close=headers.get(b"connection") == b"close")

    def answer(self, path: str, body: bytes, *, close: bool) -> None:
        """Answer one request, a completion when its time has come."""
        if path == "/v1/chat/completions":
            self.generate(_BODY.decode(body), close=close)
        elif (found := self.look(path)) is not None:
            self.send(200, found, close=close)
        else:
            self.send(404, b'{"detail":"Not Found"}', close=close)

    def look(self, path: str) -> bytes | None:
        """What a path without a generation answers."""
        state = self.state
        if path == "/stub/reset":
            state.counts = Counts()
            if state.log is not None:
                state.log.clear()
            return b"{}"
        told: dict[str, Callable[[], Any]] = {
            "/v1/models": lambda: {"object": "list", "data": [CARD]},
            "/version": lambda: {"version": "0.32.0"},
            "/stub/stats": state.counts.as_dict,
            "/stub/log": lambda: state.log,
        }
        if path == "/health":
            return b""
        return msgspec.json.encode(told[path]()) if path in told else None

    def generate(self, asked: _Body, *, close: bool) -> None:
        """Begin a completion."""
        state = self.state
        if not asked.messages:
            self.send(400, b'{"error":{"message":"Empty input messages"}}', close=close)
            return
        number = asked.number
        if number is not None:
            state.counts.change(1)
            if state.log is not None:
                state.log.append([message.content for message in asked.messages])
        state.loop.call_later(state.seconds, self.complete, asked, number, close)

    def complete(self, asked: _Body, number: int | None, close: bool) -> None:  # noqa: FBT001  # the loop calls
        """Send one completion."""
        if number is not None:
            self.state.counts.change(-1)
        if not self.transport.is_closing():
            self.send(200, completion(asked, number or 0), close=close)

    def send(self, status: int, body: bytes, *, close: bool) -> None:
        """Write a reply."""
        head = f"HTTP/1.1 {status} OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        more = "Connection: close\r\n" if close else ""
        self.transport.write(f"{head}{more}\r\n".encode() + body)
        if close:
            self.transport.close()


def completion(asked: _Body, n: int) -> bytes:
    """The body that answers the prompt of that number."""
    ids = f',"token_ids":[{n},{_IDS}' if asked.return_token_ids else ""
    prompt_ids = f',"prompt_token_ids":{_PROMPT_IDS}' if asked.return_token_ids else ""
    return (
        f'{{"id":"chatcmpl-{n}","object":"chat.completion","created":1767225600,"model":"{MODEL}","choices":'
        f'[{{"index":0,"message":{{"role":"assistant","content":"reply-{n} {_TEXTS[n % 499]}",'
        f'"reasoning_content":"{_THOUGHTS[n % 500]}"}},"logprobs":null,"finish_reason":"stop"{ids}}}],'
        f'"usage":{{"prompt_tokens":{_PROMPT_TOKENS},"total_tokens":{_PROMPT_TOKENS + _TOKENS},'
        f'"completion_tokens":{_TOKENS}}}{prompt_ids}}}'
    ).encode()


async def serve(seconds: float, *, log: bool) -> None:
    """Until the process is ended."""
    state = State(seconds, log=log)
    server = await state.loop.create_server(lambda: Connection(state), "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(float(sys.argv[1]), log="--log" in sys.argv))
