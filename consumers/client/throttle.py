"""How a consumer's cap on requests in flight follows a server that says it is full.

Lowered at once to what the server evidently holds, raised again step by step (additive increase,
multiplicative decrease). Pure: the clock is an argument.
"""

from __future__ import annotations

from typing import Final

import msgspec


class ThrottlePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How far and how fast the cap moves. Times are in seconds.

    All refusals of one burst tell the same thing, so they lower the cap once in `settle_s`; after that every
    `raise_s` without a refusal raises it by `step` of the full cap, by one at least.
    """

    factor: float = 0.8
    floor: int = 1
    settle_s: float = 2.0
    raise_s: float = 5.0
    step: float = 0.05


DEFAULT_THROTTLING: Final = ThrottlePolicy()


class Throttle(msgspec.Struct, frozen=True, kw_only=True):
    """The cap now, the cap without trouble, and the time of the last change."""

    full: int
    cap: int
    changed_at: float = float("-inf")


def cap_after_overload(
    throttle: Throttle,
    *,
    now: float,
    in_flight: int,
    policy: ThrottlePolicy = DEFAULT_THROTTLING,
) -> Throttle:
    """Lower the cap after a refusal; `in_flight` counts the requests that the server still holds."""
    if throttle.cap < throttle.full and now - throttle.changed_at < policy.settle_s:
        return throttle
    lowered = max(throttle.cap // 2, min(int(throttle.cap * policy.factor), in_flight))
    return Throttle(full=throttle.full, cap=max(policy.floor, lowered), changed_at=now)


def cap_recover(
    throttle: Throttle,
    *,
    now: float,
    policy: ThrottlePolicy = DEFAULT_THROTTLING,
) -> Throttle:
    """Raise the cap by one step if the server has refused nothing for long enough."""
    if throttle.cap >= throttle.full or now - throttle.changed_at < policy.raise_s:
        return throttle
    raised = throttle.cap + max(1, int(throttle.full * policy.step))
    return Throttle(full=throttle.full, cap=min(throttle.full, raised), changed_at=now)
