"""Whether a job costs the same beside 10,000 others, beside 50,000 and beside 900,000."""

from __future__ import annotations

import os
import statistics
import time
from ctypes.util import find_library
from typing import TYPE_CHECKING, Any

import harness
import redis
from bench_consumer import NO_SERVER
from harness import Row, Section, say

from common.store import RunStore

if TYPE_CHECKING:
    from collections.abc import Callable

SMALL = 10_000
DEFAULT = 50_000
"""As many as a producer keeps in Redis unless `--high-water` says otherwise."""

LARGE = int(os.environ.get("PROMPTMILL_BENCH_LARGE") or 900_000)
JOBS = 10_000
ROUNDS = 5

Figures = dict[str, list[float]]
CPU = (
    ("producer CPU a job", "in ms"),
    ("Redis CPU a job admitted", "in redis_ms"),
    ("consumer CPU a job", "out ms"),
    ("Redis CPU a job consumed", "out redis_ms"),
)
COMMANDS = (
    ("Redis commands a job admitted", "in commands"),
    ("Redis commands a job consumed", "out commands"),
)


def used(url: str) -> tuple[float, float]:
    """CPU seconds that Redis used so far, and commands that it executed, those inside of scripts too."""
    with redis.Redis.from_url(url) as client:
        cpu: Any = client.info("cpu")
        stats: Any = client.info("commandstats")
    return cpu["used_cpu_user"] + cpu["used_cpu_sys"], sum(found["calls"] for found in stats.values())


def spent(url: str, call: Callable[[], float]) -> dict[str, float]:
    """CPU milliseconds a job of us (as `call` tells) and of Redis, and Redis's commands a job."""
    cpu, commands = used(url)
    ours = call()
    cpu_then, commands_then = used(url)
    return {
        "ms": 1000 * ours / JOBS,
        "redis_ms": 1000 * (cpu_then - cpu) / JOBS,
        "commands": (commands_then - commands) / JOBS,
    }


def consume(url: str) -> float:
    """CPU seconds of a consumer that does `JOBS` no-op jobs from the queue's head."""
    env = harness.environment(SGLANG_URL=NO_SERVER, PROMPTMILL_CONCURRENCY="64", PROMPTMILL_LOG_LEVEL="ERROR")
    found = harness.child("drive.py", "noop", url, str(JOBS), env=env)
    if found["jobs"] != JOBS:
        raise RuntimeError(f"{found['jobs']} of {JOBS} jobs were done")
    return float(found["cpu_s"])


def admit(url: str, run: Any, first: int, *, last: bool) -> float:
    """CPU seconds that the writing of `JOBS` more jobs takes."""
    begun = time.process_time()
    harness.admit(url, run, JOBS, first=first, ended=last)
    return time.process_time() - begun


def median_ms(call: Callable[[], Any], times: int = 51) -> float:
    """The median time of a call, in milliseconds."""
    took = []
    for _ in range(times):
        begun = time.perf_counter()
        call()
        took.append(1000 * (time.perf_counter() - begun))
    return statistics.median(took)


def status(url: str) -> float:
    """Seconds of CPU and waiting that `ops status --json` takes as a command."""
    begun = time.perf_counter()
    with harness.running(harness.command("ops", "status", "bench", "--json", "--redis", url)) as process:
        process.wait()
        if process.returncode:
            raise RuntimeError(f"ops status ended with {process.returncode}")
    return time.perf_counter() - begun


def rewritten(url: str) -> tuple[float, float]:
    """Have the append-only file written anew; seconds it took, and milliseconds that Redis stood still."""
    with redis.Redis.from_url(url) as client:
        harness.until_rewritten(url)
        begun = time.monotonic()
        client.bgrewriteaof()
        harness.until_rewritten(url)
        took = time.monotonic() - begun
        return took, client.info("stats")["latest_fork_usec"] / 1000


def look(url: str, run: Any, have: int, *, last: bool = False) -> Figures:
    """What jobs cost, and all that is asked of a queue, at the size it has now."""
    store = RunStore.from_url(url)
    seen: Figures = {}

    def keep(what: str, value: float) -> None:
        seen.setdefault(what, []).append(value)

    # Every size begins alike: the file is just written anew, and is not again while this lasts.
    with redis.Redis.from_url(url) as client:
        client.config_set("auto-aof-rewrite-percentage", 0)
        took, pause = rewritten(url)
        keep("rewrite", took)
        keep("pause", pause)
        for number in range(ROUNDS):
            # Nobody collects: what waits would otherwise stop the consumer.
            client.delete("pm:run:bench:results")
            client.hset("pm:run:bench:counts", "waiting_bytes", 0)
            first = have + number * JOBS
            ended = last and number == ROUNDS - 1
            found = spent(url, lambda first=first, ended=ended: admit(url, run, first, last=ended))
            for what, value in found.items():
                keep(f"in {what}", value)
            for what, value in spent(url, lambda: consume(url)).items():
                keep(f"out {what}", value)
            keep("counts", median_ms(lambda: store.counts("bench")))
            keep("reap", median_ms(lambda: store.reap(20.0)))
            keep("balance", median_ms(store.balance))
            keep("results_waiting", median_ms(lambda: store.results_waiting("bench")))
            keep("status", status(url))
        client.config_set("auto-aof-rewrite-percentage", 100)
    return seen


def at_each_size(allocator: str | None) -> dict[int, Figures]:
    """What `look` finds at the three sizes, on one server."""
    more = ROUNDS * JOBS
    run = harness.settings("bench", "/nowhere", LARGE + 3 * more)
    seen: dict[int, Figures] = {}
    have = 0
    with harness.redis_server(allocator) as url:
        for size in (SMALL, DEFAULT, LARGE):
            queued = RunStore.from_url(url).counts("bench").queued if have else 0
            harness.admit(url, run, size - queued, first=have, ended=False)
            have += size - queued
            seen[size] = look(url, run, have, last=size == LARGE)
            have += more
            say(
                f"at {size:,}: " + ", ".join(f"{k} {statistics.median(v):.3g}" for k, v in seen[size].items())
            )
    return seen


def growth(seen: dict[int, Figures], figures: tuple[tuple[str, str], ...], where: str = "") -> list[Row]:
    """Costs at the larger sizes over the median of those at the smallest."""
    return [
        Row(
            f"{what}, {size:,}{where}",
            [value / statistics.median(seen[SMALL][key]) for value in seen[size][key]],
            "x",
            "<= 1.1",
        )
        for what, key in figures
        for size in (DEFAULT, LARGE)
    ]


def bench_flat(rounds: int) -> Section:
    """Costs at the three sizes, with the allocator of a Redis of one's own and with the embedded one's."""
    del rounds
    rows = []
    jemalloc = find_library("jemalloc")
    if jemalloc:
        rows += growth(at_each_size(jemalloc), CPU, ", jemalloc")
    else:
        say("libjemalloc is not installed: a Redis of one's own is left out")
    seen = at_each_size(None)
    rows += growth(seen, CPU + COMMANDS)
    for what, key, unit, goal in (
        ("Redis CPU a job admitted", "in redis_ms", "ms", ""),
        ("Redis CPU a job consumed", "out redis_ms", "ms", ""),
        ("counters of a run", "counts", "ms", "<= 0.5"),
        ("search for abandoned jobs", "reap", "ms", "<= 0.5"),
        ("comparison of counters and lists", "balance", "ms", "<= 0.5"),
        ("what waits for a part", "results_waiting", "ms", "<= 0.5"),
        ("a rewrite of the append-only file, in the background", "rewrite", "s", ""),
        ("Redis stands still for its start", "pause", "ms", ""),
        ("`ops status --json`, whole command", "status", "s", "<= 1"),
    ):
        rows += [Row(f"{what}, {size:,} queued", seen[size][key], unit, goal) for size in seen]
    return Section(
        "Flat",
        f"The same work beside {SMALL:,} queued jobs, beside {DEFAULT:,} (a producer keeps no more in Redis "
        f"unless `--high-water` says so) and beside {LARGE:,}: first the costs over those at {SMALL:,}, "
        "then what some are. CPU time where it is said, else the time of the call over a connection. No "
        "rewrite of the append-only file is under way while costs are taken. The rows with jemalloc are of "
        "the same server with the allocator that Redis's and Valkey's images and packages have built in, as "
        "a deployment has it; the others are of the embedded server, whose wheel has the C library's.",
        rows,
        AFTER,
    )


AFTER = (
    "Redis executes the same commands a job at every size. With the C library's allocator they do not cost "
    "the same: by a profile of a job admitted beside 600,000 others, `malloc` and its like take 40 % of "
    "Redis's time instead of 20 %, for the pieces that they hand out lie further apart than the processor's "
    "caches reach; page faults and time in the kernel stay the same, and a pipeline of bare HSET and RPUSH, "
    "which asks for few pieces a job, does not show it. The embedded server keeps small pieces for the next "
    "script for this reason: without, a job consumed costs over twice as much beside 600,000 others. The "
    "most that a queue holds by default is 50,000."
)
