"""One simulated server's mutable state, apart from HTTP: slots, faults, conditions, counts."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from ops.simulator.faults import STATES, Fault, FaultBook, FaultKind
from ops.simulator.info import LoadNow
from ops.simulator.slots import Slots
from ops.simulator.traits import traits_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ops.simulator.settings import ServerSettings


class Counts:
    """What has happened since the start (or the last reset)."""

    __slots__ = (
        "aborted",
        "completion_tokens",
        "completions",
        "disconnects",
        "in_flight",
        "lost",
        "max_in_flight",
        "prompt_tokens",
        "refused",
        "requests",
    )

    def __init__(self) -> None:
        self.requests = 0
        self.completions = 0
        self.disconnects = 0
        self.aborted = 0
        self.lost = 0
        self.in_flight = 0
        self.max_in_flight = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.refused: Counter[int] = Counter()

    def as_dict(self) -> dict[str, Any]:
        """The counts as JSON values."""
        values = {name: getattr(self, name) for name in self.__slots__}
        values["refused"] = {str(status): count for status, count in self.refused.items()}
        return values


class ServerState:
    """The state of one server. `on_down` and `on_up` are told when it begins and ends to refuse."""

    def __init__(
        self,
        settings: ServerSettings,
        *,
        index: int,
        loop: asyncio.AbstractEventLoop,
        on_down: Callable[[], None],
        on_up: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.traits = traits_of(settings)
        self.index = index
        self.loop = loop
        self.slots = Slots(settings.slots, slowdown=settings.slowdown, loop=loop)
        self.faults = FaultBook(seed=settings.seed + index, now=loop.time)
        self.counts = Counts()
        self.rids: set[str] = set()
        self.ids = random.Random()  # noqa: S311 - request ids, not secrets
        self.started_at = time.time()
        self._on_down, self._on_up = on_down, on_up
        self._conditions: Counter[FaultKind] = Counter()
        self._timers: list[asyncio.TimerHandle] = []
        self._state_faults: list[Fault] = []

    def has(self, kind: FaultKind) -> bool:
        """Whether the server is in this state now."""
        return self._conditions[kind] > 0

    @property
    def conditions(self) -> list[str]:
        """The states that hold now."""
        return [kind.value for kind, count in self._conditions.items() if count > 0]

    @property
    def faults_set(self) -> list[Fault]:
        """All faults as they were set."""
        return [*self._state_faults, *self.faults.faults]

    def set_faults(self, faults: Sequence[Fault]) -> None:
        """Replace all faults; states that held are over, unless they are among the new ones."""
        mine = [fault for fault in faults if fault.server in (None, self.index)]
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        before = list(self._conditions.elements())
        self._state_faults = [fault for fault in mine if fault.kind in STATES]
        self.faults.set(mine)
        for fault in self._state_faults:
            self._schedule(fault)
        for kind in before:
            self._leave(kind)

    def _schedule(self, fault: Fault) -> None:
        if fault.after > 0:
            self._timers.append(self.loop.call_later(fault.after, self._enter, fault.kind))
        else:
            self._enter(fault.kind)
        if fault.end is not None:
            self._timers.append(self.loop.call_later(fault.end, self._leave, fault.kind))

    def die(self, seconds: float) -> None:
        """Drop everything and refuse connections for `seconds`."""
        self._enter(FaultKind.REFUSE)
        self._timers.append(self.loop.call_later(seconds, self._leave, FaultKind.REFUSE))

    def _enter(self, kind: FaultKind) -> None:
        self._conditions[kind] += 1
        if self._conditions[kind] > 1:
            return
        self.faults.count(kind)
        if kind is FaultKind.REFUSE:
            self.slots.drop_all()
            self.rids.clear()
            self._on_down()
        elif kind is FaultKind.STUCK:
            self.slots.freeze(stuck=True)

    def _leave(self, kind: FaultKind) -> None:
        if self._conditions[kind] == 0:
            return
        self._conditions[kind] -= 1
        if self._conditions[kind] > 0:
            return
        if kind is FaultKind.REFUSE:
            self._on_up()
        elif kind is FaultKind.STUCK:
            self.slots.freeze(stuck=False)

    def stop(self) -> None:
        """Cancel every timer and end every job."""
        for timer in self._timers:
            timer.cancel()
        self.slots.drop_all()

    def load(self) -> LoadNow:
        """The load as the information endpoints tell it."""
        speed = self.settings.tokens_per_s * self.settings.time_scale
        return LoadNow(
            running=self.slots.running,
            waiting=self.slots.waiting,
            limit=self.slots.limit,
            used_tokens=self.slots.used_tokens,
            tokens_per_s=speed * self.slots.running,
            requests=self.counts.requests,
            aborted=self.counts.aborted,
            prompt_tokens=self.counts.prompt_tokens,
            completion_tokens=self.counts.completion_tokens,
            unix_time=time.time(),
            started_at=self.started_at,
        )

    def stats(
        self, *, since: float | None = None, until: float | None = None, timeline: bool = False
    ) -> dict[str, Any]:
        """Counts, load and occupancy as JSON values; `since` and `until` are unix times."""
        now = time.time()
        occupancy = self.slots.occupancy
        values: dict[str, Any] = {
            "server": self.index,
            "now": now,
            "slots": self.slots.limit,
            "running": self.slots.running,
            "waiting": self.slots.waiting,
            "max_running": self.slots.max_running,
            "max_waiting": self.slots.max_waiting,
            **self.counts.as_dict(),
            "states": self.conditions,
            "faults": {kind.value: count for kind, count in self.faults.counts.items()},
            "full_at": occupancy.full_at,
            "occupancy": occupancy.report(now, since=since, until=until).as_dict(),
        }
        if timeline:
            values["timeline"] = {"origin": occupancy.origin, "busy_slot_seconds": occupancy.timeline(now)}
        return values

    def reset_stats(self) -> None:
        """Begin to count anew; requests in flight stay."""
        in_flight = self.counts.in_flight
        self.counts = Counts()
        self.counts.in_flight = self.counts.max_in_flight = in_flight
        self.faults.counts.clear()
        self.slots.reset_stats()
