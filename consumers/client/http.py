"""The client of one inference server. It makes requests; what answers mean is decided in pure modules."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import msgspec

from common.errors import ServerError
from common.settings import redact_url
from consumers.client.channel import Channel
from consumers.client.deadline import Deadlines
from consumers.client.fields import decode
from consumers.client.health import Health, HealthState, read_health
from consumers.client.info import Dialect, ServerInfo, assemble, parse_models
from consumers.client.load import Load, read_load
from consumers.client.outcome import Failure, FailureKind, Outcome, Success
from consumers.client.request import ChatRequest, encode
from consumers.client.response import classify
from consumers.client.transport import (
    Connecting,
    Reply,
    base_url,
    broke_without_a_byte,
    failure_of,
    new_rid,
    open_session,
    payload,
)

STALE_WITHIN_S: Final = 1.0
"""A kept connection that breaks this soon, without a byte, was closed before the request came."""

ABORT_TIMEOUT_S: Final = 2.0
PROBE_TIMEOUT_S: Final = 10.0

CHAT_PATH: Final = "/v1/chat/completions"
MODELS_PATH: Final = "/v1/models"
_HEALTH_PATHS: Final = ("/ready", "/health", MODELS_PATH)
_LOAD_PATHS: Final = ("/v1/loads?include=core,spec", "/get_load", "/metrics", "/slots")
_INFO_PATHS: Final = {
    "server_info": ("/server_info", "/get_server_info"),
    "props": ("/props",),
    "version": ("/version",),
}
_INFO_OF: Final = {
    Dialect.SGLANG: ("server_info",),
    Dialect.VLLM: ("version",),
    Dialect.LLAMA_CPP: ("props",),
    Dialect.UNKNOWN: ("server_info", "props", "version"),
}

_OK: Final = 200
_REFUSED: Final = (401, 403)
_NO_SUCH_PATH: Final = (404, 405)
_SERVER_ERROR: Final = 500
_NOT_SWITCHED_ON: Final = 501


class _Open(msgspec.Struct, frozen=True, kw_only=True):
    """What there is between `async with` and its end."""

    loop: asyncio.AbstractEventLoop
    deadlines: Deadlines
    keeping: aiohttp.ClientSession
    once: aiohttp.ClientSession
    kept: Channel
    fresh: Channel


class InferenceClient:
    """One server's client: an async context manager over its connections.

    Args:
        url: the server, with or without `/v1`.
        api_key: sent as a bearer token; never part of a message.

    Raises:
        UsageError: the URL cannot be used.
    """

    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        """Keep the address; nothing is opened before `async with`."""
        self.base = base_url(url)
        self.url = redact_url(self.base)
        self._api_key = api_key
        self._chat_url = self.base + CHAT_PATH
        self._open: _Open | None = None
        self._was_ready = False
        self._health_path = 0
        self._load_path: int | None = 0

    async def __aenter__(self) -> Self:
        """Open the sessions; no connection is made yet."""
        keeping = open_session(api_key=self._api_key, keep=True)
        once = open_session(api_key=self._api_key, keep=False)
        self._open = _Open(
            loop=asyncio.get_running_loop(),
            deadlines=Deadlines(),
            keeping=keeping,
            once=once,
            kept=await Channel.open(keeping, self._chat_url),
            fresh=await Channel.open(once, self._chat_url),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every connection."""
        await self._opened.keeping.close()
        await self._opened.once.close()

    @property
    def _opened(self) -> _Open:
        if self._open is None:
            raise RuntimeError("use the client in `async with`")
        return self._open

    async def generate(self, request: ChatRequest, timeout_s: float) -> Outcome:
        """Have one turn generated.

        Args:
            request: what to ask.
            timeout_s: the limit for everything: waiting in the server's queue and generating.
        """
        opened = self._opened
        started = opened.loop.time()
        deadline = started + timeout_s
        outcome, stale = await self._attempt(opened, opened.kept, request, deadline)
        if stale:
            # The server closed the kept connection as we used it. It may have read the request all the same.
            again, _ = await self._attempt(opened, opened.fresh, request, deadline)
            # Nobody there any more: the server died with the request on it, and that is not "never reached".
            if isinstance(again, Success) or again.kind is not FailureKind.UNREACHABLE:
                outcome = again
        return outcome if isinstance(outcome, Success) else self._told(outcome, opened.loop.time() - started)

    async def _attempt(
        self, opened: _Open, channel: Channel, request: ChatRequest, deadline: float
    ) -> tuple[Outcome, bool]:
        """One POST under a new id; also whether it fell victim to a kept connection that had gone stale."""
        rid = new_rid()
        data = encode(request, rid)
        sent = opened.loop.time()
        with Connecting() as connecting:
            try:
                with opened.deadlines.at(deadline):
                    reply = await channel.post(data)
            except (TimeoutError, aiohttp.ClientError) as error:
                early = not connecting.fresh and opened.loop.time() - sent < STALE_WITHIN_S
                failure, stale = failure_of(error), early and broke_without_a_byte(error)
            else:
                return classify(reply.status, reply.headers, reply.body, thinking=request.thinking), False
        if failure.kind is FailureKind.TIMEOUT:
            await self._abort(request, rid)
        return failure, stale

    async def _abort(self, request: ChatRequest, rid: str) -> None:
        """Ask SGLang to drop a request. Best effort: the others notice that the connection is gone."""
        if request.rid_field == "rid":
            body = {"rid": rid, "abort_all": False}
            await self.fetch("POST", "/abort_request", body=body, timeout_s=ABORT_TIMEOUT_S)

    def _told(self, failure: Failure, elapsed: float) -> Failure:
        message = failure.message
        if self._api_key:
            message = message.replace(self._api_key, "[key]")
        return msgspec.structs.replace(failure, message=f"{self.url}: {message}", elapsed_s=elapsed)

    async def fetch(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        timeout_s: float = PROBE_TIMEOUT_S,
        headers: Mapping[str, str] | None = None,
    ) -> Reply | Failure:
        """Make one request of any kind on its own connection. A `body` that is not bytes goes as JSON."""
        data = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._opened.once.request(
                    method, self.base + path, data=payload(data), headers=headers, allow_redirects=False
                ) as response,
            ):
                return Reply(response.status, response.headers, await response.read())
        except (TimeoutError, aiohttp.ClientError) as error:
            return self._told(failure_of(error), loop.time() - started)

    async def probe(self, timeout_s: float = PROBE_TIMEOUT_S) -> Health:
        """Ask whether the server takes work, at the cheapest endpoint that it has.

        SGLang's `/health` generates a token and takes a second or more; `/ready`, where there is one, none.
        """
        loop = asyncio.get_running_loop()
        while True:
            started, place = loop.time(), self._health_path
            reply = await self.fetch("GET", _HEALTH_PATHS[place], timeout_s=timeout_s)
            if isinstance(reply, Failure):
                return self._no_answer(reply)
            if reply.status not in _NO_SUCH_PATH or place == len(_HEALTH_PATHS) - 1:
                break
            self._health_path = place + 1
        took = loop.time() - started
        health = read_health(reply.status, reply.body, was_ready=self._was_ready, took_s=took)
        self._was_ready = self._was_ready or health.ready
        return health

    def _no_answer(self, failure: Failure) -> Health:
        if failure.kind is FailureKind.TIMEOUT:
            return Health(HealthState.UNHEALTHY, failure.message)
        # Whatever answers there next may be another version, and starts from nothing.
        self._was_ready, self._health_path, self._load_path = False, 0, 0
        return Health(HealthState.UNREACHABLE, failure.message)

    async def info(self, timeout_s: float = PROBE_TIMEOUT_S) -> ServerInfo:
        """Ask the server about itself.

        Raises:
            ServerError: it does not answer, or refuses the API key.
        """
        reply = await self.fetch("GET", MODELS_PATH, timeout_s=timeout_s)
        if isinstance(reply, Failure):
            raise ServerError(f"{reply.message}; start the server or correct its URL")
        if reply.status in _REFUSED:
            raise ServerError(f"{self.url} refuses the API key (HTTP {reply.status}): set SGLANG_API_KEY")
        models = decode(reply.body)
        names = _INFO_OF[parse_models(models).dialect]
        documents = await asyncio.gather(*(self._document(_INFO_PATHS[name], timeout_s) for name in names))
        told = dict(zip(names, documents, strict=True))
        return assemble(models=models, load=await self.load(timeout_s), **told)

    async def _document(self, paths: tuple[str, ...], timeout_s: float) -> Any:
        """The JSON of the first of `paths` that the server has."""
        for path in paths:
            reply = await self.fetch("GET", path, timeout_s=timeout_s)
            if isinstance(reply, Reply) and reply.status == _OK:
                return decode(reply.body)
        return None

    async def load(self, timeout_s: float = PROBE_TIMEOUT_S) -> Load | None:
        """Ask how busy the server is; `None` where no endpoint tells. The one that did is asked again."""
        while (place := self._load_path) is not None:
            path = _LOAD_PATHS[place]
            reply = await self.fetch("GET", path, timeout_s=timeout_s)
            if isinstance(reply, Failure):
                return None
            found = read_load(path, reply.body) if reply.status == _OK else None
            if found is not None:
                return found
            if reply.status >= _SERVER_ERROR and reply.status != _NOT_SWITCHED_ON:
                return None
            self._load_path = place + 1 if place + 1 < len(_LOAD_PATHS) else None
        return None
