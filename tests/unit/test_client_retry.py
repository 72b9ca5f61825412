"""What becomes of a failed job, and of the cap on requests in flight."""

from __future__ import annotations

import pytest

from common.records import DeadReason
from consumers.client.outcome import SLOT_RELEASE_S, Failure, FailureKind
from consumers.client.retry import GiveUp, HandBack, Retry, RetryPolicy, backoff_s, decide
from consumers.client.throttle import Throttle, ThrottlePolicy, cap_after_overload, cap_recover

POLICY = RetryPolicy(max_attempts=3, max_deaths=2, base_s=1.0, max_s=8.0, least_s=0.1)


def failed(kind: FailureKind, **fields) -> Failure:
    return Failure(kind=kind, message="words", **fields)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (FailureKind.TOO_LONG, DeadReason.TOO_LONG),
        (FailureKind.BAD_REQUEST, DeadReason.BAD_REQUEST),
        (FailureKind.UNAUTHORIZED, DeadReason.UNAUTHORIZED),
        (FailureKind.NOT_FOUND, DeadReason.BAD_REQUEST),
    ],
)
def test_a_refused_row_is_dead_at_once(kind, reason):
    assert decide(failed(kind), attempts=0, policy=POLICY) == GiveUp(reason, "words")


@pytest.mark.parametrize("attempts", [0, 2, 100])
def test_a_server_out_of_reach_costs_nothing_however_often(attempts):
    found = decide(failed(FailureKind.UNREACHABLE), attempts=attempts, deaths=attempts, policy=POLICY)
    assert found == HandBack("words")


@pytest.mark.parametrize("attempts", [0, 2, 100])
def test_a_full_server_costs_no_attempt_however_often(attempts):
    found = decide(failed(FailureKind.OVERLOADED), attempts=attempts, policy=POLICY)
    assert isinstance(found, Retry)
    assert not found.spends_attempt


def test_a_late_503_has_cost_a_slot_and_spends_an_attempt():
    late = failed(FailureKind.OVERLOADED, elapsed_s=POLICY.refusal_s)
    assert decide(late, attempts=0, policy=POLICY) == Retry(1.0, spends_attempt=True)
    assert isinstance(decide(late, attempts=2, policy=POLICY), GiveUp)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (FailureKind.SERVER_FAULT, DeadReason.SERVER_FAULT),
        (FailureKind.DISCONNECTED, DeadReason.SERVER_FAULT),
        (FailureKind.TIMEOUT, DeadReason.TIMEOUT),
    ],
)
def test_a_passing_fault_spends_attempts_until_there_are_none(kind, reason):
    for attempts, delay in ((0, 1.0), (1, 2.0)):
        assert decide(failed(kind), attempts=attempts, policy=POLICY) == Retry(delay, spends_attempt=True)
    found = decide(failed(kind), attempts=2, policy=POLICY)
    assert isinstance(found, GiveUp)
    assert found.reason is reason
    assert found.message == "3 attempts, the last: words"


@pytest.mark.parametrize("kind", [FailureKind.DISCONNECTED, FailureKind.SERVER_FAULT])
def test_a_server_that_dies_under_a_job_or_fails_everybody_costs_a_death_and_no_attempt(kind):
    broken = failed(kind)
    first = decide(broken, attempts=2, deaths=0, policy=POLICY, server_gone=True)
    assert first == HandBack("words", counts_death=True)
    last = decide(broken, attempts=0, deaths=1, policy=POLICY, server_gone=True)
    assert isinstance(last, GiveUp)
    assert last.reason is DeadReason.KILLED_CONSUMERS


def test_every_kind_is_decided():
    for kind in FailureKind:
        for attempts in (0, POLICY.max_attempts):
            assert decide(failed(kind), attempts=attempts, policy=POLICY) is not None


@pytest.mark.parametrize(
    ("tries", "jitter", "seconds"),
    [(0, 1.0, 1.0), (1, 1.0, 2.0), (2, 0.5, 2.0), (3, 1.0, 8.0), (50, 1.0, 8.0), (10_000, 1.0, 8.0)],
)
def test_backoff_doubles_up_to_a_limit(tries, jitter, seconds):
    assert backoff_s(tries, POLICY, jitter) == seconds


def test_full_jitter_reaches_down_to_the_least():
    assert backoff_s(5, POLICY, 0.0) == POLICY.least_s
    assert backoff_s(5, POLICY, -3.0) == POLICY.least_s
    assert backoff_s(5, POLICY, 9.0) == POLICY.max_s


def test_a_retry_waits_as_long_as_asked_and_until_the_slot_is_free():
    asked = failed(FailureKind.OVERLOADED, retry_after=30.0)
    assert decide(asked, attempts=0, policy=POLICY, jitter=0.0) == Retry(30.1, spends_attempt=False)
    assert decide(asked, attempts=0, policy=POLICY, jitter=1.0) == Retry(31.0, spends_attempt=False)
    forever = failed(FailureKind.OVERLOADED, retry_after=1e9)
    found = decide(forever, attempts=0, policy=POLICY)
    assert isinstance(found, Retry)
    assert found.after_s <= POLICY.max_retry_after_s + POLICY.max_s
    held = failed(FailureKind.TIMEOUT, hold_s=SLOT_RELEASE_S)
    assert decide(held, attempts=0, policy=POLICY, jitter=0.0) == Retry(5.0, spends_attempt=True)


THROTTLING = ThrottlePolicy(factor=0.8, floor=1, settle_s=2.0, raise_s=5.0, step=0.1)


def test_the_cap_falls_once_per_burst_and_rises_again():
    throttle = Throttle(full=50, cap=50)
    throttle = cap_after_overload(throttle, now=100.0, in_flight=45, policy=THROTTLING)
    assert throttle.cap == 40
    assert cap_after_overload(throttle, now=101.9, in_flight=40, policy=THROTTLING) == throttle
    lower = cap_after_overload(throttle, now=102.0, in_flight=40, policy=THROTTLING)
    assert lower.cap == 32
    assert cap_recover(lower, now=106.9, policy=THROTTLING) == lower
    caps = []
    for now in range(107, 147, 5):
        lower = cap_recover(lower, now=float(now), policy=THROTTLING)
        caps.append(lower.cap)
    assert caps == [37, 42, 47, 50, 50, 50, 50, 50]


def test_the_cap_falls_to_what_the_server_holds_but_no_more_than_by_half():
    assert cap_after_overload(Throttle(full=50, cap=50), now=0.0, in_flight=30, policy=THROTTLING).cap == 30
    assert cap_after_overload(Throttle(full=50, cap=50), now=0.0, in_flight=0, policy=THROTTLING).cap == 25


def test_the_cap_never_falls_below_its_floor():
    throttle = Throttle(full=3, cap=3)
    for now in range(0, 30, 3):
        throttle = cap_after_overload(throttle, now=float(now), in_flight=0, policy=THROTTLING)
    assert throttle.cap == 1


def test_a_full_cap_stays():
    throttle = Throttle(full=5, cap=5)
    assert cap_recover(throttle, now=1e9, policy=THROTTLING) is throttle
