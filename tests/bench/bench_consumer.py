"""How fast one consumer process is, and what it costs."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import drive
import harness
import redis
from harness import Row, Section, ratios, say
from peers import python_of
from rq import Queue

from common.store import RunStore

if TYPE_CHECKING:
    from collections.abc import Callable

JOBS = 16_000
NO_SERVER = "http://127.0.0.1:9"


def ours(url: str, kind: str, *, at_once: int, jobs: int, server: str = NO_SERVER) -> dict[str, float]:
    """One burst of our consumer over a queue of `jobs`."""
    harness.flush(url)
    harness.admit(url, harness.settings("bench", "/nowhere", jobs), jobs)
    env = harness.environment(
        SGLANG_URL=server, PROMPTMILL_CONCURRENCY=str(at_once), PROMPTMILL_LOG_LEVEL="ERROR"
    )
    figures = timed(url, lambda: harness.child("drive.py", kind, url, env=env))
    counts = RunStore.from_url(url).counts("bench")
    if counts.completed != jobs or not counts.balanced:
        raise RuntimeError(f"{counts.completed} of {jobs} jobs were completed")
    return figures


def simple(url: str, jobs: int) -> dict[str, float]:
    """RQ's SimpleWorker."""
    harness.flush(url)
    with redis.Redis.from_url(url) as connection:
        queue = Queue("plain", connection=connection, serializer="json")
        queue.enqueue_many([Queue.prepare_data(drive.noop, args=["p" * 1200]) for _ in range(jobs)])
    return timed(url, lambda: harness.child("drive.py", "simple", url))


def peer(url: str, name: str, jobs: int) -> dict[str, float]:
    """Another queue's worker, which fills its queue itself."""
    harness.flush(url)
    found: dict[str, float] = harness.child(
        "peer_worker.py", name, url, str(jobs), "64", python=python_of(name)
    )
    jobs_ = found["jobs"]
    return {
        **found,
        "rate": jobs_ / found["s"],
        "ms": 1000 * found["cpu_s"] / jobs_,
        "redis_ms": 1000 * found["redis_s"] / jobs_,
    }


def timed(url: str, run: Callable[[], Any]) -> dict[str, float]:
    """A run's figures, with its rate, and CPU milliseconds a job of the worker and of Redis."""
    pid = harness.redis_pid(url)
    before = harness.cpu_seconds(pid)
    found: dict[str, float] = run()
    spent = harness.cpu_seconds(pid) - before
    jobs = found["jobs"]
    return {
        **found,
        "rate": jobs / found["s"],
        "ms": 1000 * found["cpu_s"] / jobs,
        "redis_ms": 1000 * spent / jobs,
    }


def bench_noop(rounds: int) -> Section:
    """No-op jobs: ours at 64 and 512 in flight, SimpleWorker, dramatiq; in turn, round by round."""
    seen: dict[str, list[dict[str, float]]] = {"64": [], "512": [], "simple": [], "dramatiq": []}
    with harness.redis_server() as url:
        for number in range(rounds):
            seen["simple"].append(simple(url, 300))
            seen["64"].append(ours(url, "noop", at_once=64, jobs=JOBS))
            seen["dramatiq"].append(peer(url, "dramatiq", 2500))
            seen["512"].append(ours(url, "noop", at_once=512, jobs=JOBS))
            say(f"round {number + 1}: " + ", ".join(f"{k} {v[-1]['rate']:.0f}/s" for k, v in seen.items()))
    stock, ours64, ours512, other = seen["simple"], seen["64"], seen["512"], seen["dramatiq"]
    total = lambda run: run["ms"] + run["redis_ms"]  # noqa: E731  # said once, used thrice
    return Section(
        "Consumer: no-op jobs",
        "The whole `GenerationWorker` with only the HTTP request taken out: claims, the quality gate, "
        "records of 1.9 KB, retries, heartbeats, metrics. Each job carries a prompt of 1.2 KB, the peers' "
        "jobs too. Redis syncs its append-only file every second. Burst to an empty queue, the start of "
        "the loop included.",
        [
            Row("rate, 64 in flight, over SimpleWorker", ratios(ours64, stock), "x", ">= 20"),
            Row("rate, 512 in flight, over SimpleWorker", ratios(ours512, stock), "x", ">= 20"),
            Row(
                "CPU of worker and Redis a job, SimpleWorker over ours at 64",
                [total(s) / total(o) for s, o in zip(stock, ours64, strict=True)],
                "x",
            ),
            Row("rate, 64 in flight, over dramatiq with 64 threads", ratios(ours64, other), "x", ">= 2.5"),
            Row("rate, 512 in flight, over that at 64", ratios(ours512, ours64), "x", ">= 0.95"),
            Row(
                "CPU of worker and Redis a job, dramatiq over ours at 64",
                [total(o) / total(m) for o, m in zip(other, ours64, strict=True)],
                "x",
            ),
            Row(
                "CPU of worker and Redis a job, dramatiq over ours at 512",
                [total(o) / total(m) for o, m in zip(other, ours512, strict=True)],
                "x",
            ),
            Row(
                "Redis round trips a job, 64 in flight",
                [r["round_trips"] / r["jobs"] for r in ours64],
                "",
                "<= 0.05",
            ),
            Row(
                "Redis round trips a job, 512 in flight",
                [r["round_trips"] / r["jobs"] for r in ours512],
                "",
                "<= 0.05",
            ),
            Row("worker CPU a job, 64 in flight", [r["ms"] for r in ours64], "ms"),
            Row("worker CPU a job, 512 in flight", [r["ms"] for r in ours512], "ms"),
            Row("Redis CPU a job, 64 in flight", [r["redis_ms"] for r in ours64], "ms"),
            Row("Redis CPU a job, 512 in flight", [r["redis_ms"] for r in ours512], "ms"),
            Row("jobs/s on this machine, 64 in flight", [r["rate"] for r in ours64]),
            Row("jobs/s on this machine, 512 in flight", [r["rate"] for r in ours512]),
            Row("jobs/s on this machine, SimpleWorker", [r["rate"] for r in stock]),
            Row("jobs/s on this machine, dramatiq", [r["rate"] for r in other]),
        ],
        "Our jobs do more than the peers': each answer is judged, made into a record and kept, and every "
        "count of the run is exact after each exchange. Consumer and Redis take turns, so that on a "
        "machine with other work both wait for a core; dramatiq's 64 threads keep Redis busy beside the "
        "worker.",
    )


def bench_http(rounds: int) -> Section:
    """With real requests, against a bare aiohttp loop."""
    seen: dict[str, list[dict[str, float]]] = {}
    jobs = 8000
    with harness.redis_server() as url, harness.replayed() as server:
        for number in range(rounds):
            for at_once in (64, 512):
                bare = harness.child("drive.py", "bare", server, str(jobs), str(at_once))
                bare = {**bare, "rate": jobs / bare["s"], "ms": 1000 * bare["cpu_s"] / jobs}
                seen.setdefault(f"bare {at_once}", []).append(bare)
                run = ours(url, "http", at_once=at_once, jobs=jobs, server=server)
                seen.setdefault(f"ours {at_once}", []).append(run)
            say(f"round {number + 1}: " + ", ".join(f"{k} {v[-1]['rate']:.0f}/s" for k, v in seen.items()))
    rows = []
    for at_once in (64, 512):
        mine, bare_ = seen[f"ours {at_once}"], seen[f"bare {at_once}"]
        rows += [
            Row(f"rate over the bare loop, {at_once} in flight", ratios(mine, bare_), "x", ">= 0.75"),
            Row(f"CPU a job, bare loop over ours, {at_once} in flight", ratios(bare_, mine, "ms"), "x"),
            Row(f"CPU a job, ours, {at_once} in flight", [r["ms"] for r in mine], "ms"),
            Row(f"CPU a job, bare loop, {at_once} in flight", [r["ms"] for r in bare_], "ms"),
            Row(f"jobs/s on this machine, ours, {at_once} in flight", [r["rate"] for r in mine]),
        ]
    rows.append(
        Row("rate, 512 in flight, over that at 64", ratios(seen["ours 512"], seen["ours 64"]), "x", ">= 0.95")
    )
    return Section(
        "Consumer: real requests",
        "The whole consumer against a server in another process that answers at once and costs next to "
        "nothing: it replays what `ops simulate` answered to 600 prompts (answers of about 7 KB, no two "
        "alike). Beside it a bare loop on aiohttp and uvloop with a semaphore that sends the same "
        "fields to the same server, parses the answers and throws them away: no queue, no quality gate, "
        "no record. Redis and the server share the two cores.",
        rows,
        "The consumer sends its requests on aiohttp's connections but past its session (the bare loop, as is "
        "usual, through it): the same request and answer took 0.036 ms of CPU time so and 0.082 ms through "
        "the session, measured in turn. At 512 in flight that is enough for the goal. At 64 it is not: "
        "besides the request there are what a no-op job costs (0.04 ms: claim, exchange, engine, record) and "
        "what these answers of 7 KB cost more than its short ones (0.023 ms for the quality gate's reading, "
        "0.007 ms for that of the answer, and records of 9 KB to encode and send), which with the request "
        "comes to about 1.5 times what the bare loop uses in all. By a profile a quarter of it is the "
        "request, most of that the write to the socket; 17 % the quality gate, 15 % the exchange, 8 % the "
        "reading of the answer. Redis and the server share the other core, and in most rounds Redis writes "
        "its append-only file anew, which lowers our rate by a sixth (0.18 against 0.15 ms a job). A server "
        "that takes two seconds an answer keeps 512 in flight busy with a tenth of a core.",
    )


def bench_start(rounds: int) -> Section:
    """From `rq worker` to the first request at the server."""
    took, cpu = [], []
    with harness.redis_server() as url, harness.simulators("--instant") as (server,):
        env = harness.environment(
            SGLANG_URL=server, RQ_REDIS_URL=url, RQ_WORKER_CLASS="consumers.GenerationWorker"
        )
        for _ in range(max(rounds, 5)):
            harness.flush(url)
            harness.admit(url, harness.settings("bench", "/nowhere", 100), 100)
            harness.post(f"{server}/sim/reset")
            begun = time.monotonic()
            with harness.running(
                harness.command("rq", "worker", "completions"), env, stdout=subprocess.DEVNULL
            ) as it:
                reached = harness.until(
                    "the first request",
                    lambda: harness.get_json(f"{server}/sim/stats")["requests"] > 0,
                    within=20,
                    every=0.01,
                )
                took.append(reached)
                cpu.append(harness.cpu_seconds(it.pid))
            say(f"first request after {took[-1]:.2f} s ({time.monotonic() - begun:.2f} s with the stop)")
    return Section(
        "Consumer: start",
        "From `rq worker completions` to the first completion that the server is asked for.",
        [
            Row("start to first request", took, "s", "<= 1"),
            Row("CPU time used until then", cpu, "s", "<= 1"),
        ],
    )


def bench_peers(rounds: int) -> Section:
    """The queue path of other Python queues, 64 in flight."""
    names = ("dramatiq", "taskiq", "arq", "saq", "celery")
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    mine = []
    with harness.redis_server() as url:
        for number in range(rounds):
            mine.append(ours(url, "noop", at_once=64, jobs=5000))
            for name in names:
                seen[name].append(peer(url, name, 1000))
            say(
                f"round {number + 1}: ours {mine[-1]['rate']:.0f}/s, "
                + ", ".join(f"{k} {v[-1]['rate']:.0f}/s" for k, v in seen.items())
            )
    rows = [Row("promptmill, jobs/s", [r["rate"] for r in mine])]
    for name in names:
        version: Any = seen[name][-1]["version"]
        rows.append(Row(f"{name} {version}, jobs/s", [r["rate"] for r in seen[name]]))
        rows.append(Row(f"promptmill over {name}", ratios(mine, seen[name]), "x"))
        rows.append(Row(f"worker CPU a job, {name}", [r["ms"] for r in seen[name]], "ms"))
    return Section(
        "Peers: the queue path",
        "One worker process, 64 in flight (threads for dramatiq and celery, asyncio for the others), jobs "
        "that do nothing with a prompt of 1.2 KB, each queue with its own defaults from its newest "
        "package. Ours does more with each job (quality gate, record, counters) and keeps its result.",
        rows,
    )


if __name__ == "__main__":
    print(json.dumps([statistics.median(row.values) for row in bench_noop(int(sys.argv[1])).rows]))
