"""How many requests to keep in flight: the table, and simulated servers that the number must settle on."""

from __future__ import annotations

import heapq
import math
from collections import deque
from random import Random

import pytest

from consumers.client.info import ServerInfo
from consumers.client.load import Load
from consumers.concurrency import (
    DEFAULT_CONCURRENCY,
    MOST_WAITING,
    Answered,
    Climb,
    Pace,
    by_latency,
    by_load,
    first_target,
    pace_of,
    with_queue,
)


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


@pytest.mark.parametrize(("limit", "most"), [(1, 2), (16, 19), (64, 76), (128, 153)])
def test_a_queue_seen_empty_grows_to_the_most_that_may_wait_and_no_further(limit, most):
    target = with_queue(limit)
    for _ in range(20):
        load = Load(source="/v1/loads", running=limit, waiting=0, max_running=limit)
        target = by_load(target, load, in_flight=target)
    assert target == most


def test_a_queue_that_is_not_told_is_not_taken_to_be_empty():
    load = Load(source="/slots", running=64, max_running=64)
    assert by_load(71, load, in_flight=71) == 71


def test_a_server_shared_with_others_gets_less():
    load = Load(source="/v1/loads", running=48, waiting=60, max_running=48)
    assert by_load(53, load, in_flight=53) < 53


class Silent:
    """A server that tells nothing, and its consumer, in simulated time: answers of lognormal lengths."""

    def __init__(
        self,
        slots: int,
        *,
        first_token_s: float = 0.04,
        noise: float = 0.0,
        equal: bool = False,
        slower: float = 0.0,
    ) -> None:
        self.random = Random(slots)
        self.slots, self.first_token_s, self.noise, self.equal = slots, first_token_s, noise, equal
        self.slower = slower  # by how much each running request slows the others down
        self.per_token_s = slots / 40 / 260
        self.now, self.running, self.waiting = 1.0, [], deque()
        self.answers: deque[Answered] = deque(maxlen=1000)
        self.climb = Climb(DEFAULT_CONCURRENCY)
        self.busy = 0.0

    def run(self, seconds: float) -> None:
        until, look = self.now + seconds, self.now
        while self.now < until:
            while len(self.running) + len(self.waiting) < self.climb.target:
                tokens = 260 if self.equal else round(200 * math.exp(self.random.gauss(0, 0.7)))
                self.waiting.append((self.now, max(8, tokens)))
            while self.waiting and len(self.running) < self.slots:
                sent, tokens = self.waiting.popleft()
                slower = math.exp(self.random.gauss(0, self.noise)) * (1 + self.slower * len(self.running))
                ends = self.now + self.first_token_s + tokens * self.per_token_s * slower
                heapq.heappush(self.running, (ends, sent, tokens))
            after = min(self.running[0][0], look)
            self.busy += len(self.running) * (after - self.now)
            self.now = after
            if after < look:
                _, sent, tokens = heapq.heappop(self.running)
                self.answers.append(Answered(sent, after - sent, tokens))
                continue
            in_flight = len(self.running) + len(self.waiting)
            self.climb = by_latency(self.climb, self.answers, now=self.now, in_flight=in_flight)
            look += 2.0

    def share_busy(self, seconds: float) -> float:
        before = self.busy
        begun = self.now
        self.run(seconds)
        return (self.busy - before) / (self.now - begun) / self.slots


@pytest.mark.parametrize("slots", [16, 48, 128])
@pytest.mark.parametrize("noise", [0.0, 0.15])
def test_where_nothing_is_told_it_settles_within_a_minute_on_a_short_queue(slots, noise):
    server = Silent(slots, noise=noise)
    server.run(60)
    assert server.share_busy(30) > 0.98
    assert slots <= server.climb.target <= slots * (1 + MOST_WAITING)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("slots", [16, 48])
def test_chance_leaves_no_slot_empty(slots, seed):
    server = Silent(slots, noise=0.1)
    server.random.seed(seed)
    server.run(60)
    assert server.share_busy(20) > 0.98


@pytest.mark.parametrize("slots", [16, 48, 128])
def test_long_prompts_do_not_look_like_a_queue_for_long(slots):
    server = Silent(slots, first_token_s=0.35 * slots / 40)
    server.run(120)
    assert server.share_busy(30) > 0.98


def test_slots_that_slow_one_another_down_are_filled_all_the_same():
    server = Silent(128, slower=0.01)
    server.run(90)
    assert server.share_busy(30) > 0.98
    assert server.climb.target <= 128 * (1 + MOST_WAITING)


def test_answers_of_one_length_are_climbed_by_their_rate():
    server = Silent(128, equal=True)
    server.run(60)
    assert server.share_busy(30) > 0.98
    assert server.climb.target <= 128 * 1.25


@pytest.mark.parametrize(("before", "after"), [(48, 16), (48, 128), (128, 64)])
def test_where_nothing_is_told_a_changed_limit_is_followed(before, after):
    server = Silent(before)
    server.run(60)
    server.slots = after
    server.run(60)
    assert server.share_busy(30) > 0.98
    assert server.climb.target <= after * (1 + MOST_WAITING)


def test_a_window_in_which_the_number_was_not_in_flight_proves_nothing():
    server = Silent(48)
    server.run(3)
    before = server.climb
    after = by_latency(before, server.answers, now=100.0, in_flight=before.target // 2)
    assert (after.target, after.since) == (before.target, 100.0)


def test_the_pace_tells_the_wait_from_the_tokens_own_time():
    found = pace_of([Answered(0.0, 2.0 + 0.01 * tokens, tokens) for tokens in (8, 50, 300, 4000)])
    assert (found.wait_s, found.token_s) == pytest.approx((2.0, 0.01))
    assert pace_of([Answered(0.0, 3.0, 300)] * 20) == Pace(0.0, pytest.approx(0.01))
