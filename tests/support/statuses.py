"""Statuses to show, made without a Redis."""

from __future__ import annotations

from typing import Any

from ops.status.values import Consumer, Memory, Minute, Queue, RunStatus, State, Status

LONG_SERVER = "http://gpu-node-17.cluster.internal.example.org:30000"


def run(**changes: Any) -> RunStatus:
    """A run of the real size, half done."""
    fields: dict[str, Any] = {
        "run": "main",
        "state": State.RUNNING,
        "active": True,
        "total": 902_087,
        "accepted": 902_087,
        "completed": 450_000,
        "stored": 449_500,
        "dead": 1_123,
        "queued": 450_628,
        "in_flight": 336,
        "rate_per_s": 12.345,
        "output_tokens_per_s": 24_567.8,
        "rate_of_all_runs": False,
        "whole_run_rate_per_s": 11.9,
        "whole_run_output_tokens_per_s": 23_900.1,
        "eta_s": 36_500.0,
        "eta_low_s": 34_000.0,
        "eta_high_s": 39_000.0,
        "output_tokens": 820_000_000,
        "verdicts": {"ok": 430_000, "truncated": 15_000, "truncated_thinking": 5_000},
        "dead_by_reason": {"too_long": 1_000, "server_fault": 123},
        "events": {"retries": 7},
        "paused": [],
        "missing": 0,
        "waiting": 500,
        "waiting_bytes": 3_500_000,
        "waiting_oldest_s": 42.0,
        "parts": 899,
        "last_part": "part-000898.jsonl.zst",
        "output": "s3://bucket/completions/main",
        "created_at": "2026-01-01T00:00:00Z",
    }
    return RunStatus(**(fields | changes))


def consumer(number: int = 0, **changes: Any) -> Consumer:
    """A consumer at work."""
    fields: dict[str, Any] = {
        "worker": f"{number:032x}",
        "server": f"http://10.0.0.{number}:30000",
        "server_state": "ready",
        "state": "working",
        "in_flight": 48,
        "limit": 48,
        "queue": 3,
        "completions": 64_000,
        "accept_length": 3.21,
        "last_minute": Minute(1.76, 3_500.0, 0),
        "host": "gpu",
        "pid": 4242,
        "started": 1_700_000_000.0,
    }
    return Consumer(**(fields | changes))


def status(*runs: RunStatus, consumers: int = 7, **changes: Any) -> Status:
    """A status of these runs, or of one."""
    fields: dict[str, Any] = {
        "at": "2026-01-01T12:34:56.000000Z",
        "runs": list(runs) or [run()],
        "consumers": [consumer(number) for number in range(consumers)],
        "silent": [],
        "stock_workers": [],
        "collector": True,
        "suspended": False,
        "queue": Queue(450_628, 0, 336, 1_123),
        "memory": Memory(1_234_567_890, 0),
    }
    return Status(**(fields | changes))
