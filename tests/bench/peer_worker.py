"""One peer's queue path, run by that peer's own Python: `peer_worker.py NAME REDIS-URL JOBS AT-ONCE`.

Puts JOBS messages with a prompt of 1.2 KB into Redis, then has one worker process do nothing with each of
them, AT-ONCE in flight. Prints JSON: the time from the first job's start to the last one's, and CPU time.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import signal
import sys
import threading
import time
from importlib.metadata import version
from typing import Any

TEXT = "p" * 1200


class Clock:
    """Counts jobs in whatever thread they run."""

    def __init__(self, jobs: int, url: str) -> None:
        self.jobs = jobs
        self.redis = importlib.import_module("redis").Redis.from_url(url)
        self.redis_cpu = 0.0
        self.seen = 0
        self.first = self.cpu = 0.0
        self.lock = threading.Lock()
        self.at_end: Any = None

    def tick(self) -> None:
        """One job was run."""
        with self.lock:
            self.seen += 1
            if self.seen == 1:
                self.redis_cpu = self.spent()
                self.first, self.cpu = time.perf_counter(), time.process_time()
            if self.seen != self.jobs:
                return
        self.tell()
        if self.at_end:
            self.at_end()

    def spent(self) -> float:
        """CPU seconds that Redis has used so far."""
        found = self.redis.info("cpu")
        return float(found["used_cpu_sys"]) + float(found["used_cpu_user"])

    def tell(self) -> None:
        """Print what it took."""
        took, cpu = time.perf_counter() - self.first, time.process_time() - self.cpu
        figures = {"jobs": self.jobs, "s": took, "cpu_s": cpu, "redis_s": self.spent() - self.redis_cpu}
        told = json.dumps({**figures, "version": version(sys.argv[1])})
        # Past `sys.stdout`: celery takes that away.
        os.write(1, f"\n{told}\n".encode())


def leave() -> None:
    """End now: what the peer would still do after its last job is not measured."""
    os._exit(0)


def dramatiq(url: str, clock: Clock, at_once: int) -> None:
    """Threads of one worker process."""
    dramatiq = importlib.import_module("dramatiq")
    brokers = importlib.import_module("dramatiq.brokers.redis")
    broker = brokers.RedisBroker(url=url)
    dramatiq.set_broker(broker)

    def noop(text: str) -> None:
        clock.tick()

    actor = dramatiq.actor(noop)
    for _ in range(clock.jobs):
        actor.send(TEXT)
    dramatiq.Worker(broker, worker_threads=at_once).start()
    threading.Event().wait()


def arq(url: str, clock: Clock, at_once: int) -> None:
    """Tasks on one asyncio loop."""
    connections = importlib.import_module("arq.connections")
    workers = importlib.import_module("arq.worker")
    settings = connections.RedisSettings.from_dsn(url)

    async def noop(_: Any, text: str) -> None:
        clock.tick()

    async def fill() -> None:
        pool = await connections.create_pool(settings)
        for _ in range(clock.jobs):
            await pool.enqueue_job("noop", TEXT)

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(fill())
    workers.Worker(
        functions=[workers.func(noop, name="noop")],
        redis_settings=settings,
        max_jobs=at_once,
        poll_delay=0.01,
        keep_result=0,
        burst=True,
    ).run()


def saq(url: str, clock: Clock, at_once: int) -> None:
    """Tasks on one asyncio loop."""
    saq = importlib.import_module("saq")

    async def noop(_: Any, *, text: str) -> None:
        clock.tick()

    async def main() -> None:
        queue = saq.Queue.from_url(url)
        await queue.connect()
        for _ in range(clock.jobs):
            await queue.enqueue("noop", text=TEXT)
        await saq.Worker(queue, functions=[("noop", noop)], concurrency=at_once).start()

    asyncio.run(main())


def taskiq(url: str, clock: Clock, at_once: int) -> None:
    """Tasks on one asyncio loop, through a list in Redis."""
    brokers = importlib.import_module("taskiq_redis")
    api = importlib.import_module("taskiq.api")

    async def main() -> None:
        broker = brokers.ListQueueBroker(url)

        async def noop(text: str) -> None:
            clock.tick()

        task = broker.register_task(noop, task_name="noop")
        await broker.startup()
        for _ in range(clock.jobs):
            await task.kiq(TEXT)
        broker.is_worker_process = True
        await api.run_receiver_task(broker, max_async_tasks=at_once)

    asyncio.run(main())


def celery(url: str, clock: Clock, at_once: int) -> None:
    """Threads of one worker process."""
    celery = importlib.import_module("celery")
    app = celery.Celery("bench", broker=url)
    app.conf.update(
        task_ignore_result=True, worker_prefetch_multiplier=4, broker_connection_retry_on_startup=True
    )

    def noop(text: str) -> None:
        clock.tick()

    task = app.task(noop, name="noop")
    for _ in range(clock.jobs):
        task.delay(TEXT)
    app.Worker(
        pool="threads", concurrency=at_once, loglevel="ERROR", without_gossip=True, without_mingle=True
    ).start()


def main() -> None:
    name, url, jobs, at_once = sys.argv[1:5]
    logging.disable(logging.INFO)
    clock = Clock(int(jobs), url)
    clock.at_end = leave
    signal.alarm(300)
    globals()[name](url, clock, int(at_once))


if __name__ == "__main__":
    main()
