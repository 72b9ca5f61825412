"""The `ops run` command."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from common.errors import PromptmillError
from common.log import configure
from common.options import chosen, settings_options
from common.settings import check_run_name, derive_run_name
from ops.places import remember, state_folder
from ops.preflight.before import clear_to_run
from ops.run.display import Display
from ops.run.plan import RunPlan, check_servers
from ops.run.session import BAD_INPUT, INTERRUPTED, Session, StateLock
from producer.cli import output_url
from producer.source import open_source

_OWN: Final = frozenset(
    {"prompts", "server", "output", "run_name", "url", "drain_timeout", "flush_seconds", "state"}
)


@click.command("run")
@click.argument("prompts")
@click.option(
    "--server", multiple=True, required=True, metavar="URL", help="An inference server; repeat for more."
)
@click.option("--output", required=True, envvar="PROMPTMILL_OUTPUT", help="Folder or s3://bucket/prefix.")
@click.option("--run", "run_name", default=None, help="Name of the run; default: from the file's name.")
@click.option(
    "--redis", "url", default=None, help="Redis to use; default: RQ_REDIS_URL, else an embedded one."
)
@click.option(
    "--drain-timeout",
    type=click.FloatRange(0),
    default=120.0,
    show_default=True,
    envvar="PROMPTMILL_DRAIN_TIMEOUT",
    help="Seconds that jobs in flight get to end on Ctrl-C.",
)
@click.option(
    "--flush-seconds",
    type=click.FloatRange(0.1),
    default=300.0,
    show_default=True,
    envvar="PROMPTMILL_FLUSH_SECONDS",
    help="Write a part that is not full after this long.",
)
@click.option("--state", default=None, type=click.Path(path_type=Path), help="Folder for working files.")
@click.option(
    "--preflight/--no-preflight",
    default=True,
    show_default=True,
    envvar="PROMPTMILL_PREFLIGHT",
    help="Look at servers, Redis, output and input before any work.",
)
@settings_options
@click.pass_context
def run(  # noqa: PLR0917  # click hands options over by name
    context: click.Context,
    /,
    prompts: str,
    server: tuple[str, ...],
    output: str,
    run_name: str | None,
    url: str | None,
    drain_timeout: float,
    flush_seconds: float,
    state: Path | None,
    preflight: bool,  # noqa: FBT001  # a flag
    **values: Any,
) -> None:
    """Turn PROMPTS into a data set: one consumer per --server, everything else started for you.

    Run it again with the same arguments after any crash, Ctrl-C or reboot: it goes on where it was.

    Exit codes: 0 every prompt completed; 3 finished with dead letters; 4 stopped by the quality guard;
    2 bad usage or input; 130 interrupted.
    """
    configure(level=os.environ.get("PROMPTMILL_LOG_LEVEL") or "ERROR")
    try:
        sys.exit(
            go(
                context,
                prompts=prompts,
                servers=check_servers(server),
                output=output_url(output),
                run_name=run_name,
                url=url or os.environ.get("RQ_REDIS_URL"),
                drain_timeout=drain_timeout,
                flush_seconds=flush_seconds,
                state=state,
                preflight=preflight,
                values=values,
            )
        )
    except PromptmillError as error:
        click.echo(f"ops run: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def go(
    context: click.Context,
    *,
    prompts: str,
    servers: list[str],
    output: str,
    run_name: str | None,
    url: str | None,
    drain_timeout: float,
    flush_seconds: float,
    state: Path | None,
    preflight: bool,
    values: dict[str, Any],
) -> int:
    """Prepare the plan and do it.

    Raises:
        PromptmillError: settings, input or output cannot be used.
    """
    wanted = chosen(values)
    name = check_run_name(run_name or ("stdin" if prompts == "-" else derive_run_name(prompts)))
    folder = (state or state_folder(output, name)).absolute()
    lock = StateLock(folder)
    try:
        source = open_source(prompts, spool=folder / "spool")
        remember(name, folder)
        if preflight and not clear_to_run(
            servers=servers, chosen=wanted, source=source, output=output, redis_url=url, state=folder
        ):
            return BAD_INPUT
        plan = RunPlan(
            source=str(source.path),
            run=name,
            output=output,
            servers=servers,
            flags=flags(context, values),
            concurrency=values["concurrency"],
            drain_timeout=drain_timeout,
            flush_seconds=flush_seconds,
            state=folder,
        )
        return Session(plan, url, Display(name)).run()
    finally:
        lock.release()


def flags(context: click.Context, values: dict[str, Any]) -> list[str]:
    """The settings that were given, as the producer's command line takes them."""
    found: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name) is not ParameterSource.DEFAULT
        if name in _OWN or name not in values or not given:
            continue
        value = values[name]
        if isinstance(value, bool):
            found.append(parameter.opts[0] if value else (parameter.secondary_opts or [""])[0])
        elif isinstance(value, tuple):
            for item in value:
                found += [parameter.opts[0], str(item)]
        elif value is not None:
            found += [parameter.opts[0], str(value)]
    return [flag for flag in found if flag]
