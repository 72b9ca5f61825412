"""Makes the output of a run with several servers, verdicts and dead letters, for tests of the report."""

from __future__ import annotations

import hashlib
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from common.parts import DEAD_LETTERS, MANIFEST, PROGRESS, part_name
from common.records import (
    DeadLetter,
    DeadReason,
    Manifest,
    Message,
    PartRow,
    Progress,
    Record,
    Response,
    Speculation,
    Usage,
    Verdict,
)

BEGUN = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)
SERVERS = tuple(f"http://10.0.0.{number}:30000" for number in range(1, 8))
_WORDS = (
    "the",
    "mill",
    "turns",
    "a",
    "long",
    "river",
    "into",
    "light",
    "and",
    "bread",
    "while",
    "we",
    "wait",
)
_ENDS = {
    Verdict.OK: "stop",
    Verdict.TRUNCATED: "length",
    Verdict.TRUNCATED_THINKING: "length",
    Verdict.ABORTED: "abort",
}


def prose(rng: random.Random, words: int) -> str:
    """So many words, with a line break now and then."""
    chosen = rng.choices(_WORDS, k=words)
    return ".\n\n".join(" ".join(chosen[place : place + 40]) for place in range(0, words, 40))


def made_up(count: int, *, hours: float = 6.0, seed: int = 1) -> list[Record]:
    """Records of a run in the order in which they ended; one server is gone for a while."""
    rng = random.Random(seed)
    records = []
    for index in range(count):
        start = hours * 3600 * index / count
        server = SERVERS[index % len(SERVERS)]
        if server == SERVERS[3] and 0.4 < index / count < 0.6:
            server = SERVERS[4]
        tokens = max(1, min(4096, int(rng.lognormvariate(7.2, 0.7))))
        verdict = Verdict.OK
        if tokens == 4096:
            verdict = rng.choice([Verdict.TRUNCATED, Verdict.TRUNCATED_THINKING])
        elif rng.random() < (0.12 if 0.7 < index / count < 0.75 else 0.01):
            verdict = rng.choice([Verdict.LOOPING, Verdict.NO_ANSWER, Verdict.PARSER_MISMATCH])
        thinking = tokens if verdict in (Verdict.TRUNCATED_THINKING, Verdict.NO_ANSWER) else tokens * 2 // 3
        cut = verdict in (Verdict.TRUNCATED_THINKING, Verdict.NO_ANSWER)
        records.append(
            Record(
                run="nightly",
                index=index,
                id=f"prompt-{index:06d}",
                messages=[Message("user", f"{prose(rng, 12)}?")],
                response=Response(
                    content=None if cut else prose(rng, (tokens - thinking) // 4),
                    reasoning_content=prose(rng, thinking // 4),
                ),
                finish_reason=_ENDS.get(verdict, "stop"),
                verdict=verdict,
                usage=Usage(rng.randint(10, 400), tokens, thinking),
                model="qwen",
                server=server,
                params={"temperature": 0.6},
                attempts=1 if rng.random() < 0.97 else 2,
                started_at=(BEGUN + timedelta(seconds=start)).isoformat().replace("+00:00", "Z"),
                latency_s=round(tokens / rng.uniform(55, 75), 4),
                speculation=Speculation(accept_length=rng.uniform(2.7, 3.5)),
            )
        )
    return sorted(records, key=lambda record: (record.started_at, record.latency_s))


def letters(count: int) -> list[DeadLetter]:
    """Dead letters for two reasons."""
    return [
        DeadLetter(
            index=1_000_000 + number,
            id=f"prompt-{1_000_000 + number}",
            reason=DeadReason.TOO_LONG if number % 3 else DeadReason.REJECTED,
            last_error="The input (9000 tokens) is longer than the model's context length (8192 tokens)."
            if number % 3
            else "verdict looping: the answer repeats 'and then' 412 times",
            attempts=1 if number % 3 else 3,
            server=SERVERS[number % 7],
        )
        for number in range(count)
    ]


def write(
    folder: Path,
    records: list[Record],
    *,
    dead: list[DeadLetter] | None = None,
    batch: int = 500,
    finished: bool = True,
    manifest: dict[str, Any] | None = None,
    progress: dict[str, Any] | None = None,
) -> Path:
    """Write parts, dead letters, manifest and progress as a collector leaves them; returns the folder."""
    folder.mkdir(parents=True)
    rows = []
    for number, begin in enumerate(range(0, len(records), batch)):
        lines = [msgspec.json.encode(record) for record in records[begin : begin + batch]]
        data = zstandard.ZstdCompressor().compress(b"\n".join(lines) + b"\n")
        (folder / part_name(number)).write_bytes(data)
        rows.append(PartRow(part_name(number), len(lines), hashlib.sha256(data).hexdigest()))
    dead = dead or []
    if dead:
        (folder / DEAD_LETTERS).write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in dead))
    counts = {"completed": len(records), "dead": len(dead)}
    waiting = {"queued": 0, "in_flight": 0} if finished else {"queued": 4000, "in_flight": 112}
    accepted = sum(counts.values()) + sum(waiting.values())
    end = (BEGUN + timedelta(hours=6)).isoformat()
    whole = Manifest(
        **{
            "run": "nightly",
            "created_at": BEGUN.isoformat(),
            "settings": {
                "run": "nightly",
                "output": "s3://sets/completions",
                "generation": {
                    "temperature": 0.6,
                    "max_output_tokens": 4096,
                    "system": "Be kind.\nBe brief.",
                },
                "quality": {"policy": {}, "retries": 2},
            },
            "input": {"name": "prompts.jsonl", "sha256": "ab" * 32, "lines": accepted, "bytes": 123456},
            "parts": rows,
            "accepted": accepted,
            "finished_at": end if finished else None,
            **counts,
            **(manifest or {}),
        }
    )
    now = Progress(
        **{
            "run": "nightly",
            "accepted": accepted,
            "stored": len(records),
            "at": end,
            "state": "finished" if finished else "running",
            "eta_s": None if finished else 5400.0,
            **counts,
            **waiting,
            **(progress or {}),
        }
    )
    (folder / MANIFEST).write_bytes(msgspec.json.encode(whole))
    (folder / PROGRESS).write_bytes(msgspec.json.encode(now))
    return folder
