"""How busy the slots were, second by second, as the server itself counts it."""

from __future__ import annotations

from typing import Any

import msgspec


class Occupancy:
    """Adds up slot-seconds per whole second of the clock. Tell it of every change of the running count.

    Attributes:
        origin: the second at which counting began.
        full_at: when every slot was busy for the first time.
    """

    def __init__(self, slots: int, now: float) -> None:
        """Start with no request running at `now` (seconds of any steady clock)."""
        self._slots = slots
        self._running = 0
        self._last = now
        self.origin = int(now)
        self._busy: list[float] = []
        self._offered: list[float] = []
        self.full_at: float | None = None

    def change(self, running: int, now: float, *, slots: int | None = None) -> None:
        """Note that from `now` on, `running` requests run on `slots` slots (as many as before if `None`)."""
        self._advance(now)
        self._running = running
        if slots is not None:
            self._slots = slots
        if self.full_at is None and running >= self._slots:
            self.full_at = now

    def _advance(self, now: float) -> None:
        """Spread the time since the last change over the seconds it covers."""
        at = self._last
        while at < now:
            place = int(at) - self.origin
            while len(self._busy) <= place:
                self._busy.append(0.0)
                self._offered.append(0.0)
            until = min(now, float(int(at) + 1))
            self._busy[place] += self._running * (until - at)
            self._offered[place] += self._slots * (until - at)
            at = until
        self._last = max(self._last, now)

    def report(
        self, now: float, *, since: float | None = None, until: float | None = None
    ) -> OccupancyReport:
        """Slot-seconds over the whole seconds between `since` and `until`, by this clock.

        `since` defaults to the first moment at which every slot was busy, `until` to `now`.
        """
        self._advance(now)
        begin = self.full_at if since is None else since
        end = now if until is None else min(until, now)
        if begin is None:
            return OccupancyReport()
        first = max(0, -int(-begin // 1) - self.origin)
        last = max(first, int(end) - self.origin)
        busy, offered = sum(self._busy[first:last]), sum(self._offered[first:last])
        return OccupancyReport(
            seconds=len(self._busy[first:last]),
            busy_slot_seconds=busy,
            slot_seconds=offered,
            share=busy / offered if offered else None,
        )

    def timeline(self, now: float) -> list[float]:
        """Busy slot-seconds of every second since the start."""
        self._advance(now)
        return [round(busy, 4) for busy in self._busy]


class OccupancyReport(msgspec.Struct, frozen=True):
    """Slot-seconds over a span of whole seconds; `share` is `None` when the span is empty."""

    seconds: int = 0
    busy_slot_seconds: float = 0.0
    slot_seconds: float = 0.0
    share: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return msgspec.structs.asdict(self)
