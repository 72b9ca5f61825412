"""An HTTP proxy before an S3 store that does to requests what networks and stores do on bad days.

In a test:

    with FaultyS3(upstream=url) as s3:
        s3.inject(Fault(kind="status", status=503, methods=("PUT",), times=2))

As a process of its own, `python tests/support/faulty_s3.py --upstream URL --port 0` prints one JSON line with
its URL and is scripted while it runs:

    POST   /_faults     {"faults": [{"kind": "status", "status": 503, "probability": 0.2}], "seed": 7}
    GET    /_faults     the faults in force, each with how often it struck
    DELETE /_faults     all well again
    GET    /_requests   every request so far: method, path, the fault that struck it, the status it was given

The first fault that matches a request strikes it. Bodies and headers, Host included, pass untouched, so that
signatures hold.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import random
import signal
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, web
from yarl import URL

if TYPE_CHECKING:
    from collections.abc import Sequence

Kind = Literal[
    "status",  # answer `status` and `code` without asking the store
    "reset_before_body",  # cut the connection before the request's body is read
    "reset_after_body",  # cut it when the body was read, without telling the store
    "lost_answer",  # let the store do it, then cut the connection instead of answering
    "silent_success",  # let the store do it, then answer `status` as if it had not
    "slow",  # wait `delay_s`, then go on as usual
    "held",  # wait until this fault is taken away, then go on as usual
    "slow_body",  # take the request's body in sips over `delay_s`, then go on as usual
    "damaged_body",  # hand the request on with one byte of its body turned
    "hang",  # wait `delay_s`, then cut the connection
    "truncate_answer",  # send half of the store's answer body, then cut the connection
    "ignore_condition",  # drop If-None-Match, as stores do that do not know it (breaks signatures)
    "refuse_condition",  # answer `status` (501, say) to whatever carries If-None-Match
    "garbage",  # answer 200 with a page that is no S3 answer
]

_HOP_BY_HOP = {
    "connection",
    "keep-alive",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "proxy-connection",
}
_CODES = {
    400: "InvalidRequest",
    403: "AccessDenied",
    404: "NoSuchKey",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    429: "TooManyRequests",
    500: "InternalError",
    501: "NotImplemented",
    503: "SlowDown",
}


class Fault(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One thing that goes wrong, for the requests it matches, `times` over (None: until it is taken away)."""

    kind: Kind
    status: int = 500
    code: str | None = None
    methods: tuple[str, ...] = ()
    match: str = ""
    skip: int = 0
    times: int | None = None
    probability: float = 1.0
    delay_s: float = 1.0
    struck: int = 0
    seen: int = 0

    def strikes(self, method: str, path: str, *, conditional: bool, chance: float) -> bool:
        """Whether this request is hit. Counts what it matched and what it hit."""
        if (self.methods and method not in self.methods) or self.match not in path:
            return False
        if self.kind in {"ignore_condition", "refuse_condition"} and not conditional:
            return False
        self.seen += 1
        spent = self.times is not None and self.struck >= self.times
        if self.seen <= self.skip or spent or chance >= self.probability:
            return False
        self.struck += 1
        return True


class Script(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /_faults`."""

    faults: list[Fault]
    seed: int | None = None


class Seen(msgspec.Struct, frozen=True):
    """One request as the proxy saw it; status 0 means that it was given no answer."""

    method: str
    path: str
    fault: str | None
    status: int


class FaultProxy:
    """The proxy itself, without a loop or thread of its own."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream.rstrip("/")
        self._random = random.Random(0)
        self._client: ClientSession | None = None
        self.faults: list[Fault] = []
        self.requests: list[Seen] = []

    async def start(self, port: int = 0) -> tuple[web.AppRunner, str]:
        """Listen on loopback; returns the runner to clean up and the URL."""
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/_faults", self._set_faults)
        app.router.add_get("/_faults", self._get_faults)
        app.router.add_delete("/_faults", self._clear_faults)
        app.router.add_get("/_requests", self._get_requests)
        app.router.add_route("*", "/{path:.*}", self._handle)
        app.cleanup_ctx.append(self._session)
        runner = web.AppRunner(app, access_log=None, auto_decompress=False, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"

    async def _session(self, app: web.Application) -> Any:
        self._client = ClientSession(
            connector=TCPConnector(limit=0),
            cookie_jar=DummyCookieJar(),
            auto_decompress=False,
            timeout=ClientTimeout(total=120),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )
        yield
        await self._client.close()

    async def _set_faults(self, request: web.Request) -> web.Response:
        try:
            script = msgspec.json.decode(await request.read(), type=Script)
        except msgspec.MsgspecError as error:
            return web.json_response({"error": str(error)}, status=400)
        self.faults = script.faults
        if script.seed is not None:
            self._random = random.Random(script.seed)
        return web.json_response({"faults": len(self.faults)})

    async def _get_faults(self, request: web.Request) -> web.Response:
        return web.json_response({"faults": msgspec.to_builtins(self.faults)})

    async def _clear_faults(self, request: web.Request) -> web.Response:
        self.faults = []
        return web.json_response({"faults": 0})

    async def _get_requests(self, request: web.Request) -> web.Response:
        return web.json_response({"requests": msgspec.to_builtins(self.requests)})

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        fault = self._pick(request)
        try:
            answer = await self._act(request, fault)
        except (OSError, ClientError):
            _cut(request)
            answer = web.Response(status=502)
        lost = request.transport is None or request.transport.is_closing()
        kind = fault.kind if fault else None
        self.requests.append(Seen(request.method, request.path_qs, kind, 0 if lost else answer.status))
        return answer

    def _pick(self, request: web.Request) -> Fault | None:
        conditional = "If-None-Match" in request.headers
        for fault in self.faults:
            chance = self._random.random()
            if fault.strikes(request.method, request.path_qs, conditional=conditional, chance=chance):
                return fault
        return None

    async def _act(self, request: web.Request, fault: Fault | None) -> web.StreamResponse:
        kind = fault.kind if fault else None
        if kind == "slow_body":
            await _sip(request, fault.delay_s)
        if kind == "slow":
            await asyncio.sleep(fault.delay_s)
        while kind == "held" and fault in self.faults:  # noqa: ASYNC110  # taken away from another thread
            await asyncio.sleep(0.02)
        if kind == "damaged_body":
            body = await request.read()
            request._read_bytes = body[:-1] + bytes([body[-1] ^ 1])
        if kind in {None, "slow", "held", "slow_body", "damaged_body", "ignore_condition"}:
            return await self._forward(request, drop_condition=kind == "ignore_condition")
        if kind == "truncate_answer":
            return await self._truncate(request)
        if kind in {"lost_answer", "silent_success"}:
            await self._forward(request)
        elif kind != "reset_before_body":
            await request.read()
        if kind == "hang":
            await asyncio.sleep(fault.delay_s)
        return _answer(request, fault)

    async def _forward(self, request: web.Request, *, drop_condition: bool = False) -> web.Response:
        assert self._client is not None
        headers = [
            (name, value)
            for name, value in request.headers.items()
            if name.lower() not in _HOP_BY_HOP and not (drop_condition and name.lower() == "if-none-match")
        ]
        url = URL(self._upstream + request.raw_path, encoded=True)
        body = await request.read()  # aiohttp wants large ones as a stream
        async with self._client.request(
            request.method, url, headers=headers, data=io.BytesIO(body), allow_redirects=False
        ) as answer:
            content = await answer.read()
            kept = [
                (name, value) for name, value in answer.headers.items() if name.lower() not in _HOP_BY_HOP
            ]
        # A HEAD's length is that of the body it leaves out; everything else has the length it has.
        if request.method != "HEAD":
            kept = [(name, value) for name, value in kept if name.lower() != "content-length"]
        return web.Response(status=answer.status, headers=kept, body=content)

    async def _truncate(self, request: web.Request) -> web.StreamResponse:
        whole = await self._forward(request)
        content = whole.body if isinstance(whole.body, bytes) else b""
        answer = web.StreamResponse(status=whole.status, headers={"ETag": whole.headers.get("ETag", "")})
        answer.content_length = max(len(content), 2)
        await answer.prepare(request)
        await answer.write(content[: len(content) // 2])
        _cut(request)
        return answer


async def _sip(request: web.Request, seconds: float) -> None:
    """Read the body slowly, and keep it for whoever reads it next."""
    size = request.content_length or 0
    body = bytearray()
    while len(body) < size:
        sip = await request.content.readexactly(min(size // 50 + 1, size - len(body)))
        body += sip
        await asyncio.sleep(seconds / 50)
    request._read_bytes = bytes(body)


def _answer(request: web.Request, fault: Fault) -> web.Response:
    """What the client gets instead of the store's own answer."""
    if fault.kind == "garbage":
        return web.Response(text="<html>Welcome to the airport network</html>", content_type="text/html")
    if fault.kind in {"status", "silent_success", "refuse_condition"}:
        return _refusal(request, fault.status, fault.code)
    return _cut(request)


def _refusal(request: web.Request, status: int, code: str | None) -> web.Response:
    if request.method == "HEAD":
        return web.Response(status=status)
    code = code or _CODES.get(status, "InternalError")
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>made up by a test</Message></Error>"
    return web.Response(status=status, text=text, content_type="application/xml")


def _cut(request: web.Request) -> web.Response:
    """Reset the connection: no orderly end, whatever was sent or not."""
    if request.transport is not None:
        link = request.transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        request.transport.abort()
    return web.Response(status=500)


class FaultyS3:
    """The proxy on a thread of its own, for tests in the same process."""

    def __init__(self, upstream: str) -> None:
        self._proxy = FaultProxy(upstream)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="faulty-s3", daemon=True)
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        self._runner, self.url = asyncio.run_coroutine_threadsafe(self._proxy.start(), self._loop).result(10)
        return self

    def __exit__(self, *exc_info: object) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def inject(self, *faults: Fault) -> None:
        """Put these faults in force, counted from here, in place of any before."""
        self._proxy.faults = [msgspec.structs.replace(fault, seen=0, struck=0) for fault in faults]

    def heal(self) -> None:
        """No faults from now on, and no memory of requests."""
        self._proxy.faults = []
        self._proxy.requests = []

    @property
    def requests(self) -> Sequence[Seen]:
        """Every request so far."""
        return tuple(self._proxy.requests)


async def _serve(upstream: str, port: int) -> None:
    proxy = FaultProxy(upstream)
    runner, url = await proxy.start(port)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    print(json.dumps({"url": url}), flush=True)
    await stop.wait()
    await runner.cleanup()


def main() -> None:
    """Run as a process: see the module's text."""
    parser = argparse.ArgumentParser(description="A faulty proxy before an S3 store")
    parser.add_argument("--upstream", required=True, help="URL of the store")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    options = parser.parse_args()
    asyncio.run(_serve(options.upstream, options.port))


if __name__ == "__main__":
    main()
