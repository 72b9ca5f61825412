"""How many requests to keep in flight at one server, when the answer is `auto`. Pure.

The aim is the fewest that keep the server's slots full: a short queue there that is never empty, so that a
slot that falls free finds work at once. Where the server tells its load, that decides; where it does not,
throughput does: the number goes up while that pays, and back when it does not.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from consumers.client.info import ServerInfo
from consumers.client.load import Load

DEFAULT_CONCURRENCY: Final = 48
MOST: Final = 4096
QUEUE_SHARE: Final = 0.1
"""Requests that wait at the server, as a share of those it runs: the middle of what is allowed (0 to 0.2)."""

MOST_WAITING: Final = 0.2
GAIN: Final = 0.02
"""A larger number must raise throughput by this share to be kept, where throughput decides."""

STEP: Final = 0.25
WINDOW_S: Final = 8.0
LEAST_ENDS: Final = 8


class Settled(msgspec.Struct, frozen=True):
    """The number of requests to keep in flight, and what the climb by throughput remembers.

    `base` and `base_rate` are the best number so far and its completions/s; `since`, `ends` and `rose` are of
    the window under way: its start (monotonic seconds), completions by then, and whether it tries a larger
    number. `rest` is how many windows pass before the next try.
    """

    target: int
    base: int = 0
    base_rate: float = 0.0
    since: float = 0.0
    ends: int = 0
    rose: bool = False
    rest: int = 0


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
    if limit is not None and target > with_queue(limit):
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
    return full if target >= full else min(full, target + max(1, (full - target) // 2))


def by_throughput(state: Settled, *, now: float, ends: int, in_flight: int) -> Settled:
    """The next state where the server tells nothing: one look at the completions since the window began.

    Args:
        state: the state so far.
        now: monotonic seconds.
        ends: completions since the consumer started.
        in_flight: requests in flight now; a window in which the target was not reached proves nothing.
    """
    if state.since == 0.0 or in_flight < state.target * 0.9:
        return msgspec.structs.replace(state, since=now, ends=ends)
    span, done = now - state.since, ends - state.ends
    if span < WINDOW_S or done < LEAST_ENDS:
        return state
    rate = done / span
    fresh = msgspec.structs.replace(state, since=now, ends=ends)
    if not state.rose:
        if state.rest > 0:
            return msgspec.structs.replace(fresh, rest=state.rest - 1, base_rate=rate, base=state.target)
        bigger = min(MOST, state.target + max(1, math.ceil(state.target * STEP)))
        return msgspec.structs.replace(fresh, target=bigger, base=state.target, base_rate=rate, rose=True)
    if rate > state.base_rate * (1 + GAIN):
        return msgspec.structs.replace(fresh, base=state.target, base_rate=rate, rose=False)
    # Not worth it: back to the best so far, and a rest before the next try.
    return msgspec.structs.replace(fresh, target=state.base, rose=False, rest=6)
