"""Preflight as a whole, called and typed: simulated servers, a real Redis, an S3 API, folders."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

import pytest
import redis
from aiohttp import web
from support.wait import patient

from common.options import Chosen
from common.settings import ConsumerSettings, GenerationSettings, QualitySettings
from ops.preflight import Wanted, run_preflight
from ops.preflight.gather import in_thread
from ops.simulator import Fault, FaultKind, ServerSettings, running_simulators
from producer.source import Source

KEY = "preflight-key"
DOWN = "http://127.0.0.1:9"

SERVER = ServerSettings(
    slots=16, context=65_536, median_tokens=300, sigma=0.4, time_scale=50.0, health_delay_s=0.01
)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("PROMPTMILL_", "SGLANG_", "RQ_"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text(
        "".join(json.dumps({"id": f"p{n}", "prompt": f"Tell {n} " * 20}) + "\n" for n in range(300))
    )
    return Source(name="p.jsonl", path=str(path))


def settings(*, concurrency: int = 0, high_water: int = 50_000, **generation) -> Chosen:
    return Chosen(
        generation=GenerationSettings(**{"max_output_tokens": 32_768, **generation}),
        quality=QualitySettings(),
        consumer=ConsumerSettings(concurrency=concurrency),
        batch_size=500,
        high_water=high_water,
        skip_invalid=False,
        order="input",
        order_field=None,
    )


async def preflight(*servers: str, chosen: Chosen | None = None, **wanted):
    """The report, made in a thread as `ops run` does."""
    asked = Wanted(servers=servers, chosen=chosen or settings(), **wanted)
    return await asyncio.to_thread(run_preflight, asked)


def remarks(report) -> dict[str, str]:
    return {check.name: check.status.value for check in report.remarks}


async def test_a_good_fleet_passes_with_an_estimate_in_seconds(prompts, redis_url, tmp_path):
    begun = time.monotonic()
    async with running_simulators(SERVER, count=3) as fleet:
        report = await preflight(
            *(server.url for server in fleet),
            source=prompts,
            output=str(tmp_path / "out"),
            redis_url=redis_url,
            expected_tokens=1820,
        )
    assert not report.failed
    assert remarks(report) == {}
    assert report.estimate is not None
    assert (report.estimate.completions, report.estimate.servers) == (300, 3)
    assert report.estimate.at_best
    assert [facts.canary.answered for facts in report.servers] == [True] * 3
    assert time.monotonic() - begun < patient(15)


async def test_a_server_that_runs_16_of_64_is_told_with_the_remedy(prompts):
    capped = ServerSettings(
        slots=16, requested_slots=64, time_scale=50.0, health_delay_s=0.01, median_tokens=100
    )
    async with running_simulators(capped) as [server]:
        report = await preflight(server.url, source=prompts, chosen=settings(concurrency=64))
    assert remarks(report) == {"runs at once": "warn", "concurrency": "warn"}
    assert not report.failed


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"reasoning_parser": False}, {"reasoning parser": "warn", "canary": "warn"}),
        ({"version": "0.5.11"}, {"version": "warn"}),
        ({"context": 2048}, {"longest prompt": "fail"}),
        ({"dialect": "vllm"}, {}),
        ({"dialect": "llamacpp"}, {}),
    ],
)
async def test_servers_as_they_are_set_up(prompts, changes, expected):
    fields = {name: getattr(SERVER, name) for name in SERVER.__struct_fields__} | changes
    async with running_simulators(ServerSettings(**fields)) as [server]:
        report = await preflight(server.url, source=prompts)
    assert remarks(report) == expected


@pytest.mark.parametrize(
    ("kind", "alone", "in_a_run"),
    [
        (FaultKind.ANSWER_IN_REASONING, "fail", "warn"),
        (FaultKind.EMPTY, "fail", "warn"),
        (FaultKind.THINK_IN_CONTENT, "warn", "warn"),
        (FaultKind.ERROR_500, "fail", "warn"),
        (FaultKind.WRONG_MODEL, "fail", "fail"),
    ],
)
async def test_a_bad_canary_fails_but_only_warns_a_run_that_guards_itself(kind, alone, in_a_run):
    async with running_simulators(SERVER, faults=[Fault(kind=kind)]) as [server]:
        for quick, status in ((False, alone), (True, in_a_run)):
            report = await preflight(server.url, quick=quick)
            assert remarks(report) == {"canary": status}, report.remarks


async def test_dead_servers_fail_alone_and_are_waited_for_by_a_run():
    async with running_simulators(SERVER) as [server]:
        alone = await preflight(server.url, DOWN)
        in_a_run = await preflight(server.url, DOWN, quick=True)
    assert remarks(alone) == {"reachable": "fail"}
    assert remarks(in_a_run) == {"reachable": "warn"}
    assert remarks(await preflight(DOWN, quick=True)) == {"reachable": "warn"}


async def test_two_models_fail_in_a_run_too():
    other = ServerSettings(model="qwen3-8b", time_scale=50.0, health_delay_s=0.01, median_tokens=100)
    async with running_simulators([SERVER, other]) as fleet:
        report = await preflight(*(server.url for server in fleet), quick=True)
    assert remarks(report) == {"same model": "fail"}


@pytest.mark.parametrize(
    ("key", "expected"), [(KEY, {}), ("wrong", {"reachable": "fail"}), (None, {"reachable": "fail"})]
)
async def test_the_api_key_is_used_and_never_shown(monkeypatch, key, expected):
    if key:
        monkeypatch.setenv("SGLANG_API_KEY", key)
    fields = {name: getattr(SERVER, name) for name in SERVER.__struct_fields__} | {"api_key": KEY}
    async with running_simulators(ServerSettings(**fields)) as [server]:
        report = await preflight(server.url, quick=True)
    assert remarks(report) == expected
    assert KEY not in str(report)


async def test_a_stuck_server_costs_a_run_seconds_not_minutes():
    begun = time.monotonic()
    async with running_simulators(SERVER, faults=[Fault(kind=FaultKind.STUCK)]) as [server]:
        report = await preflight(server.url, quick=True)
    assert remarks(report) == {"reachable": "warn"}
    assert time.monotonic() - begun < patient(20)


async def test_a_full_server_is_not_asked_for_a_canary_by_a_run():
    slow = ServerSettings(slots=1, time_scale=1.0, tokens_per_s=10.0, median_tokens=5000, health_delay_s=0.01)
    async with running_simulators(slow) as [server]:
        async with asyncio.timeout(patient(20)):
            busy = asyncio.create_task(preflight(server.url))
            while not server.stats()["running"]:  # noqa: ASYNC110  # the simulator tells by figures alone
                await asyncio.sleep(0.02)
            report = await preflight(server.url, quick=True)
        busy.cancel()
    assert remarks(report) == {"load": "warn"}
    assert report.servers[0].canary is None


async def test_the_batch_shows_what_a_small_limit_cuts_and_the_guard_would_stop(prompts):
    long = ServerSettings(slots=32, median_tokens=900, sigma=0.3, time_scale=100.0, health_delay_s=0.01)
    async with running_simulators(long, count=2) as fleet:
        urls = [server.url for server in fleet]
        small = await preflight(*urls, source=prompts, canary=32, chosen=settings(max_output_tokens=300))
        large = await preflight(*urls, source=prompts, canary=32)
    assert remarks(small) == {"token limit": "warn", "cut off": "warn", "quality guard": "fail"}
    assert small.batch.verdicts["truncated_thinking"] > 20
    assert remarks(large) == {}
    assert large.batch.judged == 32
    assert set(large.batch.rates) == set(urls)
    assert 500 < large.estimate.tokens_each < 1500
    assert not large.estimate.at_best
    assert not large.estimate.at_most


async def test_a_sweep_sees_where_the_slots_end(prompts):
    eight = ServerSettings(slots=8, median_tokens=200, sigma=0.1, time_scale=2.5, health_delay_s=0.01)
    said = []
    async with running_simulators(eight) as [server]:
        wanted = Wanted(
            servers=[server.url],
            chosen=settings(),
            source=prompts,
            sweep=[2, 8, 16],
            sweep_tokens=100,
            expected_tokens=200,
        )
        report = await asyncio.to_thread(run_preflight, wanted, say=said.append)
    [curve] = report.curves
    assert said == [f"sweep: {level} in flight" for level in (2, 8, 16)]
    assert [(point.in_flight, point.requests, point.failures) for point in curve.points] == [
        (2, 6, 0),
        (8, 24, 0),
        (16, 48, 0),
    ]
    two, full, queued = curve.points
    assert 2 < full.tokens_per_s / two.tokens_per_s < 5
    # On a busy machine a queue also hides our own turnaround, so the knee may seem a little higher.
    assert queued.tokens_per_s == pytest.approx(full.tokens_per_s, rel=0.35)
    assert curve.knee in (8, 16)
    assert queued.p50_s > 1.3 * full.p50_s
    assert two.accept_length > 1
    at_knee = full if curve.knee == 8 else queued
    assert report.estimate.tokens_per_s == at_knee.tokens_per_s
    assert report.estimate.wall_s == pytest.approx(300 * 200 / at_knee.tokens_per_s)


async def test_conformance_is_part_of_the_report():
    async with running_simulators(
        ServerSettings(context=4096, median_tokens=60, time_scale=50.0, health_delay_s=0.01)
    ) as [server]:
        report = await preflight(server.url, conformance=True, chosen=settings(max_output_tokens=1000))
    found = [check for check in report.checks if check.group == f"conformance {server.url}"]
    assert {"health", "answer", "too_long", "abort"} <= {check.name for check in found}


async def test_an_unsafe_redis_fails_and_an_absent_one_too(redis_url, prompts):
    with redis.Redis.from_url(redis_url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            evicts = await preflight(DOWN, quick=True, redis_url=redis_url, source=prompts)
        finally:
            client.config_set("maxmemory-policy", "noeviction")
    absent = await preflight(DOWN, quick=True, redis_url="redis://:secret@127.0.0.1:9/0")
    assert remarks(evicts)["version"] == "fail"
    assert absent.failed
    assert "secret" not in str(absent)


async def test_an_output_that_cannot_be_written_fails(tmp_path, s3_server):
    (tmp_path / "file").write_text("")
    folder = await preflight(DOWN, quick=True, output=str(tmp_path / "file" / "x"))
    no_bucket = await preflight(DOWN, quick=True, output="s3://no-such-bucket-here/x")
    good = await preflight(DOWN, quick=True, output=f"s3://{s3_server.bucket}/x")
    assert remarks(folder)["storage"] == "fail"
    assert remarks(no_bucket)["storage"] == "fail"
    assert "storage" not in remarks(good)


async def test_unusable_lines_fail_and_a_run_leaves_them_to_the_producer(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": 3}\n')
    source = Source(name="bad.jsonl", path=str(path))
    alone = await preflight(DOWN, source=source)
    assert remarks(alone)["lines"] == "fail"
    assert any("line 2" in check.detail for check in alone.remarks)
    assert "lines" not in remarks(await preflight(DOWN, source=source, quick=True))


async def test_settings_that_a_server_refuses_fail_in_a_run_too():
    async with running_simulators(SERVER) as [server]:
        report = await preflight(server.url, quick=True, chosen=settings(extra_body={"temperature": -1.0}))
    assert remarks(report) == {"canary": "fail"}


async def test_the_servers_tokenizer_counts_where_there_is_one(prompts):
    counted = []

    async def tokenize(request: web.Request) -> web.Response:
        body = await request.json()
        if "messages" in body:
            return web.json_response({"object": "error", "message": "prompt is missing"}, status=400)
        counted.append(len(body["prompt"]))
        return web.json_response({"tokens": [1] * len(body["prompt"]), "count": len(body["prompt"])})

    async def models(_: web.Request) -> web.Response:
        card = {"id": "m", "object": "model", "owned_by": "sglang", "max_model_len": 40_000}
        return web.json_response({"object": "list", "data": [card]})

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.router.add_post("/tokenize", tokenize)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/health", health)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        report = await preflight(f"http://127.0.0.1:{port}", source=prompts, quick=True)
    finally:
        await runner.cleanup()
    [longest] = [check for check in report.checks if check.name == "longest prompt"]
    assert max(counted) == len("Tell 299 " * 20)
    tokens, how = longest.detail.split(";")[0].split(" tokens ")
    assert how == "(counted by the server)"
    assert max(counted) + 16 <= int(tokens) <= max(counted) + 20


async def test_work_in_a_thread_is_left_behind_when_its_time_is_over():
    with pytest.raises(TimeoutError):
        await in_thread(lambda: time.sleep(1), 0.05)
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 / 0, 5)


# As typed


async def command(*argv: str, **env: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "ops.cli",
        *argv,
        env={**os.environ, **env},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode or 0, out.decode(), err.decode()


async def test_the_command_prints_a_table_and_exits_by_its_finding(prompts):
    async with running_simulators(SERVER) as [server]:
        good = await command("preflight", prompts.path, "--server", server.url)
        bad = await command("preflight", "--server", server.url, "--server", DOWN)
        as_json = await command(
            "preflight",
            prompts.path,
            "--server",
            server.url,
            "--sweep",
            "2,1",
            "--sweep-tokens",
            "20",
            "--json",
        )
    assert good[0] == 0
    assert "300 prompts" in good[1]
    assert "Estimate" in good[1]
    assert good[1].splitlines()[-1] == "Ready, 1 to look at."
    assert bad[0] == 2
    assert "start the server or correct its URL" in " ".join(bad[1].split())
    report = json.loads(as_json[1])
    assert [point["in_flight"] for point in report["curves"][0]["points"]] == [1, 2]
    assert report["estimate"]["completions"] == 300


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["--server", DOWN, "--canary", "3"], "name a file"),
        (["--server", DOWN, "--sweep", "0"], "--sweep"),
        (["no-such-file.jsonl", "--server", DOWN], "no-such-file.jsonl"),
        (["--server", DOWN, "--server", DOWN], "twice"),
        (["--server", DOWN, "--concurrency", "many"], "concurrency"),
    ],
)
async def test_bad_usage(argv, word):
    code, _, err = await command("preflight", *argv)
    assert code == 2
    assert word in err


async def test_a_run_begins_no_work_when_preflight_fails(prompts, tmp_path):
    other = ServerSettings(model="qwen3-8b", time_scale=50.0, health_delay_s=0.01, median_tokens=100)
    output = tmp_path / "out"
    argv = ["run", prompts.path, "--output", str(output), "--max-output-tokens", "20000"]
    async with running_simulators([SERVER, other]) as fleet:
        for server in fleet:
            argv += ["--server", server.url]
        code, _, err = await command(*argv, XDG_STATE_HOME=str(tmp_path / "state"))
    assert code == 2
    assert "one run is of one model" in " ".join(err.split())
    assert "Nothing was begun" in err
    assert "pass" not in err
    assert not (output / "p").exists()


async def test_a_run_that_passes_goes_on_in_silence(tmp_path):
    path = tmp_path / "few.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    argv = ["run", str(path), "--output", str(tmp_path / "out"), "--max-output-tokens", "20000"]
    async with running_simulators(SERVER) as [server]:
        code, _, err = await command(
            *argv, "--server", server.url, "--flush-seconds", "0.2", XDG_STATE_HOME=str(tmp_path / "state")
        )
    assert code == 0, err
    assert "2 completions" in err
    assert not any(line.startswith(("warn", "fail", "pass")) for line in err.splitlines())
