"""The `ops status` command."""

from __future__ import annotations

import sys

import click
import msgspec
from rich.console import Console

from common.errors import UsageError
from common.settings import check_run_name
from ops.places import reach
from ops.runs import check_known
from ops.screen.layout import screen
from ops.status.notices import Level, Notice, notices, pause_text
from ops.status.snapshot import Watch
from ops.status.values import State, Status
from ops.status.watch import Watching

OFF_TERMINAL_WIDTH = 160


@click.command("status")
@click.argument("run", required=False)
@click.option("--watch", "live", is_flag=True, help="A live screen; q or Ctrl-C ends it.")
@click.option(
    "--json", "as_json", is_flag=True, help="Everything as one JSON object; docs/status.md has its fields."
)
@click.option(
    "--redis",
    "url",
    default=None,
    help="Redis URL; default RQ_REDIS_URL, then the run's own, then localhost.",
)
def status(*, run: str | None, live: bool, as_json: bool, url: str | None) -> None:
    """Show how far RUN is, how fast, when it will be done, and whether anything is wrong.

    Without RUN: every run that is not finished, or all runs where none is. Reads only.
    """
    if live and as_json:
        raise UsageError("--watch is a screen for people, --json data for programs: use one of them")
    if live and not sys.stdout.isatty():
        raise UsageError("--watch needs a terminal; use --json, as often as you like")
    if run is not None:
        check_run_name(run)
    # A look at a run that is at rest wakes its Redis for that moment; a watch waits for what moves.
    reached = reach(url, run, wake=run is not None and not live)
    with reached as store:
        if run is not None:
            check_known(store, run)
        watch = Watch(store)
        runs = None if run is None else [run]
        if live:
            Watching(watch, runs, Console(highlight=False)).loop()
            return
        found = watch.take(runs)
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    if not found.runs:
        click.echo("There is no run in this Redis: `ops run`, or `producer enqueue`, makes one.")
        return
    console = Console(highlight=False, width=None if sys.stdout.isatty() else OFF_TERMINAL_WIDTH)
    console.print(screen(found, width=console.width, said=_said(found, at_rest=reached.embedded is not None)))


def _said(status: Status, *, at_rest: bool) -> list[Notice]:
    if not at_rest:
        return notices(status)
    # Nobody is at work: that explains itself, and so nearly all that would be said of it.
    run = status.runs[0]
    said = [Notice(Level.BAD, pause_text(pause)) for pause in run.paused]
    if run.state is not State.FINISHED:
        again = "no `ops run` is at work on it: run the same command again to go on"
        said.append(Notice(Level.WARNING, again))
    return [*said, *(notice for notice in notices(status) if notice.level is Level.NOTE)]
