"""What becomes of a job after a failure, and of a consumer's cap on requests in flight.

Pure: the clock and the dice are arguments. Nobody waits here: a job that is to be tried again goes back to
the queue's schedule, and holds no slot meanwhile.
"""

from __future__ import annotations

from typing import Final

import msgspec

from common.records import DeadReason
from consumers.client.outcome import Failure, FailureKind


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how soon a failed job is tried again. Times are in seconds.

    `refusal_s` is how soon a full server refuses: a 503 that comes later ended a request that had already
    cost the server a slot (its own time limit does that), so it spends an attempt like any other failure.
    """

    max_attempts: int = 5
    max_deaths: int = 10
    base_s: float = 1.0
    max_s: float = 60.0
    least_s: float = 0.1
    max_retry_after_s: float = 600.0
    refusal_s: float = 60.0


DEFAULT_RETRIES: Final = RetryPolicy()


class Retry(msgspec.Struct, frozen=True):
    """Try again after `after_s` seconds on whichever server is free; `spends_attempt` counts to the limit."""

    after_s: float
    spends_attempt: bool


class GiveUp(msgspec.Struct, frozen=True):
    """The prompt becomes a dead letter."""

    reason: DeadReason
    message: str


class HandBack(msgspec.Struct, frozen=True):
    """The job goes back to the head of the queue and spends nothing but, where `counts_death`, a death."""

    reason: str
    counts_death: bool = False


Decision = Retry | GiveUp | HandBack

_SERVERS_OWN: Final = (FailureKind.DISCONNECTED, FailureKind.SERVER_FAULT)
_ROW_REASONS: Final = {
    FailureKind.TOO_LONG: DeadReason.TOO_LONG,
    FailureKind.BAD_REQUEST: DeadReason.BAD_REQUEST,
    FailureKind.UNAUTHORIZED: DeadReason.UNAUTHORIZED,
    FailureKind.NOT_FOUND: DeadReason.BAD_REQUEST,
}
_SPENT_REASONS: Final = {
    FailureKind.TIMEOUT: DeadReason.TIMEOUT,
    FailureKind.DISCONNECTED: DeadReason.SERVER_FAULT,
    FailureKind.SERVER_FAULT: DeadReason.SERVER_FAULT,
    FailureKind.OVERLOADED: DeadReason.SERVER_FAULT,
}


def decide(
    failure: Failure,
    *,
    attempts: int,
    deaths: int = 0,
    policy: RetryPolicy = DEFAULT_RETRIES,
    jitter: float = 1.0,
    server_gone: bool = False,
) -> Decision:
    """Say what becomes of a job whose request failed.

    Args:
        failure: how it failed.
        attempts: attempts that the job has spent before this one.
        deaths: consumers and servers that have died under the job before this.
        policy: limits and delays.
        jitter: a random number from 0 to 1; the delay is that share of the full one.
        server_gone: the fault was the server's end and not this prompt's: after the broken connection it did
            not answer a probe, or it fails everybody.
    """
    kind = failure.kind
    if kind in _ROW_REASONS:
        return GiveUp(_ROW_REASONS[kind], failure.message)
    if kind is FailureKind.UNREACHABLE:
        return HandBack(failure.message)
    if kind in _SERVERS_OWN and server_gone:
        return _after_death(failure, deaths + 1, policy)
    if kind is FailureKind.OVERLOADED and failure.elapsed_s < policy.refusal_s:
        # The cap on requests in flight falls with each burst of refusals, so the delay need not grow.
        return Retry(_delay(failure, 0, policy, jitter), spends_attempt=False)
    return _after_attempt(failure, attempts + 1, policy, jitter)


def _after_death(failure: Failure, deaths: int, policy: RetryPolicy) -> Decision:
    if deaths < policy.max_deaths:
        return HandBack(failure.message, counts_death=True)
    words = f"{deaths} consumers or servers died while they held it; the last: {failure.message}"
    return GiveUp(DeadReason.KILLED_CONSUMERS, words)


def _after_attempt(failure: Failure, attempts: int, policy: RetryPolicy, jitter: float) -> Decision:
    if attempts < policy.max_attempts:
        return Retry(_delay(failure, attempts - 1, policy, jitter), spends_attempt=True)
    return GiveUp(_SPENT_REASONS[failure.kind], f"{attempts} attempts, the last: {failure.message}")


def backoff_s(tries: int, policy: RetryPolicy, jitter: float) -> float:
    """Exponential backoff with full jitter: somewhere between `least_s` and `base_s` x 2^`tries`, capped."""
    ceiling = min(policy.max_s, policy.base_s * 2.0 ** min(tries, 60))
    return max(policy.least_s, ceiling * min(1.0, max(0.0, jitter)))


def _delay(failure: Failure, tries: int, policy: RetryPolicy, jitter: float) -> float:
    """The backoff, but no sooner than the server asked for or than it lets go of the request."""
    asked = min(failure.retry_after or 0.0, policy.max_retry_after_s)
    # Jitter goes on top of what was asked for, or all that were refused would come back at one moment.
    spread = backoff_s(tries, policy, jitter)
    return max(asked + spread if asked else spread, failure.hold_s)
