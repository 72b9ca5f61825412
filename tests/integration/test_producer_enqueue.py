"""`producer enqueue` as a process: killed at any moment, twice at a time, with a queue that is full."""

from __future__ import annotations

import json
import random
import signal
import time

import psutil
import pytest
from rq import Queue
from rq.serializers import JSONSerializer
from support.flow import Command, prompts, proven, records
from support.runs import collect, enqueue, work
from support.wait import wait_for

from common import keys
from common.jobs import decode_job
from common.store import RunStore

LINES = 6000


@pytest.fixture
def store(redis_url):
    store = RunStore.from_url(redis_url)
    yield store
    store.client.close()


@pytest.fixture
def producer(tmp_path, redis_url):
    def call(source, *flags, run="r", **env):
        argv = ("enqueue", source, "--run", run, "--output", tmp_path / "out", *flags)
        return Command(tmp_path, "producer", *argv, RQ_REDIS_URL=redis_url, **env)

    return call


@pytest.fixture
def source(tmp_path):
    return prompts(tmp_path / "p.jsonl", LINES)


def admitted_once(store, run="r", count=LINES):
    """Every line is in the queue, once, as itself."""
    queued = [job.decode() for job in store.client.lrange(keys.QUEUE, 0, -1)]
    mine = [job for job in queued if job.startswith(f"{run}-")]
    assert sorted(mine) == sorted(keys.job_id(run, n) for n in range(count))
    counts = store.counts(run)
    assert (counts.accepted, counts.queued, counts.balanced) == (count, count, True)
    for n in (0, count // 2, count - 1):
        job = decode_job(store.client.hget(keys.job_key(keys.job_id(run, n)), "data"))
        assert (job.index, job.id) == (n, f"p{n}")


@pytest.mark.parametrize("seed", range(4))
def test_killed_at_random_moments_it_admits_each_line_once(producer, store, source, seed):
    chance = random.Random(seed)
    deaths = 0
    for _ in range(12):
        with producer(source) as command:
            goal = min(LINES - 1, position(store) + chance.randrange(1, LINES // 2))
            while command.process.poll() is None and position(store) < goal:
                pass
            if chance.random() < 0.5:
                time.sleep(chance.random() * 0.02)  # between two chunks, or in the middle of one
            command.signal(signal.SIGKILL)
            deaths += command.process.wait() == -signal.SIGKILL
            if deaths == 2:
                break
    assert deaths
    with producer(source) as command:
        assert f"all {LINES:,} prompts are admitted" in command.ends(0)
    admitted_once(store)


def position(store):
    found = store.position("r")
    return found.index if found else 0


def test_two_producers_side_by_side_on_one_run_and_a_third_on_another(producer, store, source):
    with producer(source) as one, producer(source) as two, producer(source, run="s") as other:
        for command in (one, two, other):
            command.ends(0)
    admitted_once(store)
    admitted_once(store, "s")


def test_the_high_water_mark_is_waited_for(producer, store, source, redis_url):
    with producer(source, "--high-water", "1500") as command:
        seen = []

        def full():
            seen.append(store.backlog())
            return seen[-1] >= 1500 - 500

        wait_for(full, "a full queue", 30)
        done = 0
        while command.process.poll() is None:
            seen.append(store.backlog())
            done += work(redis_url, most=200)
        command.ends(0)
    assert max(seen) <= 1500
    assert done + store.counts("r").queued == LINES


def test_a_changed_file_under_the_same_name_is_refused_with_what_changed(producer, store, source):
    with producer(source) as command:
        command.ends(0)
    text = source.read_text()
    source.write_text(text.replace('"Say 17"', '"Say 71"'))
    with producer(source) as command:
        said = command.ends(2)
    assert "run r was made from another input" in said
    source.write_text(text + '{"prompt": "one more"}\n')
    with producer(source) as command:
        said = command.ends(2)
    assert f"{LINES:,}" in said
    assert f"{LINES + 1:,}" in said
    source.write_text(text)
    with producer(source, "--temperature", "0.9") as command:
        assert "temperature was 0.6, now 0.9" in command.ends(2)
    admitted_once(store)


def test_jobs_that_rq_deleted_come_back_by_running_it_again(producer, store, source, redis_url):
    with producer(source) as command:
        command.ends(0)
    assert work(redis_url, most=1000) == 1000
    Queue("completions", connection=store.client, serializer=JSONSerializer).empty()
    assert store.backlog() == 0
    # The consumers' and the collector's upkeep finds what has gone.
    store.restore("r", store.find_lost("r"))
    with producer(source) as command:
        assert '"event": "missing_jobs"' in command.ends(0)
    assert store.counts("r").balanced
    assert work(redis_url) == LINES - 1000
    assert store.counts("r").completed == LINES


def test_missing_from_admits_what_an_earlier_run_did_not_answer_well(producer, store, tmp_path, redis_url):
    source = tmp_path / "p.jsonl"
    lines = [{"prompt": f"Say {n}"} if n % 2 else {"id": f"own-{n}", "prompt": f"Say {n}"} for n in range(20)]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = enqueue(store, source, tmp_path / "out", run="first")
    work(redis_url, most=15)
    collect(store, settings)
    store.client.flushall()
    flags = ("--missing-from", tmp_path / "out" / "first")
    for _ in range(2):  # taken up again, it is the same input
        with producer(source, *flags, run="second") as command:
            assert "all 5 prompts are admitted" in command.ends(0)
    assert work(redis_url) == 5
    collect(store, store.settings("second"))
    place = tmp_path / "out" / "second"
    proven(place)
    assert [record.messages[-1].content for record in records(place)] == [f"Say {n}" for n in range(15, 20)]
    before = {record.id for record in records(tmp_path / "out" / "first")}
    assert not before & {record.id for record in records(place)}
    with producer(place.parent / "none.jsonl", *flags, run="third") as command:
        assert "cannot be read" in command.ends(2)


def test_a_large_file_is_read_in_constant_memory(producer, store, tmp_path):
    """300 MB with long lines; a process that held the file, or its ids' lines, would show it."""
    source = tmp_path / "large.jsonl"
    words = "All that is said here is said again and again. " * 640
    with source.open("w") as file:
        for n in range(10_000):
            file.write(f'{{"id": "p{n}", "prompt": "{n} {words}"}}\n')
    assert source.stat().st_size > 300e6
    most = 0
    # Nobody works the queue off, so it waits at the mark, with most of the file read twice by then.
    with producer(source, "--high-water", "2000") as command:
        process = psutil.Process(command.process.pid)

        def waits():
            nonlocal most
            most = max(most, process.memory_info().rss)
            assert command.process.poll() is None, command.text
            return store.backlog() > 1900

        wait_for(waits, "the mark", 60)
        assert store.counts("r").balanced
    assert most < 150e6
    store.client.flushall()
