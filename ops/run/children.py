"""Processes that are started again when they die."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import BinaryIO, Final

from common.log import get_logger
from ops import guard
from ops.run.plan import STEADY_S, ChildPlan, backoff

TAIL_BYTES: Final = 16_384

log = get_logger("ops")


class Child:
    """One process under a guard, so that it does not outlive `ops run` whatever ends that."""

    def __init__(self, plan: ChildPlan, logs: Path) -> None:
        """Prepare; `start` starts it. Its output goes to a file in `logs`."""
        self.plan = plan
        self.path = logs / f"{plan.name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.deaths = 0
        self.last_code: int | None = None
        self._born = 0.0
        self._again_at = 0.0
        self._log: BinaryIO | None = None
        self._own_from = 0

    def start(self) -> None:
        """Start it."""
        if self._log is None:
            self._log = self.path.open("ab")
            self._own_from = self._log.tell()
        env = {**os.environ, **self.plan.env, "PYTHONUNBUFFERED": "1"}
        self.process = guard.spawn(self.plan.argv, env=env, stdout=self._log, stderr=self._log)
        self._born = time.monotonic()

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process is not None and self.process.poll() is None

    def ended(self) -> int | None:
        """Its exit code if it ended since the last call, else `None`."""
        if self.process is None:
            return None
        code = self.process.poll()
        if code is None:
            return None
        self.process = None
        self.last_code = code
        lived = time.monotonic() - self._born
        self.deaths = 1 if lived >= STEADY_S else self.deaths + 1
        self._again_at = time.monotonic() + backoff(self.deaths)
        return code

    def restart_if_due(self) -> bool:
        """Start it again if its time has come; true if so."""
        if self.process is not None or time.monotonic() < self._again_at:
            return False
        self.start()
        return True

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs."""
        if self.alive and self.process is not None:
            self.process.send_signal(number)

    def wait(self, timeout: float) -> bool:
        """Wait until it has ended; false if it still runs."""
        if self.process is None:
            return True
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End it at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        """Close its log."""
        if self._log:
            self._log.close()
            self._log = None

    def tail(self) -> str:
        """The end of its log, of this session alone: the file has those before it, too."""
        try:
            with self.path.open("rb") as file:
                file.seek(max(self._own_from, file.seek(0, os.SEEK_END) - TAIL_BYTES))
                return file.read().decode(errors="replace")
        except OSError:
            return ""
