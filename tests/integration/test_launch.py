import asyncio
import json
import os
import signal
import socket
import subprocess
import sys

import msgspec
import psutil
import pytest
import structlog
from structlog.testing import LogCapture
from support import fake_sglang
from support.ports import free_ports
from support.wait import patient, wait_for

from common.errors import UsageError
from ops.launch.machine import check_ports, installed_version, key_file
from ops.launch.plan import Command, LaunchSettings, Plan, plan
from ops.launch.probe import ready
from ops.launch.spelling import parse_version
from ops.launch.supervisor import Policy, Supervisor
from ops.launch.traits import Traits

QUICK = Policy(
    stagger=0.0,
    probe_every=0.05,
    start_timeout=20.0,
    stop_timeout=5.0,
    drain_timeout=5.0,
    first_delay=0.05,
    longest_delay=0.2,
    tries=3,
)


@pytest.fixture
def env(tmp_path, monkeypatch):
    values = fake_sglang.install(tmp_path / "site", "0.5.23")
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return values


def plans_for(count=1, **changes):
    settings = LaunchSettings(
        model="/m",
        served_name="m",
        gpus=tuple(str(gpu) for gpu in range(count)),
        base_port=free_ports(2, in_a_row=True)[0],
        python=sys.executable,
        **changes,
    )
    return plan(settings, parse_version("0.5.23"), Traits())


class Running:
    """A supervisor at work in the background, and what it has logged."""

    def __init__(self, plans, log_dir, policy=QUICK, secrets=()):
        self.capture = LogCapture()
        logger = structlog.wrap_logger(None, processors=[self.capture], wrapper_class=structlog.BoundLogger)
        self.supervisor = Supervisor(
            plans, policy=policy, log_dir=log_dir, ready=ready, log=logger, secrets=secrets
        )
        self.task = asyncio.ensure_future(self.supervisor.run())

    def events(self, name):
        return [entry for entry in self.capture.entries if entry["event"] == name]

    async def until(self, condition, seconds=30):
        async with asyncio.timeout(patient(seconds)):
            while not condition():
                if self.task.done():
                    self.task.result()
                    assert condition(), f"ended first: {self.capture.entries}"
                await asyncio.sleep(0.02)

    async def stop(self):
        self.supervisor.stop()
        return await asyncio.wait_for(self.task, patient(30))


async def test_servers_come_up_each_on_its_gpu_and_are_stopped(env, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_SGLANG_READY_AFTER", "0.3")
    plans = plans_for(2)
    running = Running(plans, tmp_path)
    await running.until(lambda: len(running.events("server_ready")) == 2)
    starts = fake_sglang.starts(env)
    assert sorted((start["gpu"], start["port"]) for start in starts) == [
        ("0", plans[0].port),
        ("1", plans[1].port),
    ]
    assert all(entry["after_s"] >= 0.3 for entry in running.events("server_ready"))
    assert await running.stop() == 0
    assert not any(psutil.pid_exists(start["pid"]) for start in starts)
    assert "leaving on SIGTERM" in (tmp_path / f"{plans[0].server.name}.log").read_text()


async def test_starts_are_staggered(env, tmp_path):
    running = Running(plans_for(2), tmp_path, msgspec.structs.replace(QUICK, stagger=2.0))
    await running.until(lambda: len(running.events("server_ready")) == 2)
    first, second = fake_sglang.starts(env)
    assert second["at"] - first["at"] > 0.4
    await running.stop()


async def test_a_server_that_dies_is_started_again_and_its_logs_reason_is_told(env, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_SGLANG_DIE_AFTER", "0.3")
    running = Running(plans_for(), tmp_path)
    await running.until(lambda: len(running.events("server_ready")) == 2)
    (death,) = running.events("server_died")
    assert death["reason"].startswith(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 62.00 GiB."
    )
    assert len(fake_sglang.starts(env)) == 2
    assert await running.stop() == 0


async def test_a_server_that_never_comes_up_is_given_up(env, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_SGLANG_DIE_STARTS", "1000")
    running = Running(plans_for(), tmp_path)
    assert await asyncio.wait_for(running.task, patient(30)) == 1
    assert len(fake_sglang.starts(env)) == QUICK.tries
    assert "OutOfMemory" in running.events("server_given_up")[0]["reason"]


async def test_a_server_that_is_never_ready_is_ended_and_started_again(env, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_SGLANG_READY_AFTER", "600")
    running = Running(plans_for(), tmp_path, msgspec.structs.replace(QUICK, start_timeout=1.0))
    await running.until(lambda: running.events("server_died"))
    assert "not ready after 1 s" in running.events("server_died")[0]["reason"]
    await running.stop()


async def test_what_a_server_leaves_behind_is_ended_too(env, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_SGLANG_SCHEDULER", str(tmp_path / "scheduler"))
    monkeypatch.setenv("FAKE_SGLANG_IGNORE_SIGTERM", "1")
    running = Running(plans_for(), tmp_path, msgspec.structs.replace(QUICK, stop_timeout=0.5))
    await running.until(lambda: running.events("server_ready"))
    scheduler = psutil.Process(int((tmp_path / "scheduler").read_text()))
    await running.stop()
    gone, _ = psutil.wait_procs([scheduler], timeout=patient(10))
    assert gone or scheduler.status() == psutil.STATUS_ZOMBIE


CONSUMER = """
import os, signal, sys, time
log = open(sys.argv[1], "a", buffering=1)
def leave(*_):
    import socket
    with socket.socket() as server:
        state = "up" if server.connect_ex(("127.0.0.1", int(os.environ["PORT"]))) == 0 else "down"
    log.write(f"server {state}\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
log.write("started\\n")
time.sleep(60)
"""


async def test_consumers_start_with_a_ready_server_and_stop_before_it(env, tmp_path):
    bare = plans_for()[0]
    script = tmp_path / "consumer.py"
    script.write_text(CONSUMER)
    diary = tmp_path / "diary"
    consumer = Command(
        name="consumer", argv=(sys.executable, str(script), str(diary)), env={"PORT": str(bare.port)}
    )
    running = Running([Plan(bare.url, bare.port, bare.server, consumer)], tmp_path)
    await running.until(lambda: diary.exists() and "started" in diary.read_text())
    assert [entry["event"] for entry in running.capture.entries] == [
        "server_starting",
        "server_ready",
        "consumer_started",
    ]
    await running.stop()
    assert diary.read_text().splitlines() == ["started", "server up"]


async def test_a_key_reaches_the_server_in_a_private_file_and_no_log(env, tmp_path, monkeypatch):
    with key_file(tmp_path, "s3cret: 'key'") as path:
        (private,) = tmp_path.glob(".server-key-*.yaml")
        assert str(private) == path
        assert private.stat().st_mode & 0o777 == 0o600
        running = Running(plans_for(key_file=path), tmp_path, secrets=["s3cret: 'key'"])
        await running.until(lambda: running.events("server_ready"))
        (start,) = fake_sglang.starts(env)
        assert "s3cret" not in " ".join(start["argv"])
        assert json.loads(start["key"].removeprefix("api-key: ")) == "s3cret: 'key'"
        await running.stop()
    assert not private.exists()
    for log in tmp_path.glob("*.log"):
        assert log.stat().st_mode & 0o777 == 0o600


async def test_a_log_folder_that_cannot_be_written_stops_everything(env, tmp_path):
    running = Running(plans_for(), tmp_path / "missing")
    with pytest.raises(UsageError, match="--log-dir"):
        await running.task


def test_the_installed_version_is_asked_of_the_interpreter(env, tmp_path):
    assert installed_version(sys.executable) == "0.5.23"
    with pytest.raises(UsageError, match="--python"):
        installed_version(str(tmp_path / "no-python"))


def test_a_taken_port_is_named_with_its_owner():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} .* by process {os.getpid()} "):
            check_ports("127.0.0.1", [port])
    check_ports("127.0.0.1", [port])


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "Tiny-1B"
    folder.mkdir()
    (folder / "config.json").write_text(
        '{"layer_types": ["linear_attention"], "num_nextn_predict_layers": 1}'
    )
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def command(model, tmp_path, *more):
    places = ["--model", model, "--stage-dir", tmp_path / "shm", "--log-dir", tmp_path / "logs"]
    return [sys.executable, "-m", "ops.cli", "launch", *map(str, places), "--python", sys.executable, *more]


def test_a_dry_run_prints_commands_and_starts_nothing(env, model, tmp_path):
    done = subprocess.run(
        command(model, tmp_path, "--gpus", "0-1", "--consumers", "--dry-run"),
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    assert len(lines) == 4
    assert lines[0].startswith("CUDA_VISIBLE_DEVICES=0 ")
    assert "--mamba-radix-cache-strategy extra_buffer" in lines[0]
    assert lines[3].startswith(
        "RQ_WORKER_CLASS=consumers.GenerationWorker SGLANG_URL=http://127.0.0.1:30001 "
    )
    assert lines[3].endswith("rq worker completions")
    assert not (tmp_path / "shm").exists()
    assert not (tmp_path / "logs").exists()


def start_two(model, tmp_path):
    """The command with two servers, returned once both are ready."""
    ports = ["--gpus", "0-1", "--base-port", str(free_ports(2, in_a_row=True)[0]), "--stagger", "0.1"]
    process = subprocess.Popen(command(model, tmp_path, *ports), stderr=subprocess.PIPE, text=True)
    assert process.stderr
    up = 0
    while up < 2:
        line = process.stderr.readline()
        assert line, "it ended early"
        up += json.loads(line)["event"] == "server_ready"
    return process


def test_the_command_stages_starts_and_ends_on_sigterm(env, model, tmp_path):
    with start_two(model, tmp_path) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(patient(30)) == 0
    assert (tmp_path / "shm" / "Tiny-1B" / "model.safetensors").read_bytes() == b"weights"
    assert {start["argv"][1] for start in fake_sglang.starts(env)} == {str(tmp_path / "shm" / "Tiny-1B")}


def test_a_second_signal_does_not_wait_for_servers_that_hang(env, model, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_SGLANG_IGNORE_SIGTERM", "1")
    with start_two(model, tmp_path) as process:
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(patient(15)) == 0
    wait_for(lambda: not alive(env), "servers gone")


def test_servers_do_not_outlive_a_launcher_that_was_killed(env, model, tmp_path):
    with start_two(model, tmp_path) as process:
        process.kill()
    wait_for(lambda: not alive(env), "servers gone")


def alive(env):
    return [start["pid"] for start in fake_sglang.starts(env) if psutil.pid_exists(start["pid"])]


def test_bad_usage_ends_with_a_sentence_and_code_2(env, tmp_path):
    done = subprocess.run(command(tmp_path, tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--model must name a model's folder" in done.stderr
    assert "Traceback" not in done.stderr
