"""A status on a screen of given size: what matters most stays, what does not fit is summed up. Pure."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ops.screen import words
from ops.screen.tables import GOOD, bars, consumer_table, run_table, share, table_height
from ops.status.notices import Level, Notice, notices
from ops.status.values import RunStatus, State, Status

WIDE: Final = 120
"""From this many columns on, consumers show more and bars stand side by side."""

LEAST_CONSUMERS: Final = 3
MOST_BARS: Final = 8

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
    more: Sequence[Notice] = (),
    footer: str = "",
) -> RenderableType:
    """The whole screen, for one run or several.

    Args:
        status: what to show; one run fills the screen, several share it.
        width: columns there are.
        height: lines there are; `None` is as many as it takes.
        phase: what is being done to the run, besides its state.
        more: what else is to be said.
        footer: a last line.
    """
    run = status.runs[0] if len(status.runs) == 1 else None
    said = [*notices(status, run), *more]
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
        (run.state.value, _STATES.get(run.state, "")),
        (f", {phase}" if phase else "", "yellow"),
        no_wrap=True,
        overflow="ellipsis",
    )
    parts.add(head, 1)
    parts.add(ProgressBar(total=max(1, run.total), completed=run.done, width=width), 1)
    counts = words.equation(run)
    parts.add(_line(counts if len(counts) <= width else words.short_equation(run)), 1)
    if run.state is not State.FINISHED:
        parts.add(_line(_pace(run, width)), 1)
        if width < WIDE and run.whole_run_rate_per_s is not None:
            parts.add(_line(f"{words.whole_speed(run)}; {words.eta(run)}"), 1)
    parts.add(_line(_stored(run, status)), 1)


def _pace(run: RunStatus, width: int) -> str:
    if run.rate_per_s is None:
        return words.eta(run)
    last = f"last minute {words.speed(run)}"
    if width < WIDE and run.whole_run_rate_per_s is not None:
        return last
    return "; ".join(part for part in (last, words.whole_speed(run), words.eta(run)) if part)


def _stored(run: RunStatus, status: Status) -> str:
    number = f"{run.parts:,} part{'' if run.parts == 1 else 's'}"
    text = f"stored {run.stored:,} in {number}"
    if run.waiting:
        age = f", oldest {words.duration(run.waiting_oldest_s)}" if run.waiting_oldest_s is not None else ""
        text += f"; {run.waiting:,} wait for a part ({words.size(run.waiting_bytes)}{age})"
    memory = words.size(status.memory.used)
    if status.memory.limit:
        memory += f" of {words.size(status.memory.limit)}"
    return f"{text}; Redis {memory}"


def _runs(parts: _Parts, status: Status) -> None:
    parts.add(run_table(status), 1 + len(status.runs))
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
    width = (parts.width - 4) // 2 if side_by_side else parts.width
    wanted = [1 + min(MOST_BARS, len(tally)) for _, tally, _ in tallies]
    total = max(wanted) if side_by_side else sum(wanted)
    parts.gap(after=total + reserve)
    left = parts.left(reserve=reserve)
    columns = []
    for number, (title, tally, styles) in enumerate(tallies):
        room = MOST_BARS
        if left is not None:
            still = 0 if side_by_side else 2 * (len(tallies) - number - 1)
            room = min(MOST_BARS, left - 1 - still)
        if room < 1:
            continue
        lines = bars(title, tally, width=width, most=room, styles=styles)
        if left is not None and not side_by_side:
            left -= len(lines)
        columns.append(lines)
    if side_by_side and len(columns) > 1:
        grid = Table.grid(padding=(0, 4, 0, 0), expand=True)
        grid.add_column(ratio=1)
        grid.add_column(ratio=1)
        grid.add_row(*(Group(*lines) for lines in columns))
        parts.add(grid, max(len(lines) for lines in columns))
        return
    for lines in columns:
        parts.add(Group(*lines), len(lines))
