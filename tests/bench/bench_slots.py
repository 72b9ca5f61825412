"""How busy the servers' slots are kept, as the servers count it."""

from __future__ import annotations

import os
import statistics
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import harness
import msgspec
from harness import Row, Section, say

from common.records import Record
from common.store import RunStore
from consumers.concurrency import MOST_WAITING

SERVERS = 7
SLOTS = 64
MEDIAN_TOKENS = 200
SIGMA = 0.7
MEAN_TOKENS = 300.0
"""That the simulated servers answer with on average, with that median and sigma."""

RATES = [int(rate) for rate in (os.environ.get("PROMPTMILL_BENCH_RATES") or "200,1000").split(",")]
"""Completions/s in all that the servers are made to reach."""

SLOW = 200
SLOW_S = 8
FAST_S = 8
"""Seconds that the queue is to last."""

LOOK_S = 0.25
LAST_S = 300.0

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_RECORD = msgspec.json.Decoder(Record)


def speed(rate: float, slots: int = SERVERS * SLOTS) -> list[str]:
    """Flags that make so many slots end `rate` requests/s in all."""
    per_slot = MEAN_TOKENS * rate / slots
    return [
        *("--median-tokens", str(MEDIAN_TOKENS), "--sigma", str(SIGMA), "--tokens-per-s", f"{per_slot:.1f}"),
        *("--health-delay", "0"),
    ]


class Sample(NamedTuple):
    """One look while the queue lasts: what was completed by then, and CPU seconds used so far."""

    at: float
    completed: int
    consumers: float
    redis: float
    simulators: float


def occupancy(urls: list[str], until: float) -> tuple[float, float]:
    """The share of slot-seconds that were busy from when all servers were full until then, and since when."""
    stats = [harness.get_json(f"{url}/sim/stats") for url in urls]
    since: float = max(one["full_at"] or 0.0 for one in stats)
    seen = [harness.get_json(f"{url}/sim/stats?since={since}&until={until}")["occupancy"] for url in urls]
    offered = sum(one["slot_seconds"] for one in seen)
    if not offered:
        raise RuntimeError("the servers were never all full")
    busy: float = sum(one["busy_slot_seconds"] for one in seen)
    return busy / offered, since


def ours(url: str, urls: list[str], jobs: int, concurrency: str) -> dict[str, float]:
    """One consumer process a server over a queue of `jobs`."""
    harness.flush(url)
    harness.admit(url, harness.settings("bench", "/nowhere", jobs), jobs)
    store = RunStore.from_url(url)
    pid = harness.redis_pid(url)
    samples: list[Sample] = []
    with ExitStack() as stack:
        consumers = [stack.enter_context(harness.consumer(url, server, concurrency)).pid for server in urls]

        def look() -> bool:
            samples.append(
                Sample(
                    time.time(),
                    store.counts("bench").completed,
                    sum(map(harness.cpu_seconds, consumers)),
                    harness.cpu_seconds(pid),
                    harness.simulator_cpu(),
                )
            )
            return not store.client.llen("rq:queue:completions")

        harness.until("an empty queue", look, within=LAST_S, every=LOOK_S)
        harness.until("the last completion", lambda: store.counts("bench").in_flight == 0, within=LAST_S)
        ended = time.time()
    counts = store.counts("bench")
    if counts.completed != jobs:
        raise RuntimeError(f"{counts.completed} of {jobs} prompts were completed")
    longest = max(_RECORD.decode(line).latency_s for _, line in store.waiting_lines("bench"))
    last = samples[-1]
    share, full = occupancy(urls, last.at)
    first = next((one for one in samples if one.at >= full), samples[0])
    done = last.completed - first.completed
    each = {name: getattr(last, name) - getattr(first, name) for name in ("consumers", "redis", "simulators")}
    return {
        "share": share,
        "tail": ended - last.at,
        "longest": longest,
        "rate": done / (last.at - first.at),
        **{name: 1000 * seconds / done for name, seconds in each.items()},
        "cores": sum(each.values()) / (last.at - first.at),
    }


def plain(urls: list[str], jobs: int) -> dict[str, float]:
    """A script with asyncio, aiohttp and one semaphore a server."""
    before = harness.simulator_cpu()
    found: dict[str, float] = harness.child("drive.py", "script", str(jobs), str(SLOTS), *urls)
    simulated = harness.simulator_cpu() - before
    begun = found["ended"] - found["s"]
    return {
        "share": occupancy(urls, found["dry"])[0],
        "tail": found["ended"] - found["dry"],
        "longest": found["longest"],
        "rate": (jobs - SERVERS * SLOTS) / (found["dry"] - begun),
        "consumers": 1000 * found["cpu_s"] / jobs,
        "simulators": 1000 * simulated / jobs,
    }


def bench_occupancy(rounds: int) -> Section:
    """At 200 completions/s and at 1,000/s."""
    rows = []
    for rate in RATES:
        goal = ">= 0.99" if rate <= SLOW else ">= 0.97"
        seen: dict[str, list[dict[str, float]]] = {"auto": [], str(SLOTS): [], "plain": []}
        jobs = rate * (SLOW_S if rate <= SLOW else FAST_S)
        with harness.redis_server() as url:
            for number in range(rounds):
                for kind, runs in seen.items():
                    # New servers each time: what they count begins with them.
                    with harness.simulators(*speed(rate), "--slots", str(SLOTS), count=SERVERS) as urls:
                        runs.append(plain(urls, jobs) if kind == "plain" else ours(url, urls, jobs, kind))
                words = ", ".join(
                    f"{k} {100 * v[-1]['share']:.2f} % at {v[-1]['rate']:.0f}/s" for k, v in seen.items()
                )
                say(f"{rate}/s, round {number + 1}: {words}")
        rows += judged(rate, goal, seen["auto"], seen["plain"], seen[str(SLOTS)])
    return Section(
        "Slot occupancy",
        f"{SERVERS} simulated servers of {SLOTS} slots with lognormal lengths, in one process; one consumer "
        f"process a server; all on the same {os.cpu_count()} cores. The servers count busy slot-seconds, "
        "from the moment when all were full until the queue ran dry; rates and CPU time are of that time "
        f"too. The plain script is one process with a semaphore of {SLOTS} a server, no queue, no record "
        "kept: the floor of this way to ask.",
        rows,
    )


def judged(
    rate: int,
    goal: str,
    auto: list[dict[str, float]],
    script: list[dict[str, float]],
    fixed: list[dict[str, float]],
) -> list[Row]:
    """The rows of one rate."""
    at = f"asked for {rate:,}/s"

    def values(name: str, runs: list[dict[str, float]] = auto) -> list[float]:
        return [run[name] for run in runs]

    less = [100 * (a - b) for a, b in zip(shares(auto), shares(script), strict=True)]
    return [
        Row(f"busy slots, `auto`, {at}", shares(auto), "", goal),
        Row(f"busy slots, fixed {SLOTS}, {at}", shares(fixed)),
        Row(f"busy slots, plain script, {at}", shares(script)),
        Row(f"`auto` less plain script, {at}", less, "points", ">= -1"),
        Row(
            f"tail after the queue ran dry less the longest completion, {at}",
            [run["tail"] - run["longest"] for run in auto],
            "s",
            "<= 1",
        ),
        Row(
            f"the same, plain script, {at}",
            [run["tail"] - run["longest"] for run in script],
            "s",
        ),
        Row(f"completions/s, `auto`, {at}", values("rate")),
        Row(f"completions/s, plain script, {at}", values("rate", script)),
        Row(f"CPU a completion, all consumers, {at}", values("consumers"), "ms"),
        Row(f"CPU a completion, Redis, {at}", values("redis"), "ms"),
        Row(f"CPU a completion, simulated servers, {at}", values("simulators"), "ms"),
        Row(f"cores busy with all of these, {at}", values("cores")),
        Row(f"CPU a completion, plain script, {at}", values("consumers", script), "ms"),
        Row(f"CPU a completion, its simulated servers, {at}", values("simulators", script), "ms"),
    ]


def shares(runs: list[dict[str, float]]) -> list[float]:
    """Of busy slots."""
    return [run["share"] for run in runs]


SIZES = (16, 48, 128)
FIXED = ("16", "48", "64", "256")
AUTO_RATE = 40.0
WARM_S = 3.0
WINDOW_S = 5.0
SETTLED_S = 60.0
"""Until when `auto` is to have found its number where the server tells nothing."""


def bench_auto(rounds: int) -> Section:
    """`--concurrency auto` beside fixed numbers, on small, middle and large servers."""
    rows = []
    with harness.redis_server() as url:
        for slots in SIZES:
            seen: dict[str, list[dict[str, float]]] = {name: [] for name in ("auto", *FIXED)}
            for _ in range(rounds):
                for concurrency, runs in seen.items():
                    runs.append(single(url, slots, concurrency))
            best = max(FIXED, key=lambda name: statistics.median(shares(seen[name])))
            say(f"{slots} slots: " + ", ".join(f"{k} {told(v)}" for k, v in seen.items()))
            rows += against(slots, seen["auto"], best, seen[best])
            rows += [
                Row(f"{slots} slots: busy slots, {name}", shares(runs), "", "", waited(runs))
                for name, runs in seen.items()
            ]
        falls, rises = zip(*(followed(url) for _ in range(rounds)), strict=True)
    rows += [
        Row("until `auto` has followed a limit that falls from 48 to 16", list(falls), "s", "<= 10"),
        Row("until `auto` has followed a limit that rises from 16 to 64", list(rises), "s", "<= 10"),
    ]
    return Section(
        "`--concurrency auto`",
        f"One simulated server at a time, of 16, 48 and 128 slots that end about {AUTO_RATE:.0f} requests/s "
        "when all are busy: the share of slot-seconds that were busy, by the server's own count, in "
        f"{WINDOW_S:.0f} s from {WARM_S:.0f} s after the first request; completions/s are in proportion to "
        "it. `auto` sees what the server tells of its load. In brackets: how many requests waited in the "
        "server's queue.",
        rows,
    )


def bench_silent(rounds: int) -> Section:
    """`--concurrency auto` on servers that tell nothing of their load."""
    rows = []
    flags = ("--dialect", "vllm", "--no-metrics")
    with harness.redis_server() as url:
        for slots in SIZES:
            best = "16" if slots == 16 else "64" if slots == 48 else "256"
            auto: list[dict[str, float]] = []
            fixed: list[dict[str, float]] = []
            for _ in range(rounds):
                auto.append(single(url, slots, "auto", *flags, warm_s=SETTLED_S))
                fixed.append(single(url, slots, best, *flags))
            say(f"{slots} slots: auto {told(auto)}, {best} {told(fixed)}")
            rows += against(slots, auto, best, fixed)
    return Section(
        "`--concurrency auto` without the server's figures",
        "The same on servers that tell neither their limit nor their load: `auto` begins with 48 and finds "
        f"its number by the answers. Looked at from {SETTLED_S:.0f} s after the first request.",
        rows,
    )


def against(slots: int, auto: list[dict[str, float]], best: str, fixed: list[dict[str, float]]) -> list[Row]:
    """What `auto` is held to."""
    return [
        Row(
            f"{slots} slots: `auto` over the best fixed ({best})",
            [a / b for a, b in zip(shares(auto), shares(fixed), strict=True)],
            "x",
            ">= 0.98",
        ),
        Row(
            f"{slots} slots: `auto`, waiting over running, on average",
            [run["waiting"] / run["running"] for run in auto],
            "",
            "<= 0.2",
        ),
    ]


def told(runs: list[dict[str, float]]) -> str:
    """Busy slots, and how many waited, in words."""
    return f"{statistics.median(shares(runs)):.4f} ({waited(runs)})"


def waited(runs: list[dict[str, float]]) -> str:
    """How many requests waited in the server's queue."""
    return f"{statistics.median(run['waiting'] for run in runs):.0f} waited"


@contextmanager
def consumed(
    url: str, slots: int, jobs: int, concurrency: str, *flags: str
) -> Iterator[Callable[[str], dict[str, Any]]]:
    """One consumer at work on one new server; gives what asks the server for its counts."""
    harness.flush(url)
    harness.admit(url, harness.settings("bench", "/nowhere", jobs), jobs)
    with ExitStack() as stack:
        (server,) = stack.enter_context(
            harness.simulators(*speed(AUTO_RATE, slots), "--slots", str(slots), *flags)
        )
        process = stack.enter_context(harness.consumer(url, server, concurrency))

        def stats(query: str) -> dict[str, Any]:
            found: dict[str, Any] = harness.get_json(f"{server}/sim/stats{query}")
            if found["completions"] + found["running"] + found["waiting"] >= jobs:
                raise RuntimeError("the queue ran dry while it was looked at")
            found["url"] = server
            return found

        harness.until("the first request", lambda: stats("")["running"] > 0, within=60)
        yield stats
        process.kill()


def single(url: str, slots: int, concurrency: str, *flags: str, warm_s: float = WARM_S) -> dict[str, float]:
    """How busy one server was in the window, and what ran and waited there."""
    # What ends until the window is over, and what is in flight then.
    jobs = int(AUTO_RATE * (warm_s + WINDOW_S + 4)) + 300
    with consumed(url, slots, jobs, concurrency, *flags) as stats:
        time.sleep(warm_s)
        begun = time.time()
        looks = []
        while time.time() < begun + WINDOW_S:
            looks.append(stats(""))
            time.sleep(0.1)
        ended = stats(f"?since={begun}&until={time.time()}")
    return {
        "share": ended["occupancy"]["share"],
        "waiting": statistics.mean(look["waiting"] for look in looks),
        "running": statistics.mean(look["running"] for look in looks),
    }


def followed(url: str) -> list[float]:
    """Seconds until `auto` has followed a limit that falls from 48 to 16, and one that rises to 64."""
    took = []
    with consumed(url, 48, 3000, "auto") as stats:
        time.sleep(WARM_S)
        for limit in (16, 64):
            harness.post(f"{stats('')['url']}/sim/slots", b'{"slots": %d}' % limit)

            def there(limit: int = limit) -> bool:
                now = stats("")
                return bool(now["running"] == limit and 0 < now["waiting"] <= MOST_WAITING * limit)

            took.append(harness.until(f"a limit of {limit}", there, within=60))
    return took
