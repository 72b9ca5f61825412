"""A status on a screen of given size: what matters most stays, what does not fit is summed up. Pure."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ops.screen import words
from ops.screen.tables import GOOD, bars, consumer_table, progress, run_table, share, table_height
from ops.status.notices import Level, Notice
from ops.status.values import RunStatus, State, Status

WIDE: Final = 140
"""From this many columns on, consumers show more and bars stand side by side."""

LEAST_CONSUMERS: Final = 3
MOST_BARS: Final = 8
GAP: Final = 4

_MEASURE: Final = Console(width=80, file=io.StringIO())
"""Tells how many lines a text takes; nothing is printed on it."""

_LEVELS: Final = {Level.BAD: "bold red", Level.WARNING: "yellow", Level.NOTE: "dim"}
_STATES: Final = {
    State.RUNNING: "green",
    State.FINISHED: "green",
    State.PAUSED: "bold red",
    State.NO_SERVER: "bold red",
    State.NO_CONSUMER: "yellow",
    State.SUSPENDED: "yellow",
}


def screen(
    status: Status,
    *,
    width: int,
    height: int | None = None,
    phase: str = "",
    said: Sequence[Notice] = (),
    footer: str = "",
) -> RenderableType:
    """The whole screen, for one run or several.

    Args:
        status: what to show; one run fills the screen, several share it.
        width: columns there are.
        height: lines there are; `None` is as many as it takes.
        phase: what is being done to the run, in place of its state.
        said: what is to be said, the most urgent first.
        footer: a last line.
    """
    run = status.runs[0] if len(status.runs) == 1 else None
    parts = _Parts(width, height)
    if run is None:
        _runs(parts, status)
    else:
        _head(parts, run, status, phase)
    _said(parts, said)
    tallies = [] if run is None else _tallies(run)
    # Bars can be few; every consumer that needs a look has a line first.
    wanted = table_height(status.consumers, None)
    reserve = min(len(tallies), 1) * (2 + bool(footer)) + bool(footer)
    most = _rows_for(status, parts.left(reserve=reserve + 1))
    if status.consumers:
        parts.gap(after=wanted)
        parts.add(
            consumer_table(status.consumers, most=most, wide=width >= WIDE),
            table_height(status.consumers, most),
        )
    _bars(parts, tallies, reserve=bool(footer))
    if footer:
        parts.add(_line(footer, "dim"), 1)
    return Group(*parts.found)


class _Parts:
    """What is on the screen so far, and how many lines are left."""

    def __init__(self, width: int, height: int | None) -> None:
        self.width = width
        self.height = height
        self.used = 0
        self.found: list[RenderableType] = []

    def add(self, part: RenderableType, lines: int) -> None:
        """Put something of so many lines below the rest, if there is room."""
        if self.height is None or self.used + lines <= self.height:
            self.found.append(part)
            self.used += lines

    def gap(self, *, after: int) -> None:
        """An empty line, unless room is scarce for `after` lines to come."""
        if self.height is None or self.used + after + 1 <= self.height:
            self.add(Text(""), 1)

    def left(self, *, reserve: int = 0) -> int | None:
        """Lines left, `None` for any number."""
        return None if self.height is None else max(0, self.height - self.used - reserve)


def _line(text: str, style: str = "") -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _head(parts: _Parts, run: RunStatus, status: Status, phase: str) -> None:
    width = parts.width
    head = Text.assemble(
        (f"run {run.run}  ", "bold"),
        f"{run.done:,} of {run.total:,}  {share(run)}  ",
        (phase or run.state.value, "yellow" if phase else _STATES.get(run.state, "")),
        no_wrap=True,
        overflow="ellipsis",
    )
    parts.add(head, 1)
    parts.add(progress(run.done / run.total if run.total else 1.0, width), 1)
    parts.add(_line(_fitting(width, words.equation(run), words.short_equation(run))), 1)
    if run.state is not State.FINISHED:
        for line in _pace(run, width):
            parts.add(_line(line), 1)
    parts.add(_line(_stored(run, status, width)), 1)


def _fitting(width: int, *spellings: str) -> str:
    """The first spelling that fits, or the last."""
    return next((text for text in spellings if len(text) <= width), spellings[-1])


def _pace(run: RunStatus, width: int) -> list[str]:
    last = f"last minute {words.speed(run)}" if run.rate_per_s is not None else ""
    rest = "; ".join(part for part in (words.whole_speed(run), words.eta(run)) if part)
    both = f"{last}; {rest}"
    return [both] if last and len(both) <= width else [line for line in (last, rest) if line]


def _stored(run: RunStatus, status: Status, width: int) -> str:
    stored = f"stored {run.stored:,} in {run.parts:,} part{'' if run.parts == 1 else 's'}"
    memory = f"; Redis {words.size(status.memory.used)}"
    if status.memory.limit:
        memory += f" of {words.size(status.memory.limit)}"
    if not run.waiting:
        return stored + memory
    age = f", oldest {words.duration(run.waiting_oldest_s)}" if run.waiting_oldest_s is not None else ""
    return _fitting(
        width,
        f"{stored}; {run.waiting:,} wait for a part ({words.size(run.waiting_bytes)}{age}){memory}",
        f"{stored}; {run.waiting:,} waiting ({words.size(run.waiting_bytes)}{age}){memory}",
        f"{stored}; {run.waiting:,} waiting{memory}",
    )


def _runs(parts: _Parts, status: Status) -> None:
    most = None if parts.height is None else max(1, parts.height // 2 - 2)
    rows = len(status.runs) if most is None else min(most, len(status.runs))
    parts.add(run_table(status.runs, most=most), 1 + rows)
    queue = status.queue
    parts.add(
        _line(
            f"queue: {queue.queued:,} queued, {queue.scheduled:,} wait for another try, "
            f"{queue.started:,} in flight; Redis {words.size(status.memory.used)}"
        ),
        1,
    )


def _said(parts: _Parts, said: Sequence[Notice]) -> None:
    for notice in said:
        text = Text(notice.text, _LEVELS[notice.level])
        lines = max(1, len(text.wrap(_MEASURE, parts.width)))
        parts.add(text, lines)


def _rows_for(status: Status, left: int | None) -> int | None:
    """How many consumers get a row: all, or what fits beside the heading and the sum."""
    if left is None:
        return None
    return max(LEAST_CONSUMERS, left - 1 - (len(status.consumers) > 1))


def _tallies(run: RunStatus) -> list[tuple[str, dict[str, int], dict[str, str]]]:
    found: list[tuple[str, dict[str, int], dict[str, str]]] = []
    if run.verdicts:
        found.append(("verdicts", run.verdicts, {GOOD: "green"}))
    if run.dead_by_reason:
        found.append(("dead letters", run.dead_by_reason, dict.fromkeys(run.dead_by_reason, "red")))
    return found


def _bars(
    parts: _Parts, tallies: Sequence[tuple[str, dict[str, int], dict[str, str]]], *, reserve: int
) -> None:
    if not tallies:
        return
    side_by_side = parts.width >= WIDE and len(tallies) > 1
    width = (parts.width - 2 * GAP) // 2 if side_by_side else parts.width
    wanted = [1 + min(MOST_BARS, len(tally)) for _, tally, _ in tallies]
    total = max(wanted) if side_by_side else sum(wanted)
    parts.gap(after=total + reserve)
    left = parts.left(reserve=reserve)
    columns = []
    for number, (title, tally, styles) in enumerate(tallies):
        room = MOST_BARS
        if left is not None:
            others = 0 if side_by_side else len(tallies) - number - 1
            room = min(MOST_BARS, left - 1 - others)
        lines = bars(title, tally, width=width, most=room, styles=styles)
        if left is not None and not side_by_side:
            left -= len(lines)
        columns.append(lines)
    if side_by_side and len(columns) > 1:
        grid = Table.grid(padding=(0, GAP, 0, 0))
        grid.add_column(width=width)
        grid.add_column(width=width)
        grid.add_row(*(Group(*lines) for lines in columns))
        parts.add(grid, max(len(lines) for lines in columns))
        return
    for lines in columns:
        parts.add(Group(*lines), len(lines))
