"""RQ's own tools on our queue: they may disturb, they must not ruin."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import redis
from rq.queue import Queue
from rq.registry import StartedJobRegistry, clean_registries
from rq.serializers import JSONSerializer
from support.wait import wait_for

from common import keys


def work_off(arena, run="r"):
    hand = arena.hand()
    for _ in range(20):
        arena.due()
        for claim in hand.claim(100):
            hand.complete(claim)
    # What a stock worker had started when it died stands in the registry until its heartbeat ends.
    for member in arena.client.zrange(keys.STARTED, 0, -1):
        arena.client.zadd(keys.STARTED, {member: 1})
    arena.reap()
    arena.store.restore(run, arena.store.find_lost(run))
    arena.store.recount(run)
    for claim in hand.claim(100):
        hand.complete(claim)


@pytest.mark.parametrize("flags", [[], ["--serializer", "json"]], ids=["pickle", "json"])
def test_a_stock_worker_turns_jobs_over_and_ruins_none(arena, flags):
    run = arena.run(count=3)
    argv = [sys.executable, "-m", "rq.cli", "worker", "--burst", "--worker-class", "rq.worker.SimpleWorker"]
    env = {key: value for key, value in os.environ.items() if key != "RQ_WORKER_CLASS"}
    env["RQ_REDIS_URL"] = arena.url
    process = subprocess.Popen(
        [*argv, *flags, "completions"],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        # It never comes to an end: each job goes back to the head of the queue. It is killed at its work.
        wait_for(lambda: int(arena.client.hget("rq:job:r-0", "retries_left") or 0) < 1_000_000, "a try", 30)
        wait_for(lambda: process.poll() is not None or _worked(arena) > 20, "many tries", 30)
    finally:
        process.kill()
        process.wait()
    arena.check(tidy=False)
    assert arena.counts().dead == 0
    work_off(arena)
    arena.check()
    assert arena.counts(run).completed == 3


def _worked(arena):
    return 1_000_000 - min(int(arena.client.hget(f"rq:job:r-{n}", "retries_left")) for n in range(3))


@pytest.mark.parametrize("serializer", [JSONSerializer, None], ids=["json", "pickle"])
def test_two_stock_cleaners_at_once_double_list_entries_and_no_record(arena, serializer):
    run = arena.run(count=60)
    dead, alive = arena.hand(), arena.hand()
    dead.claim(50)
    alive.claim(10)
    arena.silence(dead)
    together = threading.Barrier(2)
    clients = [redis.Redis.from_url(arena.url) for _ in range(2)]

    def clean(client):
        registry = StartedJobRegistry("completions", client, serializer=serializer)
        together.wait()
        registry.cleanup()

    threads = [threading.Thread(target=clean, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for client in clients:
        client.close()
    arena.check(tidy=False)
    assert len(arena.queue()) >= 50
    assert alive.beat() == []
    other = arena.hand()
    claims = other.claim(200)
    assert sorted(claim.job for claim in claims) == sorted(claim.job for claim in dead.held)
    assert {claim.deaths for claim in claims} == {1}
    arena.check()
    for claim in claims:
        assert other.complete(claim)
    for claim in list(dead.held):
        assert not dead.complete(claim)
    for claim in list(alive.held):
        assert alive.complete(claim)
    arena.check()
    assert arena.counts(run).completed == 60
    assert arena.event("second_finishes") == 50


def test_what_rq_info_does_changes_nothing(arena):
    arena.run(count=20)
    hand = arena.hand()
    for claim in hand.claim(6)[:2]:
        hand.bury(claim)
    before = arena.counts()
    queue = Queue("completions", connection=arena.client, serializer=JSONSerializer)
    for _ in range(2):
        clean_registries(queue)
        assert queue.count == 14
        assert queue.started_job_registry.count == 4
        assert queue.failed_job_registry.count == 2
    arena.check()
    assert arena.counts() == before
    assert hand.beat() == []


def test_a_queue_that_somebody_emptied_is_made_again(arena):
    run = arena.run(count=5)
    Queue("completions", connection=arena.client, serializer=JSONSerializer).empty()
    arena.check(tidy=False)
    assert arena.store.balance()[0] >= 0
    assert arena.store.find_lost(run) == list(range(5))
    arena.store.restore(run, range(5))
    assert arena.store.missing(run) == list(range(5))
    assert arena.counts().queued == 5
    assert arena.store.balance()[0] == -1


def test_a_stock_worker_killed_between_its_two_steps_loses_no_job(arena):
    """Stock RQ takes a job off the queue in one step and starts it in another."""
    run = arena.run(count=2)
    arena.client.lmove(keys.QUEUE, f"{keys.QUEUE}:intermediate", "LEFT", "RIGHT")
    assert arena.store.balance()[0] >= 0
    assert arena.store.find_lost(run) == [0]
    work_off(arena)
    # RQ would fail what stays there for a minute, whatever became of it.
    assert not arena.client.exists(f"{keys.QUEUE}:intermediate")
    arena.check()
    assert arena.counts().completed == 2
