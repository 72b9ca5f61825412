"""The `ops verify` command."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from common.storage import open_storage
from ops.verify.read import verify as verify_output
from ops.verify.report import EXIT_CODES, words


@click.command("verify")
@click.argument("output", metavar="RUN-OUTPUT")
@click.option(
    "--input",
    "source",
    default=None,
    metavar="FILE",
    help="The prompts, or - for standard input. Default: a file here of the input's name and content.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
def verify(output: str, source: str | None, as_json: bool) -> None:  # noqa: FBT001  # click passes flags so
    """Read every part of RUN-OUTPUT back and prove that each prompt ended exactly once.

    RUN-OUTPUT is <output>/<run>, a folder or an s3:// URL. With the input, ids, conversations and metadata
    are proven, too.

    Exit codes: 0 proven; 1 something is wrong, and named; 3 right so far, but the run is not finished;
    2 bad usage or input.
    """
    with ProgressBar() as bar:
        report = verify_output(open_storage(output), source=source, here=Path.cwd(), tick=bar.tick)
    if as_json:
        click.echo(msgspec.json.encode(report))
    else:
        for line in words(report):
            click.echo(line)
    sys.exit(EXIT_CODES[report.outcome])


class ProgressBar:
    """One bar for the phase under way, on a terminal alone; a context manager."""

    def __init__(self) -> None:
        """Prepare; nothing is shown before the first tick."""
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._phase = ""
        if sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )

    def __enter__(self) -> Self:
        """Begin to show."""
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Clear it away."""
        if self._bar:
            self._bar.stop()

    def tick(self, phase: str, done: int, total: int) -> None:
        """Show how far a phase is."""
        if self._bar is None:
            return
        if phase != self._phase or self._task is None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._phase, self._task = phase, self._bar.add_task(phase, total=max(1, total))
        self._bar.update(self._task, completed=done, total=max(1, total))
