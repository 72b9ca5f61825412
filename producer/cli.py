"""`producer enqueue`: admits a file of prompts to the queue, once each, however often it is run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
from prometheus_client import CollectorRegistry

from common.errors import InputError, PromptmillError
from common.jobs import MAX_LINE_BYTES
from common.log import configure, get_logger
from common.metrics import ProducerMetrics
from common.metrics import serve as serve_metrics
from common.missing import missing_from as what_is_missing
from common.options import chosen, settings_options
from common.settings import RunSettings, check_run_name, derive_run_name, redact_url, redis_url
from common.storage import open_storage
from common.store.runs import RunStore, iso_now
from producer.admit import Admitter
from producer.order import opener
from producer.prepare import prepare_run
from producer.progress import ProgressLine
from producer.scan import ScanReport, scan
from producer.source import Source, open_source
from producer.topup import top_up

SHOWN_LINES: Final = 20

log = get_logger("producer")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Admit prompts to the queue."""


@main.command()
@click.argument("source", metavar="PROMPTS")
@click.option("--run", "run_name", default=None, help="Name of the run; default: from the file's name.")
@click.option("--output", required=True, envvar="PROMPTMILL_OUTPUT", help="Folder or s3://bucket/prefix.")
@click.option("--redis", "url", default=None, help="Redis URL; default RQ_REDIS_URL, then localhost.")
@click.option("--spool", default=None, type=click.Path(path_type=Path), help="Where standard input is kept.")
@click.option(
    "--missing-from",
    default=None,
    metavar="RUN-OUTPUT",
    help="Admit only prompts that this earlier run lacks, or has with a verdict other than ok.",
)
@click.option("--ready-file", hidden=True, default=None, type=click.Path(path_type=Path))
@settings_options
def enqueue(  # noqa: PLR0917  # click hands options over by name
    source: str,
    run_name: str | None,
    output: str,
    url: str | None,
    spool: Path | None,
    missing_from: str | None,
    ready_file: Path | None,
    **values: Any,
) -> None:
    """Admit PROMPTS, a .jsonl, .jsonl.gz or .jsonl.zst file or - for standard input, to the queue.

    Run again after any interruption: it goes on exactly where it was.
    """
    configure()
    try:
        enqueue_file(
            source,
            run_name,
            output,
            url or redis_url(),
            spool or default_spool(),
            values,
            earlier=missing_from,
            on_ready=ready_file.touch if ready_file else lambda: None,
        )
    except PromptmillError as error:
        click.echo(f"producer: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        click.echo("producer: interrupted; run the same command again to go on where it was", err=True)
        sys.exit(130)


def enqueue_file(  # noqa: PLR0917  # the command's arguments, in its order
    name: str,
    run_name: str | None,
    output: str,
    url: str,
    spool: Path,
    values: dict[str, Any],
    *,
    earlier: str | None = None,
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    """Scan the input, prepare the run and admit every prompt, or only those that an `earlier` run lacks.

    `on_ready` is called when the run is known to be the one that was asked for, before anything is admitted.

    Raises:
        PromptmillError: the input, the output, the settings or Redis cannot be used.
    """
    wanted = chosen(values)
    run = check_run_name(run_name or ("stdin" if name == "-" else derive_run_name(name)))
    store = RunStore.from_url(url)
    facts = store.check()
    if not facts.aof:
        log.warning(
            "redis_without_aof", note="a restart of Redis loses what is in motion; set appendonly yes"
        )
    source = open_source(name, spool=spool)
    if earlier:
        missing = what_is_missing(open_storage(output_url(earlier)))
        source = top_up(source, missing, spool=spool, max_line=MAX_LINE_BYTES)
    with ProgressLine("checking", unit="B") as line:
        report = scan(source, progress=line.update, max_line=MAX_LINE_BYTES)
    refuse_invalid(source, report, skip=wanted.skip_invalid)
    settings = RunSettings(
        run=run,
        output=output_url(output),
        input_name=Path(name).name if name != "-" else "-",
        fingerprint=report.fingerprint,
        created_at=iso_now(),
        generation=wanted.generation,
        quality=wanted.quality,
        consumer=wanted.consumer,
        batch_size=wanted.batch_size,
        high_water=wanted.high_water,
        skip_invalid=wanted.skip_invalid,
        order=wanted.order,
        order_field=wanted.order_field,
    )
    storage = open_storage(settings.destination)
    standing = prepare_run(store, storage, settings)
    lines = report.fingerprint.lines
    log.info("run_ready", run=run, prompts=lines, redis=redact_url(url), output=storage.url)
    on_ready()
    registry = CollectorRegistry()
    metrics = ProducerMetrics(registry)
    if served := serve_metrics(registry):
        log.info("metrics_served", address=served[0])
    with ProgressLine("enqueueing", unit="prompts", total=lines, run=run, metrics=metrics) as line:
        admitter = Admitter(
            store,
            standing,
            opener(source, report, standing, spool),
            high_water=wanted.high_water,
            on_progress=line.report,
        )
        admitter.run()
    counts = store.counts(run)
    log.info("enqueued", run=run, accepted=counts.accepted, dead=counts.dead, completed=counts.completed)
    click.echo(f"run {run}: all {lines:,} prompts are admitted", err=True)


def refuse_invalid(source: Source, report: ScanReport, *, skip: bool) -> None:
    """Stop on lines that cannot be used, unless they are to be dead letters.

    Raises:
        InputError: there are such lines, each named by its number with the reason; or there is no prompt.
    """
    if report.fingerprint.lines == 0:
        raise InputError(f"{source.name} has no prompts: every line is blank")
    if not report.invalid_total:
        return
    shown = [f"  {line}" for line in report.invalid[:SHOWN_LINES]]
    if report.invalid_total > len(shown):
        shown.append(f"  ... and {report.invalid_total - len(shown):,} more")
    text = "\n".join(shown)
    if skip:
        click.echo(
            f"{report.invalid_total:,} lines cannot be used and become dead letters:\n{text}", err=True
        )
        return
    raise InputError(
        f"{source.name}: {report.invalid_total:,} of {report.fingerprint.lines:,} lines cannot be used:\n"
        f"{text}\nNothing was enqueued. Mend them, or use --skip-invalid to make each a dead letter"
    )


def output_url(output: str) -> str:
    """The output as every process of the run can find it: folders by their absolute path."""
    return output if "://" in output else str(Path(output).absolute())


def default_spool() -> Path:
    """Where standard input is kept while it is read twice."""
    return Path(os.environ.get("PROMPTMILL_SPOOL") or Path.cwd() / ".promptmill" / "spool")


if __name__ == "__main__":
    main()
