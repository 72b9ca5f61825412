"""What `ops run` starts: pure, from settings to command lines and environments."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from common.errors import UsageError
from common.settings import QUEUE_NAME, redact_url
from consumers.client.transport import base_url

BACKOFF_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
STEADY_S: Final = 30.0
"""A process that lived this long starts again at once when it dies."""


class ChildPlan(msgspec.Struct, frozen=True):
    """One process: its name, its command line, and what its environment adds: secrets are only there."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str]


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one `ops run` was asked for."""

    source: str
    run: str
    output: str
    servers: list[str]
    flags: list[str]
    concurrency: str
    drain_timeout: float
    flush_seconds: float
    state: Path

    @property
    def ready_file(self) -> Path:
        """Made by the producer once the input is checked and the run is known to be the one asked for."""
        return self.state / "ready"


def check_servers(servers: Sequence[str]) -> list[str]:
    """The servers' roots, in the order given.

    Raises:
        UsageError: there is none, one is no URL, or one is there twice.
    """
    if not servers:
        raise UsageError("name at least one server: --server http://host:30000")
    cleaned = []
    for url in servers:
        plain = base_url(url)
        if plain in cleaned:
            raise UsageError(f"the server {redact_url(plain)} is named twice")
        cleaned.append(plain)
    return cleaned


def producer(plan: RunPlan, redis_url: str) -> ChildPlan:
    """The producer of a run."""
    argv = [*python("producer.cli"), "enqueue", plan.source, "--run", plan.run, "--output", plan.output]
    argv += ["--ready-file", str(plan.ready_file), "--spool", str(plan.state / "spool")]
    return ChildPlan("producer", (*argv, *plan.flags), {"RQ_REDIS_URL": redis_url})


def collector(plan: RunPlan, redis_url: str) -> ChildPlan:
    """The collector."""
    argv = [*python("consumers.collector.cli"), "--flush-seconds", str(plan.flush_seconds)]
    return ChildPlan("collector", tuple(argv), {"RQ_REDIS_URL": redis_url})


def consumers(plan: RunPlan, redis_url: str) -> list[ChildPlan]:
    """One consumer per server. A server's URL may hold a password, so it goes by environment."""
    env = {
        "RQ_REDIS_URL": redis_url,
        "RQ_WORKER_CLASS": "consumers.GenerationWorker",
        "PROMPTMILL_DRAIN_TIMEOUT": str(plan.drain_timeout),
        **({} if plan.concurrency == "auto" else {"PROMPTMILL_CONCURRENCY": plan.concurrency}),
    }
    argv = (*python("rq.cli"), "worker", QUEUE_NAME)
    return [
        ChildPlan(f"consumer-{number}", argv, {**env, "SGLANG_URL": server})
        for number, server in enumerate(plan.servers)
    ]


def python(module: str) -> list[str]:
    """The command line that runs a module with this very Python."""
    return [sys.executable, "-m", module]


def backoff(deaths: int) -> float:
    """Seconds before a process that died so many times in a row is started again."""
    return BACKOFF_S[min(deaths, len(BACKOFF_S)) - 1] if deaths else 0.0
