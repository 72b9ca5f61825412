"""What producer, consumer and collector tell Prometheus. `docs/metrics.md` explains every name.

Each process makes one of the classes below with a registry of its own and serves that registry. Labels hold
runs, verdicts, reasons and servers: never a prompt, an id or a key.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from common.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Thread
    from wsgiref.simple_server import WSGIServer

ADDRESS_VARIABLE: Final = "PROMPTMILL_METRICS_ADDRESS"
DEFAULT_ADDRESS: Final = "127.0.0.1:9400"
OFF: Final = "off"

_PORTS_TRIED: Final = 100
_HIGHEST_PORT: Final = 65_535
# From an answer at once to the hour that a request may take by default.
_ATTEMPT_SECONDS: Final = (0.5, 1, 2.5, 5, 10, 20, 40, 60, 90, 120, 180, 300, 450, 600, 900, 1800, 3600)
_UPLOAD_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class ConsumerMetrics:
    """One consumer and its one server."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Declare the metrics in `registry`."""
        self.in_flight = Gauge(
            "promptmill_consumer_in_flight", "Requests at the server now.", registry=registry
        )
        self.limit = Gauge(
            "promptmill_consumer_limit", "Requests it would keep at the server.", registry=registry
        )
        self.paused = Gauge(
            "promptmill_consumer_paused",
            "1 while it takes no jobs, by reason.",
            ["reason"],
            registry=registry,
        )
        self.server_up = Gauge(
            "promptmill_server_up", "1 while the server takes work.", ["server"], registry=registry
        )
        self.accept_length = Gauge(
            "promptmill_accept_length",
            "Tokens accepted for each step of speculation, recent mean.",
            ["server"],
            registry=registry,
        )
        self.completions = Counter(
            "promptmill_completions_total", "Completions by verdict.", ["run", "verdict"], registry=registry
        )
        self.output_tokens = Counter(
            "promptmill_output_tokens_total", "Tokens generated in completions.", ["run"], registry=registry
        )
        self.request_errors = Counter(
            "promptmill_request_errors_total",
            "Requests that brought no completion, by kind of failure.",
            ["kind"],
            registry=registry,
        )
        self.attempt_seconds = Histogram(
            "promptmill_attempt_seconds",
            "Time of one request that brought a completion, waiting at the server included.",
            buckets=_ATTEMPT_SECONDS,
            registry=registry,
        )
        self.redis_round_trips = Counter(
            "promptmill_redis_round_trips_total",
            "Calls to Redis that waited for an answer.",
            registry=registry,
        )


class CollectorMetrics:
    """One collector; the one that holds the lease also tells the state of all runs."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Declare the metrics in `registry`."""
        self.lease_held = Gauge(
            "promptmill_collector_lease_held", "1 while this collector is the one at work.", registry=registry
        )
        self.parts = Counter("promptmill_parts_total", "Parts written.", ["run"], registry=registry)
        self.stored = Counter(
            "promptmill_stored_total", "Completions written in parts.", ["run"], registry=registry
        )
        self.upload_seconds = Histogram(
            "promptmill_part_upload_seconds",
            "Time to write one part to the output.",
            buckets=_UPLOAD_SECONDS,
            registry=registry,
        )
        self.upload_failures = Counter(
            "promptmill_part_upload_failures_total",
            "Writes to the output that failed.",
            ["run"],
            registry=registry,
        )
        self.results_waiting = Gauge(
            "promptmill_results_waiting",
            "Completions in Redis, not yet in a part.",
            ["run"],
            registry=registry,
        )
        self.run_jobs = Gauge(
            "promptmill_run_jobs",
            "The run's counts: accepted, completed, stored, dead, queued, in_flight.",
            ["run", "state"],
            registry=registry,
        )
        self.run_dead = Gauge(
            "promptmill_run_dead", "Dead letters by reason.", ["run", "reason"], registry=registry
        )
        self.run_events = Gauge(
            "promptmill_run_events",
            "Events of the run so far: redeliveries, second_finishes, handed_back, restored.",
            ["run", "event"],
            registry=registry,
        )
        self.run_paused = Gauge(
            "promptmill_run_paused",
            "1 while the guard keeps the run paused, for one server or all of them ('*').",
            ["run", "server"],
            registry=registry,
        )
        self.redis_used_bytes = Gauge(
            "promptmill_redis_used_bytes", "Memory that Redis uses.", registry=registry
        )
        self.redis_limit_bytes = Gauge(
            "promptmill_redis_limit_bytes", "Memory that Redis may use; 0 without a limit.", registry=registry
        )


class ProducerMetrics:
    """One producer and its input."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Declare the metrics in `registry`."""
        self.admitted = Counter(
            "promptmill_admitted_total", "Prompts admitted to the queue.", ["run"], registry=registry
        )
        self.position = Gauge(
            "promptmill_input_position",
            "Prompts of the input behind the producer.",
            ["run"],
            registry=registry,
        )
        self.waiting = Gauge(
            "promptmill_producer_waiting",
            "1 while the producer waits: on high_water or on redis_full.",
            ["reason"],
            registry=registry,
        )


def serve(registry: CollectorRegistry, address: str | None = None) -> tuple[str, Callable[[], None]] | None:
    """Serve a registry over HTTP in a thread; returns where, and what stops it. None when switched off.

    A port that is taken makes it try the next ones, so that many consumers can share a machine.

    Args:
        registry: What to serve.
        address: `HOST:PORT` or `off`; if not given, `PROMPTMILL_METRICS_ADDRESS`, then loopback.

    Raises:
        UsageError: the address cannot be read or used.
    """
    chosen = address or os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS
    if chosen == OFF:
        return None
    host, port = parse_address(chosen)
    last = min(port + _PORTS_TRIED, _HIGHEST_PORT + 1) if port else 1
    problem: OSError | None = None
    for trial in range(port, last):
        try:
            server, thread = start_http_server(trial, host, registry)
        except OSError as error:
            problem = error
        else:
            return f"{host}:{server.server_port}", partial(_stop, server, thread)
    raise UsageError(
        f"metrics cannot be served on {chosen} or a port after it ({problem}): set {ADDRESS_VARIABLE}"
    )


def _stop(server: WSGIServer, thread: Thread) -> None:
    server.shutdown()
    server.server_close()
    thread.join()


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT` or `[HOST]:PORT`.

    Raises:
        UsageError: it has another shape.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > _HIGHEST_PORT:
        raise UsageError(
            f"{text!r} is no address for metrics: use HOST:PORT as in {DEFAULT_ADDRESS}, or {OFF}"
        )
    return host.removeprefix("[").removesuffix("]"), int(port)
