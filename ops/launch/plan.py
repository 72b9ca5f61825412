"""From settings, a version and a list of GPUs to exact command lines. Nothing here touches the machine."""

from __future__ import annotations

import shlex
from typing import Final

import msgspec

from common.errors import UsageError
from common.settings import QUEUE_NAME
from ops.launch.spelling import GRAPH_BATCH, STATE_STRATEGY, Version, check_flags
from ops.launch.traits import Traits

WORKER_CLASS: Final = "consumers.GenerationWorker"
METRICS_PORT: Final = 9400

_MTP_STEPS: Final = 3
_MTP_TOP_K: Final = 1
_SLOTS_WITH_PREFIX_CACHE: Final = 5
"""State slots that SGLang takes per running request under the `extra_buffer` strategy."""

_HIGHEST_PORT: Final = 65_535
_OURS: Final = frozenset(
    {"--model-path", "--host", "--port", "--config", "--base-gpu-id", "--served-model-name"}
)
_GIB: Final = 1 << 30


class LaunchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What to start.

    `state_cache_size` is in slots: None for as many as the requests need, 0 for the server's choice.
    """

    model: str
    served_name: str
    gpus: tuple[str, ...]
    python: str = "python3"
    host: str = "127.0.0.1"
    base_port: int = 30_000
    max_running_requests: int = 48
    context_length: int | None = None
    mem_fraction: float | None = None
    mtp: bool = True
    state_cache_size: int | None = None
    state_dtype: str | None = None
    reasoning_parser: str = "qwen3"
    schedule_policy: str = "lpm"
    server_arguments: tuple[str, ...] = ()
    key_file: str | None = None
    consumers: bool = False
    rq: str = "rq"


class Command(msgspec.Struct, frozen=True):
    """One process: its name in logs, its arguments, and what is added to the environment."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str]

    def shell(self) -> str:
        """The command as one line that a shell runs as it stands."""
        settings = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        return " ".join([*settings, shlex.join(self.argv)])


class Plan(msgspec.Struct, frozen=True):
    """One GPU's server and, if asked for, its consumer."""

    url: str
    port: int
    server: Command
    consumer: Command | None = None


def plan(settings: LaunchSettings, version: Version, traits: Traits) -> tuple[Plan, ...]:
    """Decide every command line, one server for each GPU, ports rising from the base port.

    Raises:
        UsageError: a flag that this SGLang refuses, a GPU named twice, or ports that do not fit.
    """
    _check(settings, version)
    return tuple(_plan_one(settings, version, traits, at, gpu) for at, gpu in enumerate(settings.gpus))


def state_cache_size(settings: LaunchSettings, traits: Traits) -> int | None:
    """Slots of the state cache to ask for, or None to leave it to the server.

    With fewer slots than this, the server silently runs fewer requests at once than it was told to.
    """
    if not traits.hybrid or settings.state_cache_size == 0:
        return None
    if settings.state_cache_size is not None:
        return settings.state_cache_size
    return settings.max_running_requests * (1 if _no_prefix_cache(settings) else _SLOTS_WITH_PREFIX_CACHE)


def state_cache_gib(settings: LaunchSettings, traits: Traits) -> float | None:
    """GPU memory in GiB for the state cache, speculation's intermediate states included; None if unknown."""
    slots = state_cache_size(settings, traits)
    if slots is None or not traits.recurrent:
        return None
    if settings.mtp:
        slots += settings.max_running_requests * (_MTP_STEPS + 1)
    return slots * traits.slot_bytes(settings.state_dtype or "float32") / _GIB


def _check(settings: LaunchSettings, version: Version) -> None:
    check_flags(settings.server_arguments, version)
    for argument in settings.server_arguments:
        flag = argument.partition("=")[0]
        if flag in _OURS:
            raise UsageError(
                f"{flag} is set by ops launch itself: use its own option instead of --server-arg"
            )
        if flag in {"--api-key", "--admin-api-key"}:
            raise UsageError(f"{flag} would show in `ps`: set SGLANG_API_KEY in the environment instead")
    if not settings.gpus:
        raise UsageError("no GPU to use: name them, as in --gpus 0,1,2")
    if len(set(settings.gpus)) != len(settings.gpus):
        raise UsageError(f"a GPU is named twice in --gpus {','.join(settings.gpus)}")
    last = settings.base_port + len(settings.gpus) - 1
    if not 0 < settings.base_port <= last <= _HIGHEST_PORT:
        raise UsageError(f"ports {settings.base_port} to {last} do not exist: choose another --base-port")


def _plan_one(settings: LaunchSettings, version: Version, traits: Traits, at: int, gpu: str) -> Plan:
    port = settings.base_port + at
    # A server on all interfaces is reached over loopback from here.
    host = "127.0.0.1" if settings.host in {"0.0.0.0", "::"} else settings.host  # noqa: S104  # compared, not bound
    url = f"http://{host}:{port}"
    argv = (
        settings.python,
        "-m",
        "sglang.launch_server",
        *_place(settings, port),
        *_speculation(settings),
        *_state_cache(settings, version, traits),
        *_scheduling(settings, version),
        *settings.server_arguments,
    )
    server = Command(name=f"server-{port}", argv=argv, env={"CUDA_VISIBLE_DEVICES": gpu})
    return Plan(url=url, port=port, server=server, consumer=_consumer(settings, url, at, port))


def _place(settings: LaunchSettings, port: int) -> list[str]:
    flags = ["--model-path", settings.model, "--served-model-name", settings.served_name]
    flags += ["--host", settings.host, "--port", str(port)]
    if settings.key_file is not None:
        flags += ["--config", settings.key_file]
    if settings.reasoning_parser:
        flags += ["--reasoning-parser", settings.reasoning_parser]
    return flags


def _speculation(settings: LaunchSettings) -> list[str]:
    if not settings.mtp:
        return []
    return [
        *("--speculative-algorithm", "NEXTN"),
        *("--speculative-num-steps", str(_MTP_STEPS)),
        *("--speculative-eagle-topk", str(_MTP_TOP_K)),
        *("--speculative-num-draft-tokens", str(_MTP_STEPS + 1)),
    ]


def _state_cache(settings: LaunchSettings, version: Version, traits: Traits) -> list[str]:
    if not traits.hybrid:
        return []
    flags: list[str] = []
    if not _no_prefix_cache(settings):
        # Speculation with the default strategy of older versions ends at start with a ValueError.
        flags += [STATE_STRATEGY.at(version), "extra_buffer"]
    size = state_cache_size(settings, traits)
    if size is not None:
        flags += ["--max-mamba-cache-size", str(size)]
    if settings.state_dtype is not None:
        flags += ["--mamba-ssm-dtype", settings.state_dtype]
    return flags


def _scheduling(settings: LaunchSettings, version: Version) -> list[str]:
    flags: list[str] = []
    if settings.context_length is not None:
        flags += ["--context-length", str(settings.context_length)]
    running = str(settings.max_running_requests)
    # A batch above the largest captured graph runs without one, far slower.
    flags += ["--max-running-requests", running, GRAPH_BATCH.at(version), running]
    if settings.mem_fraction is not None:
        flags += ["--mem-fraction-static", str(settings.mem_fraction)]
    return [
        *flags,
        "--schedule-policy",
        settings.schedule_policy,
        "--enable-metrics",
        "--enable-cache-report",
    ]


def _consumer(settings: LaunchSettings, url: str, at: int, port: int) -> Command | None:
    if not settings.consumers:
        return None
    env = {
        "RQ_WORKER_CLASS": WORKER_CLASS,
        "SGLANG_URL": url,
        "PROMPTMILL_METRICS_ADDRESS": f"127.0.0.1:{METRICS_PORT + at}",
    }
    return Command(name=f"consumer-{port}", argv=(settings.rq, "worker", QUEUE_NAME), env=env)


def _no_prefix_cache(settings: LaunchSettings) -> bool:
    return "--disable-radix-cache" in settings.server_arguments
