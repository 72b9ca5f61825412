"""`ops dead`, `ops retry` and `ops resume`: what an operator does about dead letters and paused runs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.records import DeadLetter, DeadReason, Verdict
from common.settings import check_run_name
from ops.places import Reached, reach
from ops.runs import check_known
from ops.screen.words import counted, what_helps

CHUNK: Final = 500
"""Dead letters queued by one script: a moment's work, so that consumers are not kept waiting."""

SHOWN: Final = 50
ERROR_CHARS: Final = 160
OFF_TERMINAL_WIDTH: Final = 1000
"""So wide that nothing is cut twice: a file or a pipe has no edge."""

_redis = click.option(
    "--redis",
    "url",
    default=None,
    help="Redis URL; default RQ_REDIS_URL, then the run's own, then localhost.",
)
_reasons = click.option(
    "--reason",
    "reasons",
    multiple=True,
    type=click.Choice([reason.value for reason in DeadReason]),
    help="Only letters with this reason; repeat for more.",
)


@click.command("dead")
@click.argument("run")
@_reasons
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=None,
    help=f"Show so many at most, 0 for all. Default {SHOWN}; with --json all.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, as in dead.jsonl.")
@_redis
def dead(*, run: str, reasons: tuple[str, ...], limit: int | None, as_json: bool, url: str | None) -> None:
    """Show the prompts of RUN that ended without a completion, and why."""
    with _reach(url, run) as store:
        check_known(store, run)
        letters = list(chosen(store.dead_letters(run), reasons=reasons).values())
    if limit is None:
        limit = 0 if as_json else SHOWN
    shown = letters[:limit] if limit else letters
    if as_json:
        for letter in shown:
            click.echo(msgspec.json.encode(letter))
        return
    click.echo(f"run {run}: {counted(len(letters), 'dead letter')}{_by_reason(letters)}")
    if not shown:
        return
    console = _console()
    console.print(letter_table(shown, fill=console.is_terminal))
    if len(shown) < len(letters):
        click.echo(f"... and {len(letters) - len(shown):,} more; --limit 0 shows all")
    click.echo(what_helps(run, [letter.reason for letter in letters]))


@click.command("retry")
@click.argument("run")
@_reasons
@click.option(
    "--index", "indices", multiple=True, type=int, metavar="N", help="Only this prompt; repeat for more."
)
@_redis
def retry(*, run: str, reasons: tuple[str, ...], indices: tuple[int, ...], url: str | None) -> None:
    """Queue dead letters of RUN again: all, or those with a reason or an index.

    Lines of the input that cannot be used stay dead: mend them and enqueue them as another run.
    """
    reached = _reach(url, run)
    with reached as store:
        check_known(store, run)
        letters = chosen(store.dead_letters(run), reasons=reasons, indices=indices)
        units = [unit for unit, letter in letters.items() if letter.reason is not DeadReason.INVALID_LINE]
        queued = sum(store.revive(run, units[at : at + CHUNK]) for at in range(0, len(units), CHUNK))
        gone = len(store.missing(run))
        consumers = len(store.consumers())
    click.echo(f"run {run}: queued {counted(queued, 'dead letter')} again")
    for line in retry_notes(len(letters), len(units), queued, gone=gone):
        click.echo(line)
    if queued:
        click.echo(_who_takes_them(reached, consumers))


@click.command("resume")
@click.argument("run")
@click.option(
    "--accept", is_flag=True, help="Never pause this run again for the verdicts that it is paused for."
)
@_redis
def resume(*, run: str, accept: bool, url: str | None) -> None:
    """Let RUN go on that the quality guard has paused, with a fresh look at what comes next."""
    reached = _reach(url, run)
    with reached as store:
        check_known(store, run)
        pauses = store.paused(run)
        if not pauses:
            click.echo(f"run {run} is not paused")
            return
        accepted = pause_verdicts(pauses.values()) if accept else []
        store.resume(run, accepted)
    for line in resumed(run, pauses, accepted):
        click.echo(line)
    if reached.embedded:
        click.echo("No `ops run` is at work on it: run the same command again to go on.")


def chosen(
    letters: Mapping[int, DeadLetter], *, reasons: Collection[str] = (), indices: Collection[int] = ()
) -> dict[int, DeadLetter]:
    """The letters by unit that have one of the reasons and one of the indices; all where none is given."""
    return {
        unit: letter
        for unit, letter in letters.items()
        if (not reasons or letter.reason.value in reasons) and (not indices or letter.index in indices)
    }


def letter_table(letters: Iterable[DeadLetter], *, fill: bool = False) -> Table:
    """One row a dead letter, the last error in one line; `fill` makes it as wide as the terminal."""
    rows = list(letters)
    sampled = any(letter.sample for letter in rows)
    # On a terminal the last column gives way, not the others.
    table = Table(box=None, pad_edge=False, expand=fill)
    for name in ("index", *(("sample",) if sampled else ()), "line", "attempts"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("id", "reason"):
        table.add_column(name, no_wrap=True, overflow="ellipsis", max_width=40)
    table.add_column("last error", no_wrap=True, overflow="ellipsis", ratio=1 if fill else None)
    for letter in rows:
        table.add_row(
            str(letter.index),
            *((str(letter.sample),) if sampled else ()),
            "-" if letter.line is None else str(letter.line),
            str(letter.attempts),
            Text(letter.id),
            letter.reason.value,
            Text(shortened(letter.last_error)),
        )
    return table


def shortened(text: str, most: int = ERROR_CHARS) -> str:
    """A text in one line of at most so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def retry_notes(letters: int, usable: int, queued: int, *, gone: int) -> Iterator[str]:
    """What is to be said besides the number: of `letters` chosen, `usable` could and `queued` were queued."""
    if not letters:
        yield "There is no such dead letter; `ops dead` shows those that there are."
    if letters > usable:
        yield (
            f"{counted(letters - usable, 'line')} of the input cannot be used and so cannot be retried: mend "
            "them in a file of their own and run that"
        )
    if usable > queued:
        yield f"{counted(usable - queued, 'dead letter')} had been queued again before, by somebody else"
    if gone:
        yield (
            f"{counted(gone, 'job')} of the run are no longer in Redis: run `producer enqueue`, or "
            "`ops run`, with the same input again to make them anew"
        )


def _who_takes_them(reached: Reached, consumers: int) -> str:
    if reached.embedded:
        return "No `ops run` is at work on it: run the same command again to go on."
    if not consumers:
        return "No consumer is there to take them: start one, or run the same `ops run` command again."
    return f"{counted(consumers, 'consumer')} will take them."


def pause_verdicts(reasons: Iterable[Mapping[str, Any]]) -> list[str]:
    """The verdicts that pauses give as their reason, each once."""
    known = {verdict.value for verdict in Verdict}
    return sorted({str(reason.get("verdict")) for reason in reasons} & known)


def resumed(run: str, pauses: Mapping[str, Mapping[str, Any]], accepted: list[str]) -> Iterator[str]:
    """What was lifted, and what holds from now on."""
    for scope, reason in pauses.items():
        what = f"run {run}" if scope == "*" else f"{scope} in run {run}"
        yield f"{what} goes on; it was paused: {reason.get('sentence', 'for no stated reason')}"
    if accepted:
        yield f"The guard does not pause this run for {', '.join(accepted)} any more."
    else:
        yield "The guard looks at it afresh; --accept would make it go on whatever comes of this kind."


def _reach(url: str | None, run: str) -> Reached:
    return reach(url, check_run_name(run), wake=True)


def _console() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else OFF_TERMINAL_WIDTH)


def _by_reason(letters: Iterable[DeadLetter]) -> str:
    tally = Counter(letter.reason.value for letter in letters)
    return ": " + ", ".join(f"{reason} {n:,}" for reason, n in tally.most_common()) if tally else ""
