"""Whether a consumer's server takes work, and how much of it.

A closed gate costs no job anything: the consumer simply claims none. It opens by itself when the server is
ready again. What to do at each probe is decided by the pure `step`; `ServerGate` does the probing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from common.errors import ServerError
from common.log import get_logger
from consumers.client import breaker
from consumers.client.health import HealthState
from consumers.client.http import InferenceClient
from consumers.client.info import ServerInfo
from consumers.client.load import Load
from consumers.client.throttle import Throttle, cap_after_overload, cap_recover
from consumers.concurrency import Answered, Climb, by_latency, by_load, first_target

PROBE_OPEN_S: Final = 5.0
PROBE_CLOSED_S: Final = 1.0
SILENT_S: Final = 60.0
"""A server that fails its probes for this long is taken to have lost what it was working on."""

LOAD_S: Final = 2.0
REFUSED_S: Final = 30.0
ANSWERS_KEPT: Final = 1024
"""The last answers, from which the number in flight is found where the server tells nothing of its load."""

log = get_logger("consumer")


class GateState(msgspec.Struct, frozen=True):
    """What is known of the server: its last health, and since when (monotonic seconds) it is not ready."""

    health: HealthState
    closed_since: float | None = None

    @property
    def open(self) -> bool:
        """Whether jobs may be taken."""
        return self.closed_since is None


def step(state: GateState, seen: HealthState, now: float) -> tuple[GateState, bool]:
    """The state after a probe, and whether jobs in flight are to be handed back.

    They are when the server is gone, or has been silent for long: nothing will come of them. A draining or
    briefly unhealthy server still finishes what it has.
    """
    if seen is HealthState.READY:
        return GateState(seen), False
    since = now if state.closed_since is None else state.closed_since
    lost = seen is HealthState.UNREACHABLE or now - since >= SILENT_S
    return GateState(seen, since), lost


class ServerGate:
    """Probes one server, and says how many jobs may be in flight."""

    def __init__(self, client: InferenceClient, *, concurrency: int = 0) -> None:
        """Start closed; `run` opens it. `concurrency` 0 lets the server's own limit decide."""
        self.client = client
        self.info = ServerInfo()
        self.state = GateState(HealthState.UNREACHABLE, closed_since=time.monotonic())
        self.asked = concurrency
        self.on_change: Callable[[], None] = lambda: None
        self.on_lost: Callable[[], int] = lambda: 0
        self.in_flight: Callable[[], int] = lambda: 0
        self._throttle = Throttle(full=1, cap=1)
        self._probe: asyncio.Future[bool] | None = None
        self._hurry = asyncio.Event()
        self._knows_server = False
        self._looked = False
        self._blocked_until = 0.0
        self._breaker = breaker.WHOLE
        self.target = first_target(concurrency, None)
        self.load: Load | None = None
        self._tells_load = False
        self._climb = Climb(self.target)
        self._answers: deque[Answered] = deque(maxlen=ANSWERS_KEPT)

    @property
    def limit(self) -> int:
        """Jobs in flight at most now; 0 while the server takes none."""
        now = time.monotonic()
        if not self.state.open or now < self._blocked_until or self._breaker.paused(now):
            return 0
        most = min(self.target, self._throttle.cap)
        return min(1, most) if self._breaker.tripped else most

    @property
    def word(self) -> str:
        """The server's state in one word, for status screens."""
        if time.monotonic() < self._blocked_until:
            return "refuses requests"
        if self.state.open and self._breaker.tripped:
            return "fails every request"
        return "ready" if self.state.open else str(self.state.health.value)

    def ask_for(self, concurrency: int) -> None:
        """Change how many requests are asked for; 0 is auto."""
        if concurrency != self.asked:
            self.asked = concurrency
            self._retarget(first_target(concurrency, self.info if self._knows_server else None))

    def _retarget(self, target: int) -> None:
        if target != self.target or self._throttle.full != target:
            capped = self._throttle.cap < self._throttle.full
            self.target = target
            self._throttle = Throttle(
                full=target,
                cap=min(self._throttle.cap, target) if capped else target,
                changed_at=self._throttle.changed_at,
            )
            self.on_change()

    def refused(self, why: str) -> None:
        """The server refuses every request for how it is set up, as a wrong key: take no jobs for a while."""
        if time.monotonic() >= self._blocked_until:
            log.error("server_refuses", server=self.client.url, reason=why, retry_in_s=REFUSED_S)
        self._blocked_until = time.monotonic() + REFUSED_S

    def faulted(self, job: str) -> bool:
        """The server failed a request by its own fault; says whether it fails everybody's.

        If so, it gets no jobs for a while and then one at a time, until it finishes one.
        """
        before = self._breaker
        self._breaker = breaker.after_fault(before, job, time.monotonic())
        if self._breaker.pauses > before.pauses:
            pause = self._breaker.until - time.monotonic()
            log.error("server_fails_every_request", server=self.client.url, retry_in_s=round(pause, 1))
        return self._breaker.tripped

    def answered(self, tokens: int, took_s: float) -> None:
        """The server finished a request: an answer of so many tokens, in so many seconds."""
        self._answers.append(Answered(time.monotonic() - took_s, took_s, tokens))
        if self._breaker is not breaker.WHOLE:
            self._breaker = breaker.WHOLE
            self.on_change()

    def overloaded(self) -> None:
        """The server refused a request for load: ask less of it for a while."""
        before = self._throttle.cap
        in_flight = max(0, self.in_flight() - 1)
        self._throttle = cap_after_overload(self._throttle, now=time.monotonic(), in_flight=in_flight)
        if self._throttle.cap < before:
            log.info("server_overloaded", server=self.client.url, cap=self._throttle.cap, of=self.target)

    async def still_there(self) -> bool:
        """Probe now, once for all who ask at the same time: whether the server is ready."""
        if self._probe is None:
            self._probe = asyncio.ensure_future(self._look())
            self._probe.add_done_callback(lambda _: setattr(self, "_probe", None))
        return await asyncio.shield(self._probe)

    async def run(self) -> None:
        """Probe until cancelled."""
        while True:
            await self.still_there()
            self._hurry.clear()
            self._throttle = cap_recover(self._throttle, now=time.monotonic())
            wait = PROBE_OPEN_S if self.state.open else PROBE_CLOSED_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._hurry.wait()

    async def watch_load(self) -> None:
        """Ask for the server's load until cancelled, and follow it where the number in flight is `auto`."""
        while True:
            await asyncio.sleep(LOAD_S)
            if not self.state.open:
                self.load = None
                continue
            self.load = await self.client.load()
            if self.asked == 0:
                self._adjust(self.load)

    def _adjust(self, load: Load | None) -> None:
        if load is not None and load.running is not None:
            self._tells_load = True
            self._retarget(by_load(self.target, load, self.in_flight()))
            return
        if self._tells_load:
            # It will again: one look that failed says nothing.
            return
        if self._climb.target != self.target:
            self._climb = Climb(self.target)
        self._climb = by_latency(self._climb, self._answers, now=time.monotonic(), in_flight=self.in_flight())
        self._retarget(self._climb.target)

    async def _look(self) -> bool:
        health = (await self.client.probe()).state
        was_open = self.state.open
        if health is HealthState.READY and (not was_open or not self._knows_server):
            try:
                self.info = await self.client.info()
            except ServerError as error:
                log.warning("server_info_failed", server=self.client.url, error=str(error))
                health = HealthState.UNHEALTHY
            else:
                self._knows_server = True
                # What answers there now may be another version.
                self._tells_load = False
                self._breaker = breaker.WHOLE
                self._retarget(first_target(self.asked, self.info))
        self.state, lost = step(self.state, health, time.monotonic())
        if self.state.open != was_open or not self._looked:
            self._tell()
            self.on_change()
        self._looked = True
        if lost and (back := self.on_lost()):
            log.warning("server_lost", server=self.client.url, handed_back=back)
        return self.state.open

    def _tell(self) -> None:
        if self.state.open:
            log.info("server_ready", server=self.client.url, limit=self.limit)
        else:
            health = self.state.health.value
            log.warning("server_not_ready", server=self.client.url, health=health, note="no jobs are taken")
