"""Whether a job costs the same beside 10,000 others and beside 900,000."""

from __future__ import annotations

import os
import statistics
import time
from typing import TYPE_CHECKING, Any

import harness
from bench_consumer import NO_SERVER
from harness import Row, Section, say

from common.store import RunStore

if TYPE_CHECKING:
    from collections.abc import Callable

SMALL = 10_000
LARGE = int(os.environ.get("PROMPTMILL_BENCH_LARGE") or 900_000)
JOBS = 5000
STEP = 10_000


def consumer(url: str) -> dict[str, float]:
    """CPU milliseconds a job, of the consumer and of Redis, over `JOBS` no-op jobs from the queue's head."""
    pid = harness.redis_pid(url)
    env = harness.environment(SGLANG_URL=NO_SERVER, PROMPTMILL_CONCURRENCY="64", PROMPTMILL_LOG_LEVEL="ERROR")
    before = harness.cpu_seconds(pid)
    found = harness.child("drive.py", "noop", url, str(JOBS), env=env)
    spent = harness.cpu_seconds(pid) - before
    return {"ms": 1000 * found["cpu_s"] / found["jobs"], "redis_ms": 1000 * spent / found["jobs"]}


def admission(url: str, run: Any, first: int, count: int, *, last: bool) -> dict[str, float]:
    """CPU milliseconds a job of the writing of `count` more jobs."""
    pid = harness.redis_pid(url)
    before, cpu = harness.cpu_seconds(pid), time.process_time()
    harness.admit(url, run, count, first=first, ended=last)
    spent = harness.cpu_seconds(pid) - before
    return {"ms": 1000 * (time.process_time() - cpu) / count, "redis_ms": 1000 * spent / count}


def median_ms(call: Callable[[], Any], times: int = 15) -> float:
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


def look(url: str) -> dict[str, list[float]]:
    """All that is asked of a queue, at the size it has now."""
    store = RunStore.from_url(url)
    shown = [status(url) for _ in range(5)]
    runs = [consumer(url) for _ in range(3)]
    return {
        "consumer": [run["ms"] for run in runs],
        "redis for the consumer": [run["redis_ms"] for run in runs],
        "status": shown,
        "counts": [median_ms(lambda: store.counts("bench")) for _ in range(3)],
        "reap": [median_ms(lambda: store.reap(20.0)) for _ in range(3)],
        "balance": [median_ms(store.balance) for _ in range(3)],
        "results_waiting": [median_ms(lambda: store.results_waiting("bench")) for _ in range(3)],
    }


def bench_flat(rounds: int) -> Section:
    """Costs at both sizes."""
    del rounds
    run = harness.settings("bench", "/nowhere", LARGE)
    with harness.redis_server() as url:
        harness.admit(url, run, SMALL, ended=False)
        small_in = [admission(url, run, SMALL + STEP * n, STEP, last=False) for n in range(3)]
        small = look(url)
        say(f"at {SMALL:,}: " + ", ".join(f"{k} {statistics.median(v):.3f}" for k, v in small.items()))
        have = SMALL + 3 * STEP
        harness.admit(url, run, LARGE - have - 3 * STEP, first=have, ended=False)
        at = LARGE - 3 * STEP
        large_in = [admission(url, run, at + STEP * n, STEP, last=n == 2) for n in range(3)]
        harness.until_rewritten(url)
        # The completions of the first look would otherwise fill what may wait for a collector.
        RunStore.from_url(url).client.delete("pm:run:bench:results")
        large = look(url)
        say(f"at {LARGE:,}: " + ", ".join(f"{k} {statistics.median(v):.3f}" for k, v in large.items()))
    rows = [
        compare("producer CPU a job", [r["ms"] for r in small_in], [r["ms"] for r in large_in]),
        compare(
            "Redis CPU a job admitted", [r["redis_ms"] for r in small_in], [r["redis_ms"] for r in large_in]
        ),
        compare("consumer CPU a job", small["consumer"], large["consumer"]),
        compare("Redis CPU a job consumed", small["redis for the consumer"], large["redis for the consumer"]),
        compare("counters of a run", small["counts"], large["counts"]),
        compare("search for abandoned jobs", small["reap"], large["reap"]),
        compare("comparison of counters and lists", small["balance"], large["balance"]),
        compare("what waits for a part", small["results_waiting"], large["results_waiting"]),
        Row(f"`ops status --json`, whole command, {LARGE:,} queued", large["status"], "s", "<= 1"),
        Row(f"`ops status --json`, whole command, {SMALL:,} queued", small["status"], "s"),
    ]
    return Section(
        "Flat",
        f"The same work beside about {SMALL:,} and beside {LARGE:,} queued jobs: medians at the "
        "large size over "
        "medians at the small one. CPU time where it is said, else the time of the call over a connection.",
        rows,
    )


def compare(what: str, small: list[float], large: list[float]) -> Row:
    """The ratio of a cost at both sizes."""
    base = statistics.median(small)
    return Row(what, [value / base for value in large], "x", "<= 1.1")
