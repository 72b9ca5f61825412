"""What `ops status` tells, as data. `docs/status.md` documents every field; names are only ever added."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from common.store.look import Silent


class State(StrEnum):
    """A run in one word or two."""

    RUNNING = "running"
    ENQUEUEING = "enqueueing"
    STORING = "storing"
    FINISHED = "finished"
    PAUSED = "paused by the guard"
    SUSPENDED = "suspended"
    DRAINING = "draining"
    NO_SERVER = "waiting for a server"
    NO_CONSUMER = "no consumer"


class Minute(msgspec.Struct, frozen=True):
    """One consumer's last minute."""

    completions_per_s: float = 0.0
    output_tokens_per_s: float = 0.0
    errors: int = 0


class Consumer(msgspec.Struct, frozen=True, kw_only=True):
    """One consumer and its server, as it told itself a few seconds ago."""

    worker: str = ""
    server: str = "?"
    server_state: str = ""
    model: str | None = None
    state: str = ""
    in_flight: int = 0
    limit: int = 0
    queue: int | None = None
    completions: int = 0
    output_tokens: int = 0
    accept_length: float | None = None
    last_minute: Minute = Minute()
    errors_by_kind: dict[str, int] = {}
    host: str = ""
    pid: int = 0
    started: float = 0.0
    at: float = 0.0


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """A pause by the quality guard, of the run (`*`) or of one server's part in it."""

    scope: str
    sentence: str = ""
    verdict: str = ""
    samples: list[str] = []
    at: str | None = None


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One run. The fields that `progress.json` has too have the same names and meanings."""

    run: str
    state: State
    active: bool
    total: int
    accepted: int
    completed: int
    stored: int
    dead: int
    queued: int
    in_flight: int
    rate_per_s: float | None
    output_tokens_per_s: float | None
    rate_of_all_runs: bool
    whole_run_rate_per_s: float | None
    whole_run_output_tokens_per_s: float | None
    eta_s: float | None
    eta_low_s: float | None
    eta_high_s: float | None
    output_tokens: int
    verdicts: dict[str, int]
    dead_by_reason: dict[str, int]
    events: dict[str, int]
    paused: list[Pause]
    missing: int
    waiting: int
    waiting_bytes: int
    waiting_oldest_s: float | None
    parts: int
    last_part: str | None
    output: str
    created_at: str

    @property
    def done(self) -> int:
        """Prompts (times samples) that have ended."""
        return self.completed + self.dead

    @property
    def balanced(self) -> bool:
        """Whether accepted = completed + dead + queued + in flight."""
        return self.accepted == self.completed + self.dead + self.queued + self.in_flight


class Memory(msgspec.Struct, frozen=True):
    """Bytes that Redis uses and may use; 0 is no limit."""

    used: int
    limit: int


class Queue(msgspec.Struct, frozen=True):
    """RQ's own view of the queue, of all runs together."""

    queued: int
    scheduled: int
    started: int
    failed: int


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Everything at one moment."""

    at: str
    runs: list[RunStatus]
    consumers: list[Consumer]
    silent: list[Silent]
    stock_workers: list[str]
    collector: bool
    suspended: bool
    queue: Queue
    memory: Memory
    disk_ok: bool = True
