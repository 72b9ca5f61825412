"""How far the producer is: a line that renews itself on a terminal, log events now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from common.log import get_logger
from common.metrics import ProducerMetrics
from producer.admit import Waiting

EVERY_S: Final = 10.0

log = get_logger("producer")


class ProgressLine:
    """Progress of one phase; a context manager."""

    def __init__(
        self,
        phase: str,
        *,
        unit: str,
        total: int | None = None,
        run: str = "",
        metrics: ProducerMetrics | None = None,
    ) -> None:
        """Show `phase`, counting `unit` up to `total`; `metrics` are told of what `report` takes."""
        self.run = run
        self.metrics = metrics
        self._admitted: int | None = None
        self.phase = phase
        self.unit = unit
        self.total = total
        self._shown = time.monotonic()
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                TextColumn("{task.completed:,.0f} of {task.total:,.0f} " + unit),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task(phase, total=total or 1, note="")

    def __enter__(self) -> Self:
        """Begin to show."""
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop showing."""
        if self._bar:
            self._bar.stop()

    def update(self, done: int, total: int) -> None:
        """Take bytes read of all bytes."""
        self._show(done, total, "")

    def report(self, admitted: int, waiting: Waiting | None) -> None:
        """Take prompts admitted, and why it waits; -1 is as many as before."""
        if self.metrics:
            for reason in ("high_water", "redis_full"):
                self.metrics.waiting.labels(reason).set(int(waiting is not None and waiting.reason == reason))
            if admitted >= 0:
                if self._admitted is not None:
                    self.metrics.admitted.labels(self.run).inc(max(0, admitted - self._admitted))
                self._admitted = admitted
                self.metrics.position.labels(self.run).set(admitted)
        self._show(
            admitted if admitted >= 0 else None, self.total or 1, _NOTES[waiting.reason] if waiting else ""
        )

    def _show(self, done: int | None, total: int, note: str) -> None:
        if self._bar:
            self._bar.update(self._task, total=total, note=note)
            if done is not None:
                self._bar.update(self._task, completed=done)
            return
        now = time.monotonic()
        if now - self._shown >= EVERY_S:
            self._shown = now
            log.info(
                "producer_progress", phase=self.phase, done=done, total=total, unit=self.unit, waiting=note
            )


_NOTES: Final = {
    "high_water": "waits: the queue is as full as --high-water lets it be",
    "redis_full": "waits: Redis is nearly full, consumers make room",
    "redis_unavailable": "waits: Redis does not answer",
}
