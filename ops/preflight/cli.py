"""The `ops preflight` command."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from rich.console import Console

from common.errors import PromptmillError, UsageError
from common.log import configure
from common.options import MAX_CONCURRENCY, chosen, settings_options
from ops.preflight.examine import SWEEP_TOKENS, Wanted, run_preflight
from ops.preflight.show import show
from ops.preflight.values import Report
from ops.run.plan import check_servers
from producer.cli import output_url
from producer.source import Source, open_source

FAILED: Final = 2


@click.command("preflight")
@click.argument("prompts", required=False)
@click.option(
    "--server", multiple=True, required=True, metavar="URL", help="An inference server; repeat for more."
)
@click.option("--output", default=None, envvar="PROMPTMILL_OUTPUT", help="Folder or s3://bucket/prefix.")
@click.option("--redis", "url", default=None, help="Redis to look at; default: RQ_REDIS_URL, if it is set.")
@click.option(
    "--canary", type=click.IntRange(0), default=0, help="Have so many prompts of the input answered in full."
)
@click.option("--expected-tokens", type=click.FloatRange(1), help="Tokens of an answer, for the estimate.")
@click.option("--sweep", metavar="N,N,...", help="Measure each server at these numbers in flight.")
@click.option(
    "--sweep-tokens",
    type=click.IntRange(1),
    default=SWEEP_TOKENS,
    show_default=True,
    help="Where a sweep cuts its answers.",
)
@click.option("--conformance", is_flag=True, help="Try out everything that a run asks of a server.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@settings_options
def preflight(  # noqa: PLR0917  # click hands options over by name
    prompts: str | None,
    server: tuple[str, ...],
    output: str | None,
    url: str | None,
    canary: int,
    expected_tokens: float | None,
    sweep: str | None,
    sweep_tokens: int,
    conformance: bool,  # noqa: FBT001  # a flag
    as_json: bool,  # noqa: FBT001  # a flag
    **values: Any,
) -> None:
    """Look at everything that a run of PROMPTS would rest on, in a few seconds, and say what would go wrong.

    Exit codes: 0 nothing failed; 2 something did, or bad usage.
    """
    configure(level=os.environ.get("PROMPTMILL_LOG_LEVEL") or "ERROR")
    try:
        with tempfile.TemporaryDirectory(prefix="promptmill-preflight-") as spool:
            wanted = Wanted(
                servers=check_servers(server),
                chosen=chosen(values),
                source=_source(prompts, Path(spool)),
                output=output_url(output) if output else None,
                redis_url=url or os.environ.get("RQ_REDIS_URL"),
                canary=canary,
                expected_tokens=expected_tokens,
                sweep=parse_levels(sweep),
                sweep_tokens=sweep_tokens,
                conformance=conformance,
            )
            report = run_preflight(wanted, say=lambda words: click.echo(words, err=True))
    except PromptmillError as error:
        click.echo(f"ops preflight: {error}", err=True)
        sys.exit(error.exit_code)
    _print(report, as_json=as_json)
    sys.exit(FAILED if report.failed else 0)


def _source(prompts: str | None, spool: Path) -> Source | None:
    return open_source(prompts, spool=spool) if prompts else None


def parse_levels(text: str | None) -> list[int]:
    """`1,8,16` as numbers in flight, the fewest first, each once.

    Raises:
        UsageError: one is no number from 1 to 4096.
    """
    if not text:
        return []
    levels = set()
    for item in text.split(","):
        plain = item.strip()
        if not plain.isascii() or not plain.isdigit() or not 1 <= int(plain) <= MAX_CONCURRENCY:
            raise UsageError(f"--sweep {text!r}: give numbers from 1 to {MAX_CONCURRENCY}, as 1,8,16,32")
        levels.add(int(plain))
    return sorted(levels)


def _print(report: Report, *, as_json: bool) -> None:
    if as_json:
        body = msgspec.json.format(msgspec.json.encode(report), indent=2)
        click.echo(body.decode())
        return
    show(report, Console(highlight=False, soft_wrap=False))
