"""How busy the servers' slots are kept, as the servers count it."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from contextlib import ExitStack
from typing import Any

import harness
import msgspec
from harness import Row, Section, say

from common.records import Record
from common.store import RunStore

SERVERS = 7
SLOTS = 64
MEDIAN_TOKENS = 200
SIGMA = 0.7
MEAN_TOKENS = 300.0
"""That the simulated servers answer with on average, with that median and sigma."""

RATES = [int(rate) for rate in (os.environ.get("PROMPTMILL_BENCH_RATES") or "200,1000").split(",")]
"""Completions/s in all that the servers are made to reach."""

SLOW = 200

_RECORD = msgspec.json.Decoder(Record)


def speed(rate: float, slots: int = SERVERS * SLOTS) -> list[str]:
    """Flags that make so many slots end `rate` requests/s in all."""
    per_slot = MEAN_TOKENS * rate / slots
    return [
        *("--median-tokens", str(MEDIAN_TOKENS), "--sigma", str(SIGMA), "--tokens-per-s", f"{per_slot:.1f}"),
        *("--health-delay", "0"),
    ]


def occupancy(urls: list[str], until: float) -> float:
    """The share of slot-seconds that were busy, from when all servers were full until the queue ran dry."""
    stats = [harness.get_json(f"{url}/sim/stats") for url in urls]
    since = max(one["full_at"] or 0.0 for one in stats)
    seen = [harness.get_json(f"{url}/sim/stats?since={since}&until={until}")["occupancy"] for url in urls]
    offered = sum(one["slot_seconds"] for one in seen)
    if not offered:
        raise RuntimeError("the servers were never all full")
    busy: float = sum(one["busy_slot_seconds"] for one in seen)
    return busy / offered


def ours(url: str, urls: list[str], jobs: int, concurrency: str) -> dict[str, float]:
    """One consumer process a server over a queue of `jobs`."""
    harness.flush(url)
    harness.admit(url, harness.settings("bench", "/nowhere", jobs), jobs)
    store = RunStore.from_url(url)
    pid = harness.redis_pid(url)
    redis_cpu = harness.cpu_seconds(pid)
    with ExitStack() as stack:
        processes = []
        for server in urls:
            env = harness.environment(
                SGLANG_URL=server,
                RQ_REDIS_URL=url,
                RQ_WORKER_CLASS="consumers.GenerationWorker",
                PROMPTMILL_CONCURRENCY=concurrency,
                PROMPTMILL_LOG_LEVEL="ERROR",
            )
            processes.append(
                stack.enter_context(harness.running(harness.command("rq", "worker", "completions"), env))
            )
        begun = time.time()
        harness.until("an empty queue", lambda: not store.client.llen("rq:queue:completions"), within=300)
        dry = time.time()
        harness.until("the last completion", lambda: store.counts("bench").in_flight == 0, within=300)
        ended = time.time()
        cpu = sum(harness.cpu_seconds(process.pid) for process in processes)
        redis_cpu = harness.cpu_seconds(pid) - redis_cpu
    counts = store.counts("bench")
    if counts.completed != jobs:
        raise RuntimeError(f"{counts.completed} of {jobs} prompts were completed")
    longest = max(_RECORD.decode(line).latency_s for _, line in store.waiting_lines("bench"))
    return {
        "share": occupancy(urls, dry),
        "tail": ended - dry,
        "longest": longest,
        "rate": jobs / (ended - begun),
        "ms": 1000 * cpu / jobs,
        "redis_ms": 1000 * redis_cpu / jobs,
    }


def plain(urls: list[str], jobs: int) -> dict[str, float]:
    """A script with asyncio, aiohttp and one semaphore a server."""
    found: dict[str, float] = harness.child("drive.py", "script", str(jobs), str(SLOTS), *urls)
    return {
        "share": occupancy(urls, found["dry"]),
        "tail": found["ended"] - found["dry"],
        "longest": found["longest"],
        "rate": jobs / found["s"],
        "ms": 1000 * found["cpu_s"] / jobs,
    }


def bench_occupancy(rounds: int) -> Section:
    """At 200 completions/s and at 1,000/s."""
    rows = []
    for rate in RATES:
        seconds, goal = 8, ">= 0.99" if rate <= SLOW else ">= 0.97"
        seen: dict[str, list[dict[str, float]]] = {"auto": [], str(SLOTS): [], "plain": []}
        with harness.redis_server() as url:
            for number in range(rounds):
                for kind, runs in seen.items():
                    # New servers each time: what they count begins with them.
                    with harness.simulators(*speed(rate), "--slots", str(SLOTS), count=SERVERS) as urls:
                        jobs = rate * seconds
                        runs.append(plain(urls, jobs) if kind == "plain" else ours(url, urls, jobs, kind))
                told = ", ".join(
                    f"{k} {100 * v[-1]['share']:.2f} % at {v[-1]['rate']:.0f}/s" for k, v in seen.items()
                )
                say(f"{rate}/s, round {number + 1}: {told}")
        auto, fixed, script = seen["auto"], seen[str(SLOTS)], seen["plain"]
        at = f"asked for {rate:,}/s"
        rows += [
            Row(f"busy slots, `auto`, {at}", shares(auto), "", goal),
            Row(f"busy slots, fixed {SLOTS}, {at}", shares(fixed)),
            Row(f"busy slots, plain script, {at}", shares(script)),
            Row(
                f"`auto` less plain script, {at}",
                [100 * (a - b) for a, b in zip(shares(auto), shares(script), strict=True)],
                "points",
                ">= -1",
            ),
            Row(
                f"tail after the queue ran dry less the longest completion, {at}",
                [run["tail"] - run["longest"] for run in auto],
                "s",
                "<= 1",
            ),
            Row(f"completions/s, `auto`, {at}", [run["rate"] for run in auto]),
            Row(f"completions/s, plain script, {at}", [run["rate"] for run in script]),
            Row(f"CPU a completion, all consumers, {at}", [run["ms"] for run in auto], "ms"),
            Row(f"CPU a completion, plain script, {at}", [run["ms"] for run in script], "ms"),
        ]
    return Section(
        "Slot occupancy",
        f"{SERVERS} simulated servers of {SLOTS} slots with lognormal lengths, in one process; one consumer "
        "process a server; all on the same cores. The servers count busy slot-seconds, from the moment "
        "when all were full until the queue ran dry. The plain script is one process with a semaphore of "
        "64 a server, no queue, no record kept: the floor of this way to ask. Completions/s include start "
        "and tail.",
        rows,
    )


def shares(runs: list[dict[str, float]]) -> list[float]:
    """Of busy slots."""
    return [run["share"] for run in runs]


def bench_auto(rounds: int) -> Section:
    """`--concurrency auto` beside fixed numbers, on small, middle and large servers."""
    rows = []
    seconds, rate = 12, 40.0
    with harness.redis_server() as url:
        for slots in (16, 48, 128):
            seen: dict[str, list[float]] = {"auto": [], "16": [], "48": [], "64": [], "256": []}
            waited: dict[str, list[float]] = {name: [] for name in seen}
            for _ in range(rounds):
                for concurrency, rates in seen.items():
                    flags = [*speed(rate, slots), "--slots", str(slots)]
                    with harness.simulators(*flags) as urls:
                        found = single(url, urls[0], int(rate * seconds), concurrency)
                    rates.append(found["share"])
                    waited[concurrency].append(found["waiting"])
            best = max(
                (name for name in seen if name != "auto"), key=lambda name: statistics.median(seen[name])
            )
            say(f"{slots} slots: " + ", ".join(f"{k} {statistics.median(v):.4f}" for k, v in seen.items()))
            rows.append(
                Row(
                    f"{slots} slots: `auto` over the best fixed ({best})",
                    [a / b for a, b in zip(seen["auto"], seen[best], strict=True)],
                    "x",
                    ">= 0.98",
                )
            )
            rows += [
                Row(
                    f"{slots} slots: busy slots, {name}",
                    rates,
                    "",
                    "",
                    f"{statistics.median(waited[name]):.0f} waited at most",
                )
                for name, rates in seen.items()
            ]
    return Section(
        "`--concurrency auto`",
        f"One simulated server at a time, of 16, 48 and 128 slots that end about {rate:.0f} requests/s when "
        "all are busy: the share of slot-seconds that were busy, by the server's own count, from an "
        "eighth of the jobs to six tenths of them; completions/s are in proportion to it. `auto` sees "
        "what the server tells of its load; how many requests waited in the server's queue at most is in "
        "brackets.",
        rows,
    )


def single(url: str, server: str, jobs: int, concurrency: str) -> dict[str, float]:
    """One consumer on one server: how busy it was in between, and how many requests waited there at most."""
    harness.flush(url)
    harness.admit(url, harness.settings("bench", "/nowhere", jobs), jobs)
    env = harness.environment(
        SGLANG_URL=server,
        RQ_REDIS_URL=url,
        RQ_WORKER_CLASS="consumers.GenerationWorker",
        PROMPTMILL_CONCURRENCY=concurrency,
        PROMPTMILL_LOG_LEVEL="ERROR",
    )
    waiting = 0
    with harness.running(
        harness.command("rq", "worker", "completions"), env, stderr=subprocess.DEVNULL
    ) as process:

        def stats() -> dict[str, Any]:
            nonlocal waiting
            found: dict[str, Any] = harness.get_json(f"{server}/sim/stats")
            waiting = max(waiting, found["waiting"])
            return found

        harness.until("some completions", lambda: stats()["completions"] >= jobs / 8, within=120)
        begun = time.time()
        harness.until("more completions", lambda: stats()["completions"] >= jobs * 0.6, within=300)
        dry = time.time()
        busy = harness.get_json(f"{server}/sim/stats?since={begun}&until={dry}")["occupancy"]
        process.kill()
    return {"share": busy["share"], "waiting": waiting}
