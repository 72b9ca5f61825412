"""What producer, collector and operators ask of Redis, in terms of runs. Synchronous."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
import redis

from common import keys
from common.errors import RunNotFoundError
from common.records import DeadLetter, PartRow
from common.settings import RunSettings
from common.store.connection import (
    RedisFacts,
    check_safe,
    client_from_url,
    redis_facts,
    translated,
)
from common.store.scripts import run_script, run_script_to_disk

REAP_MOST: Final = 4000
"""Abandoned jobs put back in one go."""

_SETTINGS = msgspec.json.Decoder(RunSettings)
_LETTER = msgspec.json.Decoder(DeadLetter)
_ROW = msgspec.json.Decoder(PartRow)


class Position(msgspec.Struct, frozen=True):
    """How far an input is admitted: the next prompt's index, its line number and byte offset."""

    index: int
    line: int
    offset: int
    ended: bool


class Counts(msgspec.Struct, frozen=True):
    """One consistent view of a run's counters. `other` has tallies by name, as `verdict:ok`."""

    accepted: int
    completed: int
    dead: int
    queued: int
    in_flight: int
    stored: int
    other: dict[str, int] = {}

    @property
    def balanced(self) -> bool:
        """Whether accepted = completed + dead + queued + in flight."""
        return self.accepted == self.completed + self.dead + self.queued + self.in_flight

    def tally(self, prefix: str) -> dict[str, int]:
        """The tallies that begin with `prefix:`, without it, those above zero."""
        cut = len(prefix) + 1
        return {k[cut:]: n for k, n in sorted(self.other.items()) if k.startswith(prefix + ":") and n > 0}


class Admission(msgspec.Struct, frozen=True):
    """One chunk of the input: jobs as (unit, description, data), dead as (unit, letter JSON, reason)."""

    token: str
    expected_index: int
    position: Position
    jobs: list[tuple[int, str, bytes]]
    dead: list[tuple[int, bytes, str]] = []


class Seal(msgspec.Struct, frozen=True):
    """What the next parts are made of: the completions that wait, up to the stream id `last`.

    Each part has `records` of them, or fewer where one more would exceed `max_bytes`; those that are left at
    the end make a shorter part with `rest`, and none without.
    """

    last: str
    records: int
    max_bytes: int
    rest: bool

    @classmethod
    def parse(cls, text: str) -> Seal:
        """Read a seal as `str` writes it."""
        last, records, max_bytes, rest = text.split(" ")
        return cls(last, int(records), int(max_bytes), rest == "rest")

    def __str__(self) -> str:
        """The seal as Redis holds it."""
        return f"{self.last} {self.records} {self.max_bytes} {'rest' if self.rest else 'full'}"


class Part(msgspec.Struct, frozen=True):
    """One part's range: its number, first and last stream id, how many records, the bytes of their lines."""

    number: int
    first: str
    last: str
    records: int
    size: int


class Waiting(msgspec.Struct, frozen=True):
    """What waits for a part at one instant.

    How many completions, the age of the oldest in seconds, the stream id of the last, the number of the next
    part, and the seal that stands or "".
    """

    count: int
    oldest_s: float | None
    last: str
    number: int
    seal: str


def iso_now() -> str:
    """The time as RQ and our records write it: UTC, ISO 8601, microseconds, `Z`."""
    second, micros = divmod(time.time_ns() // 1000, 1_000_000)
    return f"{_iso_second(second)}.{micros:06d}Z"


@functools.lru_cache(maxsize=1)  # many records begin within one second
def _iso_second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


class RunStore:
    """All runs in one Redis. Every multi-key change is one script, so a kill leaves no half of it."""

    def __init__(self, client: redis.Redis) -> None:
        """Use `client`, which must not repeat commands by itself (see `client_from_url`)."""
        # redis-py types every reply as bytes or str by settings it cannot know; ours are bytes.
        self.client: Any = client

    @classmethod
    def from_url(cls, url: str) -> RunStore:
        """Connect to the Redis at `url`."""
        return cls(client_from_url(url))

    def _run(self, what: str, name: str, args: list[Any]) -> Any:
        with translated(what):
            return run_script(self.client, name, args)

    def check(self) -> RedisFacts:
        """Facts about this Redis.

        Raises:
            UnsafeRedisError: it would lose jobs.
        """
        facts = redis_facts(self.client)
        check_safe(facts)
        return facts

    # Runs

    def create_run(self, settings: RunSettings) -> RunSettings:
        """Create a run, or return the settings of the one that stands under its name."""
        args = [settings.run, msgspec.json.encode(settings), settings.generation.samples]
        return _SETTINGS.decode(self._run(f"create run {settings.run}", "create_run", args))

    def settings(self, run: str) -> RunSettings:
        """The settings of a run.

        Raises:
            RunNotFoundError: there is no such run in this Redis.
        """
        with translated(f"read the settings of run {run}"):
            found: bytes | None = self.client.get(keys.run_key(run, "settings"))
        if found is None:
            raise RunNotFoundError(f"no run named {run} in this Redis: `ops status` lists those that are")
        return _SETTINGS.decode(found)

    def runs(self, *, active: bool = False) -> list[str]:
        """Names of all runs, or of those not finished."""
        with translated("list runs"):
            names: set[bytes] = self.client.smembers(keys.ACTIVE if active else keys.RUNS)
        return sorted(name.decode() for name in names)

    def counts(self, run: str) -> Counts:
        """The counters of a run at one instant.

        Raises:
            RunNotFoundError: there is no such run in this Redis.
        """
        with translated(f"count run {run}"):
            raw: dict[bytes, bytes] = self.client.hgetall(keys.run_key(run, "counts"))
        if not raw:
            raise RunNotFoundError(f"no run named {run} in this Redis: `ops status` lists those that are")
        numbers = {k.decode(): int(v) for k, v in raw.items()}
        main = {
            k: numbers.pop(k, 0) for k in ("accepted", "completed", "dead", "queued", "in_flight", "stored")
        }
        return Counts(**main, other=numbers)

    def position(self, run: str) -> Position | None:
        """How far the input of a run is admitted, or `None` if there is no such run."""
        with translated(f"read the position of run {run}"):
            found: list[bytes | None] = self.client.hmget(
                keys.run_key(run, "position"), "index", "line", "offset", "ended"
            )
        if found[0] is None:
            return None
        index, line, offset, ended = (int(value or 0) for value in found)
        return Position(index, line, offset, bool(ended))

    def admit(self, run: str, chunk: Admission, *, job_timeout: int) -> int:
        """Admit one chunk.

        Returns 1: done; 2: this very chunk was done before; 0: the position is elsewhere; -1: no such run.

        Raises:
            RedisFullError: there is no memory for it; nothing of it was admitted.
        """
        p = chunk.position
        args: list[Any] = [
            *(run, chunk.token, chunk.expected_index, p.index, p.line, p.offset, int(p.ended)),
            *(iso_now(), job_timeout, len(chunk.jobs), len(chunk.dead)),
        ]
        for job in chunk.jobs:
            args.extend(job)
        for letter in chunk.dead:
            args.extend(letter)
        return int(self._run(f"admit prompts to run {run}", "admit", args))

    def missing(self, run: str) -> list[int]:
        """Units whose job somebody deleted from Redis."""
        with translated(f"list the missing jobs of run {run}"):
            units: set[bytes] = self.client.smembers(keys.run_key(run, "missing"))
        return sorted(int(unit) for unit in units)

    def readmit(self, run: str, jobs: Iterable[tuple[int, str, bytes]], *, job_timeout: int) -> int:
        """Put back jobs that were deleted from Redis; returns how many were still missing."""
        args: list[Any] = [run, iso_now(), job_timeout]
        for job in jobs:
            args.extend(job)
        return int(self._run(f"put jobs of run {run} back", "readmit", args))

    def done_bits(self, run: str) -> bytes:
        """The bitmap of terminal units: unit `u` is bit `7 - u % 8` of byte `u // 8`."""
        with translated(f"read which prompts of run {run} are done"):
            found: bytes | None = self.client.get(keys.run_key(run, "done"))
        return found or b""

    def backlog(self) -> int:
        """Jobs that Redis holds now, of all runs: queued, waiting for a retry, and in flight."""
        with translated("count the queue"), self.client.pipeline(transaction=True) as pipe:
            pipe.llen(keys.QUEUE)
            pipe.zcard(keys.SCHEDULED)
            pipe.zcard(keys.STARTED)
            return sum(pipe.execute())

    def memory(self) -> tuple[int, int]:
        """Bytes used, and the limit or 0."""
        with translated("tell its memory"):
            info: dict[str, Any] = self.client.info("memory")
        return int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))

    def server_run_id(self) -> str:
        """An id that changes when Redis restarts."""
        with translated("tell its run id"):
            return str(self.client.info("server").get("run_id", ""))

    # Collecting

    def take_lease(self, token: str, ttl_s: float) -> bool:
        """Take or keep the collector's lease."""
        return bool(self._run("lease the collector's place", "lease", [token, int(ttl_s * 1000)]))

    def release_lease(self, token: str) -> None:
        """Let go of the collector's lease."""
        self._run("release the collector's place", "release_lease", [token])

    def results_waiting(self, run: str) -> Waiting:
        """What waits for a part; its age is by Redis's clock."""
        key = keys.run_key(run, "results")
        with translated(f"count the results of run {run}"), self.client.pipeline(transaction=True) as pipe:
            pipe.xlen(key)
            pipe.xrange(key, count=1)
            pipe.xrevrange(key, count=1)
            pipe.llen(keys.run_key(run, "parts"))
            pipe.get(keys.run_key(run, "seal"))
            pipe.time()
            length, oldest, newest, number, seal, (seconds, micros) = pipe.execute()
        standing = (seal or b"").decode()
        if not oldest:
            return Waiting(int(length), None, "", int(number), standing)
        age = seconds + micros / 1e6 - int(oldest[0][0].split(b"-")[0]) / 1000
        return Waiting(int(length), max(0.0, age), newest[0][0].decode(), int(number), standing)

    def seal(self, run: str, token: str, number: int, standing: str, seal: Seal, *, wait_ms: int) -> bool:
        """Put a seal in place of the one that stands (or ""), and wait until Redis has it on its disk.

        Returns whether it had within the time; true where Redis cannot tell (`WAITAOF`).

        Raises:
            QueueError: the lease is another's, `number` is not the next part, or another seal stands.
        """
        args = [run, token, number, standing, str(seal), seal.last]
        with translated(f"seal parts of run {run}"):
            _, on_disk = run_script_to_disk(self.client, "seal", args, wait_ms)
        return on_disk

    def results(self, run: str, after: str, last: str, count: int) -> list[tuple[str, bytes]]:
        """Up to `count` completions after a stream id (or "") up to another, as (stream id, record line)."""
        start = f"({after}" if after else "-"
        with translated(f"read the results of run {run}"):
            entries = self.client.xrange(keys.run_key(run, "results"), start, last, count=count)
        return [(entry.decode(), fields[b"r"]) for entry, fields in entries]

    def waiting_lines(self, run: str, after: str = "") -> Iterator[tuple[str, bytes]]:
        """Completions that wait for a part, those after a stream id, as (stream id, record line)."""
        while entries := self.results(run, after, "+", 500):
            yield from entries
            after = entries[-1][0]

    def commit(self, run: str, seal: Seal, part: Part, row: PartRow) -> bool:
        """Record a part and let its entries go; false if that seal stands no more or it is not the next."""
        moment, _, sequence = part.last.partition("-")
        after = f"{moment}-{int(sequence) + 1}"
        args = [run, str(seal), part.number, part.first, part.last, after, part.size, part.records]
        args.append(msgspec.json.encode(row))
        return bool(self._run(f"commit part {part.number} of run {run}", "commit", args))

    def adopt_part(
        self, run: str, number: int, row: PartRow, units: Iterable[tuple[int, str, int, str]], *, seen: str
    ) -> int:
        """Take over a part found in the output: (unit, verdict, output tokens, stream id to drop or "").

        `seen` is the stream id up to which the waiting completions were looked at, or "".
        Returns 1: done; 0: `number` is not the next part; 2: completions have come after `seen`, look again.

        Raises:
            RunNotFoundError: Redis lost the run meanwhile.
        """
        args: list[Any] = [run, "part", number, msgspec.json.encode(row), seen]
        for unit in units:
            args.extend(unit)
        return _adopted(run, self._run(f"adopt part {number} of run {run}", "adopt", args))

    def adopt_dead(self, run: str, letters: Iterable[tuple[int, DeadLetter]]) -> None:
        """Take over dead letters found in the output, as (unit, letter)."""
        args: list[Any] = [run, "dead", "", "", ""]
        for unit, letter in letters:
            args.extend((unit, msgspec.json.encode(letter), letter.reason.value))
        _adopted(run, self._run(f"adopt dead letters of run {run}", "adopt", args))

    def parts(self, run: str, start: int = 0) -> list[PartRow]:
        """Rows of the committed parts from number `start`, in order."""
        with translated(f"list the parts of run {run}"):
            rows: list[bytes] = self.client.lrange(keys.run_key(run, "parts"), start, -1)
        return [_ROW.decode(row) for row in rows]

    def part_count(self, run: str) -> int:
        """How many parts are committed."""
        with translated(f"count the parts of run {run}"):
            return int(self.client.llen(keys.run_key(run, "parts")))

    def dead_letters(self, run: str) -> dict[int, DeadLetter]:
        """Every dead letter by unit, in order."""
        with translated(f"list the dead letters of run {run}"):
            raw: dict[bytes, bytes] = self.client.hgetall(keys.run_key(run, "dead"))
        return {unit: _LETTER.decode(letter) for unit, letter in sorted((int(k), v) for k, v in raw.items())}

    def retire(self, run: str) -> bool:
        """Mark a run as finished, if it is: consumers and the collector no longer look at it."""
        return bool(self._run(f"retire run {run}", "retire", [run]))

    def unretire(self, run: str) -> None:
        """Have the collector look at a finished run again: it writes what describes the run anew."""
        with translated(f"look at run {run} again"):
            if self.client.exists(keys.run_key(run, "settings")):
                self.client.sadd(keys.ACTIVE, run)

    def holds_lease(self, token: str) -> bool:
        """Whether the collector's lease is this one's now."""
        with translated("tell whose the lease is"):
            return bool(self.client.get(keys.LEASE) == token.encode())

    # Recovery

    def reap(self, claim_ttl_s: float, *, most: int = REAP_MOST) -> int:
        """Put jobs whose consumer went silent back at the head of the queue; returns how many."""
        return int(self._run("look for abandoned jobs", "reap", [claim_ttl_s, most]))

    def balance(self) -> tuple[int, int, int, int, int]:
        """How counters and lists agree.

        Returns (seconds they have disagreed or -1, queued by counters, queued by lists, in flight by
        counters, in flight by the registry).
        """
        found: list[int] = self._run("compare counters and lists", "balance", [])
        return (found[0], found[1], found[2], found[3], found[4])

    def find_lost(self, run: str) -> list[int]:
        """Units that are neither done nor in any list: what a script then puts back. O(backlog)."""
        with translated(f"look for lost jobs of run {run}"), self.client.pipeline(transaction=True) as pipe:
            pipe.hmget(keys.run_key(run, "position"), "index", "samples")
            pipe.get(keys.run_key(run, "done"))
            pipe.lrange(keys.QUEUE, 0, -1)
            pipe.zrange(keys.SCHEDULED, 0, -1)
            pipe.zrange(keys.STARTED, 0, -1)
            pipe.lrange(keys.run_key(run, "held"), 0, -1)
            pipe.smembers(keys.run_key(run, "missing"))
            (index, samples), done, *lists, missing = pipe.execute()
        prefix = f"{run}-".encode()
        seen = {int(unit) for unit in missing}
        for entries in lists:
            for entry in entries:
                job = entry.partition(b":")[0]
                unit = job[len(prefix) :]
                if job.startswith(prefix) and unit.isdigit():
                    seen.add(int(unit))
        return [u for u in open_units(done or b"", int(index or 0) * int(samples or 1)) if u not in seen]

    def restore(self, run: str, units: Iterable[int]) -> int:
        """Put lost jobs back at the head of the queue, if nothing has happened to them since."""
        return int(self._run(f"restore lost jobs of run {run}", "restore", [run, *units]))

    def recount(self, run: str) -> int:
        """Set the counters of open jobs by the lists; returns how many jobs stood in the wrong one."""
        return int(self._run(f"count the open jobs of run {run}", "recount", [run]))

    def pause(self, run: str, scope: str, reason: Mapping[str, Any]) -> bool:
        """Pause a run (`*`) or one server's part in it; true if it was not paused before."""
        return bool(self._run(f"pause run {run}", "pause", [run, scope, msgspec.json.encode(reason)]))

    def paused(self, run: str) -> dict[str, dict[str, Any]]:
        """Why the run, `*`, or a server of it is paused."""
        with translated(f"read why run {run} is paused"):
            raw: dict[bytes, bytes] = self.client.hgetall(keys.run_key(run, "paused"))
        return {k.decode(): msgspec.json.decode(v) for k, v in raw.items()}

    def resume(self, run: str, accept: Iterable[str] = ()) -> int:
        """Lift every pause of a run and forget the guard's window; `accept` verdicts never pause it again."""
        return int(self._run(f"resume run {run}", "resume", [run, *accept]))

    def revive(self, run: str, units: Iterable[int]) -> int:
        """Queue dead letters again; returns how many could be."""
        return int(self._run(f"retry dead letters of run {run}", "revive", [run, *units]))

    # Watching

    def shut_down_worker(self, name: str) -> None:
        """Tell an RQ worker to shut down, by RQ's own command."""
        with translated(f"shut down worker {name}"):
            self.client.publish(f"rq:pubsub:{name}", b'{"command":"shutdown"}')

    def window(self, run: str) -> list[tuple[str, str, str]]:
        """The last verdicts, newest first, as (verdict, server, prompt id)."""
        with translated(f"read the last verdicts of run {run}"):
            raw: list[bytes] = self.client.lrange(keys.run_key(run, "window"), 0, -1)
        return [tuple(entry.decode().split(" ", 2)) for entry in raw]  # type: ignore[misc]  # three by construction

    def consumers(self) -> dict[str, dict[str, Any]]:
        """Live figures of each consumer by worker name; only those with a heartbeat."""
        with translated("list consumers"):
            workers: set[bytes] = self.client.smembers(keys.QUEUE_WORKERS)
            names = sorted(key.decode().removeprefix("rq:worker:") for key in workers)
            figures = self.client.mget([keys.consumer_key(name) for name in names]) if names else []
        return {name: msgspec.json.decode(raw) for name, raw in zip(names, figures, strict=True) if raw}

    def foreign_workers(self) -> list[str]:
        """Live RQ workers on our queue that are not promptmill consumers."""
        with translated("look for foreign workers"):
            workers: set[bytes] = self.client.smembers(keys.QUEUE_WORKERS)
            names = sorted(key.decode().removeprefix("rq:worker:") for key in workers)
            strangers = []
            for name in names:
                born, version = self.client.hmget(f"rq:worker:{name}", "birth", "promptmill")
                if born and not version:
                    strangers.append(name)
        return strangers


def open_units(done: bytes, limit: int) -> Iterator[int]:
    """Units below `limit` whose bit in the terminal bitmap is clear."""
    for byte_at in range((limit + 7) // 8):
        byte = done[byte_at] if byte_at < len(done) else 0
        if byte == 0xFF:  # noqa: PLR2004  # all eight are done
            continue
        for bit in range(8):
            unit = byte_at * 8 + bit
            if unit < limit and not byte >> (7 - bit) & 1:
                yield unit


def _adopted(run: str, reply: int) -> int:
    if reply < 0:
        raise RunNotFoundError(f"run {run} is gone from this Redis: enqueue it again to rebuild it")
    return int(reply)
