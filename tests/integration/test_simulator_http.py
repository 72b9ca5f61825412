"""Simulated servers over real HTTP: queues, aborts, lost clients, faults of every kind, and the command."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import aiohttp
import pytest
from support.both_loops import on_both_loops
from support.wait import patient, wait_for

from ops.simulator import (
    Fault,
    FaultKind,
    ServerSettings,
    SimulatorHandle,
    instant_settings,
    running_simulators,
)

CHAT = "/v1/chat/completions"
FOREVER = {"tokens_per_s": 0.001}
BROKEN = (aiohttp.ClientError, ConnectionError)


def ask(prompt: str = "Explain queues.", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": prompt}], "max_tokens": 64, **more}


@asynccontextmanager
async def serving(
    settings: ServerSettings, *faults: Fault
) -> AsyncIterator[tuple[SimulatorHandle, aiohttp.ClientSession]]:
    async with running_simulators(settings, faults=faults) as (handle,):
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(handle.url, connector=connector) as session:
            yield handle, session


async def post(session: aiohttp.ClientSession, body: Any, path: str = CHAT) -> tuple[int, Any]:
    async with session.post(path, json=body) as response:
        return response.status, await response.json()


async def get(session: aiohttp.ClientSession, path: str) -> tuple[int, Any]:
    async with session.get(path) as response:
        text = await response.text()
        return response.status, json.loads(text) if text[:1] in ("{", "[") else text


async def until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + patient(5)
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.005)


def running(handle: SimulatorHandle, count: int, waiting: int = 0) -> Callable[[], bool]:
    return lambda: (handle.stats()["running"], handle.stats()["waiting"]) == (count, waiting)


# Answers and information


async def test_same_prompt_same_text_on_every_server():
    async with running_simulators(instant_settings(), count=3) as handles, aiohttp.ClientSession() as session:
        said = set()
        for handle in handles:
            async with session.post(handle.url + CHAT, json=ask(max_tokens=4000)) as response:
                said.add((await response.json())["choices"][0]["message"]["content"])
        assert len(said) == 1
        assert [handle.stats()["completions"] for handle in handles] == [1, 1, 1]


async def test_request_id_comes_back_as_id():
    async with serving(instant_settings()) as (_, session):
        _, body = await post(session, ask(rid="r-0001"))
        assert body["id"] == "r-0001"


@pytest.mark.parametrize("instant", [True, False])
async def test_choices(instant):
    async with serving(ServerSettings(instant=instant, time_scale=1e5)) as (_, session):
        _, body = await post(session, ask(n=3, max_tokens=2000))
        assert len({choice["message"]["content"] for choice in body["choices"]}) == 3


async def test_other_generation_endpoints():
    async with serving(instant_settings()) as (_, session):
        _, body = await post(session, {"prompt": "Once", "max_tokens": 12}, "/v1/completions")
        assert body["usage"]["completion_tokens"] == 12
        assert body["choices"][0]["text"]
        _, body = await post(session, {"text": "Once", "sampling_params": {"max_new_tokens": 9}}, "/generate")
        assert len(body["output_ids"]) == body["meta_info"]["completion_tokens"] == 9


@pytest.mark.parametrize(
    ("settings", "paths", "absent"),
    [
        (
            instant_settings(version="0.5.23"),
            ("/server_info", "/get_server_info", "/model_info", "/get_model_info", "/v1/loads", "/ready"),
            ("/get_load", "/props", "/version"),
        ),
        (instant_settings(version="0.5.11"), ("/get_load", "/health_generate"), ("/ready",)),
        (instant_settings(dialect="vllm"), ("/version", "/metrics"), ("/server_info", "/v1/loads")),
        (instant_settings(dialect="llamacpp"), ("/props", "/slots"), ("/server_info", "/version")),
    ],
)
async def test_paths_by_engine_and_version(settings, paths, absent):
    async with serving(settings) as (_, session):
        for path in (*paths, "/health", "/v1/models"):
            assert (await get(session, path))[0] == 200, path
        for path in absent:
            assert (await get(session, path))[0] == 404, path
        assert (await get(session, CHAT))[0] == 405


async def test_models_and_loads_tell_the_limits():
    async with serving(ServerSettings(slots=16, requested_slots=64, context=4096)) as (_, session):
        _, models = await get(session, "/v1/models")
        assert models["data"][0]["max_model_len"] == 4096
        _, loads = await get(session, "/v1/loads?include=core,spec")
        assert loads["loads"][0]["max_running_requests"] == 16
        assert (await get(session, "/v1/loads?include=bad"))[0] == 500
        assert (await get(session, "/v1/models/none"))[0] == 404
        assert (await get(session, "/v1/models/qwen3.6-27b"))[0] == 200


async def test_health_of_sglang_takes_its_time():
    async with serving(ServerSettings(health_delay_s=0.3)) as (_, session):
        begun = time.monotonic()
        assert (await get(session, "/health"))[0] == 200
        assert time.monotonic() - begun >= 0.29


def test_health_takes_a_second_unless_told_otherwise():
    assert ServerSettings().health_delay == 1.0
    assert ServerSettings(dialect="vllm").health_delay == 0.0


async def test_api_key():
    async with serving(instant_settings(api_key="k3y")) as (_, session):
        assert await post(session, ask()) == (401, {"error": "Unauthorized"})
        assert (await get(session, "/server_info"))[0] == 401
        for path in ("/health", "/ready", "/metrics", "/sim/stats"):
            assert (await get(session, path))[0] == 200
        async with session.post(CHAT, json=ask(), headers={"Authorization": "Bearer k3y"}) as response:
            assert response.status == 200


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"messages": 3}', b'{"messages": [{"role": "user", "content": "\\ud800"}]}']
)
async def test_bodies_that_cannot_be_read(body):
    async with (
        serving(instant_settings()) as (handle, session),
        session.post(CHAT, data=body, headers={"Content-Type": "application/json"}) as response,
    ):
        assert response.status == 400
        assert (await response.json())["type"] == "Bad Request"
        assert handle.stats()["refused"] == {"400": 1}


@pytest.mark.parametrize(("version", "plain"), [("0.5.11", False), ("0.5.23", True)])
async def test_generate_says_what_is_wrong_in_its_own_shape(version, plain):
    async with serving(instant_settings(version=version)) as (_, session):
        status, body = await post(session, {"text": 3}, "/generate")
        assert status == 400
        assert isinstance(body["error"], str) is plain


async def test_wrong_content_type():
    async with (
        serving(instant_settings()) as (_, session),
        session.post(CHAT, data=b"{}", headers={"Content-Type": "text/plain"}) as response,
    ):
        assert response.status == 400


async def test_large_prompts_are_read_and_refused():
    body = io.BytesIO(json.dumps(ask("word " * 2_000_000)).encode())
    headers = {"Content-Type": "application/json"}
    async with (
        serving(instant_settings()) as (_, session),
        session.post(CHAT, data=body, headers=headers) as response,
    ):
        assert response.status == 400
        assert "longer than the model's context length" in (await response.json())["message"]


# Slots and queue


async def test_requests_beyond_the_slots_wait():
    async with serving(ServerSettings(slots=2, time_scale=500)) as (handle, session):
        answers = await asyncio.gather(*(post(session, ask(f"prompt {number}")) for number in range(12)))
        assert [status for status, _ in answers] == [200] * 12
        stats = handle.stats()
        assert (stats["max_running"], stats["completions"], stats["running"]) == (2, 12, 0)
        assert stats["max_waiting"] >= 8
        assert stats["max_in_flight"] == 12


async def test_longer_answers_take_longer():
    settings = ServerSettings(time_scale=10, tokens_per_s=100, prefill_tokens_per_s=1e6)
    async with serving(settings) as (_, session):
        begun = time.monotonic()
        await post(session, ask(max_tokens=400, ignore_eos=True))
        assert 0.39 < time.monotonic() - begun < patient(1.5)


async def test_occupancy_over_http():
    async with serving(ServerSettings(slots=1, **FOREVER)) as (handle, session):
        request = asyncio.create_task(post(session, ask()))
        await until(running(handle, 1), "the request never ran")
        await asyncio.sleep(2.1)
        _, stats = await get(session, "/sim/stats?timeline=1")
        assert stats["occupancy"]["share"] == pytest.approx(1.0)
        assert stats["occupancy"]["seconds"] >= 1
        assert max(stats["timeline"]["busy_slot_seconds"]) == pytest.approx(1.0)
        _, bounded = await get(session, f"/sim/stats?since={stats['full_at']}&until={stats['full_at']}")
        assert bounded["occupancy"]["share"] is None
        assert (await get(session, "/sim/stats?since=never"))[0] == 400
        request.cancel()


async def test_slots_change_while_running():
    async with serving(ServerSettings(slots=1, **FOREVER)) as (handle, session):
        requests = [asyncio.create_task(post(session, ask(f"p{number}"))) for number in range(3)]
        await until(running(handle, 1, 2), "two do not wait")
        assert await post(session, {"slots": 3}, "/sim/slots") == (200, {"slots": 3})
        assert running(handle, 3)()
        handle.reset_stats()
        assert (handle.stats()["requests"], handle.stats()["in_flight"], handle.stats()["max_running"]) == (
            0,
            3,
            3,
        )
        assert (await post(session, {"slots": 0}, "/sim/slots"))[0] == 400
        _, told = await get(session, "/server_info")
        assert told["internal_states"][0]["effective_max_running_requests_per_dp"] == 3
        for request in requests:
            request.cancel()


async def test_queue_full():
    settings = ServerSettings(slots=1, max_queued=1, **FOREVER)
    async with serving(settings) as (handle, session):
        requests = [asyncio.create_task(post(session, ask(f"p{number}"))) for number in range(2)]
        await until(running(handle, 1, 1), "one does not wait")
        status, body = await post(session, ask())
        assert (status, body["code"], "queue is full" in body["message"]) == (503, 503, True)
        async with session.post(CHAT, json=ask(stream=True)) as response:
            assert response.status == 200
            lines = (await response.text()).strip().split("\n\n")
        assert json.loads(lines[0].removeprefix("data: "))["error"]["code"] == 503
        assert lines[1:] == ["data: [DONE]"]
        for request in requests:
            request.cancel()


async def test_request_id_in_flight_is_refused():
    async with serving(ServerSettings(**FOREVER)) as (handle, session):
        first = asyncio.create_task(post(session, ask(rid="twice")))
        await until(running(handle, 1), "the first never ran")
        status, body = await post(session, ask(rid="twice"))
        assert (status, "twice" in body["message"]) == (400, True)
        await session.post("/abort_request", json={"rid": "twice"})
        assert (await first)[0] == 200
        second = asyncio.create_task(post(session, ask(rid="twice")))
        await until(running(handle, 1), "the id stayed taken")
        second.cancel()


async def test_abort_takes_a_prefix_and_leaves_partial_or_no_text():
    async with serving(ServerSettings(slots=1, time_scale=1, tokens_per_s=100)) as (handle, session):
        run = asyncio.create_task(post(session, ask(rid="r1", max_tokens=3000, ignore_eos=True)))
        await until(running(handle, 1), "r1 never ran")
        wait = asyncio.create_task(post(session, ask(rid="r10")))
        other = asyncio.create_task(post(session, ask(rid="q1", max_tokens=2, ignore_eos=True)))
        await until(running(handle, 1, 2), "two do not wait")
        await asyncio.sleep(0.1)
        async with session.post("/abort_request", json={"rid": "r1"}) as response:
            assert (response.status, await response.read()) == (200, b"")
        (_, partial), (_, empty), (_, untouched) = await asyncio.gather(run, wait, other)
        assert partial["choices"][0]["finish_reason"] == "abort"
        assert 0 < partial["usage"]["completion_tokens"] < 3000
        assert partial["usage"]["prompt_tokens"] > 0
        assert empty["choices"][0]["finish_reason"] == "abort"
        assert (empty["usage"]["prompt_tokens"], empty["choices"][0]["message"]["content"]) == (0, "")
        assert untouched["choices"][0]["finish_reason"] == "length"
        assert handle.stats()["aborted"] == 2


async def test_old_versions_never_free_the_id_of_a_waiting_abort():
    async with serving(ServerSettings(version="0.5.11", slots=1, **FOREVER)) as (handle, session):
        run = asyncio.create_task(post(session, ask(rid="a")))
        await until(running(handle, 1), "a never ran")
        wait = asyncio.create_task(post(session, ask(rid="b")))
        await until(running(handle, 1, 1), "b does not wait")
        await session.post("/abort_request", json={"abort_all": True})
        await asyncio.gather(run, wait)
        assert (await post(session, ask(rid="b")))[0] == 400
        again = asyncio.create_task(post(session, ask(rid="a")))
        await until(running(handle, 1), "a stayed taken")
        again.cancel()


async def test_cache_is_flushed_only_when_idle():
    async with serving(ServerSettings(**FOREVER)) as (handle, session):
        assert (await post_text(session, "/flush_cache"))[0] == 200
        request = asyncio.create_task(post(session, ask()))
        await until(running(handle, 1), "it never ran")
        assert (await post_text(session, "/flush_cache"))[0] == 400
        request.cancel()


async def post_text(session: aiohttp.ClientSession, path: str) -> tuple[int, str]:
    async with session.post(path) as response:
        return response.status, await response.text()


# Lost clients


@pytest.mark.parametrize("stream", [False, True])
@on_both_loops
async def test_a_lost_client_frees_its_slot_after_the_poll(stream):
    settings = ServerSettings(slots=1, disconnect_poll_s=0.6, **FOREVER)
    async with serving(settings) as (handle, session):
        request = asyncio.create_task(post_text_json(session, ask(stream=stream)))
        await until(running(handle, 1), "it never ran")
        request.cancel()
        cancelled = time.monotonic()
        await asyncio.sleep(0.1)
        assert handle.stats()["running"] == 1
        await until(running(handle, 0), "the slot was never freed")
        assert time.monotonic() - cancelled < patient(1.5)
        await until(lambda: handle.stats()["disconnects"] == 1, "the loss was not counted")
        assert handle.stats()["completions"] == 0


async def post_text_json(session: aiohttp.ClientSession, body: Any) -> str:
    async with session.post(CHAT, json=body) as response:
        return await response.text()


async def test_a_waiting_client_that_leaves_gives_up_its_place():
    settings = ServerSettings(slots=1, disconnect_poll_s=0.05, **FOREVER)
    async with serving(settings) as (handle, session):
        first = asyncio.create_task(post(session, ask("one")))
        await until(running(handle, 1), "the first never ran")
        second = asyncio.create_task(post(session, ask("two")))
        await until(running(handle, 1, 1), "the second does not wait")
        second.cancel()
        await until(running(handle, 1), "the second still waits")
        first.cancel()


async def test_streams_of_some_versions_run_on_without_their_client():
    settings = ServerSettings(version="0.5.18", disconnect_poll_s=0.02, **FOREVER)
    async with serving(settings) as (handle, session):
        request = asyncio.create_task(post_text_json(session, ask(stream=True)))
        await until(running(handle, 1), "it never ran")
        request.cancel()
        await asyncio.sleep(0.3)
        assert handle.stats()["running"] == 1


async def test_idle_connections_are_closed():
    async with running_simulators(instant_settings(keepalive_s=0.2)) as (handle,):
        host, port = handle.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"}]}")
        begun = time.monotonic()
        assert await asyncio.wait_for(reader.read(), patient(5)) == b""
        assert 0.1 < time.monotonic() - begun < patient(3)
        writer.close()


def test_idle_connections_last_five_seconds_unless_told_otherwise():
    assert ServerSettings().keepalive_s == 5.0


# Streams


async def test_streams_come_piece_by_piece():
    async with serving(ServerSettings(time_scale=1, tokens_per_s=100)) as (_, session):
        begun, times = time.monotonic(), []
        body = ask(stream=True, max_tokens=160, ignore_eos=True, stream_options={"include_usage": True})
        async with session.post(CHAT, json=body) as response:
            assert response.headers["Content-Type"].startswith("text/event-stream")
            lines = []
            async for line in response.content:
                if line.strip():
                    lines.append(line.strip())
                    times.append(time.monotonic() - begun)
        assert lines[-1] == b"data: [DONE]"
        usage = json.loads(lines[-2].removeprefix(b"data: "))["usage"]
        assert usage["completion_tokens"] == 160
        assert times[-1] - times[2] > 0.5


async def test_an_aborted_stream_says_so():
    async with serving(ServerSettings(**FOREVER)) as (handle, session):
        request = asyncio.create_task(post_text_json(session, ask(rid="s1", stream=True)))
        await until(running(handle, 1), "it never ran")
        await session.post("/abort_request", json={"rid": "s1"})
        lines = (await request).strip().split("\n\n")
        assert json.loads(lines[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "abort"
        assert lines[-1] == "data: [DONE]"


async def test_a_stream_of_generate_is_cumulative():
    async with serving(instant_settings()) as (_, session):
        body = {"text": "Once", "sampling_params": {"max_new_tokens": 200}, "stream": True}
        async with session.post("/generate", json=body) as response:
            lines = (await response.text()).strip().split("\n\n")
        texts = [json.loads(line.removeprefix("data: "))["text"] for line in lines[:-1]]
        assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
        assert len(texts) > 2


# Faults


@on_both_loops
async def test_refused_connections_then_starting_then_ready():
    faults = (
        Fault(kind=FaultKind.REFUSE, seconds=0.4),
        Fault(kind=FaultKind.STARTING, seconds=1.5),
    )
    async with serving(instant_settings(), *faults) as (handle, session):
        with pytest.raises(aiohttp.ClientConnectorError) as caught:
            await post(session, ask())
        assert caught.value.errno == errno.ECONNREFUSED
        await until(lambda: handle.stats()["states"] == ["starting"], "it still refuses")
        await eventually_connects(session)
        assert (await get(session, "/health"))[0] == 503
        assert (await get(session, "/ready"))[0] == 503
        assert (await post(session, ask()))[0] == 200
        await until(lambda: handle.stats()["states"] == [], "it never got ready")
        assert (await get(session, "/health"))[0] == 200


async def eventually_connects(session: aiohttp.ClientSession) -> None:
    deadline = time.monotonic() + patient(5)
    while True:
        try:
            await get(session, "/v1/models")
        except aiohttp.ClientConnectorError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        else:
            return


@on_both_loops
async def test_going_down_resets_what_is_in_flight():
    async with serving(ServerSettings(**FOREVER)) as (handle, session):
        request = asyncio.create_task(post(session, ask()))
        await until(running(handle, 1), "it never ran")
        handle.set_faults(Fault(kind=FaultKind.REFUSE))
        with pytest.raises(BROKEN):
            await request
        with pytest.raises(aiohttp.ClientConnectorError):
            await post(session, ask())
        assert running(handle, 0)()
        handle.set_faults()
        await eventually_connects(session)


@on_both_loops
async def test_a_prompt_that_kills_the_server():
    fault = Fault(kind=FaultKind.KILL, containing="BOOM", seconds=0.3)
    async with serving(ServerSettings(**FOREVER), fault) as (handle, session):
        neighbour = asyncio.create_task(post(session, ask("harmless")))
        await until(running(handle, 1), "the neighbour never ran")
        with pytest.raises(BROKEN):
            await post(session, ask("now BOOM"))
        with pytest.raises(BROKEN):
            await neighbour
        with pytest.raises(aiohttp.ClientConnectorError):
            await post(session, ask("harmless"))
        await eventually_connects(session)
        stats = handle.stats()
        assert stats["faults"] == {"kill": 1, "refuse": 1}
        assert (stats["running"], stats["in_flight"]) == (0, 0)


async def test_loading_llamacpp_refuses_everything():
    fault = Fault(kind=FaultKind.STARTING)
    async with serving(instant_settings(dialect="llamacpp"), fault) as (_, session):
        for path in ("/health", "/v1/models", "/props"):
            status, body = await get(session, path)
            assert (status, body["error"]["message"]) == (503, "Loading model")


async def test_draining_still_takes_work():
    async with serving(instant_settings(), Fault(kind=FaultKind.DRAINING)) as (_, session):
        assert (await get(session, "/health"))[0] == 503
        assert (await post(session, ask()))[0] == 200


async def test_vllm_drains_in_good_health_and_fails_all_that_is_new():
    settings = instant_settings(dialect="vllm")
    async with serving(settings, Fault(kind=FaultKind.DRAINING)) as (_, session):
        assert (await get(session, "/health"))[0] == 200
        status, body = await post(session, ask())
        assert (status, body["error"]["message"]) == (500, "cannot schedule new futures after shutdown")


async def test_prompts_are_counted_as_they_would_be_read():
    for settings in (instant_settings(), instant_settings(dialect="vllm")):
        async with serving(settings) as (_, session):
            _, answer = await post(session, ask())
            _, counted = await post(session, {"messages": ask()["messages"]}, "/tokenize")
            assert counted["count"] == len(counted["tokens"]) == answer["usage"]["prompt_tokens"]
            assert (await post(session, {"prompt": 7}, "/tokenize"))[0] == 400


async def test_a_stuck_server_is_silent_but_lists_its_models():
    settings = instant_settings(health_timeout_s=0.05)
    async with serving(settings, Fault(kind=FaultKind.STUCK)) as (handle, session):
        request = asyncio.create_task(post(session, ask()))
        await until(running(handle, 1), "it never ran")
        told = asyncio.create_task(get(session, "/server_info"))
        assert (await get(session, "/health"))[0] == 503
        assert (await get(session, "/v1/models"))[0] == 200
        assert not request.done()
        assert not told.done()
        handle.set_faults()
        assert (await request)[0] == 200
        assert (await told)[0] == 200


async def test_a_hanging_request_holds_a_slot_until_its_client_leaves():
    settings = instant_settings(slots=1, disconnect_poll_s=0.05)
    async with serving(settings, Fault(kind=FaultKind.HANG, first=1)) as (handle, session):
        request = asyncio.create_task(post(session, ask()))
        await until(running(handle, 1), "it never ran")
        assert (await post(session, ask()))[0] == 200
        assert not request.done()
        request.cancel()
        await until(running(handle, 0), "the slot was never freed")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind=FaultKind.RESET),
        Fault(kind=FaultKind.RESET_MID),
        Fault(kind=FaultKind.TRUNCATED_BODY),
        Fault(kind=FaultKind.HANG, seconds=0.05),
    ],
    ids=lambda fault: fault.kind,
)
@on_both_loops
async def test_connections_that_break(fault, stream):
    async with serving(instant_settings(), fault) as (handle, session):
        with pytest.raises(BROKEN):
            await post_text_json(session, ask(stream=stream, max_tokens=900))
        assert handle.stats()["faults"] == {fault.kind.value: 1}
        await until(lambda: handle.stats()["in_flight"] == 0, "the request is still counted")
        handle.set_faults()
        assert (await post(session, ask()))[0] == 200


async def test_truncated_bodies_begin_as_they_should():
    async with serving(instant_settings(), Fault(kind=FaultKind.TRUNCATED_BODY)) as (_, session):
        async with session.post(CHAT, json=ask(max_tokens=900)) as response:
            assert response.status == 200
            whole = int(response.headers["Content-Length"])
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
        assert whole > 1000


@pytest.mark.parametrize(
    ("kind", "status", "kind_of_error"),
    [
        (FaultKind.ERROR_500, 500, "InternalServerError"),
        (FaultKind.QUEUE_FULL, 503, "503"),
        (FaultKind.RATE_LIMIT, 429, "RateLimitError"),
        (FaultKind.WRONG_MODEL, 404, "NotFoundError"),
    ],
)
async def test_refusing_faults(kind, status, kind_of_error):
    async with (
        serving(instant_settings(), Fault(kind=kind, seconds=7)) as (handle, session),
        session.post(CHAT, json=ask()) as response,
    ):
        assert response.status == status
        assert (await response.json())["type"] == kind_of_error
        assert response.headers.get("Retry-After") == ("7" if kind is FaultKind.RATE_LIMIT else None)
        assert handle.stats()["refused"] == {str(status): 1}


async def test_success_that_is_not_json():
    async with (
        serving(instant_settings(), Fault(kind=FaultKind.NOT_JSON)) as (_, session),
        session.post(CHAT, json=ask()) as response,
    ):
        assert response.status == 200
        assert (await response.text()).startswith("<html>")


async def test_slow_answers():
    async with serving(instant_settings(), Fault(kind=FaultKind.SLOW, seconds=0.3)) as (_, session):
        begun = time.monotonic()
        assert (await post(session, ask()))[0] == 200
        assert time.monotonic() - begun >= 0.29


async def test_the_earlier_disaster():
    fault = Fault(kind=FaultKind.BOILERPLATE, share=0.87)
    async with serving(instant_settings(), fault) as (_, session):
        answers = [await post(session, ask(f"prompt {number}", max_tokens=4096)) for number in range(200)]
        short = [body for _, body in answers if body["usage"]["completion_tokens"] == 6]
        assert len(short) / 200 == pytest.approx(0.87, abs=0.08)
        assert len({body["choices"][0]["message"]["content"] for body in short}) <= 3


async def test_faults_change_over_http():
    async with running_simulators(instant_settings(), count=2) as handles, aiohttp.ClientSession() as session:
        faults = [{"kind": "error_500", "server": 1}, {"kind": "empty", "server": 0}]
        for handle in handles:
            async with session.post(handle.url + "/sim/faults", json=faults) as response:
                assert response.status == 200
        await until(lambda: all(handle.faults for handle in handles), "the faults were not set")
        statuses = []
        for handle in handles:
            async with session.post(handle.url + CHAT, json=ask()) as response:
                statuses.append(response.status)
        assert statuses == [200, 500]
        async with session.get(handles[1].url + "/sim/faults") as response:
            assert [fault["kind"] for fault in await response.json()] == ["error_500"]
        async with session.post(handles[0].url + "/sim/faults", json=[{"kind": "nonsense"}]) as response:
            assert response.status == 400
        async with session.post(handles[0].url + "/sim/reset") as response:
            assert response.status == 200
        assert handles[0].stats()["requests"] == 0


# The command


@pytest.fixture
def simulate():
    started: list[subprocess.Popen[str]] = []

    def start(*options: str) -> subprocess.Popen[str]:
        code = "from ops.simulator.cli import simulate; simulate()"
        process = subprocess.Popen(
            [sys.executable, "-c", code, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def lines_of(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().strip() for _ in range(count)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_command_serves_until_it_is_told_to_stop(simulate, number):
    process = simulate(
        "--servers", "3", "--port", "0", "--slots", "5", "--model", "tiny", "--fault", "hang:first=1"
    )
    urls = await asyncio.to_thread(lines_of, process, 3)
    assert len(set(urls)) == 3
    async with aiohttp.ClientSession() as session:
        for url in urls:
            async with session.get(f"{url}/v1/models") as response:
                assert (await response.json())["data"][0]["id"] == "tiny"
        hanging = asyncio.create_task(session.post(urls[0] + CHAT, json=ask()))
        await until_hanging(session, urls[0])
        process.send_signal(number)
        assert await asyncio.to_thread(process.wait, patient(5)) == 0
        with pytest.raises(BROKEN):
            await hanging
    assert process.stderr is not None
    assert process.stderr.read() == ""


async def until_hanging(session: aiohttp.ClientSession, url: str) -> None:
    deadline = time.monotonic() + patient(5)
    while True:
        async with session.get(f"{url}/sim/stats") as response:
            if (await response.json())["running"] == 1:
                return
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_command_takes_consecutive_ports_and_says_when_one_is_taken(simulate):
    async with running_simulators(instant_settings()) as (handle,):
        port = handle.url.rsplit(":", 1)[1]
        process = simulate("--port", port)
        assert await asyncio.to_thread(process.wait, patient(10)) == 1
        assert process.stderr is not None
        assert port in process.stderr.read()


def test_command_refuses_unknown_faults(simulate):
    process = simulate("--fault", "explode")
    assert wait_for(lambda: process.poll() is not None, "the command goes on")
    assert process.returncode == 2
    assert process.stderr is not None
    assert "boilerplate" in process.stderr.read()
