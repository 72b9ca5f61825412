"""`rq worker` with the class: every flag and command of RQ's manual, typed as the manual says."""

from __future__ import annotations

import contextlib
import signal

import pytest
from rq.command import send_stop_job_command
from rq.registry import FailedJobRegistry
from rq.serializers import JSONSerializer
from rq.worker import Worker
from support.flow import Command, prompts
from support.runs import collect, enqueue
from support.wait import wait_for

from common import keys
from common.records import DeadReason
from common.store import RunStore

WORKER = ("worker", "completions")
CLASS = {"RQ_WORKER_CLASS": "consumers.GenerationWorker"}


@pytest.fixture
def store(redis_url):
    store = RunStore.from_url(redis_url)
    yield store
    store.client.close()


@pytest.fixture
def rq(tmp_path, redis_url):
    """An `rq` command, or another, with Redis in its environment; a consumer where `server` is given."""

    def call(*argv, program="rq", server=None, **env):
        named = {"SGLANG_URL": server} if server else {}
        return Command(tmp_path, program, *argv, RQ_REDIS_URL=redis_url, **named, **env)

    return call


@pytest.fixture
def queued(tmp_path, store):
    def make(count, **more):
        return enqueue(store, prompts(tmp_path / "p.jsonl", count), tmp_path / "out", **more)

    return make


def running(servers, server=0):
    return servers.stats(server)["running"]


def test_burst_with_a_name_works_the_queue_off_and_ends(rq, queued, store, servers):
    queued(30)
    with rq("worker", "completions", "--burst", "--name", "gpu-1", server=servers.urls[0], **CLASS) as worker:
        wait_for(lambda: store.consumers() or worker.process.poll() is not None, "the consumer", 30)
        worker.ends(0)
    counts = store.counts("r")
    assert (counts.completed, counts.queued, counts.balanced) == (30, 0, True)
    assert '"worker": "gpu-1"' in worker.text
    assert Worker.count(connection=store.client) == 0


def test_max_jobs_and_max_idle_time_end_it(rq, queued, store, servers):
    queued(30)
    limited = ("worker", "completions", "--max-jobs", "7")
    with rq(*limited, server=servers.urls[0], PROMPTMILL_CONCURRENCY="3", **CLASS) as worker:
        worker.ends(0)
    assert store.counts("r").completed == 7
    with rq("worker", "completions", "--max-idle-time", "1", server=servers.urls[0], **CLASS) as worker:
        worker.ends(0)
    assert store.counts("r").completed == 30


def test_suspend_info_and_resume(rq, queued, store, slow):
    queued(400)  # more than it gets to, however long the commands take
    env = {**CLASS, "PROMPTMILL_CONCURRENCY": "4"}
    with rq("worker", "completions", "--name", "gpu-1", server=slow.urls[0], **env) as worker:
        wait_for(lambda: running(slow) == 4, "work", 30)
        with rq("info", "--raw", name="info") as info:
            text = info.ends(0)
        assert "gpu-1" in text
        assert "completions" in text
        assert "busy" in text
        with rq("suspend", name="suspend") as done:
            done.ends(0)
        # What is in flight ends; nothing new is begun.
        wait_for(lambda: store.counts("r").in_flight == 0, "the end of what was in flight", 20)
        counts = store.counts("r")
        assert counts.completed + counts.queued == 400
        wait_for(lambda: store.client.hget("rq:worker:gpu-1", "state") == b"suspended", "its state", 20)
        assert store.counts("r") == counts
        with rq("resume", name="resume") as done:
            done.ends(0)
        wait_for(lambda: store.counts("r").completed > counts.completed, "work again", 20)
        # Warm shutdown, as RQ's manual has it: what is in flight ends, the rest stays.
        worker.signal(signal.SIGTERM)
        worker.ends(0, timeout=20)
    after = store.counts("r")
    assert (after.in_flight, after.completed + after.queued, after.dead) == (0, 400, 0)
    assert store.client.hget("rq:job:r-399", "retries_left") == b"1000000"


def test_a_consumer_started_mid_run_gets_work_and_one_stopped_hands_its_work_back(rq, queued, store, slow):
    queued(40)
    slow.faults({"kind": "hang"}, server=0)
    env = {**CLASS, "PROMPTMILL_CONCURRENCY": "4", "PROMPTMILL_DRAIN_TIMEOUT": "0"}
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(rq(*WORKER, "--name", "one", server=slow.urls[0], **env))
        wait_for(lambda: slow.stats(0)["faults"].get("hang", 0) >= 4, "work that would take for ever", 30)
        second = stack.enter_context(rq(*WORKER, "--name", "two", server=slow.urls[1], **env))
        wait_for(lambda: running(slow, 1) == 4, "work on the second", 30)
        first.signal(signal.SIGTERM)
        first.ends(0, timeout=20)
        assert '"event": "handing_back"' in first.text
        wait_for(lambda: store.counts("r").queued == 0 and not store.counts("r").in_flight, "the end", 40)
        second.signal(signal.SIGTERM)
        second.ends(0)
    counts = store.counts("r")
    assert (counts.completed, counts.dead) == (40, 0)
    assert counts.other["handed_back"] >= 4


def test_a_dead_letter_lives_again_by_rq_requeue(rq, queued, store, servers):
    settings = queued(6)
    servers.faults({"kind": "empty", "containing": "Say 3"})
    with rq("worker", "completions", "--burst", server=servers.urls[0], **CLASS) as worker:
        worker.ends(0)
    (letter,) = store.dead_letters("r").values()
    assert (letter.id, letter.reason) == ("p3", DeadReason.REJECTED)
    failed = FailedJobRegistry("completions", connection=store.client, serializer=JSONSerializer)
    assert failed.get_job_ids() == ["r-3"]
    servers.faults()
    with rq("requeue", "--queue", "completions", "-S", "rq.serializers.JSONSerializer", "--all") as requeue:
        assert "Requeueing 1 jobs" in requeue.ends(0)
    with rq("worker", "completions", "--burst", server=servers.urls[0], **CLASS) as worker:
        worker.ends(0)
    counts = store.counts("r")
    assert (counts.completed, counts.dead, counts.balanced) == (6, 0, True)
    collect(store, settings)
    assert store.runs(active=True) == []


def test_the_stop_job_command_hands_one_job_back(rq, queued, store, slow):
    queued(1)
    slow.faults({"kind": "hang", "first": 1})
    with rq("worker", "completions", "--name", "w", server=slow.urls[0], **CLASS) as worker:
        wait_for(lambda: slow.stats(0)["faults"].get("hang"), "a request that hangs", 30)
        send_stop_job_command(store.client, "r-0", serializer=JSONSerializer)
        wait_for(lambda: store.counts("r").completed == 1, "it is done on the next try", 20)
        wait_for(lambda: store.client.hget("rq:worker:w", "state") == b"idle", "it is idle", 20)
        worker.signal(signal.SIGTERM)
        worker.ends(0)
    assert store.counts("r").other["handed_back"] == 1


@pytest.mark.parametrize(
    ("queue", "server", "words"),
    [
        ("completions", None, "SGLANG_URL is not set"),
        ("default", "http://127.0.0.1:9", "a consumer serves the queue 'completions' alone"),
    ],
)
def test_what_is_missing_is_said(rq, queue, server, words):
    with rq("worker", queue, server=server, **CLASS) as worker:
        text = worker.ends(1)
    assert words in text
    assert "Traceback" not in text


def test_a_stock_worker_is_sent_away_and_ruins_nothing(rq, queued, store, servers):
    queued(20)
    # Sent away between its two steps, a stock worker leaves a job in no list: the collector finds it.
    store.client.lmove(keys.QUEUE, f"{keys.QUEUE}:intermediate")
    with (
        rq("worker", "completions", "--name", "stock") as stock,
        rq(program="collector") as collector,
    ):
        wait_for(lambda: b"rq:worker:stock" in store.client.smembers(keys.QUEUE_WORKERS), "it is there", 30)
        with rq("worker", "completions", "--name", "ours", server=servers.urls[0], **CLASS) as worker:
            wait_for(lambda: stock.process.poll() is not None, "it has gone", 40)
            wait_for(lambda: store.counts("r").completed == 20, "every prompt is done", 40)
            worker.signal(signal.SIGTERM)
            worker.ends(0)
            assert '"event": "stock_worker_on_queue"' in worker.text
        assert '"event": "lost_jobs_requeued"' in collector.text
    counts = store.counts("r")
    assert (counts.completed, counts.dead, counts.balanced) == (20, 0, True)
    assert counts.other["restored"] >= 1
    assert not store.client.exists(f"{keys.QUEUE}:intermediate")
