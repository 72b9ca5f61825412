"""How many requests to keep in flight at one server, when the answer is `auto`. Pure.

The aim is the fewest that keep the server's slots full: a short queue there that is never empty, so that a
slot that falls free finds work at once. Where the server tells its load, that decides. Where it does not,
the answers do: their time by their length shows how long they waited before the first token, and how many of
them a number in flight brings a second. The number goes up while that pays, and down while too many wait.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from consumers.client.info import ServerInfo
from consumers.client.load import Load

DEFAULT_CONCURRENCY: Final = 48
MOST: Final = 4096
QUEUE_SHARE: Final = 0.1
"""Requests that wait at the server, as a share of those it runs: the middle of what is allowed (0 to 0.2)."""

MOST_WAITING: Final = 0.2
MOST_SHARE: Final = MOST_WAITING / (1 + MOST_WAITING)
"""The same as a share of all requests in flight."""

LOSS: Final = 0.05
"""A smaller number may seem to lower throughput by this share and be kept: windows are short."""

LEAST_GAIN: Final = 0.04
"""A number larger by `STEP` must raise throughput by this share to be kept where nothing seems to wait: slots
that share a device slow one another down."""

QUEUE_GAIN: Final = 0.1
"""The same where requests seem to wait."""

SEEN_SHARE: Final = 0.03
"""Less waiting than this may be none."""

LEAST_SPREAD: Final = 0.02
"""How unlike the lengths of answers must be to tell waiting from generating."""

STEP: Final = 0.25
WINDOW_S: Final = 4.0
LEAST_ENDS: Final = 32


class Answered(NamedTuple):
    """One answer: when it was asked for (monotonic seconds), how long it took, and how many tokens it has."""

    sent: float
    took_s: float
    tokens: int


class Phase(StrEnum):
    """What the climb is about to learn from the window under way."""

    START = "start"
    UP = "up"
    DOWN = "down"
    BACK = "back"
    SETTLING = "settling"
    STILL = "still"


class Pace(msgspec.Struct, frozen=True):
    """How fast answers came: seconds before their first token, and seconds for each of their tokens."""

    wait_s: float
    token_s: float

    def took_s(self, tokens: float) -> float:
        """Seconds for an answer of this length."""
        return self.wait_s + self.token_s * tokens


class Climb(msgspec.Struct, frozen=True):
    """The number of requests to keep in flight where the server tells nothing of its load.

    Attributes:
        since: when the window under way began (monotonic seconds).
        before: the number before the last change, and `pace` the one that it had.
        share: the share of their time that requests waited in the window before this one.
        reading_s: what comes before the first token though nothing waits: the prompt is read.
    """

    target: int
    phase: Phase = Phase.START
    since: float = 0.0
    before: int = 0
    pace: Pace = Pace(0.0, 1.0)
    share: float = 0.0
    reading_s: float = 0.0


def first_target(asked: int, info: ServerInfo | None) -> int:
    """Where to start: as asked, or what the server runs at once and a short queue, or 48."""
    if asked > 0:
        return asked
    running = info.effective_running if info else None
    return with_queue(running) if running else DEFAULT_CONCURRENCY


def with_queue(running: int) -> int:
    """Requests in flight that keep `running` slots full: a tenth more, one at least."""
    return min(MOST, running + max(1, math.ceil(running * QUEUE_SHARE)))


def by_load(target: int, load: Load, in_flight: int) -> int:
    """The next target from the server's own figures.

    What it runs while others wait is its real limit, whatever it was started with: memory may hold it lower.
    Others may use the server too: their requests wait in the same queue.
    """
    running, waiting = load.running or 0, load.waiting or 0
    limit = load.max_running
    if limit is not None and target > _most(limit):
        return with_queue(limit)
    if waiting > max(1, MOST_WAITING * running):
        # Too many wait. Those in flight over the target must end before less can be asked for again.
        goal = with_queue(running) - running if running else 1
        return target if in_flight > target else max(1, target - max(1, (waiting - goal) // 2))
    if limit is None:
        grow = waiting == 0 and in_flight >= target
        return min(MOST, target + max(1, math.ceil(target * STEP))) if grow else target
    if waiting and running < limit:
        return target
    full = with_queue(limit)
    if target < full:
        return min(full, target + max(1, (full - target) // 2))
    # Short answers empty the queue before new requests arrive: then it may be a little longer.
    longer = load.waiting == 0 and in_flight >= target
    return min(_most(limit), target + max(1, limit // 32)) if longer else target


def _most(limit: int) -> int:
    """Requests in flight of which no more than `MOST_WAITING` wait, but for a lone one."""
    return max(with_queue(limit), min(MOST, limit + int(limit * MOST_WAITING)))


def by_latency(state: Climb, answers: Sequence[Answered], *, now: float, in_flight: int) -> Climb:
    """The next state where the server tells nothing: one look at the answers of the window under way.

    Args:
        state: the state so far.
        answers: the last ones; those that were asked for before the window began say nothing about it.
        now: monotonic seconds.
        in_flight: requests in flight now; a window in which they were not `target` proves nothing.
    """
    if state.since == 0.0 or not state.target * 0.9 <= in_flight <= state.target:
        return msgspec.structs.replace(state, since=now)
    seen = [one for one in answers if one.sent > state.since]
    if now - state.since < WINDOW_S or len(seen) < max(LEAST_ENDS, state.target):
        return state
    mean_tokens = sum(one.tokens for one in answers) / len(answers)
    return msgspec.structs.replace(_next(state, pace_of(seen), mean_tokens), since=now)


def pace_of(answers: Sequence[Answered]) -> Pace:
    """A straight line through the times of answers by their lengths.

    Long answers vary more, so they weigh less. Answers that are all of one length cannot tell: then all of
    the time is taken to be the tokens' own.
    """
    count, took = len(answers), sum(one.took_s for one in answers)
    tokens = [max(1, one.tokens) for one in answers]
    total, inverse = sum(tokens), sum(1 / size for size in tokens)
    spread = inverse * total - count * count
    if spread > LEAST_SPREAD * count * count:
        each = sum(one.took_s / size for one, size in zip(answers, tokens, strict=True))
        slope = (inverse * took - count * each) / spread
        wait = (took - slope * total) / count
        if wait > 0 and slope > 0:
            return Pace(wait, slope)
    return Pace(0.0, took / total)


def _next(state: Climb, pace: Pace, mean_tokens: float) -> Climb:
    """What to do after a window with this pace.

    The share of their time that requests wait is the share of them that waits at any moment. A prompt that is
    read looks like one that waits: so a lower number is kept only if it costs nothing. If it does, nothing
    waited there, and we know how long reading takes.
    """
    target = state.target
    share = max(0.0, pace.wait_s - state.reading_s) / pace.took_s(mean_tokens)
    # Answers a second over those that the number before brought.
    rate, rate_before = (n / p.took_s(mean_tokens) for n, p in ((target, pace), (state.before, state.pace)))
    gain = rate / rate_before if state.before else 1.0
    change = functools.partial(msgspec.structs.replace, state, before=target, pace=pace, share=share)
    running = target * (1 - share)
    lower = change(target=min(target, with_queue(round(running))), phase=Phase.DOWN)
    higher = change(target=min(MOST, target + max(1, math.ceil(target * STEP))), phase=Phase.UP)
    crowded = share > MOST_SHARE
    match state.phase:
        case Phase.UP if gain < 1 + (QUEUE_GAIN if share > SEEN_SHARE else LEAST_GAIN):
            sure = state.before * gain if gain > 1 + LOSS else min(state.before, running)
            queued = with_queue(round(sure)) if share > SEEN_SHARE else 0
            found = change(target=max(state.before, min(target, queued)), phase=Phase.SETTLING)
        case Phase.START | Phase.UP:
            found = lower if crowded else higher
        case Phase.DOWN if gain < 1 - LOSS:
            enough = min(state.before, math.ceil(target / gain) + 1)
            phase = Phase.SETTLING if enough < state.before else Phase.BACK
            found = change(target=enough, phase=phase, reading_s=pace.wait_s)
        case Phase.DOWN:
            # It costs nothing that is seen: a little more tells whether it costs something that is not.
            found = change(target=with_queue(target) + 1, phase=Phase.UP)
        case Phase.BACK:
            found = higher
        case Phase.STILL if crowded and share > state.share + MOST_SHARE / 2:
            # The limit fell within this window: the next one tells by how much.
            found = change(phase=Phase.START)
        case Phase.STILL if share < state.share / 2:
            found = higher
        case Phase.STILL:
            found = state
        case _:
            found = change(phase=Phase.STILL)
    return found
