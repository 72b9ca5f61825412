"""Rates, and when a run will be done. Pure."""

from __future__ import annotations

from collections import deque
from math import sqrt
from typing import Final

import msgspec

MINUTE_S: Final = 60.0
LEAST_SPAN_S: Final = 10.0
"""A rate of a run's own is told from this long a watch on; before, consumers' figures are taken."""

WIDEST: Final = 0.9
"""However few completions a forecast rests on, it is not called more uncertain than this share."""


class Rate(msgspec.Struct, frozen=True):
    """Completions and output tokens in a second, and how many completions that rests on."""

    completions: float
    tokens: float
    seen: float


class Eta(msgspec.Struct, frozen=True):
    """Seconds until the end: expected, and the span that holds it 19 times in 20 if the pace stays."""

    seconds: float
    low: float
    high: float


def forecast(left: int, rate: Rate | None) -> Eta | None:
    """When `left` prompts will have ended, if the rate stays as it is; `None` where nothing moves.

    The spread is that of a count: `seen` completions in a window differ by twice their square root by chance.
    """
    if left <= 0:
        return Eta(0.0, 0.0, 0.0)
    if rate is None or rate.completions <= 0:
        return None
    expected = left / rate.completions
    share = min(WIDEST, 2 / sqrt(rate.seen)) if rate.seen > 0 else WIDEST
    return Eta(expected, expected / (1 + share), expected / (1 - share))


def whole_run(completed: int, tokens: int, elapsed_s: float) -> Rate | None:
    """The rate since a run was created, its standstills included."""
    if elapsed_s <= 0:
        return None
    return Rate(completed / elapsed_s, tokens / elapsed_s, float(completed))


class Meter:
    """The rate of one run over the last minute, from counts seen one after the other."""

    def __init__(self) -> None:
        """Start without a sample."""
        self._samples: deque[tuple[float, int, int]] = deque()

    def add(self, at: float, completed: int, tokens: int) -> None:
        """Take the counts at a moment, in seconds."""
        if self._samples and at <= self._samples[-1][0]:
            return
        self._samples.append((at, completed, tokens))
        while len(self._samples) > 1 and self._samples[1][0] <= at - MINUTE_S:
            self._samples.popleft()

    def rate(self) -> Rate | None:
        """The rate, once there is enough to tell it from."""
        if not self._samples:
            return None
        first, last = self._samples[0], self._samples[-1]
        span = last[0] - first[0]
        if span < LEAST_SPAN_S:
            return None
        done = max(0, last[1] - first[1])
        return Rate(done / span, max(0, last[2] - first[2]) / span, float(done))
