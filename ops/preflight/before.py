"""The preflight that `ops run` makes on its own, before any work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from common.options import Chosen
from ops.preflight.examine import Wanted, run_preflight
from ops.preflight.show import show_remarks
from producer.source import Source


def clear_to_run(
    *,
    servers: Sequence[str],
    chosen: Chosen,
    source: Source,
    output: str,
    redis_url: str | None,
    state: Path,
) -> bool:
    """Take a quick look, show what warns or fails on standard error, and say whether the run may begin.

    Args:
        servers: the run's servers; those that are down are waited for, so they only warn.
        chosen: the run's settings.
        source: the prompts.
        output: folder or S3 prefix.
        redis_url: the Redis to use; `None` for an embedded one in `state`.
        state: the run's working folder.

    Raises:
        UsageError: a server's URL or the output cannot be one.
    """
    wanted = Wanted(
        servers=servers,
        chosen=chosen,
        source=source,
        output=output,
        redis_url=redis_url,
        state=None if redis_url else state,
        quick=True,
    )
    report = run_preflight(wanted)
    console = Console(stderr=True, highlight=False)
    show_remarks(report, console)
    if report.failed:
        console.print("Nothing was begun. Put right what failed, or say --no-preflight.", markup=False)
    return not report.failed
