"""One look at Redis for whoever watches: read-only, three round trips, and a long queue costs no more."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

import msgspec

from common import keys
from common.errors import RunNotFoundError
from common.records import PartRow
from common.settings import RunSettings
from common.store.connection import translated
from common.store.runs import Counts, RunStore

MAIN: Final = ("accepted", "completed", "dead", "queued", "in_flight", "stored")

_SETTINGS = msgspec.json.Decoder(RunSettings)
_ROW = msgspec.json.Decoder(PartRow)


class Silent(msgspec.Struct, frozen=True):
    """A consumer that RQ knows and that shows no figures, and for how many seconds."""

    worker: str
    host: str
    pid: int
    seconds: float


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What all runs of a Redis share.

    Attributes:
        at: the time by Redis's clock, in seconds since 1970.
        runs: names of all runs.
        active: names of those not finished.
        used_memory: bytes that Redis uses.
        max_memory: bytes that it may use; 0 is no limit.
        disk_ok: whether its append-only file could be written; while it cannot, Redis takes no data.
        suspended: whether `rq suspend` holds all workers.
        listed: jobs in the queue's list.
        scheduled: jobs that wait for another try.
        started: jobs in RQ's registry of those in flight.
        failed: jobs in RQ's registry of failed ones.
        collector: whether a collector holds the lease.
        consumers: each consumer's live figures by worker name.
        silent: consumers that RQ knows and that show no figures.
        strangers: RQ workers on the queue that are no consumers.
    """

    at: float
    runs: list[str]
    active: list[str]
    used_memory: int
    max_memory: int
    disk_ok: bool
    suspended: bool
    listed: int
    scheduled: int
    started: int
    failed: int
    collector: bool
    consumers: dict[str, dict[str, Any]]
    silent: list[Silent]
    strangers: list[str]


class RunLook(msgspec.Struct, frozen=True, kw_only=True):
    """One run at one moment.

    Attributes:
        settings: as it was created.
        counts: its counters, consistent with each other.
        lines: lines of the input that are admitted.
        ended: whether that is all of them.
        paused: why the run, `*`, or a server of it is paused.
        missing: jobs that somebody deleted from Redis.
        waiting: completions that are in no part yet.
        oldest_s: the age of the oldest of them.
        parts: how many parts are stored.
        last_part: the newest of them.
    """

    settings: RunSettings
    counts: Counts
    lines: int
    ended: bool
    paused: dict[str, dict[str, Any]]
    missing: int
    waiting: int
    oldest_s: float | None
    parts: int
    last_part: PartRow | None


def look_around(store: RunStore) -> Surroundings:
    """Look at what the runs share."""
    with translated("show its state"), store.client.pipeline(transaction=False) as pipe:
        pipe.time()
        pipe.smembers(keys.RUNS)
        pipe.smembers(keys.ACTIVE)
        pipe.info("memory")
        pipe.info("persistence")
        pipe.exists(keys.RQ_SUSPENDED)
        pipe.llen(keys.QUEUE)
        pipe.zcard(keys.SCHEDULED)
        pipe.zcard(keys.STARTED)
        pipe.zcard(keys.FAILED)
        pipe.exists(keys.LEASE)
        pipe.smembers(keys.QUEUE_WORKERS)
        (seconds, micros), runs, active, memory, disk, suspended, *lengths, lease, workers = pipe.execute()
    listed, scheduled, started, failed = lengths
    at = seconds + micros / 1e6
    names = sorted(key.decode().removeprefix("rq:worker:") for key in workers)
    consumers, silent, strangers = _workers(store, names, at)
    return Surroundings(
        at=at,
        runs=sorted(name.decode() for name in runs),
        active=sorted(name.decode() for name in active),
        used_memory=int(memory.get("used_memory", 0)),
        max_memory=int(memory.get("maxmemory", 0)),
        disk_ok=disk.get("aof_last_write_status", "ok") == "ok",
        suspended=bool(suspended),
        listed=listed,
        scheduled=scheduled,
        started=started,
        failed=failed,
        collector=bool(lease),
        consumers=consumers,
        silent=silent,
        strangers=strangers,
    )


def _workers(
    store: RunStore, names: list[str], at: float
) -> tuple[dict[str, dict[str, Any]], list[Silent], list[str]]:
    consumers: dict[str, dict[str, Any]] = {}
    silent: list[Silent] = []
    strangers: list[str] = []
    if not names:
        return consumers, silent, strangers
    with translated("list consumers"), store.client.pipeline(transaction=False) as pipe:
        pipe.mget([keys.consumer_key(name) for name in names])
        for name in names:
            pipe.hmget(keys.worker_key(name), "birth", "promptmill", "last_heartbeat", "hostname", "pid")
        figures, *known = pipe.execute()
    for name, raw, (birth, mark, beat, host, pid) in zip(names, figures, known, strict=True):
        if raw:
            consumers[name] = msgspec.json.decode(raw)
        elif birth and not mark:
            strangers.append(name)
        elif birth:
            age = round(max(0.0, at - _epoch(beat or birth)), 1)
            silent.append(Silent(name, (host or b"").decode(), int(pid or 0), age))
    return consumers, silent, strangers


def look_at(store: RunStore, runs: list[str], at: float) -> list[RunLook]:
    """Look at these runs; `at` is the time by Redis's clock.

    Raises:
        RunNotFoundError: one of them is not there.
    """
    if not runs:
        return []
    with translated("show its runs"), store.client.pipeline(transaction=False) as pipe:
        for run in runs:
            pipe.get(keys.run_key(run, "settings"))
            pipe.hgetall(keys.run_key(run, "counts"))
            pipe.hmget(keys.run_key(run, "position"), "index", "ended")
            pipe.hgetall(keys.run_key(run, "paused"))
            pipe.scard(keys.run_key(run, "missing"))
            pipe.xlen(keys.run_key(run, "results"))
            pipe.xrange(keys.run_key(run, "results"), count=1)
            pipe.llen(keys.run_key(run, "parts"))
            pipe.lindex(keys.run_key(run, "parts"), -1)
        replies = pipe.execute()
    each = len(replies) // len(runs)
    return [_run_look(run, replies[n * each : (n + 1) * each], at) for n, run in enumerate(runs)]


def _run_look(run: str, replies: list[Any], at: float) -> RunLook:
    settings, counts, (index, ended), paused, missing, waiting, oldest, parts, last = replies
    if settings is None or not counts:
        raise RunNotFoundError(f"no run named {run} in this Redis: `ops status` lists those that are")
    numbers = {name.decode(): int(value) for name, value in counts.items()}
    main = {name: numbers.pop(name, 0) for name in MAIN}
    return RunLook(
        settings=_SETTINGS.decode(settings),
        counts=Counts(**main, other=numbers),
        lines=int(index or 0),
        ended=bool(int(ended or 0)),
        paused={scope.decode(): msgspec.json.decode(why) for scope, why in paused.items()},
        missing=missing,
        waiting=waiting,
        oldest_s=max(0.0, at - int(oldest[0][0].split(b"-")[0]) / 1000) if oldest else None,
        parts=parts,
        last_part=_ROW.decode(last) if last else None,
    )


def _epoch(iso: bytes) -> float:
    try:
        return dt.datetime.fromisoformat(iso.decode()).timestamp()
    except ValueError:
        return 0.0
