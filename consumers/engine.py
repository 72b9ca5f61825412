"""The heart of a consumer: keeps N jobs in flight, and exchanges ended ones for new ones in batches.

One exchange with Redis is under way at a time. While it is, jobs go on ending, so the busier the consumer,
the more jobs share a round trip; an idle one waits for its next look at the queue. So that no slot of the
server waits for a round trip, a few jobs are claimed ahead: as many as ended during the last one.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
import traceback
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import msgspec

from common.errors import QueueError
from common.log import get_logger
from common.store.claims import Again, Claim, ClaimReply, ClaimStore, Ended, HandedBack, Outcome

POLL_LEAST_S: Final = 0.05
POLL_MOST_S: Final = 1.0
SUSPECT_DEATHS: Final = 2
REDIS_BACKOFF_S: Final = 0.25
REDIS_BACKOFF_MOST_S: Final = 5.0
FLUSH_S: Final = 5.0
EXCHANGE_MOST: Final = 128
"""Jobs that end, and that are claimed, in one exchange: Redis serves nobody else meanwhile."""

FULL_ENOUGH: Final = 32
"""So many ended jobs are sent without waiting for more: Redis works on them while the next ones do."""

DEEP_QUEUE: Final = 4
"""Jobs are claimed ahead while the queue holds this many times what is claimed: never the last ones."""

log = get_logger("consumer")


class Gate(Protocol):
    """What decides whether, and how many, jobs may be taken."""

    @property
    def limit(self) -> int:
        """Jobs in flight at most now; 0 while the server takes none."""
        ...


class Limits(msgspec.Struct, frozen=True):
    """When the engine ends by itself: RQ's `--burst`, `--max-jobs` and `--max-idle-time`."""

    burst: bool = False
    max_jobs: int | None = None
    max_idle_s: float | None = None


class Engine:
    """Runs claims until told to stop. Everything happens on one asyncio loop."""

    def __init__(
        self,
        store: ClaimStore,
        gate: Gate,
        perform: Callable[[Claim], Awaitable[Outcome]],
        *,
        limits: Limits = Limits(),  # noqa: B008  # frozen
        on_windows: Callable[[dict[str, dict[str, int]]], Awaitable[None]] | None = None,
    ) -> None:
        """Use `perform` to turn a claim into its outcome; it may be cancelled at any await."""
        self.store = store
        self.gate = gate
        self.perform = perform
        self.limits = limits
        self.on_windows = on_windows
        self.held: dict[str, Claim] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.state = "starting"
        self.ended_well = 0
        self.ended_badly = 0
        self.started = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: list[Ended] = []
        self._spare: deque[Claim] = deque()
        self._ahead = 0
        self._wake = asyncio.Event()
        self._stopping = False
        self._resync = False
        self._poll = POLL_LEAST_S
        self._next_claim = 0.0
        self._idle_since = time.monotonic()
        self._queue_empty = False

    # Control

    def wake(self) -> None:
        """Look again: a slot or the gate has changed."""
        self._wake.set()

    def drain(self) -> None:
        """Take no more jobs; `run` returns when those in flight have ended."""
        self._stopping = True
        self.state = "draining"
        self._return_spare()
        self.wake()

    def hand_back(self, *, death: bool = False) -> int:
        """Cancel every job in flight; they go back to the head of the queue. Returns how many."""
        self._return_spare()
        count = len(self.tasks)
        for execution in list(self.tasks):
            self._cancel(execution, "death" if death else None)
        return count

    def cancel(self, job: str) -> bool:
        """Hand one job back."""
        spare = [claim for claim in self._spare if claim.job == job]
        for claim in spare:
            self._spare.remove(claim)
            self._end(claim, HandedBack())
        found = [e for e, claim in self.held.items() if claim.job == job and e in self.tasks]
        for execution in found:
            self._cancel(execution)
        return bool(found or spare)

    def _cancel(self, execution: str, why: str | None = None) -> None:
        task = self.tasks[execution]
        work = task.get_coro()
        never_began = inspect.iscoroutine(work) and inspect.getcoroutinestate(work) == inspect.CORO_CREATED
        task.cancel(why)
        if never_began:
            # A task that is cancelled before its first step does not come to its own end.
            del self.tasks[execution]
            self._end(self.held[execution], HandedBack())

    @property
    def in_flight(self) -> int:
        """Jobs being worked on."""
        return len(self.tasks)

    # The loop

    async def run(self) -> None:
        """Work until drained or a limit is reached, then tell Redis of all that ended."""
        self._loop = asyncio.get_running_loop()
        backoff = REDIS_BACKOFF_S
        while True:
            if not self.gate.limit:
                self._return_spare()
            want = self._want()
            if not self._ended and want <= 0:
                if self._over():
                    return
                await self._wait()
                continue
            if len(self._ended) < FULL_ENOUGH:
                # Let every job that can end in this turn of the loop share the round trip.
                await asyncio.sleep(0)
            try:
                await self._exchange(want)
                backoff = REDIS_BACKOFF_S
            except QueueError as error:
                self._resync = True
                log.warning("redis_unavailable", error=str(error), retry_in_s=backoff, held=len(self.held))
                if self._stopping and not self.tasks and backoff >= FLUSH_S:
                    # The error itself was logged above.
                    log.error("results_not_delivered", jobs=len(self._ended), note="they run again")  # noqa: TRY400
                    return
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, REDIS_BACKOFF_MOST_S)

    async def _exchange(self, want: int) -> None:
        if self._resync:
            # The answer to a claim may have been lost: what we do not know of goes back.
            await self.store.disown(list(self.held.values()))
            self._resync = False
        ended, self._ended = self._ended[:EXCHANGE_MOST], self._ended[EXCHANGE_MOST:]
        suspects = 0 if any(claim.deaths >= SUSPECT_DEATHS for claim in self.held.values()) else 1
        try:
            finish, reply = await self.store.exchange(
                ended, want=want, prefix=uuid.uuid4().hex, suspects=suspects
            )
        except BaseException:
            self._ended = ended + self._ended
            raise
        # What was only handed back tells nothing of how fast jobs end.
        through = sum(not isinstance(item.outcome, HandedBack) for item in ended)
        self._ahead = max(through, self._ahead - 1)
        for item, counted in zip(ended, finish.accepted, strict=True):
            self.held.pop(item.claim.execution, None)
            if not counted:
                log.info("late_result_dropped", job=item.claim.job)
        if finish.windows and self.on_windows:
            await self.on_windows(finish.windows)
        if reply is not None:
            self._start(reply, want)

    def _start(self, reply: ClaimReply, want: int) -> None:
        for claim in reply.claims:
            self.held[claim.execution] = claim
            self.started += 1
        self._spare.extend(reply.claims)
        self._fill()
        if reply.state != "ok" or self._stopping:
            self._return_spare()
        if reply.queued < DEEP_QUEUE * (self.in_flight + self._ahead):
            self._ahead = 0
        now = time.monotonic()
        self._queue_empty = (
            reply.state in ("ok", "full") and not reply.claims and not reply.queued and not reply.scheduled
        )
        if not self._stopping:
            self.state = "working" if reply.state == "ok" else reply.state
        if len(reply.claims) >= want:
            self._poll = POLL_LEAST_S
            self._next_claim = now
        else:
            # The queue is short, or the run is paused: look again soon, then less often.
            self._poll = POLL_LEAST_S if reply.claims else min(self._poll * 2, POLL_MOST_S)
            self._next_claim = now + self._poll
        if self.tasks:
            self._idle_since = now

    def _want(self) -> int:
        if self._stopping or time.monotonic() < self._next_claim:
            return 0
        limit = self.gate.limit
        room = limit - len(self.tasks) - len(self._spare)
        if not limit or (room <= 0 and not self._ended):
            return 0
        want = room + min(self._ahead, limit)
        if self.limits.max_jobs is not None:
            want = min(want, self.limits.max_jobs - self.started)
        return min(want, EXCHANGE_MOST)

    def _over(self) -> bool:
        if self.held:
            return False
        if self._stopping:
            return True
        limits = self.limits
        if limits.max_jobs is not None and self.started >= limits.max_jobs:
            return True
        if limits.burst and (self._queue_empty or self.state in ("suspended", "paused")):
            return True
        idle = time.monotonic() - self._idle_since
        return limits.max_idle_s is not None and idle >= limits.max_idle_s

    async def _wait(self) -> None:
        pause = self._next_claim - time.monotonic()
        timeout = min(max(pause, 0.001), POLL_MOST_S) if pause > 0 else POLL_MOST_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._wake.wait()
        self._wake.clear()

    # One job

    def _fill(self) -> None:
        """Start as many spare jobs as there is room for."""
        loop = self._loop
        if loop is None:
            raise RuntimeError("jobs are started while the engine runs")
        while self._spare and len(self.tasks) < self.gate.limit:
            claim = self._spare.popleft()
            self.tasks[claim.execution] = loop.create_task(self._work(claim))

    def _return_spare(self) -> None:
        """Give back what was claimed ahead: somebody else may start it now."""
        while self._spare:
            self._end(self._spare.pop(), HandedBack())

    async def _work(self, claim: Claim) -> None:
        outcome: Outcome
        try:
            outcome = await self.perform(claim)
        except asyncio.CancelledError as cancelled:
            outcome = HandedBack(death=bool(cancelled.args) and cancelled.args[0] == "death")
        except Exception as error:  # noqa: BLE001  # a fault of ours must not lose the job
            # Where, but not the error's own words: they could quote the prompt.
            stack = "".join(traceback.format_tb(error.__traceback__))
            kind = type(error).__name__
            log.error("job_fault", job=claim.job, attempt=claim.attempts + 1, kind=kind, stack=stack)  # noqa: TRY400
            outcome = Again(5.0, claim.attempts + 1, claim.tries)
        self.tasks.pop(claim.execution, None)
        self._end(claim, outcome)
        self._fill()

    def _end(self, claim: Claim, outcome: Outcome) -> None:
        self._ended.append(Ended(claim, outcome))
        if isinstance(outcome, (Again, HandedBack)):
            self.ended_badly += 1
        else:
            self.ended_well += 1
        self._wake.set()
