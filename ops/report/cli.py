"""The `ops report` command."""

from __future__ import annotations

import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import click

from common.errors import UsageError
from common.settings import RUN_NAME
from common.storage import open_storage
from ops.report.markup import Html
from ops.report.page import NOTHING, page
from ops.report.read import read_run
from ops.report.reading import Reading
from ops.verify.cli import ProgressBar


@click.command("report")
@click.argument("output", metavar="RUN-OUTPUT")
@click.option(
    "--to",
    "target",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.html",
    help="Where the page goes. [default: RUN-report.html here]",
)
@click.option(
    "--samples",
    type=click.IntRange(0, 100),
    default=4,
    show_default=True,
    help="Completions to show of each verdict.",
)
@click.option(
    "--sweep",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.json",
    help="What ops preflight --sweep --json wrote, to be drawn too.",
)
def report(output: str, target: Path | None, samples: int, sweep: Path | None) -> None:
    """Write a run's report as one HTML page that needs no network.

    RUN-OUTPUT is <output>/<run>, a folder or an s3:// URL, of a run that goes on or has ended. The page shows
    prompts and answers: it is as confidential as they are.

    Exit codes: 0 written; 1 written, but something could not be read, which the page names.
    """
    more = _sweep(sweep) if sweep else NOTHING
    with ProgressBar() as bar:
        reading = read_run(
            open_storage(output),
            samples=samples,
            at=datetime.now(UTC),
            tick=lambda done, whole: bar.tick("reading parts", done, whole),
        )
    path = target or Path(_default_name(reading))
    write(path, page(reading, more))
    click.echo(f"{path}: {reading.gathered.records:,} completions of run {reading.manifest.run}")
    if reading.faults.count:
        for words in reading.faults.words:
            click.echo(words, err=True)
        sys.exit(1)


def _sweep(path: Path) -> Html:
    from ops.report.sweep import read_sweep, sweep  # noqa: PLC0415 - preflight takes a second to import

    return sweep(read_sweep(path))


def _default_name(reading: Reading) -> str:
    """A file name of the run's name, which came from a file that anybody may have written."""
    run = reading.manifest.run
    return f"{run if RUN_NAME.fullmatch(run) else 'run'}-report.html"


def write(path: Path, text: str) -> None:
    """Put the page in its place at once: no reader sees half of it. It is for its owner's eyes alone.

    Raises:
        UsageError: it cannot be written there.
    """
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageError(f"the page cannot be written to {path}: {error.strerror}") from error
