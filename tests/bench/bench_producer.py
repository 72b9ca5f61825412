"""How fast prompts are admitted, and what they cost in memory."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import harness
import redis
from harness import PROMPT_BYTES, Row, Section, say

from common.store import RunStore

PROMPTS = 100_000
CHUNK = 500


def write_input(path: Path, count: int) -> None:
    """An input of `count` prompts of 1.2 KB."""
    with path.open("w", encoding="utf-8") as file:
        for n, text in enumerate(harness.prompts(count)):
            file.write(json.dumps({"id": f"p{n}", "prompt": text}) + "\n")


def bare(url: str, path: Path) -> float:
    """Jobs/s of the barest writer of the same bytes: pipelines of HSET and RPUSH, nothing else."""
    harness.flush(url)
    lines = path.read_bytes().splitlines()
    begun = time.perf_counter()
    with redis.Redis.from_url(url) as client:
        for at in range(0, len(lines), CHUNK):
            with client.pipeline(transaction=False) as pipe:
                for n, line in enumerate(lines[at : at + CHUNK], start=at):
                    pipe.hset(f"rq:job:bench-{n}", "data", line)
                    pipe.rpush("rq:queue:completions", f"bench-{n}")
                pipe.execute()
    return len(lines) / (time.perf_counter() - begun)


def enqueue(url: str, path: Path, count: int, output: str) -> dict[str, float]:
    """One `producer enqueue`, whole, and the part of it that admits."""
    harness.flush(url)
    pid = harness.redis_pid(url)
    redis_before = harness.cpu_seconds(pid)
    store = RunStore.from_url(url)
    argv = harness.command(
        "producer", "enqueue", str(path), "--run", "bench", "--output", output, "--redis", url
    )
    begun, first, peak, cpu = time.perf_counter(), 0.0, 0, 0.0
    with harness.running([*argv, "--high-water", "10000000"]) as process:
        while process.poll() is None:
            status = Path(f"/proc/{process.pid}/status")
            text = status.read_text() if status.exists() else ""
            if "VmHWM" in text:
                peak = max(peak, int(text.split("VmHWM:")[1].split()[0]))
                cpu = harness.cpu_seconds(process.pid)
            if not first and store.backlog():
                first = time.perf_counter()
            time.sleep(0.01)
    ended = time.perf_counter()
    counts = store.counts("bench")
    if counts.accepted != count or counts.queued != count:
        raise RuntimeError(f"{counts.accepted} of {count} prompts were admitted")
    return {
        "rate": count / (ended - begun),
        "admit_rate": count / (ended - first),
        "peak_mb": peak / 1024,
        "ms": 1000 * cpu / count,
        "redis_ms": 1000 * (harness.cpu_seconds(pid) - redis_before) / count,
    }


def bench_producer(rounds: int) -> Section:
    """`producer enqueue` beside the barest writer."""
    floors, runs = [], []
    with tempfile.TemporaryDirectory(prefix="promptmill-bench-") as folder, harness.redis_server() as url:
        path = Path(folder) / "prompts.jsonl"
        write_input(path, PROMPTS)
        for number in range(rounds):
            floors.append(bare(url, path))
            runs.append(enqueue(url, path, PROMPTS, f"{folder}/out-{number}"))
            say(
                f"round {number + 1}: bare {floors[-1]:.0f}/s, enqueue {runs[-1]['rate']:.0f}/s, "
                f"admission {runs[-1]['admit_rate']:.0f}/s, peak {runs[-1]['peak_mb']:.0f} MB"
            )
    admitting = [run["admit_rate"] / base for run, base in zip(runs, floors, strict=True)]
    whole = [run["rate"] / base for run, base in zip(runs, floors, strict=True)]
    return Section(
        "Producer",
        f"`producer enqueue` of {PROMPTS:,} prompts of 1.2 KB, beside pipelines of {CHUNK} HSET and "
        "RPUSH with "
        "the same bytes that were read before the clock started. Ours also reads and checks the file (a "
        "first pass validates every line and takes its fingerprint before anything is admitted), makes "
        "RQ's jobs, and writes each chunk with its position in one step.",
        [
            Row("admission over the bare writer", admitting, "x", ">= 0.4"),
            Row("whole command, with the pass that checks, over the bare writer", whole, "x"),
            Row("peak memory of the producer", [run["peak_mb"] for run in runs], "MB", "<= 150"),
            Row("producer CPU a prompt, both passes", [run["ms"] for run in runs], "ms"),
            Row("Redis CPU a prompt", [run["redis_ms"] for run in runs], "ms"),
            Row("prompts/s on this machine, admission", [run["admit_rate"] for run in runs]),
            Row("prompts/s on this machine, bare writer", floors),
        ],
    )


def bench_memory(rounds: int) -> Section:
    """Redis's memory for a queued and for a finished job."""
    del rounds
    count = 20_000
    found = {}
    with harness.redis_server() as url, redis.Redis.from_url(url) as client:
        for value in (64, 4096):
            client.config_set("hash-max-listpack-value", value)
            client.execute_command("FLUSHALL", "SYNC")
            before = int(client.info("memory")["used_memory"])
            harness.admit(url, harness.settings("bench", "/nowhere", count), count)
            found[value] = (int(client.info("memory")["used_memory"]) - before) / count
    return Section(
        "Redis memory",
        f"{count:,} queued jobs with prompts of {PROMPT_BYTES:,} bytes, by `used_memory`.",
        [
            Row(
                "a queued job, `hash-max-listpack-value 4096` (recommended)",
                [found[4096]],
                "bytes",
                f"<= {1.1 * PROMPT_BYTES + 500:.0f}",
            ),
            Row("a queued job, Redis's default of 64", [found[64]], "bytes"),
        ],
    )
