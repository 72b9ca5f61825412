"""What operators are promised when one thing dies, with real processes: each by its name."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
import urllib.request

import msgspec
import pytest
from support.faulty_s3 import Fault
from support.oracle import read_ends, write_input
from support.wait import patient, wait_for
from support.world import CLAIM_TTL_S, RUN, World

from common import keys
from common.parts import iter_part_records, read_manifest
from common.storage import open_storage

QUICK = ("--median-tokens", "12", "--tokens-per-s", "600")
SLOW = ("--median-tokens", "30", "--sigma", "0.1", "--tokens-per-s", "60")
SIZE = ("--slots", "32", "--context", "1024")
FLAGS = ("--max-output-tokens", "128", "--batch-size", "20", "--no-guard")


@contextlib.contextmanager
def running(folder, count, *, speed=QUICK, enqueue=(), hopeless=0, started=True, env=None, **sizes):
    """A small world at work on so many prompts."""
    prompts = write_input(folder / "prompts.jsonl", count, hopeless=hopeless)
    shape = {"servers": 1, "consumers": 1, "collectors": 1} | sizes
    world = World(
        folder,
        prompts,
        simulate=(*SIZE, *speed),
        enqueue=(*FLAGS, *enqueue),
        env={"PROMPTMILL_CONCURRENCY": "8"} | (env or {}),
        **shape,
    )
    with world:
        if started:
            world.start()
        yield world


def until(world, condition, what, timeout=40.0):
    """Wait for a condition while whatever ends is started again."""

    def look():
        world.look_after()
        return condition()

    return wait_for(look, what, timeout)


def in_flight(world) -> int:
    counts = world.counts()
    return counts.in_flight if counts else 0


def completed(world) -> int:
    counts = world.counts()
    return counts.completed if counts else 0


def event(world, name) -> int:
    counts = world.counts()
    return counts.other.get(name, 0) if counts else 0


def finish(world, count, *, timeout=60.0):
    """Let the run end; every prompt has one end, with its own content."""
    until(world, world.done, "the end of the run", timeout)
    storage = open_storage(f"{world.output}/{RUN}")
    ends = read_ends(storage, count)
    assert ends.fine, ends
    return ends, list(iter_part_records(storage, read_manifest(storage)))


# Consumers


def test_a_consumer_paused_beyond_its_claims_and_continued_leaves_one_record_each(tmp_path):
    with running(tmp_path, 60, speed=SLOW, consumers=2, env={"PROMPTMILL_CONCURRENCY": "4"}) as world:
        paused, other = world.consumers
        until(world, lambda: in_flight(world) >= 8, "both at work")
        os.kill(paused.pid, signal.SIGSTOP)
        held = event(world, "redeliveries")
        until(world, lambda: event(world, "redeliveries") >= held + 4, "its jobs are taken away", 15)
        before = completed(world)
        until(world, lambda: completed(world) >= min(before + 8, 60), "the other completes them")
        assert other.alive
        os.kill(paused.pid, signal.SIGCONT)
        ends, _ = finish(world, 60)
        assert not ends.dead
        assert event(world, "second_finishes") >= 1
        assert paused.starts == 1


def _back_at_work_s(world) -> float:
    """Seconds from the death of a consumer until all it held runs at another."""
    dead, _ = world.consumers
    until(world, lambda: in_flight(world) >= 8, "both at work", 60)
    mine = set(world.store.client.smembers(keys.worker_executions(_worker_of(world, dead))))
    assert mine
    jobs = {member.decode().partition(":")[0] for member in mine}
    dead.wanted = False
    os.kill(dead.pid, signal.SIGKILL)
    begun = time.monotonic()

    def again():
        names = {job: world.store.client.hget(keys.job_key(job), "owner") for job in jobs}
        done = {job for job in jobs if world.store.client.hget(keys.job_key(job), "status") == b"finished"}
        moved = {
            job for job, owner in names.items() if owner and f"{job}:{owner.decode()}".encode() not in mine
        }
        return moved | done == jobs

    wait_for(lambda: (world.collectors[0].look_after(), again())[1], "its jobs run elsewhere", 60)
    return time.monotonic() - begun


def _worker_of(world, process) -> str:
    for name, figures in world.store.consumers().items():
        if figures["pid"] == process.pid:
            return name
    raise AssertionError("no heartbeat yet")


def test_abandoned_jobs_run_again_soon(tmp_path):
    with running(tmp_path, 200, speed=SLOW, consumers=2, env={"PROMPTMILL_CONCURRENCY": "4"}) as world:
        assert _back_at_work_s(world) < 1.5 * CLAIM_TTL_S + patient(2)


@pytest.mark.long
def test_abandoned_jobs_run_again_within_30_s_by_default(tmp_path):
    defaults = {"PROMPTMILL_CLAIM_TTL": "", "PROMPTMILL_LEASE_TTL": "", "PROMPTMILL_CONCURRENCY": "4"}
    with running(tmp_path, 600, speed=SLOW, consumers=2, env=defaults) as world:
        took = _back_at_work_s(world)
        print(json.dumps({"abandoned_jobs_run_again_after_s": round(took, 1)}))
        assert took < 30


def test_a_prompt_that_kills_its_server_every_time_is_dead_after_k_and_its_neighbours_live(tmp_path):
    env = {"PROMPTMILL_MAX_DEATHS": "3", "PROMPTMILL_CONCURRENCY": "2"}
    with running(tmp_path, 40, servers=2, consumers=2, env=env, started=False) as world:
        for simulator in world.simulators:
            simulator.start()
        for number in range(2):
            fault = {"kind": "kill", "containing": "0000007-", "seconds": 0.5}
            wait_for(lambda n=number, f=fault: world.server_fault(n, f) or _faulty(world, n), "the fault", 20)
        world.start_rest()
        ends, records = finish(world, 40)
        assert ends.dead == {7: "killed_consumers"}
        assert len(records) == 39


def _faulty(world, number) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{world.servers[number]}/sim/faults") as reply:
        return b"kill" in reply.read()
    return False


# Servers


@pytest.mark.parametrize("state", ["refuse", "draining", pytest.param("starting", marks=pytest.mark.long)])
def test_a_server_that_takes_nothing_costs_no_job_anything_and_comes_back_by_itself(tmp_path, state):
    with running(tmp_path, 400, speed=SLOW, servers=3, consumers=3, started=False) as world:
        bad = world.simulators[0]
        if state != "refuse":
            bad.argv += ["--fault", state]
            bad.start()
        for simulator in world.simulators[1:]:
            simulator.start()
        world.start_rest()
        wait_for(lambda: completed(world) >= 40, "the others work", 60)
        counts = world.counts()
        assert (counts.dead, counts.other.get("retries", 0)) == (0, 0)
        assert not world.store.client.zcard(keys.FAILED)

        def figures():
            return {one["server"]: one for one in world.store.consumers().values()}.get(world.servers[0])

        wait_for(lambda: (own := figures()) and own["state"] == "waiting for server", "it waits", 20)
        assert figures()["completions"] == 0
        if state == "refuse":
            bad.start()
        else:
            world.server_fault(0)
        ends, records = finish(world, 400)
        assert not ends.dead
        assert {record.attempts for record in records} == {1}
        assert {record.server for record in records} == set(world.servers)


def test_jobs_of_a_server_that_dies_go_back_to_the_head_and_spend_no_attempt(tmp_path):
    with running(tmp_path, 80, speed=SLOW, servers=2, consumers=2) as world:
        until(world, lambda: in_flight(world) >= 12, "both at work")
        world.simulators[0].end()
        world.simulators[0].wanted = False
        wait_for(lambda: event(world, "handed_back") >= 4, "its jobs come back", 15)
        _, records = finish(world, 80)
        assert {record.attempts for record in records} == {1}
        assert event(world, "retries") == 0


# Signals


def test_sigterm_drains(tmp_path):
    with running(tmp_path, 60, speed=SLOW, env={"PROMPTMILL_DRAIN_TIMEOUT": "30"}) as world:
        consumer = world.consumers[0]
        until(world, lambda: in_flight(world) >= 8, "at work")
        consumer.wanted = False
        consumer.signal(signal.SIGTERM)
        assert consumer.popen.wait(patient(20)) == 0
        counts = world.counts()
        assert counts.in_flight == 0
        assert counts.completed >= 8
        assert (event(world, "handed_back"), event(world, "retries"), counts.dead) == (0, 0, 0)
        consumer.start()
        finish(world, 60)


@pytest.mark.parametrize("how", ["twice", "past the timeout"])
def test_sigterm_twice_or_past_its_time_hands_back_and_ends_at_once(tmp_path, how):
    timeout = "600" if how == "twice" else "1"
    very_slow = ("--median-tokens", "100", "--sigma", "0.01", "--tokens-per-s", "5")
    with running(tmp_path, 20, speed=very_slow, env={"PROMPTMILL_DRAIN_TIMEOUT": timeout}) as world:
        consumer = world.consumers[0]
        until(world, lambda: in_flight(world) >= 8, "at work")
        consumer.wanted = False
        consumer.signal(signal.SIGTERM)
        begun = time.monotonic()
        if how == "twice":
            wait_for(lambda: "draining" in consumer.log.read_text(), "it drains")
            time.sleep(0.5)  # sooner counts as the same signal, sent twice by a shell and a pool
            consumer.signal(signal.SIGTERM)
        assert consumer.popen.wait(patient(15)) == 0
        assert time.monotonic() - begun < patient(10)
        counts = world.counts()
        assert (counts.in_flight, counts.completed, counts.dead) == (0, 0, 0)
        assert event(world, "handed_back") >= 8
        assert event(world, "retries") == 0
        assert world.store.client.lrange(keys.QUEUE, 0, 0)[0] in {b"chaos-%d" % unit for unit in range(9)}


def test_rolling_restarts_of_all_consumers_spend_no_retries(tmp_path):
    with running(
        tmp_path, 300, speed=SLOW, servers=2, consumers=2, env={"PROMPTMILL_DRAIN_TIMEOUT": "1"}
    ) as world:
        until(world, lambda: completed(world) >= 10, "at work", 60)
        turn = 0
        while not world.done() and turn < 4:
            consumer = world.consumers[turn % 2]
            starts = consumer.starts
            consumer.signal(signal.SIGTERM)
            until(world, lambda c=consumer, s=starts: c.starts > s, "its next start", 20)
            before = completed(world)
            until(world, lambda b=before: completed(world) > b + 8 or world.done(), "progress", 30)
            turn += 1
        assert turn >= 2
        ends, records = finish(world, 300)
        assert not ends.dead
        assert event(world, "retries") == 0
        assert {record.attempts for record in records} == {1}
        assert event(world, "second_finishes") == 0


# Redis


def test_a_full_redis_holds_the_producer_up_and_the_run_goes_on_by_itself(tmp_path):
    with running(tmp_path, 6000, started=False, enqueue=("--high-water", "100000")) as world:
        client = world.store.client
        used = client.info("memory")["used_memory"]
        client.config_set("maxmemory", used + 3_000_000)
        world.producer.start()
        wait_for(lambda: b"admission_waits" in _log(world) or _full(world), "the producer waits", 60)
        admitted = world.counts().accepted
        assert 0 < admitted < 6000
        assert world.counts().balanced
        for process in (*world.simulators, *world.consumers, *world.collectors):
            process.start()
        until(world, lambda: completed(world) >= 100, "consumers work while it is full", 60)
        client.config_set("maxmemory", 0)
        wait_for(lambda: world.counts().accepted == 6000, "the producer goes on", 60)


def _log(world) -> bytes:
    return world.producer.log.read_bytes()


def _full(world) -> bool:
    info = world.store.client.info("memory")
    return info["used_memory"] > 0.85 * info["maxmemory"]


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_no_part_starts_on_a_redis_that_evicts(tmp_path, policy):
    with running(tmp_path, 3, started=False) as world:
        world.store.client.config_set("maxmemory-policy", policy)
        for process in (world.producer, world.collectors[0]):
            process.start()
            assert process.popen.wait(patient(30)) == 2
            said = process.log.read_text()
            assert f"maxmemory-policy {policy}" in said
            assert "CONFIG SET maxmemory-policy noeviction" in said
            process.wanted = False
        assert world.counts() is None


def test_a_redis_without_an_append_only_file_is_named_in_a_warning(tmp_path):
    with running(tmp_path, 3, started=False) as world:
        world.store.client.config_set("appendonly", "no")
        world.producer.start()
        assert world.producer.popen.wait(patient(30)) == 0
        assert "redis_without_aof" in world.producer.log.read_text()


@pytest.mark.parametrize("loss", ["wiped", pytest.param("cut", marks=pytest.mark.long)])
def test_a_redis_that_lost_data_is_rebuilt_and_only_what_was_in_no_part_runs_again(tmp_path, loss):
    with running(
        tmp_path,
        200,
        servers=1,
        env={"PROMPTMILL_CONCURRENCY": "8"},
        speed=("--median-tokens", "60", "--tokens-per-s", "200"),
    ) as world:
        until(world, lambda: (c := world.counts()) and c.stored >= 60, "parts", 60)
        stored = world.counts().stored
        world.kill_redis(wipe=loss == "wiped", cut=20_000)
        ends, _ = finish(world, 200, timeout=90)
        assert not ends.dead
        if loss == "wiped":
            assert event(world, "adopted") >= stored


def test_jobs_that_fell_out_of_every_list_are_found(tmp_path):
    with running(tmp_path, 120, speed=SLOW) as world:
        until(world, lambda: completed(world) >= 5, "at work", 60)
        for job in world.store.client.lrange(keys.QUEUE, -40, -1):
            world.store.client.lrem(keys.QUEUE, 1, job)
        for member in world.store.client.zrange(keys.STARTED, 0, 2):
            world.store.client.zrem(keys.STARTED, member)
        ends, _ = finish(world, 120, timeout=90)
        assert not ends.dead
        assert event(world, "restored") >= 30


# Output


def test_s3_down_for_long_loses_nothing(tmp_path, s3_server):
    with running(tmp_path, 200, s3=s3_server) as world:
        world.storage_fault(Fault(kind="status", status=503, methods=("PUT",), match="part-"))
        until(world, lambda: completed(world) == 200, "all is done but stored", 60)
        assert world.counts().stored == 0
        assert world.store.results_waiting(RUN).count == 200
        world.storage_fault()
        finish(world, 200, timeout=90)


def test_a_bucket_that_vanishes_and_comes_back(tmp_path, s3_server):
    with running(tmp_path, 120, s3=s3_server, speed=SLOW) as world:
        until(world, lambda: (c := world.counts()) and c.stored >= 20, "a part", 60)
        copies = {}
        client = s3_server.client()

        def vanished():
            for item in client.list_objects_v2(Bucket=s3_server.bucket).get("Contents", []):
                found = client.get_object(Bucket=s3_server.bucket, Key=item["Key"])
                copies[item["Key"]] = found["Body"].read()
                client.delete_object(Bucket=s3_server.bucket, Key=item["Key"])
            with contextlib.suppress(client.exceptions.ClientError):  # something was written meanwhile
                return client.delete_bucket(Bucket=s3_server.bucket)

        world.storage_fault(Fault(kind="status", status=503))
        wait_for(vanished, "the bucket's end")
        world.storage_fault()
        wait_for(lambda: "NoSuchBucket" in world.collectors[0].log.read_text(), "the collector says so", 40)
        client.create_bucket(Bucket=s3_server.bucket)
        for key, data in copies.items():
            client.put_object(Bucket=s3_server.bucket, Key=key, Body=data)
        finish(world, 120, timeout=120)


def test_a_full_disk_under_output_and_logs_is_waited_for(tmp_path):
    flags = ("--batch-size", "200")
    with running(tmp_path, 200, enqueue=flags, started=False) as world:
        collector = world.collectors[0]
        for process in (*world.simulators, world.producer, *world.consumers, collector):
            process.start()
        wait_for(lambda: "lease_taken" in collector.log.read_text(), "the collector's start", 30)
        # No file that it writes can grow beyond this: parts fail half-written, as on a full disk.
        limit = 4000
        resource.prlimit(collector.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        wait_for(lambda: "storage_" in collector.log.read_text(), "the collector says so", 40)
        wait_for(lambda: completed(world) == 200, "consumers go on", 40)
        # Its log stands on the same disk.
        resource.prlimit(collector.pid, resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
        time.sleep(2 * CLAIM_TTL_S)
        assert collector.alive
        assert not list((tmp_path / "out" / RUN).glob("part-*"))
        endless = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(collector.pid, resource.RLIMIT_FSIZE, endless)
        finish(world, 200, timeout=90)
        assert collector.starts == 1


# Input


@pytest.mark.parametrize("what", ["deleted", "changed"])
def test_an_input_that_is_gone_or_changed_stops_the_producer_and_nothing_else(tmp_path, what):
    flags = ("--high-water", "100")
    env = {"PROMPTMILL_CONCURRENCY": "32"}
    with running(tmp_path, 700, started=False, enqueue=flags, env=env) as world:
        prompts = tmp_path / "prompts.jsonl"
        whole = prompts.read_bytes()
        world.producer.start()
        wait_for(lambda: world.counts() and world.counts().accepted >= 500, "a first chunk", 30)
        world.producer.end()
        if what == "deleted":
            prompts.unlink()
        else:
            prompts.write_bytes(whole.replace(b"0000003-", b"000000x-"))
        world.producer.start()
        assert world.producer.popen.wait(patient(30)) == 2
        said = world.producer.log.read_text().splitlines()[-1]
        assert "prompts.jsonl" in said if what == "deleted" else "another input" in said or "input" in said
        for process in (*world.simulators, *world.consumers, *world.collectors):
            process.start()
        accepted = world.counts().accepted
        wait_for(lambda: completed(world) == accepted, "what was admitted is worked on", 60)
        prompts.write_bytes(whole)
        world.producer.start()
        finish(world, 700, timeout=120)


def test_rqs_own_commands_reach_the_queue(tmp_path):
    """`rq info`, `suspend`, `resume`, `requeue` as people type them."""
    with running(tmp_path, 60, hopeless=3) as world:

        def rq(*argv: str) -> str:
            env = world.environment()
            command = [sys.executable, "-m", "rq.cli", *argv, "--url", world.redis.url]
            return subprocess.run(
                command, env=env, capture_output=True, text=True, check=True, timeout=patient(30)
            ).stdout

        rq("suspend")
        assert world.store.client.exists("rq:suspended")
        assert "completions" in rq("info")
        rq("resume")
        until(world, lambda: (c := world.counts()) and c.dead == 3 and world.done(), "the end", 60)
        rq("requeue", "--queue", "completions", "--all")
        until(world, lambda: event(world, "revived") == 3, "dead letters live again", 20)
        ends, _ = finish(world, 60)
        assert sorted(ends.dead) == [57, 58, 59]
        assert (
            msgspec.json.decode(open_storage(f"{world.output}/{RUN}").read("progress.json"))["state"]
            == "finished"
        )
