"""The life of one generation request: read, checked, struck by a fault or not, run in a slot, answered."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import web

from ops.simulator import replies
from ops.simulator.answers import Answer, compose, cut, draw
from ops.simulator.asks import read_ask
from ops.simulator.distort import distort
from ops.simulator.faults import Fault, FaultKind
from ops.simulator.listener import reset
from ops.simulator.refusals import Refusal, check, draining, queue_full, wrong_media_type, wrong_model
from ops.simulator.replies import Reply
from ops.simulator.slots import Job, Outcome

if TYPE_CHECKING:
    from ops.simulator.answers import Draws
    from ops.simulator.asks import Api, Ask
    from ops.simulator.state import ServerState

JSON_TYPE: Final = {"Content-Type": "application/json"}
_KILL_S: Final = 5.0
_SLOW_S: Final = 1.0
_RETRY_AFTER_S: Final = 1.0
_FLUSH_S: Final = 0.05
_LOOPS: Final = frozenset({FaultKind.LOOP, FaultKind.LOOP_THINKING})
_NOT_JSON: Final = b"<html><body>Upstream said: bad gateway</body></html>"


async def generate(state: ServerState, request: web.BaseRequest, api: Api) -> web.StreamResponse:
    """Answer one request to a generation endpoint."""
    counts = state.counts
    counts.requests += 1
    counts.in_flight += 1
    counts.max_in_flight = max(counts.max_in_flight, counts.in_flight)
    try:
        return await _generate(state, request, api)
    finally:
        state.counts.in_flight -= 1


async def _generate(state: ServerState, request: web.BaseRequest, api: Api) -> web.StreamResponse:
    settings = state.settings
    body = await request.read()
    if state.traits.drains_healthy and state.has(FaultKind.DRAINING):
        return refuse(state, draining())
    if settings.dialect != "llamacpp" and api != "generate" and not _is_json(request):
        return refuse(state, wrong_media_type(settings.dialect))
    try:
        ask = read_ask(api, body, settings)
    except (msgspec.MsgspecError, UnicodeError) as error:
        return _unreadable(state, api, str(error))
    refusal = check(ask, settings, state.traits)
    if refusal is not None:
        return refuse(state, refusal)
    draws = draw(ask.texts, ask.seed, settings.seed)
    fault = state.faults.strike(_all_text(state, ask), draws.fault) if state.faults.active else None
    if fault is not None and (reply := await _instead(state, request, fault)) is not None:
        return reply
    return await _run(state, request, ask, draws, fault)


def _is_json(request: web.BaseRequest) -> bool:
    return "json" in request.headers.get("Content-Type", "")


def _all_text(state: ServerState, ask: Ask) -> str:
    """The conversation's text, made only if a fault looks at it."""
    return b"\n".join(ask.texts).decode() if state.faults.reads_prompts else ""


def _unreadable(state: ServerState, api: Api, words: str) -> web.Response:
    if api == "generate" and state.settings.dialect == "sglang":
        state.counts.refused[400] += 1
        error = words if state.traits.plain_generate_errors else {"message": words}
        return web.Response(status=400, body=msgspec.json.encode({"error": error}), headers=JSON_TYPE)
    return refuse(state, Refusal(status=400, message=f"1 validation error:\n  {words}", type="Bad Request"))


def refuse(state: ServerState, refusal: Refusal, *, stream: bool = False) -> web.Response:
    """An error reply; in a stream it is an event under status 200."""
    state.counts.refused[refusal.status] += 1
    dialect = state.settings.dialect
    if stream and dialect == "sglang":
        data = b"data: " + refusal.body(dialect, nested=True) + b"\n\n" + replies.DONE
        return web.Response(body=data, headers={"Content-Type": "text/event-stream"})
    headers = dict(JSON_TYPE)
    if refusal.retry_after is not None:
        headers["Retry-After"] = f"{refusal.retry_after:g}"
    return web.Response(status=refusal.status, body=refusal.body(dialect), headers=headers)


def closed() -> web.Response:
    """What is returned for a connection that is closed already; nobody sees it."""
    return web.Response()


async def _instead(state: ServerState, request: web.BaseRequest, fault: Fault) -> web.StreamResponse | None:
    """The reply of a fault that comes before any work; `None` for faults that come later."""
    kind = fault.kind
    if kind is FaultKind.KILL:
        state.die(_KILL_S if fault.seconds is None else fault.seconds)
        return closed()
    if kind is FaultKind.RESET:
        state.counts.lost += 1
        reset(request.transport)
        return closed()
    refusal = _fault_refusal(fault, state)
    return refuse(state, refusal) if refusal is not None else None


def _fault_refusal(fault: Fault, state: ServerState) -> Refusal | None:
    if fault.kind is FaultKind.ERROR_500:
        return Refusal(
            status=500, message="Internal server error: simulated fault", type="InternalServerError"
        )
    if fault.kind is FaultKind.QUEUE_FULL:
        return queue_full(state.settings.dialect)
    if fault.kind is FaultKind.RATE_LIMIT:
        seconds = _RETRY_AFTER_S if fault.seconds is None else fault.seconds
        return Refusal(status=429, message="Too many requests", type="RateLimitError", retry_after=seconds)
    if fault.kind is FaultKind.WRONG_MODEL:
        return wrong_model("simulated", state.settings.model)
    return None


async def _run(
    state: ServerState, request: web.BaseRequest, ask: Ask, draws: Draws, fault: Fault | None
) -> web.StreamResponse:
    """Generate and answer, in a slot unless the server is instant."""
    settings = state.settings
    rid = ask.rid or f"{state.ids.getrandbits(128):032x}"
    if ask.rid is not None and rid in state.rids and settings.dialect == "sglang":
        return refuse(state, Refusal(status=400, message=f"Duplicate request ID detected: {rid}"))
    full = state.slots.running >= state.slots.limit
    if settings.max_queued is not None and full and state.slots.waiting >= settings.max_queued:
        return refuse(state, queue_full(settings.dialect), stream=ask.stream)
    kind = fault.kind if fault is not None else None
    reply = Reply(
        ask=ask,
        settings=settings,
        traits=state.traits,
        draws=draws,
        answers=_answers(state, ask, draws, kind),
        id=rid,
        created=int(time.time()),
        looping=kind in _LOOPS,
    )
    slotless = settings.instant and kind not in (FaultKind.HANG, FaultKind.SLOW)
    if slotless and not state.has(FaultKind.STUCK):
        return await _answer(state, request, reply, kind, job=None)
    state.rids.add(rid)
    job = _job(state, request, reply, fault)
    state.slots.submit(job)
    try:
        return await _answer(state, request, reply, kind, job=job)
    finally:
        leaked = state.traits.leaks_aborted_rids and _outcome(job) is Outcome.ABORTED_WAITING
        if not leaked:
            state.rids.discard(rid)


def _answers(state: ServerState, ask: Ask, draws: Draws, kind: FaultKind | None) -> list[Answer]:
    """One answer per choice, each with its own numbers."""
    settings = state.settings
    room = max(1, settings.context - ask.prompt_tokens - settings.reserved_tokens)
    limit = room if ask.max_tokens is None else min(ask.max_tokens, room)
    made = []
    for number in range(ask.n):
        drawn = draws if number == 0 else draw([*ask.texts, b"choice %d" % number], ask.seed, settings.seed)
        answer = compose(
            settings,
            drawn,
            ask.prompt,
            thinking=ask.thinking,
            limit=limit,
            stop=ask.stop,
            ignore_eos=ask.ignore_eos,
        )
        made.append(distort(answer, kind, limit=limit, draw=drawn.spare) if kind is not None else answer)
    return made


def _job(state: ServerState, request: web.BaseRequest, reply: Reply, fault: Fault | None) -> Job:
    settings = state.settings
    tokens = max(answer.tokens for answer in reply.answers)
    seconds = reply.ask.prompt_tokens / settings.prefill_tokens_per_s + tokens / settings.tokens_per_s
    duration: float | None = 0.0 if settings.instant else seconds / settings.time_scale
    kind = fault.kind if fault is not None else None
    if fault is not None and kind is FaultKind.SLOW:
        duration = (duration or 0.0) + (_SLOW_S if fault.seconds is None else fault.seconds)
    elif fault is not None and kind is FaultKind.HANG:
        duration = fault.seconds
    zombie = state.traits.zombie_streams if settings.zombie_streams is None else settings.zombie_streams
    poll = settings.disconnect_poll_s / 2 if reply.ask.stream else settings.disconnect_poll_s

    def gone() -> bool:
        return request.transport is None and not (reply.ask.stream and zombie)

    return Job(
        reply.id,
        duration=duration,
        prompt_tokens=reply.ask.prompt_tokens,
        gone=gone,
        next_poll=state.loop.time() + poll,
        loop=state.loop,
    )


def _outcome(job: Job | None) -> Outcome:
    return job.ended.result() if job is not None and job.ended.done() else Outcome.DONE


async def _answer(
    state: ServerState, request: web.BaseRequest, reply: Reply, kind: FaultKind | None, *, job: Job | None
) -> web.StreamResponse:
    if reply.ask.stream:
        return await _stream(state, request, reply, kind, job)
    arrived = state.loop.time()
    outcome = await job.ended if job is not None else Outcome.DONE
    if outcome in (Outcome.DISCONNECTED, Outcome.LOST):
        return _unanswered(state, request, outcome)
    if kind is FaultKind.HANG:
        reset(request.transport)
        return closed()
    reply = _ended(reply, outcome, job, state.loop.time() - arrived)
    if not _count(state, request, reply):
        return closed()
    data = _NOT_JSON if kind is FaultKind.NOT_JSON else replies.body(reply)
    if kind in (FaultKind.RESET_MID, FaultKind.TRUNCATED_BODY):
        return await _half(request, data, kind)
    headers = {"Content-Type": "text/html"} if kind is FaultKind.NOT_JSON else JSON_TYPE
    return web.Response(body=data, headers=headers)


def _unanswered(state: ServerState, request: web.BaseRequest, outcome: Outcome) -> web.Response:
    """Count a request that gets no answer; a client that is still there sees the server die."""
    if outcome is Outcome.DISCONNECTED:
        state.counts.disconnects += 1
    else:
        state.counts.lost += 1
        reset(request.transport)
    return closed()


def _ended(reply: Reply, outcome: Outcome, job: Job | None, latency: float) -> Reply:
    """The reply as it stands after the job's end: whole, or cut by an abort."""
    if outcome is Outcome.DONE:
        return msgspec.structs.replace(reply, latency_s=latency) if job is not None else reply
    if outcome is Outcome.ABORTED_WAITING or job is None or job.started_at is None:
        answers = [distort(answer, FaultKind.ABORT_EMPTY, limit=0, draw=0) for answer in reply.answers]
        return msgspec.structs.replace(reply, answers=answers, ran=False, latency_s=latency)
    passed = asyncio.get_running_loop().time() - job.started_at
    done = passed / job.duration if job.duration else 1.0
    answers = [
        cut(answer, max(1, min(answer.tokens - 1, int(answer.tokens * done))), finish="abort")
        for answer in reply.answers
    ]
    return msgspec.structs.replace(reply, answers=answers, latency_s=latency)


def _count(state: ServerState, request: web.BaseRequest, reply: Reply) -> bool:
    """Count an ended request; false if its client is gone."""
    counts = state.counts
    if request.transport is None:
        counts.disconnects += 1
        return False
    if any(answer.finish == "abort" for answer in reply.answers):
        counts.aborted += 1
    else:
        counts.completions += 1
    counts.prompt_tokens += reply.prompt_tokens
    counts.completion_tokens += sum(answer.tokens for answer in reply.answers)
    return True


async def _half(request: web.BaseRequest, data: bytes, kind: FaultKind) -> web.StreamResponse:
    """Announce the whole body, send half of it, and end the connection."""
    transport = request.transport
    if transport is None:
        return closed()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data)
    transport.write(head + data[: len(data) // 2])
    if kind is FaultKind.RESET_MID:
        await asyncio.sleep(_FLUSH_S)
        reset(transport)
    else:
        transport.close()
    return closed()


# Streams


async def _stream(
    state: ServerState, request: web.BaseRequest, reply: Reply, kind: FaultKind | None, job: Job | None
) -> web.StreamResponse:
    """Send the answer piece by piece, as fast as the slot makes tokens."""
    arrived = state.loop.time()
    if job is not None:
        await job.begun
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    broken = kind in (FaultKind.RESET_MID, FaultKind.TRUNCATED_BODY)
    with contextlib.suppress(ConnectionError):
        if _outcome(job) not in (Outcome.DISCONNECTED, Outcome.LOST):
            await response.prepare(request)
            await _send_pieces(response, reply, job, broken=broken or kind is FaultKind.HANG)
    outcome = await job.ended if job is not None else Outcome.DONE
    if outcome in (Outcome.DISCONNECTED, Outcome.LOST):
        return _unanswered(state, request, outcome)
    reply = _ended(reply, outcome, job, state.loop.time() - arrived)
    if not _count(state, request, reply):
        return closed()
    if kind in (FaultKind.RESET_MID, FaultKind.HANG):
        await asyncio.sleep(_FLUSH_S)
        reset(request.transport)
        return closed()
    if kind is FaultKind.TRUNCATED_BODY:
        if request.transport is not None:
            request.transport.close()
        return closed()
    with contextlib.suppress(ConnectionError):
        await response.write(
            b"data: " + _NOT_JSON + b"\n\n" if kind is FaultKind.NOT_JSON else replies.closing(reply)
        )
    return response


async def _send_pieces(response: web.StreamResponse, reply: Reply, job: Job | None, *, broken: bool) -> None:
    """Send each piece when it is due; stop when the job ends early, or half way if the stream is to break."""
    if begin := replies.opening(reply):
        await response.write(begin)
    total = max(answer.tokens for answer in reply.answers)
    stop_at = total // 2 if broken else total
    for piece in replies.pieces(reply):
        if piece.tokens > stop_at:
            return
        if job is not None and await _ends_before(job, piece.tokens / total):
            return
        await response.write(piece.data)


async def _ends_before(job: Job, share: float) -> bool:
    """Wait until `share` of the job is done; true if it was aborted by then."""
    if job.started_at is None:
        return True
    if job.duration is None:
        return job.ended.done()
    due = job.started_at + share * job.duration - asyncio.get_running_loop().time()
    if due > 0 and not job.ended.done():
        await asyncio.wait([job.ended], timeout=due)
    return job.ended.done() and job.ended.result() is not Outcome.DONE
