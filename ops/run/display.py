"""What `ops run` shows: a live screen on a terminal, a line now and then elsewhere, and the last words."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from common.store.runs import Counts
from ops.run.plan import RunPlan

LINE_EVERY_S: Final = 10.0
WINDOW_S: Final = 60.0


class Display:
    """Shows snapshots; every method may be called whether or not there is a terminal."""

    def __init__(self, run: str) -> None:
        """Write to standard error; results and summaries are for people, too."""
        self.run = run
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.live: Live | None = None
        self._phase = ""
        self._lined = float("-inf")
        self._samples: deque[tuple[float, int, int]] = deque()

    def phase(self, text: str) -> None:
        """Say what is being done."""
        self._phase = text
        if not self.console.is_terminal:
            self.console.print(f"{self.run}: {text}")

    def show(self, snapshot: Any) -> None:
        """Show one snapshot."""
        self._sample(snapshot)
        if self.console.is_terminal:
            if self.live is None:
                self.live = Live(console=self.console, refresh_per_second=4, transient=True)
                self.live.start()
            self.live.update(self._screen(snapshot))
        elif time.monotonic() - self._lined >= LINE_EVERY_S:
            self._lined = time.monotonic()
            self.console.print(f"{self.run}: {counts_line(snapshot.counts)}; {self._speed(snapshot)}")

    def close(self) -> None:
        """Leave the live screen."""
        if self.live:
            self.live.stop()
            self.live = None

    def _sample(self, snapshot: Any) -> None:
        counts = snapshot.counts
        self._samples.append((snapshot.at, counts.completed, counts.other.get("output_tokens", 0)))
        while len(self._samples) > 2 and self._samples[0][0] < snapshot.at - WINDOW_S:  # noqa: PLR2004  # two points
            self._samples.popleft()

    def _rates(self) -> tuple[float, float]:
        first, last = self._samples[0], self._samples[-1]
        span = last[0] - first[0]
        return ((last[1] - first[1]) / span, (last[2] - first[2]) / span) if span > 0 else (0.0, 0.0)

    def _speed(self, snapshot: Any) -> str:
        rate, tokens = self._rates()
        counts = snapshot.counts
        left = snapshot.total - counts.completed - counts.dead
        eta = duration(left / rate) if rate > 0 else "unknown"
        return f"{rate:,.1f} completions/s, {tokens:,.0f} tokens/s, {eta} left"

    def _screen(self, snapshot: Any) -> Group:
        counts: Counts = snapshot.counts
        done = counts.completed + counts.dead
        share = done / snapshot.total if snapshot.total else 1.0
        head = Text.assemble((f"run {self.run}  ", "bold"), f"{done:,} of {snapshot.total:,} ({share:.1%})  ")
        head.append(self._phase if self._phase.startswith("draining") else snapshot.phase, style="dim")
        parts: list[Any] = [
            head,
            ProgressBar(total=max(1, snapshot.total), completed=done, width=min(80, self.console.width)),
            Text(counts_line(counts)),
            Text(self._speed(snapshot)),
            consumer_table(snapshot.consumers),
        ]
        verdicts = counts.tally("verdict")
        if verdicts:
            parts.append(Text("verdicts  " + "  ".join(f"{name} {n:,}" for name, n in verdicts.items())))
        dead = counts.tally("dead")
        if dead:
            parts.append(
                Text("dead letters  " + "  ".join(f"{name} {n:,}" for name, n in dead.items()), "red")
            )
        for scope, why in snapshot.paused.items():
            parts.append(
                Text(f"paused ({'run' if scope == '*' else scope}): {why.get('sentence', '')}", "yellow")
            )
        if snapshot.restarts:
            again = ", ".join(f"{name} x{times}" for name, times in snapshot.restarts.items())
            parts.append(Text(f"started again: {again}", "yellow"))
        return Group(*parts)

    def failed(self, words: str) -> None:
        """Show why nothing was begun."""
        self.close()
        self.console.print(words, markup=False)

    def interrupted(self, counts: Counts | None, plan: RunPlan) -> None:
        """Say what is left, and how to go on."""
        self.close()
        if counts:
            self.console.print(f"Stopped. {counts_line(counts)}.", markup=False)
        self.console.print(
            f"Nothing is lost: run the same command again and run {plan.run} goes on where it was.",
            markup=False,
        )

    def guarded(self, snapshot: Any, plan: RunPlan) -> None:
        """Say why the guard stopped the run, with samples, and how to go on."""
        self.close()
        why = snapshot.paused["*"]
        self.console.print(
            why.get("sentence", "The quality guard paused the run."), markup=False, style="bold red"
        )
        samples = ", ".join(why.get("samples", []))
        if samples:
            self.console.print(f"Look at prompts {samples}.", markup=False)
        self.console.print(counts_line(snapshot.counts) + ".", markup=False)
        self.console.print(
            f"To go on all the same: `ops resume {plan.run} --accept`, then the same `ops run` again.",
            markup=False,
        )

    def finished(self, snapshot: Any, plan: RunPlan, reasons: dict[str, int]) -> None:
        """The summary of a run that came to its end."""
        self.close()
        counts: Counts = snapshot.counts
        tokens = counts.other.get("output_tokens", 0)
        out = f"{plan.output.rstrip('/')}/{plan.run}"
        self.console.print(
            f"Run {plan.run} is done: {counts.completed:,} completions ({tokens:,} output tokens), "
            f"{counts.dead:,} dead letters.",
            markup=False,
            style="bold",
        )
        verdicts = counts.tally("verdict")
        if verdicts:
            self.console.print(
                "Verdicts: " + ", ".join(f"{k} {n:,}" for k, n in verdicts.items()), markup=False
            )
        if reasons:
            self.console.print(
                "Dead letters: " + ", ".join(f"{k} {n:,}" for k, n in reasons.items()), markup=False
            )
            self.console.print(
                f"See {out}/dead.jsonl; `ops retry {plan.run}` queues them again.", markup=False
            )
        if snapshot.restarts:
            again = ", ".join(f"{name} x{times}" for name, times in snapshot.restarts.items())
            self.console.print(f"Started again on the way: {again}", markup=False)
        self.console.print(f"Parts are in {out}; prove them with `ops verify {out}`.", markup=False)


def counts_line(counts: Counts) -> str:
    """The counts equation as one line."""
    return (
        f"accepted {counts.accepted:,} = completed {counts.completed:,} + dead {counts.dead:,} "
        f"+ queued {counts.queued:,} + in flight {counts.in_flight:,}; stored {counts.stored:,}"
    )


def consumer_table(consumers: dict[str, dict[str, Any]]) -> Table:
    """One row per consumer and its server."""
    table = Table(box=None, pad_edge=False)
    for column in ("server", "state", "in flight", "tokens/s", "accept length", "errors/min"):
        table.add_column(column, justify="left" if column in ("server", "state") else "right")
    for figures in sorted(consumers.values(), key=lambda f: str(f.get("server"))):
        minute = figures.get("last_minute", {})
        accept = figures.get("accept_length")
        table.add_row(
            str(figures.get("server", "?")),
            str(figures.get("state", "?")),
            f"{figures.get('in_flight', 0)} of {figures.get('limit', 0)}",
            f"{minute.get('output_tokens_per_s', 0):,.0f}",
            f"{accept:.2f}" if accept else "-",
            str(minute.get("errors", 0)),
        )
    return table


def duration(seconds: float) -> str:
    """A time span as people say it: `2 h 05 min`."""
    whole = int(seconds)
    if whole < 60:  # noqa: PLR2004  # a minute
        return f"{whole} s"
    if whole < 3600:  # noqa: PLR2004  # an hour
        return f"{whole // 60} min {whole % 60:02d} s"
    hours = whole // 3600
    if hours < 48:  # noqa: PLR2004  # two days
        return f"{hours} h {whole % 3600 // 60:02d} min"
    return f"{hours // 24} d {hours % 24} h"
