"""A whole job, from a file of prompts to a verified output, by the commands that a user types."""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path

import harness
import psutil
from bench_producer import write_input
from harness import Row, Section, say

from common.errors import QueueError
from common.store import RunStore

PROMPTS = int(os.environ.get("PROMPTMILL_BENCH_PROMPTS") or 40_000)
SERVERS = 7
TOKENS = 60
LOOK_S = 0.5 if PROMPTS <= 100_000 else 2.0
TELL_S = 30.0
RUN_WITHIN_S = 120 + PROMPTS / 2000
"""Seconds for the producer to check the whole file: only then is the run made."""

LOOKS_LOST = 5
"""Looks in a row that may fail: a busy Redis may not answer in time, and that is no reason to stop."""


PARTS = {"producer.cli": "producer", "collector": "collector", "worker": "consumers"}
"""What the processes of `ops run` are, by a word of their command line."""


class Sample(dict[str, float]):
    """One look at the run: time, completed, bytes that Redis uses."""


def watch(
    store: RunStore, process: subprocess.Popen[bytes], seen: dict[str, dict[int, float]]
) -> list[Sample]:
    """Looks at the run, and at the CPU time of its parts, until it ends; every count must be balanced."""
    samples: list[Sample] = []
    lost, told = 0, time.monotonic()
    while process.poll() is None:
        try:
            counts = store.counts("bench")
            used, _ = store.memory()
        except QueueError:
            lost += 1
            if lost > LOOKS_LOST:
                raise
            time.sleep(LOOK_S)
            continue
        lost = 0
        if not counts.balanced or counts.stored > counts.completed:
            raise RuntimeError(f"the counts are not consistent: {counts}")
        samples.append(Sample(at=time.monotonic(), completed=counts.completed, redis=used))
        with suppress(psutil.Error):
            cpu_by_part(process.pid, seen)
        if time.monotonic() - told >= TELL_S:
            told = time.monotonic()
            progress(samples)
        time.sleep(LOOK_S)
    return samples


def progress(samples: list[Sample]) -> None:
    """Tell how far it is."""
    last = samples[-1]
    before = next(one for one in samples if one["at"] >= last["at"] - TELL_S)
    rate = (last["completed"] - before["completed"]) / max(1e-3, last["at"] - before["at"])
    took = last["at"] - samples[0]["at"]
    say(
        f"{took:.0f} s: {last['completed']:,.0f} of {PROMPTS:,} completed, {rate:.0f}/s, "
        f"Redis {last['redis'] / 1e6:.0f} MB"
    )


def cpu_by_part(root: int, seen: dict[str, dict[int, float]]) -> None:
    """CPU seconds of `ops run` and every process below it, by what it is."""
    top = psutil.Process(root)
    times = top.cpu_times()
    seen.setdefault("ops run", {})[root] = times.user + times.system
    for process in top.children(recursive=True):
        try:
            words, times = process.cmdline(), process.cpu_times()
        except psutil.Error:
            continue
        line = " ".join(words)
        part = next((name for word, name in PARTS.items() if word in line), "other")
        seen.setdefault(part, {})[process.pid] = times.user + times.system


def bench_whole(rounds: int) -> Section:
    """One run; `PROMPTMILL_BENCH_PROMPTS=902087` makes it the full one."""
    del rounds
    seen: dict[str, dict[int, float]] = {}
    flags = ["--instant", "--median-tokens", str(TOKENS), "--health-delay", "0"]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="promptmill-bench-"))
        path = Path(folder) / "prompts.jsonl"
        write_input(path, PROMPTS)
        url = stack.enter_context(harness.redis_server())
        urls = stack.enter_context(harness.simulators(*flags, count=SERVERS))
        servers = [word for server in urls for word in ("--server", server)]
        argv = harness.command(
            *("ops", "run", str(path), *servers, "--output", f"{folder}/out"),
            *("--run", "bench", "--redis", url, "--concurrency", "32"),
        )
        redis_pid = harness.redis_pid(url)
        redis_cpu, simulated = harness.cpu_seconds(redis_pid), harness.simulator_cpu()
        begun = time.monotonic()
        process = stack.enter_context(harness.running(argv))
        store = RunStore.from_url(url)
        harness.until(
            "the run", lambda: process.poll() is not None or "bench" in store.runs(), within=RUN_WITHIN_S
        )
        samples = watch(store, process, seen)
        took = time.monotonic() - begun
        seen["Redis"] = {redis_pid: harness.cpu_seconds(redis_pid) - redis_cpu}
        seen["simulated servers"] = {0: harness.simulator_cpu() - simulated}
        if process.returncode:
            raise RuntimeError(f"ops run ended with exit code {process.returncode}")
        counts = store.counts("bench")
        verify = harness.command("ops", "verify", f"{folder}/out/bench", "--input", str(path))
        begun = time.monotonic()
        checked = subprocess.run(verify, env=harness.environment(), capture_output=True, check=False)
        verified = time.monotonic() - begun
        if checked.returncode or counts.completed != PROMPTS or counts.stored != PROMPTS:
            raise RuntimeError(f"not whole: {counts}, verify said {checked.stdout.decode()[-500:]}")
    rates = curve(samples)
    say(f"{PROMPTS:,} in {took:.0f} s; by tenths: " + ", ".join(f"{rate:.0f}/s" for rate in rates))
    half = len(rates) // 2
    rows = [
        Row("prompts/s from the command to its end, verify not counted", [PROMPTS / took]),
        Row(
            "completions/s of the second half over the first",
            [statistics.mean(rates[half:]) / statistics.mean(rates[:half])],
            "x",
        ),
        Row("Redis memory at most, over that of one full high-water mark", [bounded(samples)], "x", "<= 1.1"),
        Row("most that Redis used", [max(s["redis"] for s in samples) / 1e6], "MB"),
        Row("time of `ops verify` with the input", [verified], "s"),
        Row("completions/s that `ops verify` proves", [PROMPTS / verified]),
    ]
    for part, times in sorted(seen.items()):
        rows.append(Row(f"CPU a completion, {part}", [1000 * sum(times.values()) / PROMPTS], "ms"))
    tenths = " ".join(f"{rate:.0f}" for rate in rates)
    return Section(
        "The whole path",
        f"`ops run` of {PROMPTS:,} prompts of 1.2 KB over {SERVERS} simulated servers that answer at once "
        f"with about {TOKENS} tokens, to a folder. Every count that was seen while it ran was balanced "
        f"({len(samples):,} looks), and `ops verify` proved the output against the input. One run; "
        "`PROMPTMILL_BENCH_PROMPTS=902087` makes it the full one.",
        rows,
        f"Completions/s over time, in tenths of the run: {tenths}.",
    )


def curve(samples: list[Sample]) -> list[float]:
    """Completions/s in each tenth of the time between the first and the last completion."""
    first = next(s for s in samples if s["completed"])
    last = next(s for s in samples if s["completed"] == samples[-1]["completed"])
    span = (last["at"] - first["at"]) / 10
    marks = []
    for n in range(11):
        at = first["at"] + n * span
        after = next((s for s in samples if s["at"] >= at - 1e-6), samples[-1])
        marks.append((after["at"], after["completed"]))
    return [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(marks) if b[0] > a[0]]


def bounded(samples: list[Sample]) -> float:
    """The most memory over what 50,000 jobs and 20,000 waiting completions may take."""
    jobs = min(PROMPTS, 50_000) * (1.1 * harness.PROMPT_BYTES + 500)
    results = min(PROMPTS, 20_000) * (harness.PROMPT_BYTES + 2000)
    return max(s["redis"] for s in samples) / (jobs + results + 20e6)
