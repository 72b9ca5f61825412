"""Preflight on servers: each for itself, and all against each other."""

from __future__ import annotations

import msgspec
import pytest

from common.settings import GenerationSettings
from consumers.client.health import Health, HealthState
from consumers.client.info import Dialect, ServerInfo
from consumers.client.load import Load
from ops.preflight.forecast import check_timeout
from ops.preflight.known import known_faults
from ops.preflight.server_checks import Asked, check_health, check_server, check_together
from ops.preflight.values import Answer, ServerFacts

URL = "http://one"
INFO = ServerInfo(
    dialect=Dialect.SGLANG,
    version="0.5.23",
    model="qwen3.6-27b",
    context_length=65_536,
    kv_tokens=400_000,
    effective_running=48,
    requested_running=48,
    reasoning_parser="qwen3",
    speculative_algorithm="EAGLE",
    speculative_steps=3,
    speculative_topk=1,
    draft_tokens=4,
    reserved_tokens=4,
    accept_length=3.1,
)
GOOD = {
    "reachable": "pass",
    "version": "pass",
    "model": "pass",
    "context": "pass",
    "reasoning parser": "pass",
    "speculation": "pass",
    "runs at once": "pass",
    "concurrency": "pass",
}


def facts(url: str = URL, **changes) -> ServerFacts:
    info = msgspec.structs.replace(INFO, **changes)
    return ServerFacts(url=url, health=Health(HealthState.READY), info=info)


def asked(concurrency: int = 0, **generation) -> Asked:
    return Asked(generation=GenerationSettings(**generation), concurrency=concurrency)


def statuses(checks):
    return {check.name: check.status.value for check in checks}


@pytest.mark.parametrize(
    ("changes", "differs"),
    [
        ({}, {}),
        ({"reasoning_parser": None}, {"reasoning parser": "warn"}),
        ({"effective_running": 16, "requested_running": 64}, {"runs at once": "warn"}),
        ({"effective_running": None}, {"runs at once": "skip", "concurrency": "skip"}),
        ({"requested_running": None}, {}),
        ({"context_length": None}, {"context": "skip"}),
        ({"kv_tokens": 30_000}, {"context": "warn"}),
        ({"accept_length": None}, {}),
        ({"accept_length": 1.02}, {"speculation": "warn"}),
        ({"speculative_algorithm": None}, {}),
        ({"version": "0.5.24"}, {"version": "warn"}),
        ({"version": "0.4.9"}, {"version": "warn"}),
        ({"version": "0.5.14"}, {"version": "warn"}),
        ({"version": "0.5.16"}, {"version": "warn"}),
        ({"version": "0.5.18"}, {}),
        ({"load": Load(source="x", running=0, waiting=0)}, {}),
        ({"load": Load(source="x", running=3, waiting=1)}, {"load": "warn"}),
        ({"max_queued": 2}, {"queue": "warn"}),
        ({"max_queued": 200}, {}),
    ],
)
def test_a_server(changes, differs):
    assert statuses(check_server(facts(**changes), asked())) == GOOD | differs


@pytest.mark.parametrize(
    ("concurrency", "generation", "differs"),
    [
        (48, {}, {}),
        (60, {}, {}),
        (64, {}, {"concurrency": "warn"}),
        (16, {}, {"concurrency": "warn"}),
        (0, {"model": "qwen3.6-27b"}, {}),
        (0, {"model": "qwen3.6-27b:adapter"}, {}),
        (0, {"model": "qwen3-8b"}, {"model": "warn"}),
        (0, {"min_p": 0.05}, {"min-p": "warn"}),
    ],
)
def test_a_server_against_what_is_asked_of_it(concurrency, generation, differs):
    assert statuses(check_server(facts(), asked(concurrency, **generation))) == GOOD | differs


def test_64_asked_of_a_server_that_runs_16_is_named_with_both_numbers():
    checks = check_server(facts(effective_running=16, requested_running=64), asked(64))
    by_name = {check.name: check for check in checks}
    assert "16 requests, though it was started for 64" in by_name["runs at once"].detail
    assert "64 in flight at a server that runs 16: 48 only wait" in by_name["concurrency"].detail
    assert "--concurrency auto" in by_name["concurrency"].remedy


def test_without_thinking_no_parser_is_needed():
    checks = check_server(facts(reasoning_parser=None), asked(thinking=False))
    assert "reasoning parser" not in statuses(checks)


@pytest.mark.parametrize("dialect", [Dialect.VLLM, Dialect.LLAMA_CPP])
def test_engines_that_do_not_tell_their_parser_are_not_blamed(dialect):
    info = ServerInfo(dialect=dialect, version="1.0.0", model="m", context_length=4096)
    one = ServerFacts(url=URL, health=Health(HealthState.READY), info=info)
    assert "warn" not in statuses(check_server(one, asked())).values()


def test_an_unknown_engine_is_a_warning():
    one = ServerFacts(url=URL, health=Health(HealthState.READY), info=ServerInfo(model="m"))
    assert statuses(check_server(one, asked()))["version"] == "warn"


@pytest.mark.parametrize("state", [s for s in HealthState if s is not HealthState.READY])
def test_a_server_that_takes_no_work_fails_but_is_waited_for_by_a_run(state):
    down = ServerFacts(url=URL, health=Health(state, "why"))
    for waits, status in ((False, "fail"), (True, "warn")):
        check = check_health(down, waits=waits)
        assert (check.status.value, check.detail) == (status, "why")
        assert check.remedy


def test_a_server_that_refuses_the_key_fails_in_a_run_too():
    shut = ServerFacts(url=URL, health=Health(HealthState.READY), fault="refused", refused_key=True)
    check = check_health(shut, waits=True)
    assert check.status.value == "fail"
    assert "SGLANG_API_KEY" in check.remedy


def test_a_server_that_does_not_tell_about_itself_is_not_ready():
    silent = ServerFacts(url=URL, health=Health(HealthState.READY), fault="no word")
    assert statuses(check_server(silent, asked())) == {"reachable": "fail"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"same model": "pass"}),
        ({"model": "qwen3-8b"}, {"same model": "fail"}),
        ({"version": "0.5.18"}, {"same model": "pass", "versions": "warn"}),
        ({"context_length": 32_768}, {"same model": "pass", "contexts": "warn"}),
    ],
)
def test_servers_against_each_other(changes, expected):
    assert statuses(check_together([facts(), facts("http://two", **changes)])) == expected


def test_a_dead_server_is_not_another_model():
    dead = ServerFacts(url="http://two", health=Health(HealthState.UNREACHABLE))
    assert statuses(check_together([facts(), dead])) == {"same model": "pass"}
    assert check_together([dead, dead]) == []


def test_one_server_has_none_to_differ_from():
    assert check_together([facts()]) == []


@pytest.mark.parametrize(
    ("version", "changes", "count"),
    [
        ("0.5.11", {}, 2),
        ("0.5.12", {}, 2),
        ("0.5.13", {}, 1),
        ("0.5.15", {}, 1),
        ("0.5.15", {"speculative_algorithm": None}, 0),
        ("0.5.15.post1", {}, 1),
        ("0.5.16", {}, 1),
        ("0.5.17", {}, 0),
        ("0.5.13", {"model": "Qwen3.6-35B-A3B"}, 2),
        (None, {}, 0),
        ("0.5.13", {"dialect": Dialect.VLLM}, 0),
    ],
)
def test_known_faults(version, changes, count):
    info = msgspec.structs.replace(INFO, version=version, **changes)
    assert len(known_faults(info)) == count


@pytest.mark.parametrize(
    ("tokens", "took", "timeout", "warns"),
    [(100, 1.0, 3600, False), (100, 1.0, 40, True), (10, 10.0, 3600, True), (None, 1.0, 1, False)],
)
def test_a_request_must_have_time_for_its_longest_answer(tokens, took, timeout, warns):
    one = msgspec.structs.replace(facts(), canary=Answer(began=0, took=took, tokens=tokens))
    wanted = msgspec.structs.replace(asked(48), request_timeout=timeout)
    assert bool(check_timeout(one, wanted)) == warns


def test_waiting_in_the_queue_counts_towards_the_timeout():
    one = msgspec.structs.replace(facts(effective_running=16), canary=Answer(began=0, took=1.0, tokens=100))
    wanted = msgspec.structs.replace(asked(64), request_timeout=100)
    [check] = check_timeout(one, wanted)
    assert "164 s" in check.detail
