"""`ops simulate`: serve simulated inference servers until stopped."""

from __future__ import annotations

import asyncio
import gc
import signal
from contextlib import suppress
from typing import Any, Final, cast

import click
import msgspec
import uvloop

from common.errors import UsageError
from ops.simulator.faults import Fault, FaultKind, parse_faults
from ops.simulator.fleet import running_simulators
from ops.simulator.settings import Dialect, ServerSettings
from ops.simulator.text import warm_up

_EPILOG: Final = """A fault is KIND, KIND:name=value,name=value, JSON, or a .json file. Names: share, first,
skip, containing, after, until, seconds, server. Kinds: """ + ", ".join(FaultKind)

LAST_PORT: Final = 65_535

_DEFAULTS: Final = ServerSettings()


async def _serve(
    settings: ServerSettings, *, servers: int, host: str, port: int, faults: list[Fault]
) -> None:
    """Serve until SIGINT or SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    warm_up()
    async with running_simulators(settings, count=servers, host=host, port=port, faults=faults) as handles:
        # What lives from here on lives until the end: the collector need not walk it again.
        gc.collect()
        gc.freeze()
        for handle in handles:
            click.echo(handle.url)
        await stop.wait()


def _faults(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> list[Fault]:
    try:
        return [fault for value in values for fault in parse_faults(value)]
    except UsageError as error:
        raise click.BadParameter(str(error)) from None


@click.command("simulate", epilog=_EPILOG)
@click.option(
    "--servers", type=click.IntRange(1, 1000), default=1, show_default=True, help="How many servers."
)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option(
    "--port",
    type=click.IntRange(0, LAST_PORT),
    default=30000,
    show_default=True,
    help="First port; 0: free ones.",
)
@click.option(
    "--dialect", type=click.Choice(["sglang", "vllm", "llamacpp"]), default="sglang", show_default=True
)
@click.option("--engine-version", "version", default="", help="Engine version to speak as, such as 0.5.11.")
@click.option("--model", default=_DEFAULTS.model, show_default=True)
@click.option(
    "--slots",
    type=click.IntRange(1),
    default=_DEFAULTS.slots,
    show_default=True,
    help="Requests that run at once.",
)
@click.option(
    "--requested-slots", type=click.IntRange(1), help="What the launch flag asked for; default: --slots."
)
@click.option("--max-queued", type=click.IntRange(0), help="Waiting requests beyond which it answers 503.")
@click.option("--context", type=click.IntRange(16), default=_DEFAULTS.context, show_default=True)
@click.option("--parser/--no-parser", "reasoning_parser", default=True, help="Whether thinking is split off.")
@click.option(
    "--thinking/--no-thinking", default=True, help="Whether it thinks where the request does not say."
)
@click.option("--median-tokens", type=click.FloatRange(1), default=_DEFAULTS.median_tokens, show_default=True)
@click.option("--sigma", type=click.FloatRange(0), default=_DEFAULTS.sigma, show_default=True)
@click.option(
    "--thinking-share",
    type=click.FloatRange(0, 0.95),
    default=_DEFAULTS.thinking_share,
    show_default=True,
    help="Part of the output that is thinking.",
)
@click.option(
    "--tokens-per-s",
    type=click.FloatRange(0, min_open=True),
    default=_DEFAULTS.tokens_per_s,
    show_default=True,
    help="Speed of one slot.",
)
@click.option(
    "--slowdown", type=click.FloatRange(0), default=0.0, help="How much others running slow a slot."
)
@click.option(
    "--time-scale",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Simulated seconds in a real one.",
)
@click.option("--instant", is_flag=True, help="Answer at once: no slots, no queue.")
@click.option("--accept-length", type=click.FloatRange(0), default=_DEFAULTS.accept_length, show_default=True)
@click.option(
    "--health-delay", "health_delay_s", type=click.FloatRange(0), help="Seconds that /health takes."
)
@click.option(
    "--disconnect-poll",
    "disconnect_poll_s",
    type=click.FloatRange(0.01),
    default=_DEFAULTS.disconnect_poll_s,
    show_default=True,
    help="Seconds between two looks at whether a client left.",
)
@click.option("--keepalive", "keepalive_s", type=click.FloatRange(0), default=_DEFAULTS.keepalive_s)
@click.option("--metrics/--no-metrics", default=True, show_default=True, help="Whether there is /metrics.")
@click.option(
    "--api-key", envvar="PROMPTMILL_SIMULATE_API_KEY", help="Key to ask for; better given in the environment."
)
@click.option("--seed", type=int, default=0, help="Another seed, other answers and other random faults.")
@click.option(
    "--fault", "faults", multiple=True, callback=_faults, metavar="FAULT", help="What goes wrong; may repeat."
)
def simulate(**options: Any) -> None:
    """Serve simulated inference servers, and print one URL a line once they listen.

    They answer as SGLang does (or vLLM, llama.cpp): same paths, fields, slots, queues and errors.
    GET /sim/stats tells what a server counted, POST /sim/faults and /sim/slots change it while it runs.
    """
    servers, host, port = (options.pop(name) for name in ("servers", "host", "port"))
    if port + servers - 1 > LAST_PORT:
        raise click.BadParameter(f"{servers} servers from port {port} on go past port {LAST_PORT}")
    faults = cast("list[Fault]", options.pop("faults"))
    options["dialect"] = cast("Dialect", options["dialect"])
    try:
        settings = msgspec.convert(options, ServerSettings)
    except msgspec.ValidationError as error:
        raise click.UsageError(str(error)) from None
    with suppress(KeyboardInterrupt):
        try:
            uvloop.run(_serve(settings, servers=servers, host=host, port=port, faults=faults))
        except OSError as error:
            raise click.ClickException(f"cannot listen on {host}:{port}: {error.strerror}") from None
