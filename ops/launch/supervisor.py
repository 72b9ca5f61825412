"""Keeps servers and consumers running: starts one after the other, waits, restarts, stops.

Each process is kept by one task. Consumers stop before servers, so that answers under way can be finished.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from common.errors import PromptmillError
from ops.launch.child import Child

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from ops.launch.plan import Command, Plan


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds, and how often a server that never came up is tried."""

    stagger: float = 10.0
    probe_every: float = 2.0
    start_timeout: float = 1800.0
    stop_timeout: float = 60.0
    drain_timeout: float = 360.0
    first_delay: float = 5.0
    longest_delay: float = 300.0
    settled: float = 600.0
    tries: int = 5


def restart_delay(deaths: int, policy: Policy) -> float:
    """Seconds to wait before the next start after `deaths` deaths in a row, from 1: doubling, bounded."""
    return float(min(policy.longest_delay, policy.first_delay * 2.0 ** min(deaths - 1, 30)))


class Supervisor:
    """Runs the plans until it is stopped or every server has been given up."""

    def __init__(
        self,
        plans: Sequence[Plan],
        *,
        policy: Policy,
        log_dir: Path,
        ready: Callable[[str], Awaitable[bool]],
        log: Any,
        secrets: Sequence[str] = (),
    ) -> None:
        """`ready` tells of a server's URL whether it answers now; it must not raise for one that does not."""
        self._plans = plans
        self._policy = policy
        self._log_dir = log_dir
        self._ready = ready
        self._log = log
        self._secrets = secrets
        self._stop_consumers = asyncio.Event()
        self._stop_servers = asyncio.Event()
        self._hurry = asyncio.Event()
        self._children: set[Child] = set()

    def stop(self) -> None:
        """Stop all, consumers first; called again, in a hurry."""
        if self._stop_consumers.is_set():
            self._hurry.set()
        self._stop_consumers.set()

    async def run(self) -> int:
        """Run until stopped; returns 0, or 1 when every server was given up."""
        came_up = [asyncio.Event() for _ in self._plans]
        fault: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                servers = [
                    tasks.create_task(self._keep_server(plan, at * self._policy.stagger, came_up[at]))
                    for at, plan in enumerate(self._plans)
                ]
                consumers = [
                    tasks.create_task(self._keep_consumer(plan.consumer, came_up[at]))
                    for at, plan in enumerate(self._plans)
                    if plan.consumer is not None
                ]
                tasks.create_task(self._stop_in_order(servers, consumers))
        except* PromptmillError as group:
            # Raised after this block: from inside it, some Pythons wrap the error in a group again.
            fault = group.exceptions[0]
        finally:
            for child in self._children:
                child.kill()
        if fault is not None:
            raise fault
        return int(not any(server.result() for server in servers))

    async def _stop_in_order(
        self, servers: Sequence[asyncio.Task[bool]], consumers: Sequence[asyncio.Task[None]]
    ) -> None:
        all_given_up: asyncio.Future[list[bool]] = asyncio.gather(*servers)
        await self._either(all_given_up, self._stop_consumers)
        self._stop_consumers.set()
        await asyncio.gather(*consumers)
        self._stop_servers.set()
        await all_given_up

    async def _keep_server(self, plan: Plan, delay: float, came_up: asyncio.Event) -> bool:
        """Keep one server running; returns False when it was given up."""
        name, deaths = plan.server.name, 0
        # A server not started yet is not started at all once the consumers are told to stop.
        await self._pause(delay, self._stop_consumers)
        while not self._stop_consumers.is_set():
            self._log.info("server_starting", server=plan.url, log=str(self._log_path(name)))
            child = self._start(plan.server)
            died = asyncio.ensure_future(child.ended())
            if await self._comes_up(plan, child, died):
                came_up.set()
                self._log.info("server_ready", server=plan.url, after_s=round(child.age, 1))
                await self._either(died, self._stop_servers)
            if not died.done():
                await self._end(child, self._policy.stop_timeout)
                if self._stop_consumers.is_set():
                    return True
                why = f"not ready after {self._policy.start_timeout:.0f} s"
            else:
                why = child.why(self._secrets)
            if self._stop_consumers.is_set():
                return True
            deaths = 1 if child.age > self._policy.settled else deaths + 1
            if deaths >= self._policy.tries and not came_up.is_set():
                self._log.error("server_given_up", server=plan.url, starts=deaths, reason=why)
                return False
            await self._wait_to_restart("server", plan.url, why, deaths, self._stop_consumers)
        return True

    async def _keep_consumer(self, command: Command, came_up: asyncio.Event) -> None:
        """Keep one consumer running from the first time its server is ready; it waits by itself later on."""
        deaths = 0
        await self._either(asyncio.ensure_future(came_up.wait()), self._stop_consumers)
        while not self._stop_consumers.is_set():
            child = self._start(command)
            self._log.info("consumer_started", consumer=command.name, log=str(self._log_path(command.name)))
            died = asyncio.ensure_future(child.ended())
            await self._either(died, self._stop_consumers)
            if not died.done():
                await self._end(child, self._policy.drain_timeout)
                return
            deaths = 1 if child.age > self._policy.settled else deaths + 1
            why = child.why(self._secrets)
            await self._wait_to_restart("consumer", command.name, why, deaths, self._stop_consumers)

    async def _comes_up(self, plan: Plan, child: Child, died: asyncio.Future[int]) -> bool:
        """Wait until the server is ready; False when it died, took too long, or is to stop."""
        while child.age < self._policy.start_timeout and not died.done() and not self._stop_servers.is_set():
            if await self._ready(plan.url):
                # Something else may answer on the port of a server that died.
                return child.exit_code is None
            await self._either(died, self._stop_servers, self._policy.probe_every)
            if self._stop_consumers.is_set():
                return False
        return False

    async def _wait_to_restart(
        self, kind: str, name: str, why: str, deaths: int, stop: asyncio.Event
    ) -> None:
        delay = restart_delay(deaths, self._policy)
        self._log.warning(
            "server_died" if kind == "server" else "consumer_died",
            **{kind: name},
            reason=why,
            deaths=deaths,
            restart_in_s=delay,
        )
        await self._pause(delay, stop)

    async def _end(self, child: Child, patience: float) -> None:
        await child.stop(patience, self._hurry)

    def _start(self, command: Command) -> Child:
        self._children = {child for child in self._children if child.exit_code is None}
        child = Child.start(command, self._log_path(command.name))
        self._children.add(child)
        return child

    def _log_path(self, name: str) -> Path:
        return self._log_dir / f"{name}.log"

    @staticmethod
    async def _pause(seconds: float, stop: asyncio.Event) -> None:
        """Sleep, but not beyond `stop`."""
        try:
            await asyncio.wait_for(stop.wait(), seconds)
        except TimeoutError:
            return

    @staticmethod
    async def _either(
        future: asyncio.Future[Any], event: asyncio.Event, seconds: float | None = None
    ) -> None:
        """Wait until the future is done, the event is set, or the time is up."""
        flagged = asyncio.ensure_future(event.wait())
        await asyncio.wait({future, flagged}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        flagged.cancel()
