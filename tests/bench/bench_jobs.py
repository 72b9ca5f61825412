"""The whole job, from a file of prompts to the data set on disk, beside what others use for it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import harness
import msgspec
import zstandard
from bench_producer import write_input
from harness import HERE, Row, Section, ratios, say
from peers import python_of

if TYPE_CHECKING:
    from collections.abc import Iterator

PROMPTS = int(os.environ.get("PROMPTMILL_BENCH_JOBS") or 2000)
AT_ONCE = 64
LATENCY_S = 0.2
OURS, PLAIN = "promptmill", "plain script"
PEERS = ("datatrove", "curator", "distilabel", "speculators")
LIMIT_S = 120.0

_REPLY = re.compile(rb"reply-(\d+) ")


@contextmanager
def stub(*flags: str, seconds: float = LATENCY_S) -> Iterator[str]:
    """The server of `stub.py`; its URL."""
    argv = [sys.executable, str(HERE / "stub.py"), str(seconds), *flags]
    with harness.running(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process.stdout.readline().decode().strip()


def command_of(name: str, server: str, prompts: Path, folder: Path) -> list[str]:
    """What a user of it would start."""
    rest = [server, str(prompts)]
    if name == OURS:
        flags = ["--output", str(folder), "--run", "bench", "--concurrency", str(AT_ONCE)]
        return harness.command("ops", "run", str(prompts), "--server", server, *flags)
    if name == PLAIN:
        argv = [sys.executable, str(HERE / "plain_script.py"), *rest, str(folder / "data.jsonl")]
    else:
        argv = [python_of(name), str(HERE / "job_worker.py"), name, *rest, str(folder)]
    return [*argv, str(AT_ONCE)]


def quiet(name: str, home: Path) -> dict[str, str]:
    """An environment in which nothing is sent anywhere, looked up on a hub, or kept for the next run."""
    env = harness.environment(
        HOME=str(home),
        HF_HUB_OFFLINE="1",
        DO_NOT_TRACK="1",
        HF_HUB_DISABLE_TELEMETRY="1",
        TELEMETRY_ENABLED="false",
        LITELLM_LOCAL_MODEL_COST_MAP="True",
    )
    if name in PEERS:
        del env["PYTHONPATH"]
    if name == "curator":
        # Its token counter would be downloaded; litellm, which it depends on, has a copy of that file.
        library = Path(python_of(name)).parents[1]
        env["TIKTOKEN_CACHE_DIR"] = str(next(library.rglob("litellm_core_utils/tokenizers")))
    return env


def lines_of(folder: Path) -> Iterator[bytes]:
    """Of the data set, in whatever form it is."""
    for path in sorted(folder.rglob("part-*.jsonl.zst")):
        yield from zstandard.ZstdDecompressor().stream_reader(path.open("rb")).read().splitlines()
    if (folder / "data.jsonl").exists():
        yield from (folder / "data.jsonl").read_bytes().splitlines()


def job(name: str, server: str, prompts: Path, home: Path) -> dict[str, Any]:
    """Run one contender once: figures of its processes, of the server, and of what it wrote."""
    folder = home / "out"
    folder.mkdir(parents=True)
    harness.post(f"{server}/stub/reset")
    argv, env, log = command_of(name, server, prompts, folder), quiet(name, home), home / "log"
    begun = time.monotonic()
    with log.open("wb") as told:
        process = subprocess.Popen(argv, env=env, cwd=harness.ROOT, stdout=told, stderr=told)
        limit = threading.Timer(LIMIT_S, process.kill)
        limit.start()
        _, status, used = os.wait4(process.pid, 0)
        limit.cancel()
    took = time.monotonic() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    text = log.read_text(errors="replace")
    if process.returncode:
        raise RuntimeError(f"{name} ended with {process.returncode}:\n{text[-2000:]}")
    seen = harness.get_json(f"{server}/stub/stats")
    rows = [set(_REPLY.findall(line)) for line in lines_of(folder)]
    found = set().union(*rows)
    return {
        "rate": PROMPTS / took,
        "steady": seen["answered"] / seen["span_s"],
        "in_flight": seen["mean_in_flight"],
        "ms": 1000 * (used.ru_utime + used.ru_stime) / PROMPTS,
        "amiss": (PROMPTS - len(found)) + (len(rows) - len(found)) + (seen["requests"] - PROMPTS),
        "version": version_of(name, text),
    }


def version_of(name: str, text: str) -> str:
    """That a peer told at its end."""
    last = text.strip().rpartition("\n")[2]
    return str(msgspec.json.decode(last)["version"]) if name in PEERS else ""


def bench_jobs(rounds: int) -> Section:
    """Each in turn, round by round."""
    seen: dict[str, list[dict[str, Any]]] = {name: [] for name in (OURS, PLAIN, *PEERS)}
    out: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="promptmill-bench-") as folder, stub() as server:
        prompts = Path(folder) / "prompts.jsonl"
        write_input(prompts, PROMPTS)
        for number in range(rounds):
            for name, runs in seen.items():
                if name in out:
                    continue
                try:
                    runs.append(
                        job(name, server, prompts, Path(folder) / f"{name}-{number}".replace(" ", "-"))
                    )
                except (RuntimeError, subprocess.CalledProcessError) as error:
                    if name in (OURS, PLAIN):
                        raise
                    out[name] = str(error).strip().rpartition("\n")[2]
                    say(f"{name} cannot run here: {error}")
            told = ", ".join(f"{k} {v[-1]['rate']:.0f}/s" for k, v in seen.items() if v)
            say(f"round {number + 1}: {told}")
    mine = seen[OURS]
    rows = []
    for name, runs in seen.items():
        if name in out:
            continue
        full = f"{name} {runs[-1]['version']}".strip()
        rows.append(Row(f"{full}: prompts/s, from the command to its end", [r["rate"] for r in runs]))
        if name != OURS:
            rows.append(
                Row(f"promptmill over {name}, from the command to its end", ratios(mine, runs, "rate"), "x")
            )
        rows.append(
            Row(f"{full}: prompts/s, from the first request to the last answer", [r["steady"] for r in runs])
        )
        if name != OURS:
            what = f"promptmill over {name}, from the first request to the last answer"
            rows.append(Row(what, ratios(mine, runs, "steady"), "x"))
        rows += [
            Row(f"{full}: in flight on average, as the server counts it", [r["in_flight"] for r in runs]),
            Row(f"{full}: CPU a prompt, start-up included", [r["ms"] for r in runs], "ms"),
            Row(f"{full}: rows lost or doubled, and requests made in vain", [r["amiss"] for r in runs]),
        ]
    missing = "".join(f" {name} could not run here: `{why}`." for name, why in out.items())
    return Section(
        "Peers: the whole job",
        f"{PROMPTS:,} prompts of 1.2 KB from a JSONL file to a data set on disk, {AT_ONCE} in flight, one "
        f"server that answers each request after {LATENCY_S} s (at most {AT_ONCE / LATENCY_S:.0f}/s) and "
        "costs almost no CPU time. Ours is `ops run`, everything in it: checks of servers and input, a Redis "
        "of its own with its file on disk, the quality gate, the collector; `ops verify` is not. The plain "
        "script is asyncio, aiohttp, a semaphore and a file. The peers are their newest packages, used as "
        "their documentation shows: datatrove's inference runner with an endpoint, curator's `LLM`, a "
        "distilabel pipeline of one step (a batch is what it has in flight), and speculators' command that "
        "regenerates responses (its torch left out, with a tokenizer of whole words). SpecForge's script is "
        f"in no package, so it is not here.{missing}",
        rows,
        "A job this short is a good part start-up: ours starts four processes and looks before it leaps, "
        "which a job of seconds notices and a job of hours does not. CPU time of ours is that of all its "
        "processes, Redis included. The others judge no answer and prove no output.",
    )
