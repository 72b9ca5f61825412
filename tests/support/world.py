"""A whole installation as real processes, in which anything can be killed, stopped or made to fail."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

import psutil
from support.faulty_s3 import Fault, FaultyS3
from support.ports import free_ports
from support.s3 import S3Server
from support.wait import patient, wait_for

from common.errors import PromptmillError
from common.store import Counts, RunStore
from ops.embedded import EmbeddedRedis

RUN = "chaos"
CLAIM_TTL_S = 2.0
LEASE_TTL_S = 2.0
KEY = "canary-api-key-5f2c"
SECRET = "canary-s3-secret-93ab"


class Process:
    """One process that is started again when it ends, if it is meant to run."""

    def __init__(self, name: str, argv: list[str], env: dict[str, str], folder: Path) -> None:
        self.name = name
        self.argv = argv
        self.env = env
        self.log = folder / f"{name}.log"
        self.starts = 0
        self.codes: list[int] = []
        self.wanted = False
        self.popen: subprocess.Popen[bytes] | None = None
        self.continue_at: float | None = None

    def start(self) -> None:
        self.wanted = True
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(
                self.argv, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.starts += 1

    @property
    def alive(self) -> bool:
        return self.popen is not None and self.popen.poll() is None

    @property
    def pid(self) -> int:
        assert self.popen is not None
        return self.popen.pid

    def signal(self, number: int) -> bool:
        """Send a signal; false if it does not run."""
        if not self.alive:
            return False
        os.kill(self.pid, number)
        return True

    def stop_for(self, seconds: float) -> bool:
        """SIGSTOP now, SIGCONT after so many seconds (by `look_after`)."""
        if self.continue_at is not None or not self.signal(signal.SIGSTOP):
            return False
        self.continue_at = time.monotonic() + seconds
        return True

    def look_after(self) -> None:
        """Continue it when its pause is over; start it again when it has ended."""
        if self.continue_at is not None and time.monotonic() >= self.continue_at:
            self.signal(signal.SIGCONT)
            self.continue_at = None
        if self.popen is not None and not self.alive:
            self.codes.append(self.popen.returncode)
            self.popen = None
            self.continue_at = None
        if self.wanted and self.popen is None:
            self.start()

    def end(self, *, timeout: float = 0.0) -> None:
        """End it for good: by SIGTERM if it may take time, else at once."""
        self.wanted = False
        if not self.alive:
            return
        self.signal(signal.SIGCONT)
        if timeout:
            self.signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(timeout)
        self.popen.kill()
        self.popen.wait()


class World:
    """Redis, S3 behind a proxy (or a folder), servers, a producer, consumers and collectors."""

    def __init__(
        self,
        folder: Path,
        prompts: Path | None,
        *,
        s3: S3Server | None = None,
        servers: int = 3,
        consumers: int = 3,
        collectors: int = 2,
        simulate: tuple[str, ...] = (),
        enqueue: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.redis = EmbeddedRedis(folder / "redis")
        self.s3 = s3
        self.proxy = FaultyS3(s3.endpoint) if s3 else None
        self.output = s3.url("out") if s3 else str(folder / "out")
        self.ports = free_ports(servers)
        self.extra = env or {}
        self.others: list[Process] = []
        self.prompts = prompts
        self.servers = [f"http://127.0.0.1:{port}" for port in self.ports]
        self._simulate = simulate
        self._enqueue = (str(prompts), "--run", RUN, "--output", self.output, *enqueue)
        self._sizes = (consumers, collectors)
        self.store: RunStore

    def __enter__(self) -> Self:
        url = self.redis.start()
        if self.proxy:
            self.proxy.__enter__()
        self.store = RunStore.from_url(url)
        consumers, collectors = self._sizes
        self.simulators = [
            self.process(f"server-{n}", "ops.cli", "simulate", "--port", str(port), *self._simulate)
            for n, port in enumerate(self.ports)
        ]
        self.consumers = [
            self.process(
                f"consumer-{n}",
                *("rq.cli", "worker", "completions"),
                SGLANG_URL=self.servers[n % len(self.servers)],
            )
            for n in range(consumers)
        ]
        self.collectors = [
            self.process(f"collector-{n}", "consumers.collector.cli") for n in range(collectors)
        ]
        self.producer = self.process("producer", "producer.cli", "enqueue", *self._enqueue)
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self.producer, *self.consumers, *self.collectors, *self.simulators, *self.others):
            process.end()
        self.store.client.close()
        if self.proxy:
            self.proxy.__exit__(None, None, None)
        self.redis.stop()

    def environment(self, **more: str) -> dict[str, str]:
        """What every process of this world is given."""
        # Who is killed tells no coverage, and being measured is slow.
        others = ("AWS_", "PROMPTMILL_", "RQ_", "COVERAGE_")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(others)}
        env = {
            **kept,
            "RQ_REDIS_URL": self.redis.url,
            "RQ_WORKER_CLASS": "consumers.GenerationWorker",
            "SGLANG_API_KEY": KEY,
            "PROMPTMILL_SIMULATE_API_KEY": KEY,
            "PROMPTMILL_CLAIM_TTL": str(CLAIM_TTL_S),
            "PROMPTMILL_LEASE_TTL": str(LEASE_TTL_S),
            "PROMPTMILL_FLUSH_SECONDS": "1",
            "PROMPTMILL_DRAIN_TIMEOUT": "1",
            "PYTHONUNBUFFERED": "1",
        }
        if self.s3 and self.proxy:
            env |= {
                **self.s3.environment,
                "AWS_ENDPOINT_URL": self.proxy.url,
                "AWS_SECRET_ACCESS_KEY": SECRET,
            }
        return env | self.extra | more

    def process(self, name: str, module: str, *argv: str, **env: str) -> Process:
        return Process(name, [sys.executable, "-m", module, *argv], self.environment(**env), self.logs)

    def start(self) -> None:
        """Start everything."""
        producer = [self.producer] if self.prompts else []
        for process in (*self.simulators, *producer, *self.consumers, *self.collectors):
            process.start()

    def start_rest(self) -> None:
        """Start everything but the servers."""
        for process in (self.producer, *self.consumers, *self.collectors):
            process.start()

    def look_after(self) -> None:
        """Do what a supervisor does: start again what ended, and the producer if something is left for it."""
        if not self.redis.alive:
            self.redis.start()
        for process in (*self.simulators, *self.consumers, *self.collectors):
            process.look_after()
        producer = self.producer
        if producer.popen is not None and not producer.alive:
            # Its exit code 0 says that all is admitted; then only a loss in Redis calls for it again.
            producer.wanted = producer.popen.returncode != 0
        producer.look_after()
        if producer.popen is None and self.prompts and self._needs_producer():
            producer.start()

    def _needs_producer(self) -> bool:
        try:
            position = self.store.position(RUN)
            return position is None or not position.ended or bool(self.store.missing(RUN))
        except PromptmillError:
            return False

    # What goes wrong

    def kill_redis(self, *, cut: int = 0, wipe: bool = False) -> None:
        """SIGKILL Redis; cut so many bytes off its file, or take all its data, before it comes back."""
        pid = self.redis.pid
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not self.redis.alive, "the death of Redis")
        files = sorted((self.redis.folder / "appendonlydir").glob("*.incr.aof"))
        if wipe:
            for file in (self.redis.folder / "appendonlydir").iterdir():
                file.unlink()
            (self.redis.folder / "appendonlydir").rmdir()
        elif cut and files:
            size = files[-1].stat().st_size
            os.truncate(files[-1], max(0, size - cut))
        self.redis.start()

    def drop_connections(self) -> None:
        """Cut every connection to Redis, whatever is on its way."""
        with contextlib.suppress(PromptmillError, OSError):
            self.store.client.client_kill_filter(_type="normal", skipme=True)

    def storage_fault(self, *faults: Fault) -> None:
        """Have S3 misbehave so; none heals it."""
        if self.proxy:
            self.proxy.inject(*faults)

    def server_fault(self, number: int, *faults: dict[str, Any]) -> None:
        """Have a server misbehave so; none heals it."""
        request = urllib.request.Request(
            f"{self.servers[number]}/sim/faults",
            json.dumps(list(faults)).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"},
            method="POST",
        )
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=patient(2)) as reply:
            reply.read()

    # What is seen

    def counts(self) -> Counts | None:
        """The counters now, or `None` while there are none."""
        try:
            return self.store.counts(RUN)
        except PromptmillError:
            return None

    def done(self) -> bool:
        """Whether the run is over and nothing is left to do."""
        try:
            position = self.store.position(RUN)
            return position is not None and position.ended and RUN not in self.store.runs(active=True)
        except PromptmillError:
            return False

    def text_of_logs(self) -> str:
        return "\n".join(log.read_text(errors="replace") for log in sorted(self.logs.glob("*.log")))

    def command_lines(self) -> str:
        """What `ps` shows of every process of this world."""
        lines = []
        for process in psutil.process_iter(["cmdline"]):
            with contextlib.suppress(psutil.Error):
                lines.append(" ".join(process.info["cmdline"] or []))
        return "\n".join(lines)
