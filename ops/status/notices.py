"""What is wrong, or about to be, in sentences that say what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final

import msgspec

from common.settings import QUEUE_NAME
from ops.screen.words import what_helps
from ops.status.values import Pause, RunStatus, State, Status

MEMORY_SHARE: Final = 0.85
NAMED: Final = 3


class Level(IntEnum):
    """How bad it is."""

    BAD = 0
    WARNING = 1
    NOTE = 2


class Notice(msgspec.Struct, frozen=True):
    """One sentence for the operator."""

    level: Level
    text: str


def notices(status: Status, more: Iterable[Notice] = (), *, tended: bool = False) -> list[Notice]:
    """Everything worth saying, and `more`, the worst first; of several runs only what they share.

    Where the run's parts are `tended` by who asks, a part that is not there yet is no news.
    """
    of_run = _of_run(status, status.runs[0]) if len(status.runs) == 1 else ()
    absent = _absent(status, status.runs[0]) if len(status.runs) == 1 and not tended else ()
    return sorted([*of_run, *absent, *_around(status), *more], key=lambda notice: notice.level)


def _of_run(status: Status, run: RunStatus) -> Iterator[Notice]:
    for pause in run.paused:
        yield Notice(Level.BAD, pause_text(pause))
    if not run.balanced:
        yield Notice(Level.BAD, "the counts do not add up: keep the output and report this")
    if run.missing:
        yield Notice(
            Level.WARNING,
            f"{run.missing:,} jobs are gone from Redis: run the producer or `ops run` again with that input",
        )
    if run.waiting and any(consumer.state == "waiting for output" for consumer in status.consumers):
        yield Notice(
            Level.BAD,
            f"consumers wait: {run.waiting:,} completions are in no part yet; the collector's log says why",
        )
    if run.state is State.FINISHED and run.dead:
        yield Notice(
            Level.NOTE,
            f"`ops dead {run.run}` shows the dead letters; {what_helps(run.run, run.dead_by_reason)}",
        )


def _absent(status: Status, run: RunStatus) -> Iterator[Notice]:
    if run.state is State.NO_CONSUMER:
        yield Notice(Level.WARNING, "no consumer is at work: start one, or run the same `ops run` again")
    if run.active and not status.collector:
        yield Notice(Level.WARNING, "no collector is at work: completions wait in Redis until one starts")


def pause_text(pause: Pause) -> str:
    """A pause in the guard's words, and which prompts show what it means."""
    where = "the run" if pause.scope == "*" else pause.scope
    sentence = pause.sentence or f"{where} is paused"
    if pause.scope != "*" and pause.scope not in sentence:
        sentence = f"{pause.scope}: {sentence}"
    samples = f" Look at prompts {', '.join(pause.samples)}." if pause.samples else ""
    return f"{sentence}{samples}"


def _around(status: Status) -> Iterator[Notice]:
    if status.suspended:
        yield Notice(Level.WARNING, "suspended by `rq suspend`: nothing new starts until `rq resume`")
    if status.stock_workers:
        yield Notice(
            Level.BAD,
            f"stock RQ workers on this queue ({_few(status.stock_workers)}): start consumers as "
            f"`RQ_WORKER_CLASS=consumers.GenerationWorker rq worker {QUEUE_NAME}`",
        )
    if status.silent:
        named = [f"{one.host} pid {one.pid} for {one.seconds:.0f} s" for one in status.silent]
        yield Notice(Level.WARNING, f"consumers without a sign of life: {_few(named)}")
    if not status.disk_ok:
        yield Notice(
            Level.BAD, "Redis cannot write to its disk, so all stands still: make room there, and it goes on"
        )
    used, limit = status.memory.used, status.memory.limit
    if limit and used > limit * MEMORY_SHARE:
        yield Notice(
            Level.WARNING,
            f"Redis uses {used / limit:.0%} of its memory, and the producer waits: raise maxmemory",
        )


def _few(names: list[str]) -> str:
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
