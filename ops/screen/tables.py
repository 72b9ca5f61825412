"""The tables of a status screen: consumers with their servers, verdicts as bars. Every row is one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from ops.screen.words import rate
from ops.status.values import Consumer, RunStatus

STYLES: Final = {
    "working": "green",
    "draining": "yellow",
    "starting": "dim",
    "paused by guard": "red",
    "waiting for server": "red",
    "waiting for output": "red",
    "suspended": "yellow",
}
WELL: Final = "working"
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"
GOOD: Final = "ok"
LEAST_BARS: Final = 2
MOST_CELLS: Final = 60
"""A longer bar tells no more."""


def consumer_table(consumers: Sequence[Consumer], *, most: int | None = None, wide: bool = False) -> Table:
    """One row a consumer; past `most` rows those that need a look come first and the rest is summed up."""
    table = Table(box=None, pad_edge=False, padding=(0, 2 if wide else 1, 0, 0))
    # The one column that gives way where room is scarce.
    table.add_column("server", overflow="ellipsis")
    table.add_column("state", no_wrap=True)
    for name in ("in flight", "tokens/s", "accept", "queue", "err/min"):
        table.add_column(name, justify="right", no_wrap=True)
    if wide:
        for name in ("done/s", "done"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("errors so far", no_wrap=True)
        table.add_column("consumer", overflow="ellipsis")
    shown, rest = choose(consumers, most)
    for consumer in shown:
        table.add_row(*_cells(consumer, wide=wide))
    if rest:
        table.add_row(_one_line(f"... {len(rest):,} more", "dim"), Text(_states(rest), "dim"), *_sums(rest))
    if len(consumers) > 1:
        table.add_row(
            _one_line("all", "bold"), Text(f"{len(consumers):,} consumers", "bold"), *_sums(consumers)
        )
    return table


def table_height(consumers: Sequence[Consumer], most: int | None) -> int:
    """Lines that `consumer_table` takes."""
    shown, rest = choose(consumers, most)
    return 1 + len(shown) + bool(rest) + (len(consumers) > 1)


def choose(consumers: Sequence[Consumer], most: int | None) -> tuple[list[Consumer], list[Consumer]]:
    """Which consumers get a row of their own, and which are summed up."""
    if most is None or len(consumers) <= most:
        return list(consumers), []
    ranked = sorted(consumers, key=lambda one: (one.state == WELL, -one.last_minute.errors, one.server))
    cut = max(1, most - 1)
    return ranked[:cut], ranked[cut:]


def _cells(consumer: Consumer, *, wide: bool) -> list[Text]:
    minute = consumer.last_minute
    cells = [
        _one_line(consumer.server.removeprefix("http://")),
        Text(consumer.state, STYLES.get(consumer.state, "")),
        Text(f"{consumer.in_flight:,} of {consumer.limit:,}"),
        Text(f"{minute.output_tokens_per_s:,.0f}"),
        Text("-" if consumer.accept_length is None else f"{consumer.accept_length:.2f}"),
        Text("-" if consumer.queue is None else f"{consumer.queue:,}"),
        Text(f"{minute.errors:,}", "red" if minute.errors else ""),
    ]
    if wide:
        cells += [
            Text(rate(minute.completions_per_s)),
            Text(f"{consumer.completions:,}"),
            Text(_worst_kind(consumer), "red"),
            _one_line(f"{consumer.host} pid {consumer.pid}" if consumer.pid else consumer.worker, "dim"),
        ]
    return cells


def _one_line(text: str, style: str = "") -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _worst_kind(consumer: Consumer) -> str:
    if not consumer.errors_by_kind:
        return ""
    kind, number = max(consumer.errors_by_kind.items(), key=lambda pair: pair[1])
    return f"{kind} {number:,}"


def _sums(consumers: Sequence[Consumer]) -> list[Text]:
    queues = [consumer.queue for consumer in consumers if consumer.queue is not None]
    accepts = [consumer.accept_length for consumer in consumers if consumer.accept_length is not None]
    errors = sum(consumer.last_minute.errors for consumer in consumers)
    in_flight = sum(consumer.in_flight for consumer in consumers)
    return [
        Text(f"{in_flight:,} of {sum(consumer.limit for consumer in consumers):,}"),
        Text(f"{sum(consumer.last_minute.output_tokens_per_s for consumer in consumers):,.0f}"),
        Text(f"{sum(accepts) / len(accepts):.2f}" if accepts else "-"),
        Text(f"{sum(queues):,}" if queues else "-"),
        Text(f"{errors:,}", "red" if errors else ""),
    ]


def _states(consumers: Sequence[Consumer]) -> str:
    tally = Counter(consumer.state for consumer in consumers)
    return ", ".join(f"{number:,} {state}" for state, number in tally.most_common(2))


def bars(
    title: str, tally: Mapping[str, int], *, width: int, most: int, styles: Mapping[str, str] | None = None
) -> list[Text]:
    """A tally as a title and bars, past `most` the rest as one; a single line where room is scarce."""
    rows = list(tally.items())
    if most < LEAST_BARS:
        listed = ", ".join(f"{name} {number:,}" for name, number in rows)
        return [Text.assemble((title, "bold"), "  ", listed, no_wrap=True, overflow="ellipsis")]
    if len(rows) > most:
        rest = rows[most - 1 :]
        rows = [*rows[: most - 1], (f"{len(rest)} others", sum(number for _, number in rest))]
    total = sum(tally.values())
    names = max([len(title), *(len(name) for name, _ in rows)])
    numbers = max((len(f"{number:,}") for _, number in rows), default=1)
    room = min(MOST_CELLS, max(4, width - names - numbers - 12))
    lines = [Text(title, "bold")]
    for name, number in rows:
        share = number / total if total else 0.0
        line = Text(f"{name:<{names}}  ")
        line.append(_bar(share, room), (styles or {}).get(name, "yellow"))
        line.append(f"  {share:>6.1%}  {number:>{numbers},}")
        lines.append(line)
    return lines


def _bar(share: float, width: int) -> str:
    """A bar of so many cells, to an eighth of one; something above nothing is always seen."""
    eighths = max(1, round(share * width * 8)) if share > 0 else 0
    whole, part = divmod(eighths, 8)
    return (("█" * whole) + (_EIGHTHS[part] if part else "")).ljust(width)


def progress(done: float, width: int) -> Text:
    """One line that is full when `done` is 1."""
    cells = min(width, int(done * width))
    return Text.assemble(("━" * cells, "green"), ("━" * (width - cells), "bright_black"), no_wrap=True)


def run_table(runs: Sequence[RunStatus], *, most: int | None = None) -> Table:
    """One row a run, the last one counting those past `most`."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("run", overflow="ellipsis")
    table.add_column("state", no_wrap=True)
    for name in ("ended", "completed", "dead", "queued", "in flight"):
        table.add_column(name, justify="right", no_wrap=True)
    shown = runs if most is None or len(runs) <= most else runs[: most - 1]
    for run in shown:
        numbers = (f"{number:,}" for number in _counts(run))
        table.add_row(_one_line(run.run), run.state.value, share(run), *numbers)
    if len(shown) < len(runs):
        table.add_row(_one_line(f"... {len(runs) - len(shown):,} more", "dim"))
    return table


def share(run: RunStatus) -> str:
    """How much of a run has ended."""
    return f"{run.done / run.total:.1%}" if run.total else "100.0%"


def _counts(run: RunStatus) -> tuple[int, int, int, int]:
    return run.completed, run.dead, run.queued, run.in_flight
