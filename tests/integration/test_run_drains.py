"""A server that drains as vLLM does: in good health by its own word, while it fails every new request."""

from __future__ import annotations

from support.flow import Command, Servers, progress, prompts, proven
from support.wait import wait_for


def test_a_drain_in_good_health_costs_no_prompt(tmp_path):
    speed = ("--median-tokens", 60, "--sigma", 0.2, "--tokens-per-s", 240, "--slots", 4)
    source = prompts(tmp_path / "p.jsonl", 120)
    flags = ("--output", "out", "--concurrency", "6", "--max-attempts", "4", "--no-preflight")
    with (
        Servers(tmp_path, "--dialect", "vllm", *speed, count=1) as server,
        Command(tmp_path, "ops", "run", source, *server.flags, *flags) as command,
    ):
        wait_for(lambda: server.stats()["completions"] > 20, "work", 30)
        server.faults({"kind": "draining", "seconds": 6})
        text = command.ends(0, timeout=90)
        refused = sum(server.stats()["refused"].values())
    assert "120 completions" in text
    # Taken for faults of the prompts, there would be hundreds, four for each dead letter.
    assert 8 <= refused < 80
    assert progress(tmp_path / "out" / "p")["dead"] == 0
    proven(tmp_path / "out" / "p", source)
