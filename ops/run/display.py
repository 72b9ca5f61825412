"""What `ops run` shows: a live screen on a terminal, a line now and then elsewhere, and the last words."""

from __future__ import annotations

import time
from typing import Final

import msgspec
from rich.console import Console, RenderableType
from rich.live import Live

from ops.run.plan import RunPlan
from ops.screen import words
from ops.screen.layout import screen
from ops.screen.words import Counted, counts_line
from ops.status.notices import Level, Notice, notices
from ops.status.values import RunStatus, State, Status

LINE_EVERY_S: Final = 10.0


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A run at one moment; how often which part was started again; what is being done besides."""

    status: Status
    restarts: dict[str, int] = {}
    phase: str = ""

    @property
    def run(self) -> RunStatus:
        """The one run that it is of."""
        return self.status.runs[0]

    @property
    def stopped(self) -> bool:
        """Whether the guard has paused the whole run, and nothing of it is under way."""
        return any(pause.scope == "*" for pause in self.run.paused) and not self.run.in_flight


class Display:
    """Shows snapshots; every method may be called whether or not there is a terminal."""

    def __init__(self, run: str) -> None:
        """Write to standard error; results and summaries are for people, too."""
        self.run = run
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.live: Live | None = None
        self._phase = ""
        self._lined = float("-inf")

    def phase(self, text: str) -> None:
        """Say what is being done."""
        self._phase = text
        if not self.console.is_terminal:
            self.console.print(f"{self.run}: {text}")

    def show(self, snapshot: Snapshot) -> None:
        """Show one snapshot."""
        if self.console.is_terminal:
            if self.live is None:
                live_console = Console(stderr=True, highlight=False)
                self.live = Live(console=live_console, refresh_per_second=4, transient=True)
                self.live.start()
            self.live.update(self._screen(snapshot, self.live.console))
        elif time.monotonic() - self._lined >= LINE_EVERY_S:
            self._lined = time.monotonic()
            self.console.print(f"{self.run}: {_line(snapshot)}", markup=False)

    def close(self) -> None:
        """Leave the live screen."""
        if self.live:
            self.live.stop()
            self.live = None

    def _screen(self, snapshot: Snapshot, console: Console) -> RenderableType:
        return screen(
            snapshot.status,
            # One column less, so that what the terminal echoes at the end does not begin a line.
            width=console.width - 1,
            height=console.height - 1,
            phase=self._phase if self._phase.startswith("draining") else snapshot.phase,
            said=_said(snapshot),
        )

    def failed(self, words: str) -> None:
        """Show why nothing was begun."""
        self.close()
        self.console.print(words, markup=False)

    def interrupted(self, counts: Counted | None, plan: RunPlan) -> None:
        """Say what is left, and how to go on."""
        self.close()
        if counts:
            self.console.print(f"Stopped. {counts_line(counts)}.", markup=False)
        self.console.print(
            f"Nothing is lost: run the same command again and run {plan.run} goes on where it was.",
            markup=False,
        )

    def guarded(self, snapshot: Snapshot, plan: RunPlan) -> None:
        """Say why the guard stopped the run, with samples, and how to go on."""
        self.close()
        why = next(pause for pause in snapshot.run.paused if pause.scope == "*")
        sentence = why.sentence or "The quality guard paused the run."
        self.console.print(sentence, markup=False, style="bold red")
        samples = ", ".join(why.samples)
        if samples:
            self.console.print(f"Look at prompts {samples}.", markup=False)
        self.console.print(counts_line(snapshot.run) + ".", markup=False)
        self.console.print(
            f"To go on all the same: `ops resume {plan.run} --accept`, then the same `ops run` again.",
            markup=False,
        )

    def finished(self, snapshot: Snapshot, plan: RunPlan) -> None:
        """The summary of a run that came to its end."""
        self.close()
        run = snapshot.run
        out = f"{plan.output.rstrip('/')}/{plan.run}"
        self.console.print(
            f"Run {plan.run} is done: {run.completed:,} completions ({run.output_tokens:,} output tokens), "
            f"{run.dead:,} dead letters.",
            markup=False,
            style="bold",
        )
        for name, tally in (("Verdicts", run.verdicts), ("Dead letters", run.dead_by_reason)):
            if tally:
                listed = ", ".join(f"{kind} {number:,}" for kind, number in tally.items())
                self.console.print(f"{name}: {listed}", markup=False)
        if run.dead_by_reason:
            helps = words.what_helps(plan.run, run.dead_by_reason)
            self.console.print(f"See {out}/dead.jsonl; {helps}.", markup=False)
        if snapshot.restarts:
            again = ", ".join(f"{name} x{times}" for name, times in snapshot.restarts.items())
            self.console.print(f"Started again on the way: {again}", markup=False)
        self.console.print(f"Parts are in {out}; prove them with `ops verify {out}`.", markup=False)


def _line(snapshot: Snapshot) -> str:
    """A snapshot as one line; what keeps the run from going on is part of it."""
    run = snapshot.run
    parts = [counts_line(run), f"{words.speed(run)}, {words.eta(run)}"]
    if run.state is not State.RUNNING:
        parts.append(snapshot.phase or run.state.value)
    return "; ".join([*parts, *(notice.text for notice in _said(snapshot) if notice.level is not Level.NOTE)])


def _said(snapshot: Snapshot) -> list[Notice]:
    more = []
    if snapshot.restarts:
        again = ", ".join(f"{name} x{times}" for name, times in snapshot.restarts.items())
        more.append(Notice(Level.WARNING, f"started again: {again}"))
    return notices(snapshot.status, more, tended=True)
