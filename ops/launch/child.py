"""One process under a guard: started, its log written to a file, looked at, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Final, Self

from common.errors import UsageError
from ops import guard
from ops.launch.reason import TAIL_BYTES, reason

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterable
    from pathlib import Path

    from ops.launch.plan import Command

_POLL: Final = 0.1
_HURRY: Final = 5.0
_ORPHAN_GRACE: Final = 60.0
"""Seconds that a server has to end when the launcher itself was killed."""


class Child:
    """A running process with its log."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, log_start: int) -> None:
        """Use `start` instead."""
        self._process = process
        self._log = log
        self._log_start = log_start
        self.born = time.monotonic()

    @classmethod
    def start(cls, command: Command, log: Path) -> Self:
        """Start the command; what it prints is added to the log, which only its owner may read.

        Raises:
            UsageError: the log cannot be written.
        """
        try:
            # A server prints its arguments, its key among them.
            descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise UsageError(
                f"the log {log} cannot be written ({error}): choose another --log-dir"
            ) from error
        try:
            process = guard.spawn(
                command.argv,
                env={**os.environ, **command.env},
                stdout=descriptor,
                stderr=descriptor,
                grace=_ORPHAN_GRACE,
            )
            return cls(process, log, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)

    @property
    def pid(self) -> int:
        """The guard's process id, which is the id of the process group too."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    @property
    def age(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self.born

    async def ended(self) -> int:
        """Wait until it has ended; returns the exit code."""
        while (code := self.exit_code) is None:  # noqa: ASYNC110  # a process's end sets no event
            await asyncio.sleep(_POLL)
        self.kill()
        return code if code >= 0 else 128 - code

    def why(self, secrets: Iterable[str]) -> str:
        """Why it ended, from its log."""
        with self._log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(self._log_start, end - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
        code = self.exit_code or 0
        return reason(lines, exit_code=code if code >= 0 else 128 - code, secrets=secrets)

    def terminate(self) -> None:
        """Ask it to end."""
        if self.exit_code is None:
            self._process.send_signal(signal.SIGTERM)

    async def stop(self, patience: float, hurry: asyncio.Event) -> None:
        """Ask it to end, and end it with all its children when it takes longer than `patience` seconds.

        Setting `hurry` asks a second time and leaves it a few seconds.
        """
        self.terminate()
        ended = asyncio.ensure_future(self.ended())
        hurried = asyncio.ensure_future(hurry.wait())
        await asyncio.wait({ended, hurried}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done() and hurried.done():
            self.terminate()
            await asyncio.wait({ended}, timeout=min(patience, _HURRY))
        hurried.cancel()
        if not ended.done():
            self.kill()
        await ended

    def kill(self) -> None:
        """Kill what is left of its process group: schedulers that outlived their server hold GPU memory."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:  # the guard's tie to this process
            self._process.stdin.close()
