"""`make bench`: measures, and writes docs/performance.md.

`python tests/bench/run.py [NAME ...] [--rounds N]`: benches by name, all without one. Figures are kept in
docs/performance.json, so that one bench can be repeated alone; the page is made from that file.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
import signal
import sys
import time
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT)]

import msgspec  # noqa: E402  # after the path is set
from harness import Row, Section, redis_server  # noqa: E402  # the same
from redis import Redis  # noqa: E402  # the same

BENCHES = {
    "noop": "bench_consumer",
    "http": "bench_consumer",
    "start": "bench_consumer",
    "collector": "bench_collector",
    "producer": "bench_producer",
    "memory": "bench_producer",
    "flat": "bench_flat",
    "occupancy": "bench_slots",
    "auto": "bench_slots",
    "silent": "bench_slots",
    "order": "bench_order",
    "whole": "bench_whole",
    "peers": "bench_consumer",
    "jobs": "bench_jobs",
    "export": "bench_export",
}
"""Every bench and the file that has it, in the order of the report."""

DATA = ROOT / "docs" / "performance.json"
PAGE = ROOT / "docs" / "performance.md"

HEAD = """# Performance

Written by `make bench` (`tests/bench`); do not edit. Figures are medians, with the smallest and the largest
value behind them; whatever is compared was measured in turn in the same run, so that a noisy machine spoils
both sides alike. CPU time is steadier than rates are. A goal that is missed says so.
"""


class Kept(msgspec.Struct):
    """One bench's last result, and how the machine was."""

    section: Section
    at: str
    rounds: int
    seconds: float
    load: float
    machine: str
    versions: str


def machine() -> str:
    """The processor, cores and memory."""
    facts = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = next(
        (line.partition(":")[2].strip() for line in facts.splitlines() if "model name" in line),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores of {model}, {memory:.0f} GiB, {platform.system()} {platform.release()}"


def versions() -> str:
    """Of everything that the figures depend on."""
    with redis_server() as url, Redis.from_url(url) as client:
        info = client.info()
    server = (
        f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info['redis_version']}"
    )
    names = ("rq", "redis", "hiredis", "aiohttp", "uvloop", "msgspec", "zstandard", "pyarrow")
    return f"CPython {platform.python_version()}, {server}, " + ", ".join(f"{n} {version(n)}" for n in names)


def number(value: float) -> str:
    """Three figures that count."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def line(row: Row) -> str:
    """A row of a table."""
    met = {None: "", True: "reached", False: "**missed**"}[row.met]
    goal = row.goal.replace(">=", "≥").replace("<=", "≤")
    unit = f" {row.unit}" if row.unit else ""
    spread = f"{number(min(row.values))} to {number(max(row.values))}" if len(row.values) > 1 else "one run"
    note = f" ({row.note})" if row.note else ""
    return f"| {row.what}{note} | {number(row.median)}{unit} | {spread} | {goal} | {met} |"


def page(kept: dict[str, Kept]) -> str:
    """The whole page."""
    parts = [HEAD]
    for name in BENCHES:
        if name not in kept:
            continue
        found = kept[name]
        section = found.section
        parts.append(f"\n## {section.title}\n\n{section.text}\n")
        parts.append("| what | median | spread | goal | |\n|---|---|---|---|---|")
        parts += [line(row) for row in section.rows]
        if section.after:
            parts.append(f"\n{section.after}")
        parts.append(
            f"\n*{found.rounds} rounds in {found.seconds:.0f} s, {found.at}, load average {found.load:.1f} "
            f"on {found.machine}; {found.versions}. Again: `python tests/bench/run.py {name}`.*"
        )
    return "\n".join(parts) + "\n"


def read() -> dict[str, Kept]:
    """What was measured before."""
    return msgspec.json.decode(DATA.read_bytes(), type=dict[str, Kept]) if DATA.exists() else {}


def measure(name: str, rounds: int) -> Kept:
    """Run one bench."""
    bench: Any = getattr(import_module(BENCHES[name]), f"bench_{name}")
    begun = time.monotonic()
    section = bench(rounds)
    return Kept(
        section=section,
        at=dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        rounds=rounds,
        seconds=round(time.monotonic() - begun, 1),
        load=os.getloadavg()[0],
        machine=machine(),
        versions=versions(),
    )


def main() -> int:
    """Measure what is asked for, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *BENCHES], help="default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--page-only", action="store_true", help="make the page from the figures that are there"
    )
    args = parser.parse_args()
    # What was started ends with us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    failed = 0
    for name in [] if args.page_only else args.names or list(BENCHES):
        print(f"{name}:", file=sys.stderr, flush=True)
        try:
            found = measure(name, args.rounds)
        except Exception as error:  # noqa: BLE001  # one bench that cannot run must not lose the others
            print(f"  {name} failed: {error}", file=sys.stderr)
            failed = 1
            continue
        for row in found.section.rows:
            print(
                f"  {row.what}: {number(row.median)} {row.unit} {row.goal} {row.met or ''}", file=sys.stderr
            )
        # Read again: another bench may have ended meanwhile.
        DATA.write_bytes(msgspec.json.format(msgspec.json.encode({**read(), name: found}), indent=1) + b"\n")
    PAGE.write_text(page(read()))
    return failed


if __name__ == "__main__":
    sys.exit(main())
