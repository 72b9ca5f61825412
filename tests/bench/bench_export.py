"""How fast `ops export` is, against decompressing and parsing the same parts on one core with msgspec.

    python tests/bench/bench_export.py [records] [rounds]

Rounds alternate the two; of each the shortest time counts, since others on the machine can only add to it.
Exits 1 when a shape is under its target. Needs an idle machine: an export uses two cores or three.
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

import msgspec
import zstandard

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from support.export_runs import record, write_run  # noqa: E402 - the path is set above, for a plain script

from common.records import Message, Record, Response, Usage  # noqa: E402 - the same
from ops.export.options import ExportOptions, Format  # noqa: E402 - the same
from ops.export.run import export  # noqa: E402 - the same

TARGET = 0.6
SHAPES = (Format.JSONL, Format.PARQUET)


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


def parse(run: Path) -> float:
    """Seconds to decompress and parse every part."""
    decoder, decompressor = msgspec.json.Decoder(Record), zstandard.ZstdDecompressor()
    start = time.perf_counter()
    for path in sorted(run.glob("part-*")):
        decoder.decode_lines(decompressor.decompress(path.read_bytes()))
    return time.perf_counter() - start


def exporting(run: Path, shape: Format, out: Path) -> float:
    """Seconds to export."""
    shutil.rmtree(out, ignore_errors=True)
    start = time.perf_counter()
    export([str(run)], str(out), ExportOptions(format=shape))
    return time.perf_counter() - start


def main() -> int:
    count, rounds = (int(value) for value in (*sys.argv[1:3], *("16000", "7")[len(sys.argv) - 1 :]))
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder), count)
        size = sum(path.stat().st_size for path in run.glob("part-*")) / 1e6
        print(f"{count} records, {size:.0f} MB in parts")
        parsed = float("inf")
        exported = dict.fromkeys(SHAPES, float("inf"))
        for _ in range(rounds):
            line = []
            for shape in SHAPES:
                alone, made = parse(run), exporting(run, shape, Path(folder, "out"))
                parsed, exported[shape] = min(parsed, alone), min(exported[shape], made)
                line.append(f"{shape}: parse {alone:.2f} s, export {made:.2f} s, ratio {alone / made:.2f}")
            print("   ".join(line))
    for shape, seconds in exported.items():
        print(f"{shape}: {parsed / seconds:.2f} of the rate of parsing ({parsed:.2f} s), target {TARGET}")
    return int(parsed / max(exported.values()) < TARGET)


if __name__ == "__main__":
    sys.exit(main())
