"""The client on real sockets, and everything that can happen to a connection."""

from __future__ import annotations

import asyncio
import socket

import pytest
from support.both_loops import on_both_loops
from support.wait import patient
from support.wire_stub import Asked, Wire, WireStub, reply

from common.errors import ServerError, UsageError
from common.records import Message, PromptJob
from common.settings import GenerationSettings
from consumers.client import http, transport
from consumers.client.health import HealthState
from consumers.client.http import InferenceClient
from consumers.client.info import Dialect, ServerInfo
from consumers.client.outcome import SLOT_RELEASE_S, Failure, FailureKind, Success
from consumers.client.request import build_request
from consumers.client.transport import base_url, new_rid

COMPLETION = {
    "id": "x",
    "model": "m",
    "choices": [{"message": {"content": "a", "reasoning_content": "t"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2},
}


def asking(prompt: str = "Hi", dialect: Dialect = Dialect.SGLANG):
    job = PromptJob(index=0, id="p", messages=[Message("user", prompt)])
    return build_request(job, GenerationSettings(), ServerInfo(dialect=dialect, version="0.5.23"))


async def answer(asked: Asked, wire: Wire) -> bytes:
    return reply(200, COMPLETION)


@pytest.fixture(autouse=True)
def a_busy_machine_is_not_late(monkeypatch):
    monkeypatch.setattr(http, "STALE_WITHIN_S", 30.0)


async def silence(asked: Asked, wire: Wire) -> None:
    await asyncio.Event().wait()


def rids(stub: WireStub) -> list[str]:
    return [asked.json["rid"] for asked in stub.asked if asked.path == "/v1/chat/completions"]


def failed(outcome, kind: FailureKind) -> Failure:
    assert isinstance(outcome, Failure), outcome
    assert outcome.kind is kind, outcome
    return outcome


@on_both_loops
async def test_answers_come_over_one_kept_connection_under_new_ids():
    async with WireStub(answer) as stub, InferenceClient(f"{stub.url}/v1/") as client:
        for _ in range(3):
            assert isinstance(await client.generate(asking(), 5.0), Success)
        assert stub.connections == 1
        assert {asked.path for asked in stub.asked} == {"/v1/chat/completions"}
        assert stub.asked[0].headers["content-type"] == "application/json"
        assert len(set(rids(stub))) == 3
        assert {len(rid) for rid in rids(stub)} == {32}


@on_both_loops
async def test_many_requests_at_once_are_not_queued_in_the_client():
    together = asyncio.Event()
    waiting = 0

    async def all_or_none(asked: Asked, wire: Wire) -> bytes:
        nonlocal waiting
        waiting += 1
        if waiting == 200:
            together.set()
        await together.wait()
        return reply(200, COMPLETION)

    async with WireStub(all_or_none) as stub, InferenceClient(stub.url) as client:
        outcomes = await asyncio.gather(*(client.generate(asking(), 20.0) for _ in range(200)))
        assert all(isinstance(outcome, Success) for outcome in outcomes)


@on_both_loops
async def test_a_large_prompt_goes_whole():
    prompt = "word " * 500_000
    async with WireStub(answer) as stub, InferenceClient(stub.url) as client:
        assert isinstance(await client.generate(asking(prompt), 20.0), Success)
        assert stub.asked[0].json["messages"][0]["content"] == prompt


@on_both_loops
async def test_nobody_there():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://user:secret@127.0.0.1:{taken.getsockname()[1]}"
        async with InferenceClient(url) as client:
            outcome = failed(await client.generate(asking(), 5.0), FailureKind.UNREACHABLE)
    assert "127.0.0.1" in outcome.message
    assert "secret" not in outcome.message


@pytest.mark.parametrize("how", [Wire.close, Wire.reset])
@on_both_loops
async def test_a_connection_that_ends_before_the_answer(how):
    async def end(asked: Asked, wire: Wire) -> None:
        how(wire)

    async with WireStub(end) as stub, InferenceClient(stub.url) as client:
        failed(await client.generate(asking(), 5.0), FailureKind.DISCONNECTED)
        assert len(stub.asked) == 1, "a fresh connection that breaks is not a stale one"


@pytest.mark.parametrize("how", [Wire.close, Wire.reset])
@pytest.mark.parametrize(
    "part",
    [
        reply(200, COMPLETION)[:-30],
        b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"cho\r\n',
        b"HTTP/1.1 200 OK\r\nContent-Le",
    ],
    ids=["length", "chunked", "head"],
)
@on_both_loops
async def test_an_answer_that_is_cut(how, part):
    async def cut(asked: Asked, wire: Wire) -> bytes | None:
        if len(stub.asked) == 1:
            return reply(200, COMPLETION)
        await wire.send(part)
        if how is Wire.reset:
            await asyncio.sleep(0.05)  # a RST overtakes what was sent and not yet read
        how(wire)
        return None

    async with WireStub(cut) as stub, InferenceClient(stub.url) as client:
        assert isinstance(await client.generate(asking(), 5.0), Success)
        outcome = failed(await client.generate(asking(), 5.0), FailureKind.DISCONNECTED)
        assert "RawResponseMessage" not in outcome.message
        if (
            b"\r\n\r\n" in part or how is Wire.close
        ):  # a RST within the head cannot be told from one before it
            assert len(stub.asked) == 2, "an answer had begun: the request was read"


@pytest.mark.parametrize(
    "garbage",
    [b"hello there\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"],
)
@on_both_loops
async def test_an_answer_that_is_no_http(garbage):
    async def talk(asked: Asked, wire: Wire) -> None:
        await wire.send(garbage)
        await silence(asked, wire)

    async with WireStub(talk) as stub, InferenceClient(stub.url) as client:
        failed(await client.generate(asking(), 5.0), FailureKind.SERVER_FAULT)


@pytest.mark.parametrize("how", [Wire.close, Wire.reset])
@on_both_loops
async def test_a_stale_connection_is_made_good_on_a_fresh_one_under_a_new_id(how):
    async def once_per_connection(asked: Asked, wire: Wire) -> bytes | None:
        if [other.connection for other in stub.asked].count(wire.number) == 1:
            return reply(200, COMPLETION)
        how(wire)
        return None

    async with WireStub(once_per_connection) as stub, InferenceClient(stub.url) as client:
        assert isinstance(await client.generate(asking(), 5.0), Success)
        assert isinstance(await client.generate(asking(), 5.0), Success)
        assert [asked.connection for asked in stub.asked] == [1, 1, 2]
        assert len(set(rids(stub))) == 3


@on_both_loops
async def test_a_stale_connection_is_made_good_once_only():
    async def first_only(asked: Asked, wire: Wire) -> bytes | None:
        if len(stub.asked) == 1:
            return reply(200, COMPLETION)
        wire.close()
        return None

    async with WireStub(first_only) as stub, InferenceClient(stub.url) as client:
        assert isinstance(await client.generate(asking(), 5.0), Success)
        failed(await client.generate(asking(), 5.0), FailureKind.DISCONNECTED)
        assert len(stub.asked) == 3


@on_both_loops
async def test_a_server_that_dies_with_the_request_is_not_taken_for_one_never_reached():
    async def die(asked: Asked, wire: Wire) -> bytes | None:
        if len(stub.asked) == 1:
            return reply(200, COMPLETION)
        stub.stop_listening()
        wire.reset()
        return None

    async with WireStub(die) as stub, InferenceClient(stub.url) as client:
        assert isinstance(await client.generate(asking(), 5.0), Success)
        failed(await client.generate(asking(), 5.0), FailureKind.DISCONNECTED)


@on_both_loops
async def test_a_kept_connection_that_breaks_late_is_not_stale(monkeypatch):
    monkeypatch.setattr(http, "STALE_WITHIN_S", 0.02)

    async def late(asked: Asked, wire: Wire) -> bytes | None:
        if len(stub.asked) == 1:
            return reply(200, COMPLETION)
        await asyncio.sleep(0.1)
        wire.close()
        return None

    async with WireStub(late) as stub, InferenceClient(stub.url) as client:
        assert isinstance(await client.generate(asking(), 5.0), Success)
        failed(await client.generate(asking(), 5.0), FailureKind.DISCONNECTED)
        assert len(stub.asked) == 2


def test_connections_are_kept_for_less_than_servers_keep_theirs():
    assert transport.KEEPALIVE_S < 5.0


@on_both_loops
async def test_an_idle_connection_is_not_used_again(monkeypatch):
    monkeypatch.setattr(transport, "KEEPALIVE_S", 0.05)
    async with WireStub(answer) as stub, InferenceClient(stub.url) as client:
        assert isinstance(await client.generate(asking(), 5.0), Success)
        await asyncio.sleep(0.2)
        assert isinstance(await client.generate(asking(), 5.0), Success)
        assert stub.connections == 2


@on_both_loops
async def test_a_hang_ends_at_the_deadline_and_is_aborted_by_its_id():
    async def hang(asked: Asked, wire: Wire) -> bytes:
        if asked.path == "/abort_request":
            return reply(200)
        return await silence(asked, wire)

    loop = asyncio.get_running_loop()
    async with WireStub(hang) as stub, InferenceClient(stub.url) as client:
        begun = loop.time()
        outcome = failed(await client.generate(asking(), 0.2), FailureKind.TIMEOUT)
        assert 0.2 <= loop.time() - begun < patient(2.0)
        assert outcome.hold_s == SLOT_RELEASE_S
        assert outcome.elapsed_s >= 0.2
        abort = stub.asked[-1]
        assert (abort.path, abort.json) == ("/abort_request", {"rid": rids(stub)[0], "abort_all": False})


@on_both_loops
async def test_an_answer_that_never_ends_meets_the_same_deadline():
    async def drip(asked: Asked, wire: Wire) -> None:
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while True:
            await wire.send(b" ")
            await asyncio.sleep(0.01)

    async with WireStub(drip) as stub, InferenceClient(stub.url) as client:
        failed(await client.generate(asking(dialect=Dialect.VLLM), 0.2), FailureKind.TIMEOUT)
        assert len(stub.asked) == 1, "vLLM has no abort endpoint: closing the connection is the abort"


@on_both_loops
async def test_an_abort_that_hangs_too_does_not_hold_up(monkeypatch):
    monkeypatch.setattr(http, "ABORT_TIMEOUT_S", 0.1)
    async with WireStub(silence) as stub, InferenceClient(stub.url) as client:
        failed(await asyncio.wait_for(client.generate(asking(), 0.1), 5.0), FailureKind.TIMEOUT)


@on_both_loops
async def test_cancelling_is_no_timeout():
    came = asyncio.Event()

    async def hold(asked: Asked, wire: Wire) -> None:
        came.set()
        await silence(asked, wire)

    async with WireStub(hold) as stub, InferenceClient(stub.url) as client:
        task = asyncio.create_task(client.generate(asking(), 60.0))
        await came.wait()
        task.cancel("death")
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert caught.value.args == ("death",)


@on_both_loops
async def test_the_key_is_sent_and_never_told():
    async def echo(asked: Asked, wire: Wire) -> bytes:
        return reply(401, {"error": f"no such key: {asked.headers['authorization']}"})

    async with WireStub(echo) as stub, InferenceClient(stub.url, api_key="canary-key") as client:
        outcome = failed(await client.generate(asking(), 5.0), FailureKind.UNAUTHORIZED)
        assert stub.asked[0].headers["authorization"] == "Bearer canary-key"
        assert "canary-key" not in repr(outcome)
        with pytest.raises(ServerError, match="SGLANG_API_KEY") as caught:
            await client.info()
        assert "canary-key" not in str(caught.value)


@on_both_loops
async def test_retry_after_and_redirects():
    async def refuse(asked: Asked, wire: Wire) -> bytes:
        if len(stub.asked) == 1:
            return reply(503, {"object": "error", "message": "The request queue is full."}, Retry_After="4")
        return reply(307, b"", Location="http://127.0.0.1:1/")

    async with WireStub(refuse) as stub, InferenceClient(stub.url) as client:
        assert failed(await client.generate(asking(), 5.0), FailureKind.OVERLOADED).retry_after == 4.0
        failed(await client.generate(asking(), 5.0), FailureKind.NOT_FOUND)


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://h:30000", "http://h:30000"),
        ("http://h:30000/", "http://h:30000"),
        ("http://h:30000/v1", "http://h:30000"),
        ("http://h:30000/v1/", "http://h:30000"),
        ("https://h/llm/v1", "https://h/llm"),
        ("localhost:30000", "http://localhost:30000"),
        ("http://[::1]:30000", "http://[::1]:30000"),
    ],
)
def test_urls(url, base):
    assert base_url(url) == base


@pytest.mark.parametrize(
    "url", ["", "http://", "ftp://h", "http://h:99999", "http://h:x", "http://[::1", "http://h:0"]
)
def test_urls_that_cannot_be_used(url):
    with pytest.raises(UsageError):
        base_url(url)


def test_ids_never_begin_one_another():
    made = [new_rid() for _ in range(1000)]
    assert len(set(made)) == 1000
    assert {len(rid) for rid in made} == {32}


# Health


def by_path(paths: dict[str, bytes]):
    async def answer_path(asked: Asked, wire: Wire) -> bytes:
        return paths.get(asked.path, reply(404, {"detail": "Not Found"}))

    return answer_path


@on_both_loops
async def test_the_life_of_a_server():
    paths = {"/ready": reply(503)}
    async with WireStub(by_path(paths)) as stub, InferenceClient(stub.url) as client:
        assert (await client.probe()).state is HealthState.STARTING
        paths["/ready"] = reply(200)
        assert (await client.probe()).state is HealthState.READY
        paths["/ready"] = reply(503)
        assert (await client.probe()).state is HealthState.DRAINING
        stub.stop_listening()
        assert (await client.probe()).state is HealthState.UNREACHABLE
        assert {asked.path for asked in stub.asked} == {"/ready"}


@on_both_loops
async def test_older_servers_have_health_only_and_are_not_asked_in_vain_again():
    async with WireStub(by_path({"/health": reply(200)})) as stub, InferenceClient(stub.url) as client:
        for _ in range(3):
            assert (await client.probe()).ready
        assert [asked.path for asked in stub.asked] == ["/ready", "/health", "/health", "/health"]


@on_both_loops
async def test_a_server_without_health_is_asked_for_its_models():
    paths = {"/v1/models": reply(200, {"data": []})}
    async with WireStub(by_path(paths)) as stub, InferenceClient(stub.url) as client:
        assert (await client.probe()).ready


@on_both_loops
async def test_llama_cpp_says_loading_on_every_path():
    loading = reply(503, {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}})
    paths = {"/ready": loading, "/health": loading}
    async with WireStub(by_path(paths)) as stub, InferenceClient(stub.url) as client:
        assert (await client.probe()).state is HealthState.STARTING
        paths.clear()
        paths["/health"] = reply(200, {"status": "ok"})
        assert (await client.probe()).state is HealthState.READY


@on_both_loops
async def test_a_stuck_server_is_unhealthy():
    async with WireStub(silence) as stub, InferenceClient(stub.url) as client:
        assert (await client.probe(0.1)).state is HealthState.UNHEALTHY


@on_both_loops
async def test_a_server_that_comes_back_is_starting_not_draining():
    paths = {"/ready": reply(200)}
    async with WireStub(by_path(paths)) as stub, InferenceClient(stub.url) as client:
        assert (await client.probe()).ready
        stub.stop_listening()
        assert (await client.probe()).state is HealthState.UNREACHABLE
        server = await asyncio.start_server(stub._serve, "127.0.0.1", stub.port)
        paths["/ready"] = reply(503)
        assert (await client.probe()).state is HealthState.STARTING
        server.close()


# Info and load

_FIRST_LOAD = "/v1/loads?include=core,spec"
LOADS = {"loads": [{"num_running_reqs": 2, "num_waiting_reqs": 0, "max_running_requests": 16}]}


def models(owner: str) -> bytes:
    return reply(200, {"data": [{"id": "m", "owned_by": owner, "max_model_len": 2048}]})


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (
            {
                "/v1/models": models("sglang"),
                "/server_info": reply(200, {"version": "0.5.23", "internal_states": []}),
                "/v1/loads?include=core,spec": reply(200, LOADS),
            },
            (Dialect.SGLANG, "0.5.23", 2048, 16, 2),
        ),
        (
            {
                "/v1/models": models("sglang"),
                "/get_server_info": reply(200, {"version": "0.5.11", "internal_states": []}),
                "/get_load": reply(200, [{"num_reqs": 3, "num_waiting_reqs": 1}]),
            },
            (Dialect.SGLANG, "0.5.11", 2048, None, 2),
        ),
        (
            {
                "/v1/models": models("vllm"),
                "/version": reply(200, {"version": "0.32.0"}),
                "/metrics": reply(200, b"vllm:num_requests_running 2\n"),
            },
            (Dialect.VLLM, "0.32.0", 2048, None, 2),
        ),
        (
            {
                "/v1/models": models("llamacpp"),
                "/props": reply(
                    200, {"total_slots": 4, "build_info": "b1", "default_generation_settings": {}}
                ),
                "/metrics": reply(
                    501, {"error": {"message": "not supported", "type": "not_supported_error"}}
                ),
                "/slots": reply(200, [{"is_processing": True}, {"is_processing": True}]),
            },
            (Dialect.LLAMA_CPP, "b1", 2048, 4, 2),
        ),
        (
            {
                "/v1/models": models("organization-owner"),
                "/server_info": reply(200, {"version": "0.5.20", "internal_states": []}),
            },
            (Dialect.SGLANG, "0.5.20", 2048, None, None),
        ),
        ({"/v1/models": models("organization-owner")}, (Dialect.UNKNOWN, None, 2048, None, None)),
    ],
    ids=["sglang", "old sglang", "vllm", "llama.cpp", "sglang behind a router", "anything"],
)
@on_both_loops
async def test_info(paths, expected):
    async with WireStub(by_path(paths)) as stub, InferenceClient(stub.url) as client:
        info = await client.info()
    running = info.load.running if info.load else None
    assert (info.dialect, info.version, info.context_length, info.effective_running, running) == expected


@on_both_loops
async def test_info_of_nobody():
    async with WireStub(silence) as stub:
        stub.stop_listening()
        async with InferenceClient(stub.url) as client:
            with pytest.raises(ServerError, match=r"127\.0\.0\.1.*start the server"):
                await client.info(1.0)


@on_both_loops
async def test_a_stuck_scheduler_does_not_hide_the_rest():
    async def stuck(asked: Asked, wire: Wire) -> bytes:
        return models("sglang") if asked.path == "/v1/models" else await silence(asked, wire)

    async with WireStub(stuck) as stub, InferenceClient(stub.url) as client:
        info = await client.info(0.1)
    assert (info.model, info.version) == ("m", None)


@on_both_loops
async def test_the_load_endpoint_that_tells_is_the_one_asked_again():
    paths = {"/get_load": reply(200, [{"num_reqs": 1, "num_waiting_reqs": 0}])}
    async with WireStub(by_path(paths)) as stub, InferenceClient(stub.url) as client:
        for _ in range(2):
            load = await client.load()
            assert load is not None
            assert load.running == 1
        assert [asked.path for asked in stub.asked][1:] == ["/get_load", "/get_load"]


@on_both_loops
async def test_asking_twice_at_once_skips_no_endpoint():
    paths = {"/get_load": reply(200, [{"num_reqs": 1, "num_waiting_reqs": 0}]), "/health": reply(200)}
    async with WireStub(by_path(paths)) as stub, InferenceClient(stub.url) as client:
        loads = await asyncio.gather(client.load(), client.load(), client.load())
        assert all(load is not None for load in loads)
        assert [health.ready for health in await asyncio.gather(client.probe(), client.probe())] == [
            True,
            True,
        ]
        assert {asked.path for asked in stub.asked} <= {_FIRST_LOAD, "/get_load", "/ready", "/health"}


@on_both_loops
async def test_a_server_without_load_figures_is_not_asked_again():
    async with WireStub(by_path({})) as stub, InferenceClient(stub.url) as client:
        assert await client.load() is None
        asked = len(stub.asked)
        assert await client.load() is None
        assert len(stub.asked) == asked


@on_both_loops
async def test_a_passing_fault_does_not_end_the_asking_for_load():
    paths = {"/v1/loads?include=core,spec": reply(500)}
    async with WireStub(by_path(paths)) as stub, InferenceClient(stub.url) as client:
        assert await client.load() is None
        paths["/v1/loads?include=core,spec"] = reply(200, LOADS)
        load = await client.load()
        assert load is not None
        assert load.max_running == 16


@on_both_loops
async def test_a_client_must_be_opened():
    with pytest.raises(RuntimeError, match="async with"):
        await InferenceClient("http://127.0.0.1:1").generate(asking(), 1.0)
