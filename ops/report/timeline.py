"""What happened when, in buckets of time that grow with the span, so that memory does not. Pure.

Times are seconds since 1970, UTC. Buckets lie on a grid from 1970, so that they begin at round times; each
width is a multiple of the one before, so that buckets merge without loss.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

WIDTHS: Final = (1, 5, 15, 30, 60, 300, 900, 1800, 3600, 7200, 21_600, 43_200, 86_400)
MOST_BUCKETS: Final = 240

if any(wide % narrow for narrow, wide in pairwise(WIDTHS)):
    raise AssertionError("a width is no multiple of the one before")


def wider(width: int) -> int:
    """The next width; past a day, twice as much."""
    return next((wide for wide in WIDTHS if wide > width), 2 * width)


class Points:
    """Amounts, each at one instant."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.sums: dict[int, float] = defaultdict(float)

    def add(self, bucket: int, amount: float) -> None:
        """Add to one bucket."""
        self.sums[bucket] += amount

    def merge(self, ratio: int) -> None:
        """Let `ratio` buckets be one."""
        merged: dict[int, float] = defaultdict(float)
        for bucket, amount in self.sums.items():
            merged[bucket // ratio] += amount
        self.sums = merged

    def values(self, first: int, last: int) -> list[float]:
        """The amounts of the buckets from `first` to `last`."""
        return [self.sums.get(bucket, 0.0) for bucket in range(first, last + 1)]


class Spread:
    """Amounts, each spread evenly over a while. An amount costs the same however long the while is.

    Buckets that a while covers in part get their share at once; where it begins and ends to cover whole
    ones, the rate's change is noted, to be summed up when the values are asked for.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self.sums: dict[int, float] = defaultdict(float)
        self._changes: dict[int, float] = defaultdict(float)

    def add(self, start: float, end: float, amount: float, width: int) -> None:
        """Spread an amount from `start` to `end`."""
        first, last = int(start // width), int(end // width)
        if first == last:
            self.sums[first] += amount
            return
        rate = amount / (end - start)
        self.sums[first] += ((first + 1) * width - start) * rate
        self.sums[last] += (end - last * width) * rate
        if last - first > 1:
            self._changes[first + 1] += rate * width
            self._changes[last] -= rate * width

    def merge(self, ratio: int) -> None:
        """Let `ratio` buckets be one."""
        self._settle()
        merged: dict[int, float] = defaultdict(float)
        for bucket, amount in self.sums.items():
            merged[bucket // ratio] += amount
        self.sums = merged

    def values(self, first: int, last: int) -> list[float]:
        """The amounts of the buckets from `first` to `last`."""
        self._settle()
        return [self.sums.get(bucket, 0.0) for bucket in range(first, last + 1)]

    def _settle(self) -> None:
        if not self._changes:
            return
        level, least = 0.0, 1e-9 * max(map(abs, self._changes.values()))
        for bucket in range(min(self._changes), max(self._changes)):
            level += self._changes.get(bucket, 0.0)
            # What rounding leaves of a level that has ended is no amount.
            if level > least:
                self.sums[bucket] += level
        self._changes.clear()


@dataclass(slots=True)
class Track:
    """One server over time: requests ended, seconds in flight, output tokens, accept lengths."""

    ended: Points = field(default_factory=Points)
    held: Spread = field(default_factory=Spread)
    tokens: Spread = field(default_factory=Spread)
    accepts: Points = field(default_factory=Points)
    accepted: Points = field(default_factory=Points)

    def all(self) -> tuple[Points | Spread, ...]:
        """Every amount."""
        return (self.ended, self.held, self.tokens, self.accepts, self.accepted)


class Timeline:
    """Servers and verdicts over time, all in the same buckets."""

    def __init__(self) -> None:
        """Begin with no time."""
        self.width = WIDTHS[0]
        self.first: float | None = None
        self.last = 0.0
        self.servers: dict[str, Track] = {}
        self.verdicts: dict[str, Points] = {}

    def add(
        self,
        server: str,
        verdict: str,
        start: float,
        end: float,
        *,
        tokens: int = 0,
        accept_length: float | None = None,
    ) -> None:
        """Add one request that was in flight from `start` to `end`."""
        if self.first is None or start < self.first or end > self.last:
            self._reach(start, end)
        width = self.width
        track = self.servers.get(server)
        if track is None:
            track = self.servers[server] = Track()
        bucket = int(end // width)
        track.ended.sums[bucket] += 1
        track.held.add(start, end, end - start, width)
        track.tokens.add(start, end, tokens, width)
        if accept_length is not None:
            track.accepts.sums[bucket] += 1
            track.accepted.sums[bucket] += accept_length
        points = self.verdicts.get(verdict)
        if points is None:
            points = self.verdicts[verdict] = Points()
        points.sums[int(start // width)] += 1

    def _reach(self, start: float, end: float) -> None:
        """Widen the buckets until the whole span fits."""
        self.first = start if self.first is None else min(start, self.first)
        self.last = max(end, self.last)
        width = self.width
        while self.last // width - self.first // width >= MOST_BUCKETS:
            width = wider(width)
        if width != self.width:
            ratio = width // self.width
            for amounts in (*self.verdicts.values(), *(a for t in self.servers.values() for a in t.all())):
                amounts.merge(ratio)
            self.width = width

    @property
    def span(self) -> tuple[int, int]:
        """The first and last bucket."""
        return int((self.first or 0) // self.width), int(self.last // self.width)

    def rates(self, amounts: Points | Spread) -> list[float]:
        """Amounts a second in every bucket; a bucket that the run fills in part counts by that part."""
        first, last = self.span
        return [
            value / self._seconds(bucket)
            for bucket, value in enumerate(amounts.values(first, last), start=first)
        ]

    def _seconds(self, bucket: int) -> float:
        begin = max(bucket * self.width, self.first or 0)
        end = min((bucket + 1) * self.width, self.last)
        # A sliver of a bucket would show a rate that nothing had.
        return max(end - begin, self.width / 4)
