"""`collector`: serves every run in its Redis. More than one may be started; one works at a time."""

from __future__ import annotations

import signal
import sys

import click

from common.errors import PromptmillError
from common.log import configure, get_logger
from common.metrics import serve as serve_metrics
from common.settings import redact_url, redis_url
from common.store.runs import RunStore
from consumers.collector.serve import Collecting, Lease

log = get_logger("collector")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--redis", "url", default=None, help="Redis URL; default RQ_REDIS_URL, then localhost.")
@click.option(
    "--flush-seconds",
    type=click.FloatRange(min=0.1),
    default=300.0,
    show_default=True,
    envvar="PROMPTMILL_FLUSH_SECONDS",
    help="Write a part that is not full when its oldest completion has waited this long.",
)
@click.option("--until-idle", is_flag=True, help="End when no run is active.")
def main(url: str | None, flush_seconds: float, until_idle: bool) -> None:  # noqa: FBT001  # click passes flags so
    """Collect completions into parts, for every run in this Redis, until stopped."""
    configure()
    target = url or redis_url()
    try:
        store = RunStore.from_url(target)
        facts = store.check()
        if not facts.aof:
            log.warning(
                "redis_without_aof", note="a restart of Redis loses what is in motion; set appendonly yes"
            )
        lease = Lease(RunStore.from_url(target))
        collecting = Collecting(store, lease, flush_s=flush_seconds, until_idle=until_idle)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: collecting.stop())
        log.info("collector_started", redis=redact_url(target), engine=facts.server, version=facts.version)
        if served := serve_metrics(collecting.teller.registry):
            log.info("metrics_served", address=served[0])
        lease.start()
        try:
            collecting.loop()
        finally:
            lease.release()
            log.info("collector_stopped")
    except PromptmillError as error:
        click.echo(f"collector: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
