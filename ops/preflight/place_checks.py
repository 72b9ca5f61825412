"""Checks of where a run lives: Redis, the output, the working folder."""

from __future__ import annotations

from typing import Final

from common.errors import UnsafeRedisError
from common.storage import StorageReport
from common.store.connection import RedisFacts, check_safe, version_tuple
from ops.preflight.values import Check, failed, passed, skipped, warned

REDIS: Final = "redis"
OUTPUT: Final = "output"

LISTPACK: Final = 4096
"""The `hash-max-listpack-value` that keeps a job's hash in one compact block."""

GIB: Final = 1 << 30
_MIB: Final = 1 << 20

# Measured on Valkey 9 with prompts of 100 to 3,500 bytes: prompt + 512 to 527 bytes, else + 847 to 856.
_COMPACT_BYTES: Final = 530
_LOOSE_BYTES: Final = 860
_JSON_BYTES: Final = 120
_FULL: Final = 0.9
_BYTES_PER_TOKEN: Final = 4.5
_COMPRESSION: Final = 3.0
_STATE_LEAST: Final = 256 << 20
_STATE_ROOM: Final = GIB
_AOF_COPIES: Final = 3
_KNOWN: Final = (7, 2)


def size_words(size: float) -> str:
    """Bytes as people read them."""
    return f"{size / GIB:,.1f} GiB" if size >= GIB else f"{size / _MIB:,.0f} MiB"


def job_bytes(prompt_bytes: float, listpack: int | None) -> float:
    """What one queued job takes in Redis, by its prompt's bytes and `hash-max-listpack-value`."""
    compact = listpack is not None and prompt_bytes + _JSON_BYTES <= listpack
    return prompt_bytes + (_COMPACT_BYTES if compact else _LOOSE_BYTES)


def check_redis(facts: RedisFacts, *, jobs: int | None, prompt_bytes: float | None) -> list[Check]:
    """One Redis: safe to use, durable, and with room for so many jobs of so many bytes."""
    return [
        _check_safety(facts),
        _check_aof(facts),
        _check_listpack(facts, prompt_bytes),
        _check_memory(facts, jobs, prompt_bytes),
    ]


def unreachable_redis(words: str) -> Check:
    """No answer from Redis."""
    return failed(REDIS, "reachable", words, "start Redis or correct --redis (RQ_REDIS_URL)")


def _check_safety(facts: RedisFacts) -> Check:
    words = f"{facts.server} {facts.version}, {facts.policy or 'eviction policy not told'}"
    try:
        check_safe(facts)
    except UnsafeRedisError as error:
        return failed(REDIS, "version", str(error), "use another Redis, or set this one right")
    if facts.policy is None:
        return warned(
            REDIS,
            "version",
            f"{words}: one that evicts keys loses jobs",
            "see that its maxmemory-policy is noeviction",
        )
    if facts.server == "Redis" and version_tuple(facts.version) < _KNOWN:
        return warned(
            REDIS,
            "version",
            f"{words}: it cannot tell what is on disk (WAITAOF), so a crash may cost a second's work",
            "use Redis 7.2 or newer, or Valkey",
        )
    return passed(REDIS, "version", words)


def _check_aof(facts: RedisFacts) -> Check:
    if facts.aof:
        return passed(REDIS, "append-only file", "on")
    return warned(
        REDIS,
        "append-only file",
        "off: a restart of Redis loses what is in motion, which is then paid for again",
        "redis-cli CONFIG SET appendonly yes, and set it in redis.conf too",
    )


def _check_listpack(facts: RedisFacts, prompt_bytes: float | None) -> Check:
    name = "compact hashes"
    if facts.listpack_value is None:
        return skipped(REDIS, name, "not told by this Redis")
    if facts.listpack_value >= LISTPACK:
        return passed(REDIS, name, f"hash-max-listpack-value {facts.listpack_value:,}")
    size = prompt_bytes or 0.0
    if size + _JSON_BYTES > LISTPACK:
        return passed(REDIS, name, "these prompts are too long for any")
    now, then = job_bytes(size, facts.listpack_value), job_bytes(size, LISTPACK)
    return warned(
        REDIS,
        name,
        f"hash-max-listpack-value {facts.listpack_value:,}: a queued job takes {now:,.0f} bytes, "
        f"with {LISTPACK} it is {then:,.0f}",
        f"redis-cli CONFIG SET hash-max-listpack-value {LISTPACK}, and set it in redis.conf too",
    )


def _check_memory(facts: RedisFacts, jobs: int | None, prompt_bytes: float | None) -> Check:
    limit = facts.max_memory or facts.system_memory
    if jobs is None or prompt_bytes is None:
        return skipped(REDIS, "memory", f"{size_words(facts.used_memory)} used; no input to reckon with")
    need = jobs * job_bytes(prompt_bytes, facts.listpack_value)
    words = f"{size_words(need)} for {jobs:,} queued jobs, {size_words(facts.used_memory)} used"
    if not limit:
        return passed(REDIS, "memory", f"{words}, no limit told")
    whose = "maxmemory" if facts.max_memory else "the machine's memory"
    words += f" of {size_words(limit)} ({whose})"
    if facts.used_memory + need <= _FULL * limit:
        return passed(REDIS, "memory", words)
    return warned(
        REDIS,
        "memory",
        f"{words}: the queue would fill it, and the producer would pause again and again",
        "lower --high-water, or give Redis more memory",
    )


def check_output(report: StorageReport, *, expected_bytes: float | None) -> list[Check]:
    """The output after it was tried out: written, written twice, read, listed, its clock looked at."""
    checks = [
        failed(OUTPUT, "storage", words, "correct --output, its keys or AWS_ENDPOINT_URL")
        for words in report.problems
    ]
    checks += [warned(OUTPUT, "storage", words, "a run can go on all the same") for words in report.warnings]
    if not checks:
        told = [f"{report.url}: written, read and listed, create-once {report.create_once.value}"]
        if report.latency_s is not None:
            told.append(f"{report.latency_s * 1000:.0f} ms")
        if report.clock_skew_s is not None:
            told.append(f"clock {report.clock_skew_s:+.0f} s")
        checks.append(passed(OUTPUT, "storage", ", ".join(told)))
    room = _check_room(report, expected_bytes)
    return [*checks, *([room] if room else [])]


def _check_room(report: StorageReport, expected_bytes: float | None) -> Check | None:
    if report.free_bytes is None or not report.ok:
        return None
    words = f"{size_words(report.free_bytes)} free"
    if expected_bytes is None:
        return passed(OUTPUT, "room", words)
    words += f" for about {size_words(expected_bytes)} of parts"
    if expected_bytes <= report.free_bytes:
        return passed(OUTPUT, "room", words)
    return warned(OUTPUT, "room", words, "make room before the disk is full: then consumers pause")


def output_bytes(completions: float, prompt_bytes: float, tokens_each: float) -> float:
    """About how many bytes the parts of so many completions take, compressed."""
    return completions * (prompt_bytes + tokens_each * _BYTES_PER_TOKEN + 600) / _COMPRESSION


def check_state_room(free_bytes: int, folder: str, *, jobs: int, prompt_bytes: float) -> Check:
    """Disk for the embedded Redis: its append-only file, and a second one while it is rewritten."""
    need = _STATE_ROOM + _AOF_COPIES * jobs * job_bytes(prompt_bytes, LISTPACK)
    words = f"{size_words(free_bytes)} free in {folder}; {size_words(need)} is plenty"
    if free_bytes >= need:
        return passed(REDIS, "disk", words)
    remedy = "make room, or put the working files elsewhere with --state"
    if free_bytes < _STATE_LEAST:
        return failed(REDIS, "disk", words, remedy)
    return warned(REDIS, "disk", words, remedy)
