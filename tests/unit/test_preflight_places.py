"""Preflight on Redis, the output and the working folder."""

from __future__ import annotations

import msgspec
import pytest

from common.storage import StorageReport
from common.storage.base import CreateOnce
from common.store.connection import RedisFacts
from ops.preflight.place_checks import (
    GIB,
    check_output,
    check_redis,
    check_state_room,
    job_bytes,
    output_bytes,
    size_words,
    unreachable_redis,
)
from ops.preflight.values import Status

REDIS = RedisFacts(
    version="7.4.1",
    server="Redis",
    run_id="x",
    policy="noeviction",
    aof=True,
    used_memory=1 << 20,
    max_memory=4 * GIB,
    listpack_value=4096,
)
GOOD = {"version": "pass", "append-only file": "pass", "compact hashes": "pass", "memory": "pass"}


def statuses(checks):
    return {check.name: check.status.value for check in checks}


@pytest.mark.parametrize(
    ("changes", "differs"),
    [
        ({}, {}),
        ({"version": "6.2.1"}, {"version": "fail"}),
        ({"version": "7.0.15"}, {"version": "warn"}),
        ({"version": "7.2.0"}, {}),
        ({"server": "Valkey", "version": "7.2.5"}, {}),
        ({"server": "Valkey", "version": "9.0.0"}, {}),
        ({"policy": "allkeys-lru"}, {"version": "fail"}),
        ({"policy": "volatile-ttl"}, {"version": "fail"}),
        ({"policy": None}, {"version": "warn"}),
        ({"aof": False}, {"append-only file": "warn"}),
        ({"listpack_value": 64}, {"compact hashes": "warn"}),
        ({"listpack_value": None}, {"compact hashes": "skip"}),
        ({"max_memory": 64 << 20}, {"memory": "warn"}),
        ({"max_memory": 0}, {}),
        ({"max_memory": 0, "system_memory": 64 << 20}, {"memory": "warn"}),
        ({"max_memory": 0, "system_memory": 4 * GIB}, {}),
        ({"used_memory": 4 * GIB - (70 << 20)}, {"memory": "warn"}),
    ],
)
def test_redis(changes, differs):
    facts = msgspec.structs.replace(REDIS, **changes)
    assert statuses(check_redis(facts, jobs=50_000, prompt_bytes=1200.0)) == GOOD | differs


def test_without_an_input_memory_is_not_reckoned():
    assert statuses(check_redis(REDIS, jobs=None, prompt_bytes=None))["memory"] == "skip"


def test_long_prompts_gain_nothing_by_compact_hashes():
    facts = msgspec.structs.replace(REDIS, listpack_value=64)
    assert statuses(check_redis(facts, jobs=10, prompt_bytes=9000.0))["compact hashes"] == "pass"


def test_every_remark_says_what_to_do():
    bad = msgspec.structs.replace(REDIS, policy="allkeys-lru", aof=False, listpack_value=64, max_memory=1)
    checks = check_redis(bad, jobs=50_000, prompt_bytes=1200.0)
    assert all(check.remedy for check in checks)
    assert unreachable_redis("no").status is Status.FAIL


@pytest.mark.parametrize(
    ("size", "listpack", "measured"),
    [
        (100, 4096, 612),
        (1200, 4096, 1717),
        (3500, 4096, 4027),
        (100, 64, 949),
        (1200, 64, 2047),
        (3500, 64, 4356),
    ],
)
def test_the_size_of_a_job_is_near_what_was_measured(size, listpack, measured):
    assert job_bytes(size, listpack) == pytest.approx(measured, rel=0.05)


REPORT = StorageReport(
    url="s3://bucket/x",
    writable=True,
    readable=True,
    listable=True,
    create_once=CreateOnce.ENFORCED,
    latency_s=0.02,
    clock_skew_s=1.0,
)


@pytest.mark.parametrize(
    ("changes", "expected", "found"),
    [
        ({}, None, [("storage", "pass")]),
        ({"warnings": ("If-None-Match is ignored",)}, None, [("storage", "warn")]),
        ({"problems": ("may not write",)}, None, [("storage", "fail")]),
        ({"problems": ("a", "b")}, None, [("storage", "fail"), ("storage", "fail")]),
        ({"free_bytes": GIB}, None, [("storage", "pass"), ("room", "pass")]),
        ({"free_bytes": GIB}, GIB / 2, [("storage", "pass"), ("room", "pass")]),
        ({"free_bytes": GIB}, 2 * GIB, [("storage", "pass"), ("room", "warn")]),
        ({"free_bytes": GIB, "problems": ("a",)}, 2 * GIB, [("storage", "fail")]),
    ],
)
def test_output(changes, expected, found):
    checks = check_output(msgspec.structs.replace(REPORT, **changes), expected_bytes=expected)
    assert [(check.name, check.status.value) for check in checks] == found


def test_the_output_of_the_real_job_is_some_gigabytes():
    assert 2 * GIB < output_bytes(902_087, 1200, 1820) < 4 * GIB


@pytest.mark.parametrize(("free", "status"), [(100 << 20, "fail"), (GIB, "warn"), (2 * GIB, "pass")])
def test_room_for_the_embedded_redis(free, status):
    check = check_state_room(free, "/somewhere", jobs=50_000, prompt_bytes=1200)
    assert check.status.value == status


@pytest.mark.parametrize(
    ("size", "words"), [(0, "0 MiB"), (5 << 20, "5 MiB"), (GIB, "1.0 GiB"), (1500 * GIB, "1,500.0 GiB")]
)
def test_sizes_read_well(size, words):
    assert size_words(size) == words
