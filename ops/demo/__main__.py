"""The demo: an S3 API and simulated servers, then `ops run` and `ops verify` as a user would type them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import msgspec
import zstandard

from common.storage import open_storage
from ops import guard
from ops.demo.s3 import BUCKET

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT: Final = Path(__file__).resolve().parents[2]
PROMPTS: Final = ROOT / "examples" / "prompts.jsonl"
FOLDER: Final = Path("demo-output")
RUN: Final = "demo"
OUTPUT: Final = f"s3://{BUCKET}/completions"
SERVERS: Final = 2
START_TIMEOUT: Final = 30.0
DRAIN: Final = 30.0
"""Seconds that the run has to drain if the demo itself is killed."""

OPS: Final = (sys.executable, "-m", "ops.cli")
INTERRUPTED: Final = 130


def main() -> int:
    """Run the demo; returns the exit code of the first step that failed, or 0."""
    if not PROMPTS.exists():
        return _fail(f"{PROMPTS} is missing: the demo runs from a clone of the repository")
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    begin = time.monotonic()
    with contextlib.ExitStack() as parts:
        log = parts.enter_context((FOLDER / "parts.log").open("wb"))
        _say(f"starting an S3 API and {SERVERS} simulated SGLang servers on this machine")
        environment = _environment(parts.enter_context(_s3(log)))
        servers = parts.enter_context(_simulated_servers(environment, log))
        for step in (_run_step(servers), ["verify", f"{OUTPUT}/{RUN}", "--input", str(PROMPTS)]):
            _say(" ".join(["ops", *step]))
            code = _foreground([*OPS, *step], environment)
            if code:
                return _fail(
                    f"`ops {step[0]}` ended with exit code {code}; the parts' log is {log.name}", code
                )
        copied = _copy_out(environment)
    _show(copied, time.monotonic() - begin)
    return 0


def _run_step(servers: list[str]) -> list[str]:
    flags = [flag for url in servers for flag in ("--server", url)]
    return ["run", str(PROMPTS), *flags, "--output", OUTPUT, "--run", RUN]


def _environment(s3_url: str) -> dict[str, str]:
    """What a user would have in the environment; settings of the real one do not leak in."""
    own = ("AWS_", "PROMPTMILL_", "SGLANG_", "RQ_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return environment | {
        "AWS_ENDPOINT_URL": s3_url,
        "AWS_ACCESS_KEY_ID": "demo",
        "AWS_SECRET_ACCESS_KEY": "demo",
        "AWS_DEFAULT_REGION": "us-east-1",
        "PYTHONPATH": str(ROOT),
        # The simulated servers are on this machine, whatever proxy the environment names.
        "NO_PROXY": "127.0.0.1,localhost",
    }


@contextlib.contextmanager
def _s3(log: IO[bytes]) -> Iterator[str]:
    argv = [sys.executable, "-m", "ops.demo.s3"]
    with _background(argv, _environment(""), log, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None  # noqa: S101  # it is a pipe, as asked for two lines above
        url = process.stdout.readline().decode().strip()
        if not url:
            raise SystemExit(_fail(f"the S3 API did not start; see {log.name}"))
        yield url


@contextlib.contextmanager
def _simulated_servers(environment: Mapping[str, str], log: IO[bytes]) -> Iterator[list[str]]:
    port = _free_ports(SERVERS)
    urls = [f"http://127.0.0.1:{port + n}" for n in range(SERVERS)]
    # Twelve times as fast as real ones: the demo shows the flow, not the wait.
    argv = [*OPS, "simulate", "--servers", str(SERVERS), "--port", str(port), "--time-scale", "12"]
    with _background(argv, environment, log, stdout=log):
        for url in urls:
            _wait_until_healthy(url, log)
        yield urls


@contextlib.contextmanager
def _background(
    argv: list[str], environment: Mapping[str, str], log: IO[bytes], *, stdout: IO[bytes] | int
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with this block, or with the demo, however the demo ends."""
    with guard.spawn(argv, env=environment, stdout=stdout, stderr=log) as process:
        try:
            yield process
        finally:
            process.terminate()


def _foreground(argv: list[str], environment: Mapping[str, str]) -> int:
    """Run a command on this terminal; a signal to the demo is the command's to answer."""
    with guard.spawn(argv, env=environment, cwd=FOLDER, grace=DRAIN) as process:
        passed_on = {
            number: signal.signal(number, lambda received, _: process.send_signal(received))
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            return process.wait()
        finally:
            for number, handler in passed_on.items():
                signal.signal(number, handler)


def _free_ports(count: int) -> int:
    """The first of `count` ports in a row that are free on loopback."""
    for first in range(30_000, 32_000, count):
        with contextlib.ExitStack() as held:
            try:
                for port in range(first, first + count):
                    held.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
        return first
    raise SystemExit(_fail("no free ports on 127.0.0.1 between 30000 and 32000"))


def _wait_until_healthy(url: str, log: IO[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            with direct.open(f"{url}/health", timeout=5.0):
                return
        except (urllib.error.URLError, OSError):
            if time.monotonic() > deadline:
                raise SystemExit(_fail(f"the simulated server {url} did not start; see {log.name}")) from None
            time.sleep(0.1)


def _copy_out(environment: Mapping[str, str]) -> Path:
    """Keep the run's objects: the demo's S3 holds them in memory and ends with it."""
    os.environ.update({name: value for name, value in environment.items() if name.startswith("AWS_")})
    source, folder = open_storage(f"{OUTPUT}/{RUN}"), FOLDER / "completions" / RUN
    target = open_storage(str(folder))
    for entry in source.list():
        target.create(entry.name, source.read(entry.name))
    return folder


def _show(folder: Path, seconds: float) -> None:
    parts = sorted(folder.glob("part-*.jsonl.zst"))
    with zstandard.open(parts[0], "rt", encoding="utf-8", newline="\n") as lines:
        first = msgspec.json.decode(next(iter(lines)))
    size = sum(part.stat().st_size for part in parts)
    _say(f"done in {seconds:.0f} s: {len(parts)} parts, {size / 1e6:.1f} MB, copied out of S3 to {folder}/")
    answer = " ".join((first["response"]["content"] or "").split())
    _tell(f"  the first record: id {first['id']}, verdict {first['verdict']}, from {first['server']}")
    _tell(f"    {answer[:100]}...")
    _say("what to look at next")
    for command, what in (
        (f"cat {folder}/manifest.json", "the run's settings, and each part with its hash"),
        (f".venv/bin/ops verify {folder} --input {PROMPTS.relative_to(ROOT)}", "prove it once more"),
        (
            f".venv/bin/ops export {folder} {FOLDER}/data --format jsonl",
            "plain JSON lines, to read and to train on",
        ),
        (".venv/bin/ops run --help", "then with your own prompts and servers; README.md goes on from here"),
    ):
        _tell(f"  {command}\n      {what}")


def _say(text: str) -> None:
    _tell(f"\n== {text} ==")


def _tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _fail(text: str, code: int = 1) -> int:
    sys.stderr.write(f"demo: {text}\n")
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(_fail("interrupted; everything it started has ended", INTERRUPTED))
