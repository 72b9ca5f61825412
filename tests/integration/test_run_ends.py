"""How `ops run` ends: every exit code, and what is said with it."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner
from support.flow import Command, alive, environment, progress, prompts, proven
from support.wait import wait_for

from ops.cli import main


def ops(folder, *argv):
    done = subprocess.run(
        [sys.executable, "-m", "ops.cli", *argv],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_2_bad_lines_are_named_by_their_number_and_nothing_is_begun(tmp_path, servers):
    source = tmp_path / "p.jsonl"
    source.write_bytes(
        b'{"id": "a", "prompt": "x"}\n\n{"prompt": \n{"id": "a", "prompt": "y"}\n{"prompt": ""}\n'
    )
    before = sum(servers.stats(n)["requests"] for n in (0, 1))
    with Command(
        tmp_path, "ops", "run", source, *servers.flags, "--output", "out", "--no-preflight"
    ) as command:
        text = command.ends(2)
    for number in (3, 4, 5):
        assert f"line {number}" in text
    assert "3 of 4 lines cannot be used" in text
    assert "--skip-invalid" in text
    assert not list((tmp_path / "out").glob("p/*"))
    # Mended by a flag: the lines are dead letters, and the exit code says that there are some.
    flags = ("--output", "out", "--skip-invalid", "--no-preflight")
    with Command(tmp_path, "ops", "run", source, *servers.flags, *flags) as command:
        text = command.ends(3)
    assert "Dead letters: invalid_line 3" in text
    place = tmp_path / "out" / "p"
    assert [json.loads(line)["line"] for line in (place / "dead.jsonl").read_text().splitlines()] == [3, 4, 5]
    proven(place, source)
    assert sum(servers.stats(n)["requests"] for n in (0, 1)) == before + 1
    # The same name for something else is refused, and each difference is named; only this one's words.
    with Command(tmp_path, "ops", "run", source, *servers.flags, *flags, "--top-k", "7") as command:
        text = command.ends(2)
    assert "top_k was 20, now 7" in text
    assert "cannot be used" not in text.split("top_k")[1]
    source.write_bytes(source.read_bytes() + b'{"prompt": "more"}\n')
    with Command(tmp_path, "ops", "run", source, *servers.flags, *flags) as command:
        text = command.ends(2)
    assert "run p was made from another input" in text
    assert "--run name" in text
    assert "top_k" not in text


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--server", "http://s", "--bogus"], "No such option '--bogus'"),
        ([], "Missing option '--server'"),
        (["--server", "http://s", "--temperature", "9"], "--temperature"),
        (["--server", "http://s", "--concurrency", "many"], "neither `auto` nor a number"),
        (["--server", "http://s", "--server", "s/"], "named twice"),
        (["--server", "http://s", "--run", "a b"], "cannot name a run"),
        (["--server", "http://s", "--on-verdict", "ok=dead"], "good completions can only be kept"),
        (["--server", "http://s", "--extra-body", "[1]"], "must be a JSON object"),
        (["--server", "http://s", "--output", "ftp://x"], "ftp"),
    ],
)
def test_2_usage_that_cannot_be_followed(tmp_path, monkeypatch, argv, words):
    source = prompts(tmp_path / "p.jsonl", 1)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    done = CliRunner().invoke(main, ["run", str(source), "--output", str(tmp_path / "out"), *argv])
    assert words in done.output
    assert done.exit_code == 2


def test_2_no_input_and_1_no_redis(tmp_path, servers):
    prompts(tmp_path / "p.jsonl", 1)
    with Command(tmp_path, "ops", "run", "none.jsonl", "--output", "b", *servers.flags) as absent:
        assert "none.jsonl: cannot be read" in absent.ends(2)
    gone = ("--redis", "redis://:secret@127.0.0.1:9/0")
    with Command(
        tmp_path, "ops", "run", "p.jsonl", "--output", "c", *servers.flags, *gone, "--no-preflight"
    ) as command:
        text = command.ends(1)
    assert "127.0.0.1:9" in text
    assert "secret" not in text


def test_3_with_dead_letters_that_retry_brings_back(tmp_path, servers):
    source = prompts(tmp_path / "p.jsonl", 12)
    servers.faults({"kind": "error_500", "containing": "Say 7"})
    argv = ("ops", "run", source, *servers.flags, "--output", "out", "--max-attempts", "1", "--no-preflight")
    with Command(tmp_path, *argv) as command:
        text = command.ends(3)
    assert "11 completions" in text
    assert "Dead letters: server_fault 1" in text
    assert "`ops retry p` queues them again" in text
    (letter,) = (tmp_path / "out" / "p" / "dead.jsonl").read_text().splitlines()
    assert json.loads(letter)["id"] == "p7"
    servers.faults()
    assert "queued 1 dead letter again" in ops(tmp_path, "retry", "p")
    with Command(tmp_path, *argv) as command:
        assert "12 completions" in command.ends(0)
    proven(tmp_path / "out" / "p", source)


def test_4_by_the_guard_until_somebody_accepts(tmp_path, servers):
    source = prompts(tmp_path / "p.jsonl", 400)
    servers.faults({"kind": "boilerplate"})
    flags = ("--on-verdict", "boilerplate=keep", "--concurrency", "16", "--no-preflight")
    argv = ("ops", "run", source, *servers.flags, "--output", "out", *flags)
    with Command(tmp_path, *argv) as command:
        text = command.ends(4)
    assert "boilerplate" in text
    assert "Look at prompts p" in text
    assert "`ops resume p --accept`" in text
    assert 50 <= int(text.split("completed ")[-1].split()[0].replace(",", "")) < 400
    # Still paused: the same command says so again, and asks for nothing.
    before = sum(servers.stats(n)["requests"] for n in (0, 1))
    with Command(tmp_path, *argv) as command:
        assert "`ops resume p --accept`" in command.ends(4)
    assert sum(servers.stats(n)["requests"] for n in (0, 1)) == before
    assert "does not pause this run for boilerplate" in ops(tmp_path, "resume", "p", "--accept")
    with Command(tmp_path, *argv) as command:
        assert "400 completions" in command.ends(0)
    proven(tmp_path / "out" / "p", source)


def counts(text):
    """The last equation that was said."""
    line = text.replace(",", "").rsplit("accepted ", 1)[1]
    words = line.replace(";", " ").split()
    named = {"completed": "completed", "dead": "dead", "queued": "queued", "flight": "in_flight"}
    found = {named[w]: int(n) for w, n in itertools.pairwise(words) if w in named}
    return {"accepted": int(words[0]), **found}


def test_130_drains_says_what_is_left_and_goes_on(tmp_path, slow):
    source = prompts(tmp_path / "p.jsonl", 60)
    argv = ("ops", "run", source, *slow.flags, "--output", "out", "--concurrency", "4", "--no-preflight")
    with Command(tmp_path, *argv) as command:
        wait_for(lambda: sum(slow.stats(n)["running"] for n in (0, 1)) >= 4, "work", 30)
        aborted = sum(slow.stats(n)["aborted"] for n in (0, 1))
        command.signal(signal.SIGINT)
        text = command.ends(130, timeout=20)
        assert not command.family()
    assert "draining" in text
    assert "Stopped." in text
    assert "run the same command again" in text
    left = counts(text)
    assert left["in_flight"] == 0
    assert left["completed"] >= 4
    assert left["accepted"] == 60 == left["completed"] + left["queued"]
    # What was in flight came to its end: no work of the servers is thrown away.
    assert sum(slow.stats(n)["aborted"] for n in (0, 1)) == aborted
    with Command(tmp_path, *argv) as command:
        assert "60 completions" in command.ends(0)
    proven(tmp_path / "out" / "p", source)
    assert progress(tmp_path / "out" / "p")["completed"] == 60


def test_130_at_once_on_the_second_signal(tmp_path, slow):
    prompts(tmp_path / "p.jsonl", 30)
    slow.faults({"kind": "hang"})
    argv = ("ops", "run", "p.jsonl", *slow.flags, "--output", "out", "--concurrency", "4", "--no-preflight")
    with Command(tmp_path, *argv) as command:
        wait_for(lambda: sum(slow.stats(n)["faults"].get("hang", 0) for n in (0, 1)) >= 8, "requests", 30)
        command.signal(signal.SIGINT)
        command.says("draining")
        # A shell and a pool may both pass one Ctrl-C on, so the next counts after a moment only.
        wait_for(lambda: command.signal(signal.SIGINT) or command.ended(0.3), "it hands back", 15)
        text = command.ends(130)
        wait_for(lambda: not command.family(), "all have gone")
    left = counts(text)
    assert (left["completed"], left["queued"], left["in_flight"]) == (0, 30, 0)


def test_a_second_ops_run_of_the_same_run_is_refused_and_sigkill_leaves_no_orphan(tmp_path, slow):
    prompts(tmp_path / "p.jsonl", 1000)
    argv = ("ops", "run", "p.jsonl", *slow.flags, "--output", "out", "--no-preflight")
    with Command(tmp_path, *argv) as command:
        command.part("rq.cli")
        wait_for(lambda: len(command.family()) >= 8, "all parts", 30)
        with Command(tmp_path, *argv) as second:
            assert "another `ops run` is at work on this run" in second.ends(2)
        family = command.family()
        command.signal(signal.SIGKILL)
        command.process.wait()
        wait_for(lambda: not any(alive(process) for process in family), "every process has gone", 20)
