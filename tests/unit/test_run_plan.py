"""What `ops run` starts, and with what in whose environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from common.errors import UsageError
from ops.run.plan import BACKOFF_S, RunPlan, backoff, check_servers, collector, consumers, producer

SECRET = "redis://:hunter2@127.0.0.1:6379/0"
SERVERS = ["http://a:30000", "http://user:hunter3@b:30000"]


def plan(**changes):
    values = {
        "source": "p.jsonl",
        "run": "r",
        "output": "/out",
        "servers": SERVERS,
        "flags": ["--top-k", "7"],
        "concurrency": "auto",
        "drain_timeout": 120.0,
        "flush_seconds": 300.0,
        "state": Path("/state"),
    }
    return RunPlan(**{**values, **changes})


def test_no_password_is_on_any_command_line():
    for child in (producer(plan(), SECRET), collector(plan(), SECRET), *consumers(plan(), SECRET)):
        assert "hunter" not in " ".join(child.argv)
        assert child.env["RQ_REDIS_URL"] == SECRET
        assert child.argv[0] == sys.executable


def test_one_consumer_per_server_is_plain_rq_with_the_class():
    first, second = consumers(plan(), SECRET)
    assert (first.name, second.name) == ("consumer-0", "consumer-1")
    assert first.argv[1:] == ("-m", "rq.cli", "worker", "completions")
    assert first.env["RQ_WORKER_CLASS"] == "consumers.GenerationWorker"
    assert [first.env["SGLANG_URL"], second.env["SGLANG_URL"]] == SERVERS
    assert "PROMPTMILL_CONCURRENCY" not in first.env
    assert consumers(plan(concurrency="48"), SECRET)[0].env["PROMPTMILL_CONCURRENCY"] == "48"


def test_the_producer_gets_the_flags_that_were_given():
    argv = producer(plan(), SECRET).argv
    assert argv[3:5] == ("enqueue", "p.jsonl")
    assert argv[-2:] == ("--top-k", "7")
    assert argv[argv.index("--ready-file") + 1] == "/state/ready"
    assert argv[argv.index("--spool") + 1] == "/state/spool"


def test_the_collector_is_told_how_long_to_wait():
    assert collector(plan(flush_seconds=5.0), SECRET).argv[-2:] == ("--flush-seconds", "5.0")


def test_servers_are_named_once_each_with_or_without_scheme_and_slash():
    assert check_servers(["a:1/", "https://b"]) == ["http://a:1", "https://b"]


@pytest.mark.parametrize(
    ("servers", "words"),
    [
        ([], "at least one server"),
        (["http://a", "a/"], "named twice"),
        (["http://u:pw@a", "http://u:pw@a"], "http://a"),
    ],
)
def test_servers_that_cannot_be_used(servers, words):
    with pytest.raises(UsageError, match=words) as caught:
        check_servers(servers)
    assert "pw" not in str(caught.value)


def test_the_pause_before_another_start_grows_to_an_end():
    assert [backoff(n) for n in (0, 1, 2, 99)] == [0.0, BACKOFF_S[0], BACKOFF_S[1], BACKOFF_S[-1]]
