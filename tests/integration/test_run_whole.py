"""`ops run` as a user types it, from prompts to a proven data set: every form of input and of place."""

from __future__ import annotations

import contextlib
import gzip
import json
import subprocess
import sys

import msgspec
import pytest
import redis
import zstandard
from support.flow import Command, Servers, environment, progress, prompts, proven, records

from common.storage.base import PROBE_FOLDER

RICH = [
    {"id": "plain", "prompt": "Say <café>,\u2028 twice", "metadata": {"k": 1}},
    {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]},
    {"id": "own", "prompt": "Less", "params": {"temperature": 0.1, "max_output_tokens": 77, "seed": 5}},
    {
        "id": "turns",
        "conversations": [
            {"from": "human", "value": "First question"},
            {"from": "gpt", "value": "an old answer"},
            {"from": "human", "value": "Second question"},
            {"from": "gpt", "value": "another old answer"},
        ],
    },
    {
        "custom_id": "batch",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"messages": [{"role": "user", "content": "From a batch"}], "max_tokens": 50},
    },
]


def rich_text() -> bytes:
    lines = [json.dumps(line, ensure_ascii=False).encode() for line in RICH]
    # Exactly as it stands: spaces, the order of keys, numbers that a float would change.
    lines[0] = lines[0].replace(b'{"k": 1}', b'{ "b":1.10, "a" : 12345678901234567890, "s":"\\u00e9"}')
    return b"\xef\xbb\xbf" + b"\r\n".join(lines) + b"\r\n\r\n"


def test_the_old_scripts_call_translated_one_to_one(tmp_path, servers):
    source = prompts(tmp_path / "X.jsonl", 40)
    a, b = servers.urls
    words = f"--server {a} --server {b} --output D --max-output-tokens 4096 --concurrency 48".split()
    with Command(tmp_path, "ops", "run", "X.jsonl", *words) as command:
        text = command.ends()
    place = tmp_path / "D" / "X"
    assert "Run X is done: 40 completions" in text
    assert f"ops verify {place}" in text
    proven(place, source)
    found = records(place)
    assert {record.server for record in found} <= {a, b}
    assert {record.params["max_output_tokens"] for record in found} == {4096}
    assert progress(place)["state"] == "finished"
    # A healthy run is quiet: nothing above `info` in any part's log.
    logs = sorted((tmp_path / "D" / ".promptmill" / "X" / "logs").glob("*.log"))
    assert [file.stem for file in logs] == ["collector", "consumer-0", "consumer-1", "producer"]
    events = [json.loads(line) for file in logs for line in file.read_text().splitlines() if line[0] == "{"]
    assert {event["level"] for event in events} == {"info"}, events
    assert {event.get("server") for event in events if event["component"] == "consumer"} == {a, b}
    assert all(event.get("worker") for event in events if event["component"] == "consumer")
    # The command that it names, typed.
    said = subprocess.run(
        [sys.executable, "-m", "ops.cli", "verify", str(place)],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "PROVEN: each of the 40 prompts ended exactly once" in said.stdout
    # Once more: everything is there, nothing is asked again.
    asked = sum(servers.stats(n)["requests"] for n in (0, 1))
    with Command(tmp_path, "ops", "run", "X.jsonl", *words, "--no-preflight") as command:
        assert "Run X is done: 40 completions" in command.ends()
    assert sum(servers.stats(n)["requests"] for n in (0, 1)) == asked


@pytest.mark.parametrize("form", ["stdin", "gz", "zst"])
def test_every_line_shape_in_every_wrapping_comes_out_whole(tmp_path, servers, form):
    text = rich_text()
    source = tmp_path / "rich.jsonl"
    source.write_bytes(text)
    stdin, name, runs = None, "rich.jsonl", "rich"
    if form == "stdin":
        stdin, name, runs = text, "-", "stdin"
    elif form == "gz":
        name = "rich.jsonl.gz"
        (tmp_path / name).write_bytes(gzip.compress(text))
    else:
        name = "rich.jsonl.zst"
        (tmp_path / name).write_bytes(zstandard.ZstdCompressor().compress(text))
    samples = ("--samples", "3") if form == "gz" else ()
    every = ("--regenerate", "all", "--system", "Be kind.") if form == "zst" else ()
    with Command(
        tmp_path, "ops", "run", name, *servers.flags, "--output", "out", *samples, *every, "--no-preflight",
        stdin=stdin,
    ) as command:  # fmt: skip
        command.ends()
    place = tmp_path / "out" / runs
    proven(place, source)
    found = records(place)
    copies = 3 if samples else 1
    assert [record.index for record in found] == [n for n in range(5) for _ in range(copies)]
    by_id = {record.id: record for record in found}
    assert set(by_id) == {"plain", found[copies].id, "own", "turns", "batch"}
    assert by_id["plain"].messages[-1].content == "Say <café>,\u2028 twice"
    assert bytes(by_id["plain"].metadata) == b'{ "b":1.10, "a" : 12345678901234567890, "s":"\\u00e9"}'
    assert by_id["own"].metadata is msgspec.UNSET
    assert by_id["own"].params["temperature"] == 0.1
    assert by_id["own"].params["max_output_tokens"] == 77
    assert by_id["batch"].params["max_output_tokens"] == 50
    assert by_id["plain"].params["temperature"] == 0.6
    if samples:
        assert [record.sample for record in found] == [0, 1, 2] * 5
        # A seed of the line's own is a start: the samples of a prompt are to differ.
        assert [record.params.get("seed") for record in found[6:9]] == [5, 6, 7]
        assert len({record.response.content for record in found[6:9]}) == 3
    turns = by_id["turns"]
    if not every:
        assert [m.content for m in turns.messages] == ["First question", "an old answer", "Second question"]
        assert turns.turns is msgspec.UNSET
        return
    (first,) = turns.turns
    assert first.position == 1
    assert first.response.reasoning_content
    # Its own new answer is the history of the next turn, without the thinking before it.
    assert [m.role for m in turns.messages] == ["system", "user", "assistant", "user"]
    assert turns.messages[0].content == "Be kind."
    assert turns.messages[2].content == first.response.content.lstrip("\n")
    assert found[1].messages[0].content == "Be brief."


def test_two_runs_at_once_in_one_redis_whose_parts_go_to_s3_and_a_folder(
    tmp_path, servers, redis_url, s3_server
):
    one, two = prompts(tmp_path / "one.jsonl", 300), prompts(tmp_path / "two.jsonl", 300, "Tell {n}")
    shared = (*servers.flags, "--redis", redis_url, "--batch-size", "64", "--no-preflight")
    place = f"s3://{s3_server.bucket}/completions"
    with (
        Command(tmp_path, "ops", "run", one, "--output", place, *shared) as first,
        Command(tmp_path, "ops", "run", two, "--output", "out", *shared) as second,
    ):
        first.ends()
        second.ends()
    proven(f"{place}/one", one)
    proven(tmp_path / "out" / "two", two)
    assert {record.run for record in records(f"{place}/one")} == {"one"}
    found = s3_server.client().list_objects_v2(Bucket=s3_server.bucket)["Contents"]
    keys = [one["Key"] for one in found if f"/{PROBE_FOLDER}/" not in one["Key"]]
    parts = [f"completions/one/part-{n:06d}.jsonl.zst" for n in range(5)]
    assert sorted(keys) == ["completions/one/manifest.json", *parts, "completions/one/progress.json"]
    with redis.Redis.from_url(redis_url) as client:
        assert client.smembers("pm:active") == set()


def test_one_run_over_servers_of_every_engine(tmp_path):
    """SGLang, vLLM and llama.cpp each speak their own dialect of the same API."""
    source = prompts(tmp_path / "p.jsonl", 1200)  # more than a slow start of one consumer can use up
    quick = ("--median-tokens", 60, "--time-scale", 20, "--slots", 4)
    with contextlib.ExitStack() as stack:
        fleets = [
            stack.enter_context(Servers(tmp_path, *quick, "--dialect", dialect, count=1))
            for dialect in ("sglang", "vllm", "llamacpp")
        ]
        flags = [word for fleet in fleets for word in fleet.flags]
        argv = ("ops", "run", source, *flags, "--output", "out", "--concurrency", "4", "--no-preflight")
        with Command(tmp_path, *argv) as command:
            command.ends(0)
        urls = {url for fleet in fleets for url in fleet.urls}
    place = tmp_path / "out" / "p"
    proven(place, source)
    found = records(place)
    assert {record.server for record in found} == urls
    assert all(record.response.reasoning_content and record.response.content for record in found)
