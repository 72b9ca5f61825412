"""`ops status` against a real Redis: what it tells, what it asks for, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time

import msgspec
import pytest
from click.testing import CliRunner
from support.runs import buried, claim, collect, completed, enqueue, work, write_prompts
from support.wait import patient, wait_for

from common import keys
from common.errors import RunNotFoundError
from common.records import Progress
from common.store import RunStore
from ops.cli import main
from ops.embedded import EmbeddedRedis, running_url
from ops.places import remember
from ops.status.snapshot import Watch
from ops.status.values import State, Status

OF_CONSTANT_COST = {
    *("time", "info", "exists", "get", "llen", "zcard", "scard", "xlen", "lindex", "hmget", "mget"),
    *("hello", "auth", "client"),  # a connection's first words
}
SMALL = {
    "smembers": {keys.RUNS, keys.ACTIVE, keys.QUEUE_WORKERS},
    "hgetall": {keys.run_key("r", "counts"), keys.run_key("r", "paused")},
}


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    """No pointer of this machine's user, no Redis of its environment."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("RQ_REDIS_URL", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def store(redis_url):
    return RunStore.from_url(redis_url)


@pytest.fixture
def source(tmp_path):
    return write_prompts(tmp_path / "prompts.jsonl", 10)


def ops(*args, code=0):
    done = CliRunner().invoke(main, ["status", *args])
    assert done.exit_code == code, done.output
    return done.output


def consumer(store, name="w", *, alive=True, mark="0.1.0", beat="2026-01-01T00:00:00.000000Z", **figures):
    """A worker as RQ knows it, and its figures if it is alive."""
    worker = {"birth": "x", "last_heartbeat": beat, "hostname": "gpu1", "pid": 77}
    store.client.hset(keys.worker_key(name), mapping=worker | ({"promptmill": mark} if mark else {}))
    store.client.sadd(keys.QUEUE_WORKERS, keys.worker_key(name))
    told = {"worker": name, "server": "http://s", "state": "working", "in_flight": 2, "limit": 4, **figures}
    if alive:
        store.client.set(keys.consumer_key(name), msgspec.json.encode(told), ex=20)


def one(store, run="r"):
    return Watch(store).take([run]).runs[0]


def test_the_json_tells_every_count_of_a_run_at_work(store, redis_url, source, tmp_path):
    settings = enqueue(store, source, tmp_path / "out")
    minute = {"completions_per_s": 2.0, "output_tokens_per_s": 40.0, "errors": 1}
    consumer(store, started=time.time() - 600, last_minute=minute, queue=3, accept_length=2.5)
    work(redis_url, lambda job, s: buried()(job, s) if job.index == 0 else completed(job, s), most=4)
    claim(redis_url, 2)
    store.pause("r", "http://t", {"sentence": "no", "verdict": "empty", "samples": ["p1"]})
    found = json.loads(ops("r", "--json", "--redis", redis_url))
    run = found["runs"][0]
    assert {
        k: run[k] for k in ("accepted", "completed", "dead", "queued", "in_flight", "stored", "total")
    } == {
        "accepted": 10,
        "completed": 3,
        "dead": 1,
        "queued": 4,
        "in_flight": 2,
        "stored": 0,
        "total": 10,
    }
    assert (run["state"], run["waiting"], run["parts"], run["last_part"]) == ("running", 3, 0, None)
    assert run["dead_by_reason"] == {"too_long": 1}
    assert run["verdicts"] == {"ok": 3}
    assert run["output_tokens"] == 60
    assert (run["rate_per_s"], run["output_tokens_per_s"], run["eta_s"]) == (2.0, 40.0, 3.0)
    assert run["eta_low_s"] < 3.0 < run["eta_high_s"]
    assert run["paused"][0]["scope"] == "http://t"
    assert found["queue"] == {"queued": 4, "scheduled": 0, "started": 2, "failed": 1}
    assert found["consumers"][0]["queue"] == 3
    assert found["consumers"][0]["last_minute"]["errors"] == 1
    collect(store, settings)
    run = json.loads(ops("r", "--json", "--redis", redis_url))["runs"][0]
    assert (run["stored"], run["waiting"], run["last_part"]) == (3, 0, "part-000000.jsonl.zst")


def test_its_run_fields_are_those_of_progress_json(store, source, tmp_path):
    enqueue(store, source, tmp_path / "out")
    told = msgspec.to_builtins(one(store))
    wanted = {field.name for field in msgspec.structs.fields(Progress)} - {"at"}
    assert wanted <= set(told)


def test_a_look_writes_nothing_and_no_command_of_it_costs_more_for_a_longer_queue(store, redis_url, tmp_path):
    source = write_prompts(tmp_path / "many.jsonl", 20_000)
    enqueue(store, source, tmp_path / "out")
    work(redis_url, most=2000)
    work(redis_url, buried(), most=500)
    consumer(store)
    watch = Watch(store)
    changes = store.client.info("persistence")["rdb_changes_since_last_save"]
    with store.client.monitor() as monitor:
        begun = time.perf_counter()
        watch.take(["r"])
        assert time.perf_counter() - begun < patient(1.0)
        store.client.ping()
        asked = []
        while (command := monitor.next_command()["command"]) != "PING":
            asked.append(command.split(" "))
    for command, *args in asked:
        name = command.lower()
        if name in SMALL:
            assert args[0] in SMALL[name]
        elif name == "xrange":
            assert args[-2:] == ["COUNT", "1"]
        else:
            assert name in OF_CONSTANT_COST
    assert len(asked) < 40
    assert store.client.info("persistence")["rdb_changes_since_last_save"] == changes


def test_the_states_of_a_run_from_first_to_last(store, redis_url, source, tmp_path):
    settings = enqueue(store, source, tmp_path / "out")
    assert one(store).state is State.NO_CONSUMER
    consumer(store)
    assert one(store).state is State.RUNNING
    consumer(store, state="waiting for server")
    assert one(store).state is State.NO_SERVER
    consumer(store, state="draining")
    assert one(store).state is State.DRAINING
    store.client.set(keys.RQ_SUSPENDED, 1)
    assert one(store).state is State.SUSPENDED
    store.client.delete(keys.RQ_SUSPENDED)
    store.pause("r", "*", {"sentence": "bad"})
    assert one(store).state is State.PAUSED
    store.resume("r")
    work(redis_url)
    assert one(store).state is State.STORING
    collect(store, settings)
    last = one(store)
    assert (last.state, last.active, last.eta_s, last.rate_per_s) == (State.FINISHED, False, 0.0, None)


def test_a_consumers_state_names_the_guards_pause(store, source, tmp_path):
    enqueue(store, source, tmp_path / "out")
    consumer(store, "a", server="http://a")
    consumer(store, "b", server="http://b", state="paused")
    consumer(store, "c", server="http://c", state="full")
    store.pause("r", "http://a", {"sentence": "x"})
    states = {found.server: found.state for found in Watch(store).take(["r"]).consumers}
    assert states == {
        "http://a": "paused by guard",
        "http://b": "paused by guard",
        "http://c": "waiting for output",
    }


def test_workers_that_are_strangers_or_silent_are_told_apart(store, source, tmp_path):
    enqueue(store, source, tmp_path / "out")
    consumer(store, "lost", alive=False)
    consumer(store, "young", alive=False, beat=time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime()))
    consumer(store, "stock", alive=False, mark=None)
    store.client.sadd(keys.QUEUE_WORKERS, keys.worker_key("gone"))
    found = Watch(store).take(["r"])
    assert [(one.worker, one.host, one.pid) for one in found.silent] == [("lost", "gpu1", 77)]
    assert found.stock_workers == ["stock"]
    assert found.consumers == []


def test_figures_of_another_version_do_not_hide_the_rest(store, source, tmp_path):
    enqueue(store, source, tmp_path / "out")
    consumer(store, "old", last_minute="fast", unknown=1)
    consumer(store, "new", unknown=1)
    found = {one.worker: one.state for one in Watch(store).take(["r"]).consumers}
    assert found == {"old": "of another version", "new": "working"}


def test_with_several_active_runs_the_pace_is_that_of_all_until_it_was_watched(store, source, tmp_path):
    enqueue(store, source, tmp_path / "out")
    enqueue(store, source, tmp_path / "out", run="s")
    consumer(store, last_minute={"completions_per_s": 5.0})
    run = one(store)
    assert run.rate_of_all_runs
    assert run.eta_s is None
    assert {run.run for run in Watch(store).take().runs} == {"r", "s"}


def test_a_watch_tells_a_runs_own_pace(store, redis_url, source, tmp_path, monkeypatch):
    monkeypatch.setattr("ops.status.speed.LEAST_SPAN_S", 0.001)
    enqueue(store, source, tmp_path / "out")
    enqueue(store, source, tmp_path / "out", run="s")
    watch = Watch(store)
    first = watch.take()
    work(redis_url, most=3)
    second = watch.take()
    assert first.runs[0].rate_per_s is None
    assert second.runs[0].rate_per_s > 0
    assert second.runs[1].rate_per_s == 0
    assert not second.runs[0].rate_of_all_runs


def test_without_an_active_run_all_are_shown(store, redis_url, source, tmp_path):
    assert ops("--redis", redis_url).startswith("There is no run in this Redis")
    settings = enqueue(store, source, tmp_path / "out")
    work(redis_url)
    collect(store, settings)
    assert "run r  10 of 10  100.0%  finished" in ops("--redis", redis_url)


def test_a_person_reads_what_is_wrong(store, redis_url, source, tmp_path):
    enqueue(store, source, tmp_path / "out")
    store.pause("r", "*", {"sentence": "Too many empty answers.", "samples": ["p3"]})
    text = ops("r", "--redis", redis_url)
    assert "run r  0 of 10  0.0%  paused by the guard" in text
    assert "accepted 10 = completed 0 + dead 0 + queued 10 + in flight 0" in text
    assert "Too many empty answers. Look at prompts p3." in text
    assert "no collector is at work" in text


def test_an_unknown_run_is_answered_with_those_that_exist(store, redis_url, source, tmp_path):
    enqueue(store, source, tmp_path / "out")
    assert "no run named x in this Redis; it has r." in ops("x", "--redis", redis_url, code=2)
    with pytest.raises(RunNotFoundError):
        Watch(store).take(["x"])


def test_a_run_at_rest_is_looked_at_through_its_own_redis(source, tmp_path):
    folder = tmp_path / "out" / ".promptmill" / "r"
    with EmbeddedRedis(folder / "redis") as redis:
        enqueue(RunStore.from_url(redis.url), source, tmp_path / "out")
    remember("r", folder)
    text = ops("r")
    assert "run the same command again to go on" in text
    assert "no collector" not in text
    assert running_url(folder / "redis") is None


@pytest.mark.parametrize("flags", [("--watch", "--json"), ("--watch",)])
def test_a_watch_needs_a_terminal(flags, redis_url):
    assert "--json" in ops(*flags, "--redis", redis_url, code=2)


IN_A_SESSION = """
import os, sys
os.login_tty(0)
os.execv(sys.executable, [sys.executable, "-m", "ops.cli", "status", "--watch"])
"""


@contextlib.contextmanager
def terminal(url, *, width=80, height=24):
    """`ops status --watch` on a terminal of its own."""
    mine, theirs = pty.openpty()
    termios.tcsetwinsize(mine, (height, width))
    before = termios.tcgetattr(theirs)
    env = {**os.environ, "RQ_REDIS_URL": url, "TERM": "xterm-256color"}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        env.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, "-c", IN_A_SESSION], env=env, stdin=theirs, stdout=theirs, stderr=theirs
    )
    try:
        yield mine, process
        assert process.wait(patient(20)) == 0
        assert termios.tcgetattr(theirs)[3] == before[3]
    finally:
        process.kill()
        process.wait()
        os.close(mine)
        os.close(theirs)


class Output:
    """What came out of a terminal so far."""

    def __init__(self, descriptor):
        self.descriptor = descriptor
        self.text = ""

    def has(self, words):
        while select.select([self.descriptor], [], [], 0)[0]:
            self.text += os.read(self.descriptor, 65536).decode(errors="replace")
        return words in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.text)


@pytest.mark.parametrize("end", [b"q", b"\x03"])
def test_a_live_screen_follows_the_run_and_a_key_ends_it(store, redis_url, source, tmp_path, end):
    enqueue(store, source, tmp_path / "out")
    with terminal(redis_url) as (screen, _):
        output = Output(screen)
        wait_for(lambda: output.has("run r  0 of 10"), "the first frame", 30)
        assert "\x1b[?1049h" in output.text
        work(redis_url, most=4)
        wait_for(lambda: output.has("run r  4 of 10"), "a later frame", 30)
        os.write(screen, end)
        wait_for(lambda: output.has("") and "\x1b[?1049l" in output.text, "the end of the screen", 30)


def test_a_status_is_one_json_object_that_reads_back(store, redis_url, source, tmp_path):
    enqueue(store, source, tmp_path / "out")
    text = ops("--json", "--redis", redis_url)
    assert msgspec.json.decode(text, type=Status).runs[0].run == "r"
