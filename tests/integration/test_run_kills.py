"""`ops run` under SIGKILL: of one part after the other, and of everything at once."""

from __future__ import annotations

import signal
import time

import psutil
import pytest
from support.flow import Command, alive, progress, prompts, proven
from support.wait import wait_for

from common.store import RunStore
from ops.embedded import running_url

PARTS = {
    "producer": ("producer.cli",),
    "collector": ("collector.cli",),
    "consumer-0": ("rq.cli",),
    "redis": ("valkey-server",),
}


def balanced(folder):
    """The counters, which must be true at this very instant."""
    url = running_url(folder / "out" / ".promptmill" / "p" / "redis")
    if url is None:
        return None
    counts = RunStore.from_url(url).counts("p")
    assert counts.balanced, counts
    assert counts.stored <= counts.completed
    return counts


def test_parts_killed_one_by_one_are_started_again_and_the_summary_says_so(tmp_path, slow):
    source = prompts(tmp_path / "p.jsonl", 200)
    flags = ("--concurrency", "4", "--high-water", "30", "--batch-size", "20", "--no-preflight")
    with Command(tmp_path, "ops", "run", source, *slow.flags, "--output", "out", *flags) as command:
        killed = []
        for words in PARTS.values():
            process = command.part(*words)
            process.kill()
            killed.append(process)
            wait_for(
                lambda words=words, old=process: command.part(*words).pid != old.pid, f"{words} again", 20
            )
        text = command.ends(0, timeout=90)
    again = next(line for line in text.splitlines() if line.startswith("Started again on the way: "))
    assert all(f"{name} x" in again.replace("consumer-1", "consumer-0") for name in PARTS)
    proven(tmp_path / "out" / "p", source)


@pytest.mark.parametrize("pause", [0.3, 1.2])
def test_everything_killed_at_once_and_run_again_goes_on(tmp_path, slow, pause):
    source = prompts(tmp_path / "p.jsonl", 60)
    argv = ("ops", "run", source, *slow.flags, "--output", "out", "--batch-size", "7", "--no-preflight")
    with Command(tmp_path, *argv, "--concurrency", "4") as command:
        wait_for(lambda: slow.stats(0)["running"] + slow.stats(1)["running"] > 3, "work", 30)
        time.sleep(pause)  # the moment is the point: between two answers, or after some parts
        assert balanced(tmp_path)
        family = command.family()
        command.signal(signal.SIGKILL)
        for process in family:
            with_guard_gone(process)
        wait_for(lambda: not any(alive(process) for process in family), "every process has gone", 20)
    with Command(tmp_path, *argv, "--concurrency", "4") as command:
        text = command.ends(0, timeout=60)
    assert "60 completions" in text
    proven(tmp_path / "out" / "p", source)
    found = progress(tmp_path / "out" / "p")
    assert (found["accepted"], found["completed"], found["stored"]) == (60, 60, 60)


def with_guard_gone(process):
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return


def test_a_lost_redis_is_rebuilt_from_the_output_and_the_input(tmp_path, servers):
    source = prompts(tmp_path / "p.jsonl", 50)
    argv = ("ops", "run", source, *servers.flags, "--output", "out", "--batch-size", "10", "--no-preflight")
    servers.faults({"kind": "error_500", "containing": "Say 4"})
    with Command(tmp_path, *argv, "--max-attempts", "1") as command:
        command.ends(3)
    parts = sorted((tmp_path / "out" / "p").glob("part-*"))
    before = {path.name: path.read_bytes() for path in parts}
    servers.faults()
    redis = tmp_path / "out" / ".promptmill" / "p" / "redis"
    redis.rename(tmp_path / "lost")
    asked = sum(servers.stats(n)["requests"] for n in (0, 1))
    with Command(tmp_path, *argv, "--max-attempts", "1") as command:
        command.ends(3)
    assert sum(servers.stats(n)["requests"] for n in (0, 1)) == asked
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "out" / "p").glob("part-*")}
    proven(tmp_path / "out" / "p", source)
