"""What every bench uses: a real Redis, simulated servers, prompts of a known size, and figures with a spread.

Rates of one run are compared with rates of the same run only: this is meant for shared, noisy machines.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
import psutil
import redis

from common.jobs import encode_job
from common.records import Fingerprint, Message, PromptJob
from common.settings import RunSettings
from common.store import Admission, Position, RunStore
from ops.embedded import EmbeddedRedis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
PROMPT_BYTES = 1200
ANSWER_BYTES = 7000


class Row(msgspec.Struct, frozen=True):
    """One line of a table: figures of several runs, and what they ought to be (`>= 20`, `<= 0.05`)."""

    what: str
    values: list[float]
    unit: str = ""
    goal: str = ""
    note: str = ""

    @property
    def median(self) -> float:
        """The figure that counts."""
        return statistics.median(self.values)

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; `None` where there is none."""
        if not self.goal:
            return None
        relation, number = self.goal.split()
        limit = float(number)
        return self.median >= limit if relation == ">=" else self.median <= limit


class Section(msgspec.Struct, frozen=True):
    """One bench's part of the report."""

    title: str
    text: str
    rows: list[Row]
    after: str = ""


def say(words: str) -> None:
    """Tell how a bench goes on, on standard error."""
    print(f"  {words}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def redis_server(allocator: str | None = None) -> Iterator[str]:
    """A server whose append-only file is synced every second, with the settings we recommend.

    With an `allocator` library, it is that instead of the C library's, which the embedded server has.
    """
    with tempfile.TemporaryDirectory(prefix="promptmill-bench-") as folder, contextlib.ExitStack() as stack:
        with set_environment({"LD_PRELOAD": allocator} if allocator else {}):
            server = stack.enter_context(EmbeddedRedis(Path(folder)))
        with redis.Redis.from_url(server.url) as client:
            client.config_set("hash-max-listpack-value", 4096)
        yield server.url


def flush(url: str) -> None:
    """Empty the server."""
    with redis.Redis.from_url(url) as client:
        client.flushall()


def environment(**more: str) -> dict[str, str]:
    """The environment of a child: ours, with this tree on its path and none of the user's settings."""
    own = ("PROMPTMILL_", "SGLANG_", "RQ_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return {**kept, "PYTHONPATH": f"{ROOT}:{HERE}", "NO_PROXY": "127.0.0.1", **more}


@contextlib.contextmanager
def set_environment(variables: dict[str, str]) -> Iterator[None]:
    """Have these variables in our own environment for a while."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


_MODULES = {
    "rq": "rq.cli",
    "producer": "producer.cli",
    "collector": "consumers.collector.cli",
    "ops": "ops.cli",
}


def command(name: str, *args: str) -> list[str]:
    """A program, run by this Python from this tree, installed or not."""
    return [sys.executable, "-m", _MODULES[name], *args]


@contextlib.contextmanager
def running(
    argv: list[str], env: dict[str, str] | None = None, **more: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """A process for as long as the context lasts."""
    more.setdefault("stderr", subprocess.DEVNULL)
    more.setdefault("stdout", subprocess.DEVNULL)
    with subprocess.Popen(argv, env=env or environment(), cwd=ROOT, **more) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def consumer(
    redis_url: str, server: str, concurrency: str
) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """A consumer process of one server, for as long as the context lasts."""
    env = environment(
        SGLANG_URL=server,
        RQ_REDIS_URL=redis_url,
        RQ_WORKER_CLASS="consumers.GenerationWorker",
        PROMPTMILL_CONCURRENCY=concurrency,
        PROMPTMILL_LOG_LEVEL="ERROR",
    )
    return running(command("rq", "worker", "completions"), env)


def ratios(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], what: str = "rate") -> list[float]:
    """Round by round: what was measured side by side is compared."""
    return [a[what] / b[what] for a, b in zip(ours, theirs, strict=True)]


@contextlib.contextmanager
def simulators(*flags: str, count: int = 1) -> Iterator[list[str]]:
    """Simulated servers in one process of their own; their URLs."""
    argv = command("ops", "simulate", "--servers", str(count), "--port", "0", *flags)
    with running(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        urls = [process.stdout.readline().decode().strip() for _ in range(count)]
        if not all(urls):
            raise RuntimeError("the simulated servers did not start")
        yield urls


@contextlib.contextmanager
def replayed() -> Iterator[str]:
    """A server that answers at once with recorded answers, in a process of its own; its URL."""
    with running([sys.executable, str(HERE / "replay.py")], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        if not url:
            raise RuntimeError("the replaying server did not start")
        yield url


def child(script: str, *args: str, env: dict[str, str] | None = None, python: str = sys.executable) -> Any:
    """Run a script of this folder to its end; the JSON in the last line of its output."""
    done = subprocess.run(
        [python, str(HERE / script), *args],
        env=env or environment(),
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    lines = done.stdout.decode().strip().splitlines()
    if done.returncode or not lines:
        raise RuntimeError(f"{script} {' '.join(args)} failed:\n{done.stderr.decode()[-3000:]}")
    return json.loads(lines[-1])


def get_json(url: str) -> Any:
    """What a URL answers."""
    with urllib.request.urlopen(url, timeout=30) as reply:
        return json.load(reply)


def post(url: str, body: bytes = b"{}") -> None:
    """Send a POST."""
    with urllib.request.urlopen(urllib.request.Request(url, data=body, method="POST"), timeout=30):
        pass


def words(random: Random, size: int) -> str:
    """Text of `size` characters that compresses about as prose does."""
    out: list[str] = []
    length = 0
    while length < size:
        word = random.choice(_WORDS)
        out.append(word)
        length += len(word) + 1
    return " ".join(out)[:size]


def _vocabulary() -> list[str]:
    random = Random(7)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    weights = [1 / (n + 1.5) for n in range(26)]
    return ["".join(random.choices(letters, weights, k=random.randint(2, 9))) for _ in range(4000)]


_WORDS = _vocabulary()


def prompts(count: int, size: int = PROMPT_BYTES) -> Iterator[str]:
    """Prompts of `size` bytes, no two alike."""
    random = Random(1)
    texts = [words(random, size) for _ in range(200)]
    for n in range(count):
        head = f"{n} "
        yield head + texts[n % 200][len(head) :]


def settings(run: str, output: str, count: int, **more: Any) -> RunSettings:
    """A run of `count` prompts."""
    return RunSettings(
        run=run,
        output=output,
        input_name="bench.jsonl",
        fingerprint=Fingerprint(sha256="0" * 64, bytes=count * PROMPT_BYTES, lines=count),
        created_at="2026-01-01T00:00:00Z",
        **more,
    )


def admit(url: str, run: RunSettings, count: int, *, first: int = 0, ended: bool = True) -> None:
    """Put `count` jobs into the queue, past the reading of a file."""
    store = RunStore.from_url(url)
    store.create_run(run)
    at = first
    jobs: list[tuple[int, str, bytes]] = []
    for n, text in enumerate(prompts(count), start=first):
        data = encode_job(PromptJob(index=n, id=f"p{n}", messages=[Message("user", text)]))
        jobs.append((n, f"{run.run}/p{n}", data))
        if len(jobs) == 500 or n == first + count - 1:
            position = Position(n + 1, n + 2, 0, ended and n == first + count - 1)
            chunk = Admission(token=f"{n}", expected_index=at, position=position, jobs=jobs)
            if store.admit(run.run, chunk, job_timeout=600) != 1:
                raise RuntimeError("the bench's jobs were not admitted")
            at, jobs = n + 1, []


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def simulator_cpu() -> float:
    """CPU seconds of the simulated servers that we started."""
    spent = 0.0
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it may just have ended
            spent += cpu_seconds(child.pid) if "simulate" in child.cmdline() else 0.0
    return spent


def redis_pid(url: str) -> int:
    """The process id of a Redis on this machine."""
    with redis.Redis.from_url(url) as client:
        return int(client.info("server")["process_id"])


def until_rewritten(url: str) -> None:
    """Wait until Redis is done with writing its append-only file anew: that takes CPU time of its own."""
    with redis.Redis.from_url(url) as client:
        until(
            "the rewrite of the append-only file",
            lambda: not client.info("persistence")["aof_rewrite_in_progress"],
            within=300,
        )


def until(what: str, done: Callable[[], bool], *, within: float, every: float = 0.05) -> float:
    """Wait for `done`; the time it took in seconds."""
    begun = time.monotonic()
    while not done():
        if time.monotonic() - begun > within:
            raise TimeoutError(f"{what}: not within {within:.0f} s")
        time.sleep(every)
    return time.monotonic() - begun
