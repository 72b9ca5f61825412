"""Every path of a simulated server, by engine and version, and the control paths below `/sim/`."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from aiohttp import web

from ops.simulator import info
from ops.simulator.asks import fake_token_ids, read_ask
from ops.simulator.faults import Fault, FaultKind
from ops.simulator.generation import JSON_TYPE, closed, generate, refuse
from ops.simulator.refusals import Refusal, unauthorized

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ops.simulator.state import ServerState

    Handler = Callable[[ServerState, web.BaseRequest], Awaitable[web.StreamResponse]]

_OPEN: Final = ("/health", "/ready", "/metrics", "/sim/")
_GUARDED_BY_VLLM: Final = "/v1"
_LOOK_AGAIN_S: Final = 0.1
_AFTER_REPLY_S: Final = 0.02
_LOADING: Final = "Loading model"


def json_reply(document: Any, status: int = 200) -> web.Response:
    """A JSON body."""
    return web.Response(status=status, body=msgspec.json.encode(document), headers=JSON_TYPE)


async def dispatch(state: ServerState, routes: Routes, request: web.BaseRequest) -> web.StreamResponse:
    """Answer any request."""
    path = request.path
    if state.settings.api_key is not None and not _may_enter(state, request, path):
        return web.Response(status=401, body=unauthorized(state.settings.dialect), headers=JSON_TYPE)
    if (
        state.settings.dialect == "llamacpp"
        and state.has(FaultKind.STARTING)
        and not path.startswith("/sim/")
    ):
        return refuse(state, Refusal(status=503, message=_LOADING))
    found = routes.get(path)
    if found is None:
        one = path.startswith("/v1/models/") and state.settings.dialect != "vllm"
        if one and request.method == "GET":
            return _one_model(state, path.removeprefix("/v1/models/"))
        return json_reply({"detail": "Not Found"}, 404)
    handler = found.get(request.method)
    if handler is None:
        return json_reply({"detail": "Method Not Allowed"}, 405)
    return await handler(state, request)


def _may_enter(state: ServerState, request: web.BaseRequest, path: str) -> bool:
    vllm = state.settings.dialect == "vllm"
    free = not path.startswith(_GUARDED_BY_VLLM) if vllm else path.startswith(_OPEN)
    return free or request.headers.get("Authorization") == f"Bearer {state.settings.api_key}"


def _one_model(state: ServerState, name: str) -> web.Response:
    if name == state.settings.model:
        return json_reply(info.model_card(state.settings, state.started_at))
    error = {
        "message": f"The model '{name}' does not exist",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }
    return json_reply({"error": error}, 404)


async def _health(state: ServerState, _request: web.BaseRequest) -> web.StreamResponse:
    """SGLang's probe runs a token through the scheduler; the others answer at once."""
    draining = state.has(FaultKind.DRAINING) and not state.traits.drains_healthy
    if state.has(FaultKind.STARTING) or draining:
        return web.Response(status=503)
    if state.has(FaultKind.STUCK):
        await asyncio.sleep(state.settings.health_timeout_s)
        return web.Response(status=503)
    if state.settings.health_delay:
        await asyncio.sleep(state.settings.health_delay)
    return json_reply({"status": "ok"}) if state.settings.dialect == "llamacpp" else web.Response()


async def _ready(state: ServerState, _request: web.BaseRequest) -> web.StreamResponse:
    bad = any(map(state.has, (FaultKind.STARTING, FaultKind.DRAINING, FaultKind.STUCK)))
    return web.Response(status=503 if bad else 200)


async def _server_info(state: ServerState, request: web.BaseRequest) -> web.StreamResponse:
    """It asks the scheduler, so it hangs with it."""
    while state.has(FaultKind.STUCK):
        if request.transport is None:
            return closed()
        await asyncio.sleep(_LOOK_AGAIN_S)
    return json_reply(info.server_info(state.settings, state.traits, state.load()))


async def _models(state: ServerState, _request: web.BaseRequest) -> web.StreamResponse:
    return json_reply(info.models(state.settings, state.started_at))


async def _model_info(state: ServerState, _request: web.BaseRequest) -> web.StreamResponse:
    return json_reply(info.model_info(state.settings, state.traits))


async def _loads(state: ServerState, request: web.BaseRequest) -> web.StreamResponse:
    known = {"core", "memory", "spec", "lora", "disagg", "queues", "all"}
    asked = frozenset(request.query.get("include", "all").split(","))
    if not asked <= known:
        if state.traits.sparse_loads:
            return web.Response(status=500, text="Internal Server Error")
        return json_reply({"error": f"unknown include: {', '.join(sorted(asked - known))}"}, 400)
    if request.query.get("format") == "prometheus":
        return web.Response(text=info.metrics(state.settings, state.load()))
    return json_reply(info.loads(state.settings, state.traits, state.load(), asked))


async def _get_load(state: ServerState, _request: web.BaseRequest) -> web.StreamResponse:
    return json_reply(info.get_load(state.load()))


async def _metrics(state: ServerState, _request: web.BaseRequest) -> web.StreamResponse:
    return web.Response(text=info.metrics(state.settings, state.load()))


async def _abort(state: ServerState, request: web.BaseRequest) -> web.StreamResponse:
    """Always 200 with nothing in it; ids match by prefix."""
    body = msgspec.json.decode(await request.read() or b"{}", type=AbortRequest)
    if body.abort_all:
        state.slots.abort(lambda _rid: True)
    elif body.rid:
        state.slots.abort(lambda rid: rid.startswith(body.rid))
    return web.Response()


class AbortRequest(msgspec.Struct):
    """The body of `/abort_request`."""

    rid: str = ""
    abort_all: bool = False


async def _flush(state: ServerState, _request: web.BaseRequest) -> web.StreamResponse:
    if state.slots.running or state.slots.waiting:
        return web.Response(status=400, text="Flush cache failed.\n")
    return web.Response(text="Cache flushed.\n")


async def _version(state: ServerState, _request: web.BaseRequest) -> web.StreamResponse:
    return json_reply({"version": state.settings.engine_version})


async def _server_load(_state: ServerState, _request: web.BaseRequest) -> web.StreamResponse:
    """It counts only where it was switched on, which is the exception."""
    return json_reply({"server_load": 0})


async def _ping(_state: ServerState, _request: web.BaseRequest) -> web.StreamResponse:
    return web.Response()


async def _tokenize(state: ServerState, request: web.BaseRequest) -> web.StreamResponse:
    """A prompt's or a conversation's tokens, counted as a generation would."""
    body = await request.read()
    try:
        ask = read_ask("chat" if b'"messages"' in body else "completion", body, state.settings)
    except (msgspec.MsgspecError, UnicodeError) as error:
        words = f"1 validation error:\n  {error}"
        return refuse(state, Refusal(status=400, message=words, type="Bad Request"))
    ids = fake_token_ids(b"\n".join(ask.texts), ask.prompt_tokens)
    found: dict[str, Any] = {"tokens": ids, "count": len(ids), "max_model_len": state.settings.context}
    if state.settings.dialect == "vllm":
        found["token_strs"] = None
    return json_reply(found)


async def _props(state: ServerState, _request: web.BaseRequest) -> web.StreamResponse:
    return json_reply(info.props(state.settings, state.load()))


async def _slots(state: ServerState, _request: web.BaseRequest) -> web.StreamResponse:
    return json_reply(info.slots(state.settings, state.load()))


# Control


async def _sim_stats(state: ServerState, request: web.BaseRequest) -> web.StreamResponse:
    query = request.query
    try:
        since, until = (float(query[name]) if name in query else None for name in ("since", "until"))
    except ValueError:
        return json_reply({"error": "since and until are unix times"}, 400)
    return json_reply(state.stats(since=since, until=until, timeline="timeline" in query))


async def _sim_reset(state: ServerState, _request: web.BaseRequest) -> web.StreamResponse:
    state.reset_stats()
    return json_reply({"ok": True})


async def _sim_faults(state: ServerState, _request: web.BaseRequest) -> web.StreamResponse:
    return json_reply(state.faults_set)


async def _sim_set_faults(state: ServerState, request: web.BaseRequest) -> web.StreamResponse:
    try:
        faults = msgspec.json.decode(await request.read(), type=list[Fault])
    except msgspec.MsgspecError as error:
        return json_reply({"error": str(error)}, 400)
    # After the reply: the new faults may cut this very connection.
    state.loop.call_later(_AFTER_REPLY_S, state.set_faults, faults)
    return json_reply({"faults": len(faults)})


async def _sim_slots(state: ServerState, request: web.BaseRequest) -> web.StreamResponse:
    try:
        slots = msgspec.json.decode(await request.read(), type=SlotsRequest).slots
    except msgspec.MsgspecError as error:
        return json_reply({"error": str(error)}, 400)
    state.slots.resize(slots)
    return json_reply({"slots": slots})


class SlotsRequest(msgspec.Struct):
    """The body of `/sim/slots`."""

    slots: Annotated[int, msgspec.Meta(ge=1)]


Routes = dict[str, dict[str, "Handler"]]


def routes_for(state: ServerState) -> Routes:
    """The paths that this engine and version serve, each with a handler per method."""
    generation: Routes = {
        "/v1/chat/completions": {"POST": partial(generate, api="chat")},
        "/v1/completions": {"POST": partial(generate, api="completion")},
    }
    common: Routes = {"/v1/models": {"GET": _models}, "/health": {"GET": _health}}
    if state.settings.metrics:
        common["/metrics"] = {"GET": _metrics}
    control: Routes = {
        "/sim/stats": {"GET": _sim_stats},
        "/sim/reset": {"POST": _sim_reset},
        "/sim/faults": {"GET": _sim_faults, "POST": _sim_set_faults},
        "/sim/slots": {"POST": _sim_slots},
    }
    return {**generation, **common, **control, **_engine_routes(state)}


def _engine_routes(state: ServerState) -> Routes:
    if state.settings.dialect == "vllm":
        return {
            "/version": {"GET": _version},
            "/load": {"GET": _server_load},
            "/ping": {"GET": _ping},
            "/tokenize": {"POST": _tokenize},
        }
    if state.settings.dialect == "llamacpp":
        return {"/props": {"GET": _props}, "/slots": {"GET": _slots}}
    native = partial(generate, api="generate")
    routes: Routes = {
        "/generate": {"POST": native, "PUT": native},
        "/health_generate": {"GET": _health},
        "/server_info": {"GET": _server_info},
        "/get_server_info": {"GET": _server_info},
        "/model_info": {"GET": _model_info},
        "/get_model_info": {"GET": _model_info},
        "/v1/loads": {"GET": _loads},
        "/abort_request": {"POST": _abort},
        "/flush_cache": {"GET": _flush, "POST": _flush},
        "/ping": {"GET": _ping},
        "/tokenize": {"POST": _tokenize},
        "/v1/tokenize": {"POST": _tokenize},
    }
    if state.traits.ready_route:
        routes["/ready"] = {"GET": _ready}
    if state.traits.get_load_route:
        routes["/get_load"] = {"GET": _get_load}
    return routes
