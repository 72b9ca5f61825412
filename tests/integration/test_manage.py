"""`ops dead`, `ops retry` and `ops resume` against a real Redis."""

from __future__ import annotations

import json
import os

import pytest
from click.testing import CliRunner
from support.runs import buried, collect, completed, enqueue, work, write_prompts

from common.parts import DEAD_LETTERS
from common.records import DeadLetter, DeadReason
from common.storage import open_storage
from common.store import RunStore
from ops.cli import main
from ops.embedded import EmbeddedRedis, running_url
from ops.manage import letter_table
from ops.places import remember
from ops.verify.read import verify
from ops.verify.report import Outcome

LONG = "the prompt\nhas 70000 tokens " + "x" * 500


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
def ops(redis_url):
    def call(*args, code=0, url=redis_url):
        done = CliRunner().invoke(main, [*args, *(["--redis", url] if url else [])])
        assert done.exit_code == code, done.output
        return done.output

    return call


@pytest.fixture
def source(tmp_path):
    path = write_prompts(tmp_path / "prompts.jsonl", 6)
    with path.open("a") as file:
        file.write("not json\n")
    return path


@pytest.fixture
def ended(store, redis_url, source, tmp_path):
    """A finished run: three completions, two that were too long, one server fault, one line of no use."""
    settings = enqueue(store, source, tmp_path / "out")

    def decide(job, settings):
        if job.index in (1, 4):
            return buried(DeadReason.TOO_LONG, LONG)(job, settings)
        return buried(DeadReason.SERVER_FAULT)(job, settings) if job.index == 5 else completed(job, settings)

    work(redis_url, decide)
    collect(store, settings)
    assert store.runs(active=True) == []
    return settings


def letters(store):
    return {letter.index: letter.reason.value for letter in store.dead_letters("r").values()}


def test_dead_lists_letters_with_their_reasons(ops, ended):
    text = ops("dead", "r")
    assert "4 dead letters: too_long 2, server_fault 1, invalid_line 1" in text
    row = next(line for line in text.splitlines() if " p1 " in line)
    assert row.split()[:4] == ["1", "-", "1", "p1"]
    assert "has 70000 tokens" in row
    assert "x" * 400 not in text
    assert any("invalid_line" in line and line.split()[1] == "7" for line in text.splitlines())


def test_dead_filters_by_reason_and_limits(ops, ended):
    text = ops("dead", "r", "--reason", "too_long", "--limit", "1")
    assert "2 dead letters: too_long 2" in text
    assert "... and 1 more" in text
    assert " p4 " not in text


def test_dead_as_json_is_whole_and_machine_readable(ops, ended):
    rows = [json.loads(line) for line in ops("dead", "r", "--json").splitlines()]
    assert [row["index"] for row in rows] == [1, 4, 5, 6]
    assert rows[0]["last_error"] == LONG


def test_dead_of_a_run_without_any(ops, store, source, tmp_path):
    write_prompts(source, 1)
    enqueue(store, source, tmp_path / "out")
    assert ops("dead", "r") == "run r: 0 dead letters\n"


@pytest.mark.parametrize("command", ["dead", "retry", "resume"])
def test_an_unknown_run_is_answered_with_those_that_exist(ops, ended, command):
    assert "no run named nope in this Redis; it has r." in ops(command, "nope", code=2)


def test_retried_letters_complete_and_the_output_is_proven(ops, store, redis_url, source, ended):
    text = ops("retry", "r")
    assert "queued 3 dead letters again" in text
    assert "1 line of the input cannot be used" in text
    assert "No consumer is there" in text
    counts = store.counts("r")
    assert (counts.dead, counts.queued, counts.balanced) == (1, 3, True)
    assert store.runs(active=True) == ["r"]
    assert work(redis_url) == 3
    collect(store, ended)
    assert store.runs(active=True) == []
    assert letters(store) == {6: "invalid_line"}
    report = verify(
        open_storage(ended.destination), source=str(source), here=source.parent, tick=lambda *_: None
    )
    assert (report.outcome, report.findings) == (Outcome.PROVEN, [])
    assert report.tallies.dead_by_reason == {"invalid_line": 1}


def test_the_last_letter_that_is_retried_leaves_the_file_even_if_the_collector_saw_none(
    ops, store, redis_url, source, tmp_path
):
    write_prompts(source, 1)
    settings = enqueue(store, source, tmp_path / "out")
    work(redis_url, buried())
    collect(store, settings)
    storage = open_storage(settings.destination)
    assert storage.read(DEAD_LETTERS).count(b"\n") == 1
    ops("retry", "r")
    work(redis_url)  # before any collector looks again
    collect(store, settings)
    assert storage.read(DEAD_LETTERS) == b""


def test_a_letter_that_died_again_in_the_place_of_another_is_in_the_file(
    ops, store, redis_url, source, tmp_path
):
    write_prompts(source, 2)
    settings = enqueue(store, source, tmp_path / "out")
    work(redis_url, buried(), most=1)
    collect(store, settings)
    ops("retry", "r")
    work(redis_url, lambda job, s: completed(job, s) if job.index == 0 else buried()(job, s))
    collect(store, settings)
    written = open_storage(settings.destination).read(DEAD_LETTERS).splitlines()
    assert [json.loads(line)["index"] for line in written] == [1]


def test_a_retried_run_is_not_over_before_a_consumer_claims(ops, store, ended):
    ops("retry", "r", "--index", "5")
    collect(store, ended)
    assert store.runs(active=True) == ["r"]


def test_retry_by_reason_and_index(ops, store, ended):
    assert "queued 1 dead letter again" in ops("retry", "r", "--reason", "too_long", "--index", "4")
    assert letters(store) == {1: "too_long", 5: "server_fault", 6: "invalid_line"}
    assert "There is no such dead letter" in ops("retry", "r", "--index", "4")
    assert "queued 2 dead letters again" in ops("retry", "r")


def test_a_retried_job_starts_with_a_clean_record(ops, store, redis_url, ended):
    store.client.hset("rq:job:r-5", mapping={"attempts": 5, "tries": 2, "deaths": 9})
    ops("retry", "r", "--index", "5")
    assert store.client.hmget("rq:job:r-5", "attempts", "tries", "deaths") == [b"0"] * 3
    assert store.client.ttl("rq:job:r-5") == -1


def test_retry_leaves_alone_what_rq_requeue_has_queued(ops, store, redis_url, ended):
    store.client.zrem("rq:failed:completions", "r-5")
    store.client.hset("rq:job:r-5", "status", "queued")
    store.client.rpush("rq:queue:completions", "r-5")
    text = ops("retry", "r", "--reason", "server_fault")
    assert "queued 0 dead letters again" in text
    assert "1 dead letter had been queued again before" in text
    assert store.client.llen("rq:queue:completions") == 1


def test_retry_of_a_letter_whose_job_is_gone_waits_for_the_producer(ops, store, redis_url, source, ended):
    store.client.delete("rq:job:r-5")
    text = ops("retry", "r", "--index", "5")
    assert "1 job of the run are no longer in Redis" in text
    assert store.counts("r").balanced
    enqueue(store, source, ended.output)
    assert work(redis_url) == 1


def test_retry_takes_many_letters_in_pieces(ops, store, redis_url, tmp_path):
    source = write_prompts(tmp_path / "many.jsonl", 1201)
    enqueue(store, source, tmp_path / "out")
    work(redis_url, buried())
    assert "queued 1,201 dead letters again" in ops("retry", "r")
    assert store.counts("r").queued == 1201


def test_resume_lifts_the_pause_and_says_what_it_was(ops, store, source, tmp_path):
    enqueue(store, source, tmp_path / "out")
    store.pause("r", "*", {"sentence": "Too much boilerplate.", "verdict": "boilerplate"})
    text = ops("resume", "r")
    assert "run r goes on; it was paused: Too much boilerplate." in text
    assert "--accept" in text
    assert store.paused("r") == {}
    assert store.client.smembers("pm:run:r:accepted") == set()
    assert ops("resume", "r") == "run r is not paused\n"


def test_resume_accepts_the_verdicts_of_all_pauses(ops, store, source, tmp_path):
    enqueue(store, source, tmp_path / "out")
    store.pause("r", "*", {"sentence": "a", "verdict": "boilerplate"})
    store.pause("r", "http://s", {"sentence": "b", "verdict": "empty"})
    store.pause("r", "http://t", {"sentence": "by hand"})
    text = ops("resume", "r", "--accept")
    assert "http://s in run r goes on" in text
    assert "does not pause this run for boilerplate, empty any more" in text
    assert store.client.smembers("pm:run:r:accepted") == {b"boilerplate", b"empty"}


def test_a_run_whose_own_redis_sleeps_is_woken_and_put_to_rest_again(ops, source, tmp_path):
    folder = tmp_path / "out" / ".promptmill" / "r"
    with EmbeddedRedis(folder / "redis") as redis:
        store = RunStore.from_url(redis.url)
        enqueue(store, source, tmp_path / "out")
        work(redis.url, buried(), most=2)
        store.client.close()
    remember("r", folder)
    assert "dead letters: too_long 2, invalid_line 1" in ops("dead", "r", url=None)
    text = ops("retry", "r", url=None)
    assert "queued 2 dead letters again" in text
    assert "No `ops run` is at work on it: run the same command again" in text
    assert running_url(folder / "redis") is None
    assert "1 dead letter: invalid_line 1" in ops("dead", "r", url=None)


def test_letters_show_the_sample_where_a_prompt_has_several():
    letter = DeadLetter(
        index=3, id="p", reason=DeadReason.TIMEOUT, last_error="[red]no[/red]", attempts=2, sample=1
    )
    names = [column.header for column in letter_table([letter]).columns]
    assert names == ["index", "sample", "line", "attempts", "id", "reason", "last error"]
    assert os.linesep not in str(letter_table([letter]).columns[-1]._cells[0])
