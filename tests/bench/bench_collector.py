"""How fast one collector turns completions into parts."""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random
from subprocess import PIPE
from typing import TYPE_CHECKING

import boto3
import checking_s3
import harness
import msgspec
from harness import Row, Section, ratios, say

from common.records import Message, Record, Response, Usage, Verdict
from common.storage import open_storage
from common.store import RunStore
from common.store.runs import iso_now
from consumers.collector.decide import part_bytes

if TYPE_CHECKING:
    from common.settings import RunSettings

RECORDS = 16_000
TIMES = 4
"""How often the collector gets them: enough for the one wait for Redis's disk to be a small part of it."""
BATCH = 500


def records(run: str) -> list[Record]:
    """Records whose JSON is about 7 KB; no text is in a part twice, so that parts compress as prose does."""
    random = Random(3)
    texts = [harness.words(random, 6400) for _ in range(2 * BATCH)]
    thoughts, usage = [harness.words(random, 400) for _ in range(2 * BATCH)], Usage(300, 1400, 800)
    return [
        Record(
            run=run,
            index=n,
            id=f"p{n}",
            messages=[Message("user", f"{n} {texts[n % len(texts)][-1190:]}")],
            response=Response(
                content=texts[n % len(texts)][n % 50 : 5200], reasoning_content=thoughts[n % len(thoughts)]
            ),
            finish_reason="stop",
            verdict=Verdict.OK,
            usage=usage,
            model="m",
            server="http://127.0.0.1:1",
            params={"temperature": 0.6},
            attempts=1,
            started_at=iso_now(),
            latency_s=1.0,
        )
        for n in range(RECORDS)
    ]


def floor(made: list[Record]) -> dict[str, float]:
    """What one core serialises and compresses, and nothing else: records/s and CPU milliseconds a record."""
    begun, cpu = time.perf_counter(), time.process_time()
    for at in list(range(0, len(made), BATCH)) * TIMES:
        part_bytes([msgspec.json.encode(record) for record in made[at : at + BATCH]])
    count = len(made) * TIMES
    return {
        "rate": count / (time.perf_counter() - begun),
        "ms": 1000 * (time.process_time() - cpu) / count,
    }


def fill(url: str, run: RunSettings, lines: list[bytes]) -> None:
    """A run whose prompts are all completed, and whose completions all wait."""
    store = RunStore.from_url(url)
    store.create_run(run)
    client = store.client
    key = f"pm:run:{run.run}"
    for at in range(0, len(lines), BATCH):
        with client.pipeline(transaction=False) as pipe:
            for line in lines[at : at + BATCH]:
                pipe.xadd(f"{key}:results", {"r": line})
            pipe.execute()
    size, count = sum(len(line) for line in lines), len(lines)
    fields = {"accepted": count, "completed": count, "waiting_bytes": size}
    client.hset(f"{key}:counts", mapping=fields)
    client.hset(f"{key}:position", mapping={"index": count, "line": count + 1, "offset": 0, "ended": 0})
    # Every bit set: bits that are not would be lost prompts to the collector.
    client.set(f"{key}:done", b"\xff" * (count // 8))


def collect(url: str, output: str, lines: list[bytes]) -> dict[str, float]:
    """One collector process over all that waits; from its first seal to its last part."""
    harness.flush(url)
    run = harness.settings("bench", output, len(lines), batch_size=BATCH)
    fill(url, run, lines)
    store = RunStore.from_url(url)
    parts = len(lines) // BATCH
    argv = harness.command("collector")
    with harness.running(argv, harness.environment(RQ_REDIS_URL=url)) as process:
        sealed = lambda: store.client.exists("pm:run:bench:seal")  # noqa: E731  # said once
        harness.until("the first seal", sealed, within=60, every=0.002)
        begun, cpu = time.perf_counter(), harness.cpu_seconds(process.pid)
        harness.until("the last part", lambda: store.part_count("bench") >= parts, within=120, every=0.005)
        took = time.perf_counter() - begun
        spent = harness.cpu_seconds(process.pid) - cpu
    counts = store.counts("bench")
    stored = sum(1 for info in open_storage(f"{output}/bench").list("part-"))
    if counts.stored != len(lines) or stored != parts:
        raise RuntimeError(f"{counts.stored} of {len(lines)} completions were stored in {stored} parts")
    return {"rate": len(lines) / took, "ms": 1000 * spent / len(lines)}


def bench_collector(rounds: int) -> Section:
    """To a folder and to S3, beside what the core can serialise and compress."""
    made = records("bench")
    lines = [msgspec.json.encode(record) for record in made] * TIMES
    floors, folder, s3 = [], [], []
    with ExitStack() as stack:
        url = stack.enter_context(harness.redis_server())
        moto = stack.enter_context(
            harness.running([sys.executable, checking_s3.__file__], aws(""), stdout=PIPE)
        )
        assert moto.stdout is not None
        endpoint = moto.stdout.readline().decode().strip()
        with harness.set_environment(aws(endpoint)):
            boto3.client("s3").create_bucket(Bucket="demo")
        for number in range(rounds):
            floors.append(floor(made))
            with tempfile.TemporaryDirectory(prefix="promptmill-bench-", dir=Path.cwd()) as place:
                folder.append(collect(url, place, lines))
            with harness.set_environment(aws(endpoint)):
                s3.append(collect(url, f"s3://demo/round-{number}-{time.time_ns()}", lines))
            say(
                f"round {number + 1}: core {floors[-1]['rate']:.0f}/s, folder {folder[-1]['rate']:.0f}/s, "
                f"S3 {s3[-1]['rate']:.0f}/s"
            )
    size = sum(len(line) for line in lines) / len(lines)
    packed = size * BATCH / len(part_bytes(lines[:BATCH]))
    return Section(
        "Collector",
        f"{len(lines):,} completions of {size / 1000:.1f} KB that wait in Redis, parts of {BATCH}; zstd "
        f"makes them {packed:.1f} times smaller. Beside it what one process does that makes as many "
        "records into JSON and zstd level 3 and nothing else. The collector also reads them from Redis, "
        "fixes them on Redis's disk before it writes, syncs files or sends them to an S3 API over HTTP "
        "(moto, which also compares each body with the digests sent along, as real stores do: another "
        "process on the same two cores), and commits.",
        [
            Row("completions/s to a folder, over the bare core", ratios(folder, floors), "x", ">= 0.8"),
            Row("completions/s to S3, over the bare core", ratios(s3, floors), "x", ">= 0.8"),
            Row(
                "CPU a completion, bare core over ours, to a folder",
                ratios(floors, folder, "ms"),
                "x",
                ">= 0.8",
            ),
            Row("CPU a completion, bare core over ours, to S3", ratios(floors, s3, "ms"), "x", ">= 0.8"),
            Row("CPU a completion, to a folder", [r["ms"] for r in folder], "ms"),
            Row("CPU a completion, to S3", [r["ms"] for r in s3], "ms"),
            Row("CPU a completion, bare core", [r["ms"] for r in floors], "ms"),
            Row("completions/s on this machine, to a folder", [r["rate"] for r in folder], "", ">= 5000"),
            Row("completions/s on this machine, to S3", [r["rate"] for r in s3], "", ">= 5000"),
            Row("completions/s on this machine, bare core", [r["rate"] for r in floors]),
        ],
        "While one part is compressed, the next is read from Redis and the one before is written, each in a "
        "thread; Redis's disk is waited for once, while parts are made. Redis and the S3 API work on the "
        "other core: where more is busy than there are cores, the collector waits for one as the bare core "
        "does not. CPU time shows what the work itself takes. This S3 API is seen to keep If-None-Match and "
        "to check a SHA-256, so a part is one request, and its only digest is the one that the manifest has.",
    )


def aws(endpoint: str) -> dict[str, str]:
    """An environment for the S3 API."""
    return harness.environment(
        AWS_ENDPOINT_URL=endpoint,
        AWS_ACCESS_KEY_ID="bench",
        AWS_SECRET_ACCESS_KEY="bench",
        AWS_DEFAULT_REGION="us-east-1",
    )
