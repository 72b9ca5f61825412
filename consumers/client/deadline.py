"""Deadlines of many requests on one timer of the loop.

`asyncio.timeout` makes a timer for every request and takes it away again, though nearly none comes to its
end. Here there is one, at the earliest deadline: it costs next to nothing while answers come in time.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final

_TICK_S: Final = 0.001
"""Timers of the loop have milliseconds, and may come that much early."""


class Deadlines:
    """The deadlines of what runs on one loop."""

    def __init__(self) -> None:
        """Use the running loop."""
        self.loop = asyncio.get_running_loop()
        self._open: set[Deadline] = set()
        self._timer: asyncio.TimerHandle | None = None

    def at(self, when: float) -> Deadline:
        """A context whose body ends with `TimeoutError` if the loop's time passes `when` within it."""
        return Deadline(self, when)

    def add(self, deadline: Deadline) -> None:
        """Watch one from now on."""
        self._open.add(deadline)
        if self._timer is None or deadline.when < self._timer.when():
            self._set_timer(deadline.when)

    def drop(self, deadline: Deadline) -> None:
        """Watch one no longer. The timer stays: it looks what is left when it comes."""
        self._open.discard(deadline)

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(when, self._look)

    def _look(self) -> None:
        self._timer = None
        due = self.loop.time() + _TICK_S
        for deadline in [one for one in self._open if one.when <= due]:
            self._open.discard(deadline)
            deadline.expire()
        if self._open:
            self._set_timer(min(one.when for one in self._open))


class Deadline:
    """One deadline, as `asyncio.timeout_at` keeps it: the task is cancelled, which ends as `TimeoutError`."""

    __slots__ = ("_before", "_deadlines", "_expired", "_task", "when")

    def __init__(self, deadlines: Deadlines, when: float) -> None:
        """Watch nothing yet."""
        self.when = when
        self._deadlines = deadlines
        self._expired = False

    def __enter__(self) -> None:
        """Begin to watch the current task."""
        task = asyncio.current_task(self._deadlines.loop)
        if task is None:
            raise RuntimeError("a deadline needs a task")
        self._task = task
        self._before = task.cancelling()
        self._deadlines.add(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End: our own cancellation is taken back; one by somebody else goes on."""
        if not self._expired:
            self._deadlines.drop(self)
        elif self._task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def expire(self) -> None:
        """The time has come."""
        self._expired = True
        self._task.cancel()
