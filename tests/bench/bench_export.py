"""How fast `ops export` is, against decompressing and parsing the same parts on one core with msgspec.

    python tests/bench/bench_export.py [records] [rounds]

Rounds alternate the two, and the median of the rounds' ratios counts. Exits 1 when a shape is under its goal.
Needs an idle machine: an export uses two cores, and a little of a third.
"""

from __future__ import annotations

import pydoc_data.topics
import random
import shutil
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import zstandard

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from harness import Row, Section, say  # noqa: E402 - the path is set above, for a plain script
from support.export_runs import record, write_run  # noqa: E402 - the same

from common.records import Message, Record, Response, Usage  # noqa: E402 - the same
from ops.export.encode import usable_cores  # noqa: E402 - the same
from ops.export.options import ExportOptions, Format  # noqa: E402 - the same
from ops.export.run import export  # noqa: E402 - the same

if TYPE_CHECKING:
    from collections.abc import Callable

GOAL = ">= 0.6"
SHAPES = (Format.JSONL, Format.PARQUET)
RECORDS = 100_000


def texts(seed: int):
    """Text as answers are: prose and code, cut from the standard library's documentation and sources."""
    library = Path(sysconfig.get_paths()["stdlib"])
    sources = [path for path in sorted(library.glob("*/*.py")) if "site-packages" not in str(path)]
    whole = "\n".join([*pydoc_data.topics.topics.values(), *(read(path) for path in sources[:400])])
    rng = random.Random(seed)

    def text(characters: int) -> str:
        start = rng.randrange(len(whole) - characters)
        return whole[start : start + characters]

    return text


def read(path: Path) -> str:
    return path.read_text(errors="ignore")


def make_run(folder: Path, count: int) -> Path:
    text = texts(1)
    records = [
        record(
            index,
            messages=[Message("user", text(400))],
            response=Response(content="\n\n" + text(3500), reasoning_content=text(5000)),
            usage=Usage(90, 1900, 1000),
        )
        for index in range(count)
    ]
    return write_run(folder, records, batch=500)


class Spent(msgspec.Struct, frozen=True):
    """What some work took: seconds on the clock and seconds of processor time."""

    wall: float
    cpu: float


def spent(work: Callable[[], object]) -> Spent:
    """Do it and say what it took."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return Spent(time.perf_counter() - wall, time.process_time() - cpu)


def parse(run: Path) -> None:
    """Decompress and parse every part."""
    decoder, decompressor = msgspec.json.Decoder(Record), zstandard.ZstdDecompressor()
    for path in sorted(run.glob("part-*")):
        decoder.decode_lines(decompressor.decompress(path.read_bytes()))


def compare(run: Path, shape: Format, out: Path) -> tuple[Spent, Spent]:
    """Parse, then export."""
    alone = spent(lambda: parse(run))
    made = spent(lambda: export([str(run)], str(out), ExportOptions(format=shape)))
    shutil.rmtree(out)
    return alone, made


def bench_export(rounds: int, records: int = RECORDS) -> Section:
    """The ratio of both rates, for each shape."""
    found: dict[Format, list[tuple[Spent, Spent]]] = {shape: [] for shape in SHAPES}
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder), records)
        size = sum(path.stat().st_size for path in run.glob("part-*")) / 1e6
        say(f"{records} records, {size:.0f} MB in parts, {usable_cores()} cores")
        for number in range(rounds + 1):
            for shape in SHAPES:
                alone, made = compare(run, shape, Path(folder, "out"))
                say(
                    f"{shape}: parse {alone.wall:.2f} s, export {made.wall:.2f} s ({made.cpu:.2f} s of "
                    f"processor time), ratio {alone.wall / made.wall:.2f}"
                )
                if number:  # what is imported and warmed up the first time is no part of a rate
                    found[shape].append((alone, made))
    rows = [
        row
        for shape, pairs in found.items()
        for row in (
            Row(f"`{shape}`", [alone.wall / made.wall for alone, made in pairs], "x", GOAL),
            Row(f"`{shape}`, processor time", [made.cpu / alone.cpu for alone, made in pairs], "x"),
        )
    ]
    return Section(
        "Export",
        f"The rate of `ops export`, on {usable_cores()} cores, over the rate of decompressing and parsing "
        "the same parts with `zstandard` and `msgspec` on one core; and the processor time of both likewise. "
        f"{records:,} records of prose and code, {size:.0f} MB in parts.",
        rows,
    )


def main() -> int:
    records, rounds = (int(value) for value in (*sys.argv[1:3], *(str(RECORDS), "7")[len(sys.argv) - 1 :]))
    section = bench_export(rounds, records)
    print(section.text)
    for row in section.rows:
        print(f"{row.what}: {row.median:.2f} ({min(row.values):.2f} to {max(row.values):.2f}) {row.goal}")
    return int(any(row.met is False for row in section.rows))


if __name__ == "__main__":
    sys.exit(main())
