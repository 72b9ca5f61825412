"""Whether a consumer's server takes work, and how much of it.

A closed gate costs no job anything: the consumer simply claims none. It opens by itself when the server is
ready again. What to do at each probe is decided by the pure `step`; `ServerGate` does the probing.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final

import msgspec

from common.errors import ServerError
from common.log import get_logger
from consumers.client.health import HealthState
from consumers.client.http import InferenceClient
from consumers.client.info import ServerInfo
from consumers.client.throttle import Throttle, cap_after_overload, cap_recover

PROBE_OPEN_S: Final = 5.0
PROBE_CLOSED_S: Final = 1.0
SILENT_S: Final = 60.0
"""A server that fails its probes for this long is taken to have lost what it was working on."""

DEFAULT_CONCURRENCY: Final = 48
HEADROOM: Final = 1.15
"""Requests in flight per request that the server runs: the rest wait there, so that no slot waits for us."""

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


def concurrency_for(asked: int, info: ServerInfo | None) -> int:
    """Requests to keep in flight: as asked, or 15 % more than the server says it runs, or 48."""
    if asked > 0:
        return asked
    running = info.effective_running if info else None
    if not running:
        return DEFAULT_CONCURRENCY
    return max(running + 1, math.floor(running * HEADROOM))


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
        self.target = concurrency_for(concurrency, None)

    @property
    def limit(self) -> int:
        """Jobs in flight at most now; 0 while the server takes none."""
        return min(self.target, self._throttle.cap) if self.state.open else 0

    @property
    def word(self) -> str:
        """The server's state in one word, for status screens."""
        return "ready" if self.state.open else str(self.state.health.value)

    def ask_for(self, concurrency: int) -> None:
        """Change how many requests are asked for; 0 is auto."""
        self.asked = concurrency
        self._retarget(concurrency_for(concurrency, self.info if self._knows_server else None))

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
            try:
                await asyncio.wait_for(self._hurry.wait(), wait)
            except TimeoutError:
                continue

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
                self._retarget(concurrency_for(self.asked, self.info))
        self.state, lost = step(self.state, health, time.monotonic())
        if self.state.open != was_open:
            log.info(
                "server_ready" if self.state.open else "server_not_ready",
                server=self.client.url,
                health=health.value,
                limit=self.limit,
            )
            self.on_change()
        if lost and (back := self.on_lost()):
            log.warning("server_lost", server=self.client.url, handed_back=back)
        return self.state.open
