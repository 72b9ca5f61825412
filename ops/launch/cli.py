"""The `ops launch` command."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from common import log as logging
from common.errors import UsageError
from ops.launch.machine import check_ports, gpus_of, installed_version, key_file
from ops.launch.plan import LaunchSettings, Plan, plan, state_cache_gib, state_cache_size
from ops.launch.probe import ready
from ops.launch.spelling import parse_version
from ops.launch.stage import stage
from ops.launch.supervisor import Policy, Supervisor
from ops.launch.traits import Traits, read_traits

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHM: Final = "/dev/shm"  # noqa: S108  # memory shared by all servers is the point
_KEY: Final = "SGLANG_API_KEY"
_DRAIN_SPARE: Final = 60.0


@click.command("launch")
@click.option("--model", required=True, help="Folder of the model (a hub's name only with --no-stage).")
@click.option("--served-model-name", help="Name the servers answer to; the model's folder name by default.")
@click.option("--gpus", default="all", show_default=True, help="As in 0,1,2 or 0-6.")
@click.option("--python", default="python3", show_default=True, help="The interpreter that has SGLang.")
@click.option("--sglang-version", help="Asked of the interpreter if not given.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address the servers listen on.")
@click.option(
    "--base-port", default=30_000, show_default=True, help="First GPU's port; the next ones follow."
)
@click.option("--max-running-requests", default=48, show_default=True, type=click.IntRange(1))
@click.option("--context-length", type=click.IntRange(1), help="Longest prompt and answer together.")
@click.option(
    "--mem-fraction", type=click.FloatRange(0, 1, min_open=True), help="Share of GPU memory to use."
)
@click.option("--mtp/--no-mtp", default=None, help="Multi-token prediction; on if the model can.")
@click.option(
    "--state-cache-size",
    type=click.IntRange(0),
    help="Slots; as many as the requests need, 0: the server's choice.",
)
@click.option("--state-dtype", type=click.Choice(["float32", "bfloat16"]), help="Type of the states.")
@click.option("--reasoning-parser", default="qwen3", show_default=True, help="Empty for none.")
@click.option(
    "--server-arg", "server_arguments", multiple=True, help="One more argument for SGLang; repeat it."
)
@click.option(
    "--stage/--no-stage", "staged", default=True, show_default=True, help="Copy the model into memory first."
)
@click.option("--stage-dir", default=_SHM, show_default=True, type=click.Path(path_type=Path))
@click.option("--consumers", is_flag=True, help="Start an RQ worker beside each server.")
@click.option("--log-dir", default=Path("launch-logs"), show_default=True, type=click.Path(path_type=Path))
@click.option(
    "--stagger",
    type=click.FloatRange(0),
    default=10.0,
    show_default=True,
    help="Seconds from one start to the next.",
)
@click.option(
    "--start-timeout",
    type=click.FloatRange(1),
    default=1800.0,
    show_default=True,
    help="Seconds until a server must be ready.",
)
@click.option("--dry-run", is_flag=True, help="Print the commands and do nothing.")
def launch(**options: Any) -> None:
    """Start one SGLang server per GPU and keep it running until stopped.

    The servers' API key comes from SGLANG_API_KEY, never from an argument. Ctrl-C or SIGTERM stops consumers
    first, then servers; a second one hurries.
    """
    logging.configure()
    sys.exit(_launch(options))


def _launch(options: dict[str, Any]) -> int:
    model = Path(options["model"])
    traits = _traits(model, staged=options["staged"])
    settings = _settings(options, model, traits)
    version = parse_version(options["sglang_version"] or installed_version(settings.python))
    plans = plan(settings, version, traits)
    if options["dry_run"]:
        click.echo(describe(plans, settings, traits))
        return 0
    logger = logging.get_logger("ops")
    check_ports(settings.host, [one.port for one in plans])
    log_dir = _folder(options["log_dir"])
    if options["staged"]:
        logger.info("model_staging", model=str(model), to=settings.model)
        report = stage(model, Path(settings.model), waiting=lambda: logger.info("model_staging_elsewhere"))
        logger.info("model_staged", **msgspec.structs.asdict(report))
    with key_file(log_dir.resolve(), os.environ.get(_KEY)) as path:
        plans = plan(msgspec.structs.replace(settings, key_file=path), version, traits)
        policy = Policy(
            stagger=options["stagger"],
            start_timeout=options["start_timeout"],
            drain_timeout=_drain_timeout(Policy().drain_timeout),
        )
        return asyncio.run(_supervise(plans, policy, log_dir, logger))


def _traits(model: Path, *, staged: bool) -> Traits:
    if staged or model.is_dir():
        return read_traits(model)
    return Traits()  # a name on a hub: taken for what this tool was made for


def _settings(options: dict[str, Any], model: Path, traits: Traits) -> LaunchSettings:
    if options["mtp"] and not traits.mtp:
        raise UsageError(f"{model} carries no head for multi-token prediction: leave --mtp out")
    beside = Path(sys.executable).with_name("rq")
    return LaunchSettings(
        model=str(options["stage_dir"] / model.resolve().name) if options["staged"] else options["model"],
        served_name=options["served_model_name"] or model.resolve().name,
        gpus=gpus_of(options["gpus"]),
        python=options["python"],
        host=options["host"],
        base_port=options["base_port"],
        max_running_requests=options["max_running_requests"],
        context_length=options["context_length"],
        mem_fraction=options["mem_fraction"],
        mtp=traits.mtp if options["mtp"] is None else options["mtp"],
        state_cache_size=options["state_cache_size"],
        state_dtype=options["state_dtype"],
        reasoning_parser=options["reasoning_parser"],
        server_arguments=options["server_arguments"],
        consumers=options["consumers"],
        rq=str(beside) if beside.exists() else "rq",
    )


def describe(plans: Sequence[Plan], settings: LaunchSettings, traits: Traits) -> str:
    """The commands as a shell script, with what they mean for each GPU's memory as comments."""
    lines = []
    slots, gib = state_cache_size(settings, traits), state_cache_gib(settings, traits)
    if slots is not None and gib is not None:
        lines.append(f"# state cache: {slots} slots, {gib:.1f} GiB of each GPU with speculation's own states")
    if os.environ.get(_KEY):
        lines.append("# the servers' API key is given in a private file, with --config")
    for one in plans:
        lines.append(one.server.shell())
        if one.consumer is not None:
            lines.append(one.consumer.shell())
    return "\n".join(lines)


def _drain_timeout(least: float) -> float:
    """Seconds a consumer gets to end: more than it takes by itself, so that its drain is never cut short."""
    text = os.environ.get("PROMPTMILL_DRAIN_TIMEOUT") or "0"
    try:
        return max(least, float(text) + _DRAIN_SPARE)
    except ValueError:
        raise UsageError(f"PROMPTMILL_DRAIN_TIMEOUT={text} is no number of seconds") from None


def _folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UsageError(f"{path} cannot be made ({error}): choose another --log-dir") from error
    return path


async def _supervise(plans: Sequence[Plan], policy: Policy, log_dir: Path, logger: Any) -> int:
    key = os.environ.get(_KEY)
    supervisor = Supervisor(
        plans, policy=policy, log_dir=log_dir, ready=ready, log=logger, secrets=[key] if key else []
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, supervisor.stop)
    return await supervisor.run()
