"""How many requests to keep in flight: the table, and simulated servers that the number must settle on."""

from __future__ import annotations

import pytest

from consumers.client.info import ServerInfo
from consumers.client.load import Load
from consumers.concurrency import MOST_WAITING, Settled, by_load, by_throughput, first_target, with_queue


@pytest.mark.parametrize(
    ("asked", "running", "expected"),
    [(48, 16, 48), (0, 16, 18), (0, 48, 53), (0, 128, 141), (0, 1, 2), (0, None, 48)],
)
def test_the_start_is_what_was_asked_or_the_servers_limit_and_a_short_queue(asked, running, expected):
    assert first_target(asked, ServerInfo(effective_running=running)) == expected


def test_without_any_word_of_the_server_the_start_is_48():
    assert first_target(0, None) == 48


def serve(slots: int, in_flight: int, *, tells_limit: bool) -> Load:
    running = min(slots, in_flight)
    return Load(
        source="/v1/loads",
        running=running,
        waiting=in_flight - running,
        max_running=slots if tells_limit else None,
    )


@pytest.mark.parametrize("slots", [1, 16, 48, 128, 700])
@pytest.mark.parametrize("start", [1, 18, 53, 256])
@pytest.mark.parametrize("tells_limit", [True, False])
def test_it_settles_within_a_minute_on_full_slots_and_a_short_queue(slots, start, tells_limit):
    target = start
    for _ in range(30):  # one look every 2 s
        target = by_load(target, serve(slots, target, tells_limit=tells_limit), target)
    load = serve(slots, target, tells_limit=tells_limit)
    assert load.running == slots
    assert 1 <= load.waiting <= max(1, MOST_WAITING * slots + 1)


def test_a_lower_limit_is_followed_within_seconds():
    target = with_queue(128)
    for _ in range(4):
        target = by_load(target, serve(16, target, tells_limit=True), target)
    assert target <= 16 + 0.25 * 16


def test_while_too_many_are_still_in_flight_the_target_does_not_fall_further():
    load = Load(source="/v1/loads", running=16, waiting=100, max_running=16)
    assert by_load(18, load, in_flight=116) == 18


def test_a_server_shared_with_others_gets_less():
    load = Load(source="/v1/loads", running=48, waiting=60, max_running=48)
    assert by_load(53, load, in_flight=53) < 53


@pytest.mark.parametrize("slots", [16, 48, 128])
def test_where_nothing_is_told_throughput_finds_a_number_that_fills_the_slots(slots):
    state, now, ends = Settled(48), 1.0, 0.0
    for _ in range(4 * 60):
        now += 2.0
        ends += 2.0 * min(slots, state.target) / 1.5  # each slot ends one in 1.5 s
        state = by_throughput(state, now=now, ends=int(ends), in_flight=state.target)
    assert state.base >= min(slots, 48)
    assert state.target <= max(48, 2.1 * slots)
