"""The scheduler of a simulated server: a few slots, a queue before them, and jobs that take their time."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING

from ops.simulator.occupancy import Occupancy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Outcome(Enum):
    """How a job ended."""

    DONE = "done"
    ABORTED_RUNNING = "aborted_running"
    ABORTED_WAITING = "aborted_waiting"
    DISCONNECTED = "disconnected"
    LOST = "lost"


class Job:
    """One request in the scheduler.

    Attributes:
        gone: tells whether the client has left.
        duration: real seconds in a slot; `None` runs until it is aborted.
        begun: resolved with nothing when the job gets its slot (or ends without one).
        ended: resolved with the outcome.
    """

    __slots__ = (
        "begun",
        "duration",
        "ended",
        "gone",
        "next_poll",
        "prompt_tokens",
        "rid",
        "started_at",
        "timer",
    )

    def __init__(
        self,
        rid: str,
        *,
        duration: float | None,
        prompt_tokens: int,
        gone: Callable[[], bool],
        next_poll: float,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.rid = rid
        self.duration = duration
        self.prompt_tokens = prompt_tokens
        self.gone = gone
        self.next_poll = next_poll
        self.begun: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[Outcome] = loop.create_future()
        self.started_at: float | None = None
        self.timer: asyncio.TimerHandle | None = None


class Slots:
    """Runs at most `limit` jobs at once, first come first served."""

    def __init__(self, limit: int, *, slowdown: float, loop: asyncio.AbstractEventLoop) -> None:
        """Start empty."""
        self._loop = loop
        self._slowdown = slowdown
        self._waiting: deque[Job] = deque()
        self._running: dict[Job, None] = {}
        self._held: list[Job] = []
        self.limit = limit
        self.stuck = False
        self.occupancy = Occupancy(limit, time.time())
        self.max_running = 0
        self.max_waiting = 0

    @property
    def running(self) -> int:
        """Jobs in a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Jobs before the slots."""
        return len(self._waiting)

    @property
    def used_tokens(self) -> int:
        """Prompt tokens of the running jobs."""
        return sum(job.prompt_tokens for job in self._running)

    def submit(self, job: Job) -> None:
        """Take a job in; it starts at once if a slot is free."""
        self._waiting.append(job)
        self._fill()
        self.max_waiting = max(self.max_waiting, len(self._waiting))

    def resize(self, limit: int) -> None:
        """Change how many jobs may run; running jobs above a lower limit run on."""
        self.limit = limit
        self.occupancy.change(len(self._running), time.time(), slots=limit)
        self._fill()

    def freeze(self, *, stuck: bool) -> None:
        """Let no job end while `stuck`; those that were due end when it is over."""
        self.stuck = stuck
        if not stuck:
            held, self._held = self._held, []
            for job in held:
                self._leave(job, Outcome.DONE)

    def abort(self, matches: Callable[[str], bool]) -> list[str]:
        """Abort every job whose request id matches; the ids of those that were still waiting are returned."""
        waiting = [job for job in self._waiting if matches(job.rid)]
        for job in waiting:
            self._leave(job, Outcome.ABORTED_WAITING)
        for job in [job for job in self._running if matches(job.rid)]:
            self._leave(job, Outcome.ABORTED_RUNNING)
        return [job.rid for job in waiting]

    def drop_disconnected(self, poll: float) -> int:
        """Look at each job whose turn it is, and end those whose client has left. Returns how many."""
        now = self._loop.time()
        dropped = 0
        for job in list(self._jobs()):
            if job.next_poll > now:
                continue
            job.next_poll = now + poll
            if job.gone():
                self._leave(job, Outcome.DISCONNECTED)
                dropped += 1
        return dropped

    def drop_all(self) -> None:
        """End every job without an answer: the server died."""
        for job in list(self._jobs()):
            self._leave(job, Outcome.LOST)

    def reset_stats(self) -> None:
        """Begin to count anew."""
        self.occupancy = Occupancy(self.limit, time.time())
        self.max_running, self.max_waiting = len(self._running), len(self._waiting)
        self._note()

    def _jobs(self) -> Iterator[Job]:
        yield from self._waiting
        yield from self._running

    def _fill(self) -> None:
        started = False
        while self._waiting and len(self._running) < self.limit:
            self._start(self._waiting.popleft())
            started = True
        if started:
            self._note()

    def _start(self, job: Job) -> None:
        self._running[job] = None
        job.started_at = self._loop.time()
        if job.duration is not None:
            slower = 1.0 + self._slowdown * (len(self._running) - 1)
            job.duration *= slower
            job.timer = self._loop.call_later(job.duration, self._due, job)
        if not job.begun.done():
            job.begun.set_result(None)

    def _due(self, job: Job) -> None:
        if self.stuck:
            self._held.append(job)
        else:
            self._leave(job, Outcome.DONE)

    def _leave(self, job: Job, outcome: Outcome) -> None:
        """Take a job out of wherever it is, and give its slot to the next."""
        if job in self._running:
            del self._running[job]
            if job.timer is not None:
                job.timer.cancel()
        elif job in self._waiting:
            self._waiting.remove(job)
        else:
            return
        if not job.begun.done():
            job.begun.set_result(None)
        if not job.ended.done():
            job.ended.set_result(outcome)
        self._fill()
        self._note()

    def _note(self) -> None:
        running = len(self._running)
        self.max_running = max(self.max_running, running)
        self.occupancy.change(running, time.time())
