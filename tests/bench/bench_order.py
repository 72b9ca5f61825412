"""What `--order` gains: the tail by `longest-first`, the servers' prefix caches by `prefix`."""

from __future__ import annotations

import json
import tempfile
import time
from collections import OrderedDict
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import harness
import msgspec
from bench_jobs import stub
from bench_slots import occupancy
from harness import Row, Section, ratios, say, words

from common.records import Record
from common.store import RunStore
from ops.simulator.answers import draw, sampled_tokens
from ops.simulator.settings import ServerSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# The tail
LONG_SERVERS, SLOTS = 2, 16
LONG = ServerSettings(slots=SLOTS, median_tokens=300.0, sigma=1.2, tokens_per_s=1500.0)
LONG_PROMPTS = 480

# Prefixes
GROUPS, ASKED = 160, 2000
COMMON = "You are a careful assistant. Think before you answer, and answer in the language of the question. "
SHARED_BYTES, OWN_BYTES = 2000, 400
BLOCK = 64
"""Bytes of a cache block: about 16 tokens, as engines have it."""

CACHE_BLOCKS = 1000
"""That each server keeps: 16,000 tokens, one fifth of what all shared beginnings have."""

LATENCY_S = 0.03

_RECORD = msgspec.json.Decoder(Record)


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """An input file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(url: str, path: Path, servers: list[str], count: int, order: list[str]) -> dict[str, float]:
    """Admit a file in an order, then have one consumer a server work it off."""
    harness.flush(url)
    store = RunStore.from_url(url)
    with tempfile.TemporaryDirectory() as state:
        flags = ["--run", "bench", "--output", f"{state}/out", "--redis", url, "--spool", state]
        flags += ["--max-output-tokens", "32768"]
        argv = harness.command("producer", "enqueue", str(path), *flags, *order)
        with harness.running(argv) as producer:
            if producer.wait(60):
                raise RuntimeError(f"producer enqueue ended with {producer.returncode}")
    with ExitStack() as stack:
        for server in servers:
            stack.enter_context(harness.consumer(url, server, str(SLOTS)))
        queue = "rq:queue:completions"
        harness.until("an empty queue", lambda: not store.client.llen(queue), within=120, every=0.02)
        dry = time.time()
        harness.until("the end", lambda: store.counts("bench").in_flight == 0, within=120, every=0.02)
        ended = time.time()
    if store.counts("bench").completed != count:
        raise RuntimeError(f"{store.counts('bench').completed} of {count} prompts were completed")
    return {"dry": dry, "ended": ended}


def tail(url: str, folder: Path, seed: int, order: list[str], *, off: float) -> dict[str, float]:
    """Answers of very different lengths, foretold in the metadata with an error of `off` (in logarithms)."""
    random = Random(seed)
    rows, lengths = [], []
    for n, text in enumerate(harness.prompts(LONG_PROMPTS, 400)):
        prompt = f"{n} {seed} {text}"
        length = sampled_tokens(LONG, draw([b"user", prompt.encode()], None, LONG.seed))
        lengths.append(length)
        told = length * random.lognormvariate(0.0, off) if off else length
        rows.append({"id": f"p{n}", "prompt": prompt, "metadata": {"expected": told}})
    write(folder / "long.jsonl", rows)
    flags = ["--slots", str(SLOTS), "--median-tokens", str(LONG.median_tokens), "--sigma", str(LONG.sigma)]
    flags += ["--tokens-per-s", str(LONG.tokens_per_s), "--health-delay", "0"]
    with harness.simulators(*flags, count=LONG_SERVERS) as servers:
        found = run(url, folder / "long.jsonl", servers, LONG_PROMPTS, order)
        busy, full = occupancy(servers, found["ended"])
    for _, line in RunStore.from_url(url).waiting_lines("bench"):
        record = _RECORD.decode(line)
        # The simulator's shortest answers are longer than drawn: they open with a sentence.
        length = lengths[record.index]
        if abs(record.usage.completion_tokens - length) > max(200, length / 5):
            raise RuntimeError("the servers' answers have other lengths than were foretold")
    return {"s": found["ended"] - full, "tail": found["ended"] - found["dry"], "busy": busy}


class Cache:
    """A server's prefix cache: blocks of text known by all that comes before them, least used last out."""

    def __init__(self, blocks: int) -> None:
        """Begin empty."""
        self.limit = blocks
        self.kept: OrderedDict[int, None] = OrderedDict()

    def ask(self, text: bytes) -> tuple[int, int]:
        """How many of a prompt's blocks were there from its beginning on, and how many it has."""
        blocks = (text[at : at + BLOCK] for at in range(0, len(text), BLOCK))
        names = list(accumulate(blocks, lambda before, block: hash((before, block)), initial=0))[1:]
        hits = next((n for n, name in enumerate(names) if name not in self.kept), len(names))
        # Leaves are older than their parents, so that no block outlives what it begins with.
        for name in reversed(names):
            self.kept[name] = None
            self.kept.move_to_end(name)
        while len(self.kept) > self.limit:
            self.kept.popitem(last=False)
        return hits, len(names)


def shared_rows(seed: int) -> Iterator[dict[str, Any]]:
    """Prompts of which some share a system prompt, few sharing it or many, in no order."""
    random = Random(seed)
    systems = [COMMON + words(random, SHARED_BYTES - len(COMMON)) for _ in range(GROUPS)]
    weights = [1 / (n + 3) for n in range(GROUPS)]
    for n, system in enumerate(random.choices(systems, weights, k=ASKED)):
        user = {"role": "user", "content": f"{n} {words(random, OWN_BYTES)}"}
        yield {"id": f"p{n}", "messages": [{"role": "system", "content": system}, user]}


def prefix(url: str, folder: Path, seed: int, servers: int, order: list[str]) -> dict[str, float]:
    """What share of the prompts' blocks the servers' caches would have had, in the order of arrival."""
    write(folder / "shared.jsonl", shared_rows(seed))
    with ExitStack() as stack:
        seconds = LATENCY_S * servers
        urls = [stack.enter_context(stub("--log", seconds=seconds)) for _ in range(servers)]
        run(url, folder / "shared.jsonl", urls, ASKED, order)
        stats = [harness.get_json(f"{one}/stub/stats") for one in urls]
        hits = asked = 0
        for one in urls:
            cache = Cache(CACHE_BLOCKS)
            for contents in harness.get_json(f"{one}/stub/log"):
                found, had = cache.ask("\0".join(contents).encode())
                hits, asked = hits + found, asked + had
    return {
        "share": hits / asked,
        "in_flight": sum(one["busy_s"] for one in stats) / max(one["span_s"] for one in stats) / servers,
    }


def best(seed: int) -> float:
    """The share that a cache without any limit would have."""
    cache = Cache(10**9)
    texts = ("\0".join(m["content"] for m in row["messages"]).encode() for row in shared_rows(seed))
    found = [cache.ask(text) for text in texts]
    return sum(hits for hits, _ in found) / sum(had for _, had in found)


def bench_order(rounds: int) -> Section:
    """Each order beside the input's, round by round."""
    longest = ["--order", "longest-first", "--order-field", "expected"]
    tails: dict[str, list[dict[str, float]]] = {"input": [], "exact": [], "off": []}
    shares: dict[str, list[dict[str, float]]] = {}
    bound = []
    with harness.redis_server() as url, tempfile.TemporaryDirectory(prefix="promptmill-bench-") as name:
        folder = Path(name)
        for number in range(rounds):
            tails["input"].append(tail(url, folder, number, [], off=0.0))
            tails["exact"].append(tail(url, folder, number, longest, off=0.0))
            tails["off"].append(tail(url, folder, number, longest, off=0.7))
            for servers in (1, 4):
                for order in ("input", "prefix"):
                    found = prefix(url, folder, number, servers, ["--order", order])
                    shares.setdefault(f"{order} {servers}", []).append(found)
            bound.append(best(number))
            say(
                f"round {number + 1}: "
                + ", ".join(f"{k} {v[-1]['s']:.2f} s, tail {v[-1]['tail']:.2f} s" for k, v in tails.items())
                + "; "
                + ", ".join(f"{k} {100 * v[-1]['share']:.1f} %" for k, v in shares.items())
            )
    rows = []
    plain = tails["input"]
    for kind, what in (("exact", "longest first"), ("off", "longest first, foretold within a factor of 2")):
        mine = tails[kind]
        rows += [
            Row(f"{what}: time of the input's order over its own", ratios(plain, mine, "s"), "x"),
            Row(f"{what}: tail of the input's order over its own", ratios(plain, mine, "tail"), "x"),
        ]
    for kind, what in (("input", "input's order"), ("exact", "longest first")):
        rows += [
            Row(
                f"{what}: tail, from the empty queue to the last completion", column(tails[kind], "tail"), "s"
            ),
            Row(f"{what}: busy slots, tail included", column(tails[kind], "busy")),
        ]
    for servers in (1, 4):
        mine, other = shares[f"prefix {servers}"], shares[f"input {servers}"]
        at = "1 server" if servers == 1 else f"{servers} servers"
        rows += [
            Row(f"prefix, {at}: share of prompt tokens cached", column(mine, "share")),
            Row(f"input's order, {at}: share of prompt tokens cached", column(other, "share")),
            Row(
                f"prefix, {at}: prompt tokens to compute, input's order over its own",
                [(1 - o["share"]) / (1 - m["share"]) for m, o in zip(mine, other, strict=True)],
                "x",
            ),
            Row(f"prefix, {at}: in flight over the input's order", ratios(mine, other, "in_flight"), "x"),
        ]
    rows.append(Row("share that a cache without limit would have, 1 server", bound))
    return Section(
        "`--order`",
        f"Longest first: {LONG_PROMPTS} prompts whose answers are {LONG.median_tokens:.0f} tokens long in "
        f"the median (lognormal, sigma {LONG.sigma}), {LONG_SERVERS} simulated servers of {SLOTS} slots. The "
        "length to expect stands in each line's `metadata`: exact, or off by a lognormal error of sigma 0.7. "
        "Time is from full servers to the last completion. Prefix: "
        f"{ASKED:,} prompts in no order with {GROUPS} system prompts of {SHARED_BYTES:,} bytes among them, "
        f"all with the same first {len(COMMON)} bytes, some used often and some hardly ever, and {OWN_BYTES} "
        f"bytes of their own each; {SLOTS} in flight a server. Each server's log of what came when is played "
        f"to a cache of blocks of {BLOCK} bytes (16 tokens), which holds a fifth of all the system prompts "
        "and drops what was not used for longest.",
        rows,
        "Where nobody knows lengths beforehand, `longest-first` without a field goes by the prompt's length, "
        "which gains as much as that foretells the answer's. More servers share each group of prompts, and "
        "each of them computes the beginning once.",
    )


def column(runs: list[dict[str, float]], what: str) -> list[float]:
    """One figure of every round."""
    return [run[what] for run in runs]
