"""Makes a finished run's output in a folder, as the collector leaves it, for tests of what reads it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from common.parts import DEAD_LETTERS, MANIFEST, part_name
from common.records import (
    DeadLetter,
    Manifest,
    Message,
    PartRow,
    Record,
    Response,
    Speculation,
    Turn,
    Usage,
    Verdict,
)

USAGE = Usage(5, 40, 3)


def record(index: int = 0, **changes: Any) -> Record:
    """A good record; its answer has some forty tokens."""
    answer = " ".join(f"word{index}" for _ in range(30))
    fields: dict[str, Any] = {
        "run": "r",
        "index": index,
        "id": f"p{index}",
        "messages": [Message("user", f"Question {index}?")],
        "response": Response(content=f"\n\n{answer}", reasoning_content=f"Let me think about {index}.\n"),
        "finish_reason": "stop",
        "verdict": Verdict.OK,
        "usage": Usage(10, None, None),
        "model": "m",
        "server": "s1",
        "params": {"temperature": 0.6, "thinking": True},
        "attempts": 1,
        "started_at": "2026-01-01T00:00:00Z",
        "latency_s": 1.5,
    }
    return Record(**(fields | changes))


def mixed(index: int) -> Record:
    """Records that differ in whatever may differ."""
    more: list[dict[str, Any]] = [
        {},
        {"metadata": msgspec.Raw(b'{"a": {"b": [1, "x"]}}'), "params": {"thinking": False, "stop": ["x"]}},
        {"metadata": msgspec.Raw(b'"just text"'), "speculation": Speculation(accept_length=2.5)},
        {"messages": [Message("user", [{"type": "text", "text": "in parts"}])]},
        {
            "messages": [Message("user", "a"), Message("assistant", "one"), Message("user", "b")],
            "turns": [Turn(1, Response(content="one", reasoning_content="t"), "stop", USAGE)],
        },
        {"response": Response(content="2024-01-01 \0 😀 " * 20)},
    ]
    return record(index, **({"usage": USAGE} | more[index % len(more)]))


def write_run(
    folder: Path,
    records: list[Record],
    *,
    run: str = "r",
    batch: int = 10,
    dead: list[DeadLetter] | None = None,
    samples: int = 1,
    accepted: int | None = None,
    finished: bool = True,
) -> Path:
    """Write parts, dead letters and manifest; return the run's folder."""
    folder = folder / run
    folder.mkdir(parents=True)
    rows = []
    for number, start in enumerate(range(0, len(records), batch)):
        lines = [
            msgspec.json.encode(msgspec.structs.replace(r, run=run)) for r in records[start : start + batch]
        ]
        data = zstandard.ZstdCompressor().compress(b"\n".join(lines) + b"\n")
        (folder / part_name(number)).write_bytes(data)
        rows.append(PartRow(part_name(number), len(lines), hashlib.sha256(data).hexdigest()))
    letters = dead or []
    if letters:
        (folder / DEAD_LETTERS).write_bytes(
            b"".join(msgspec.json.encode(letter) + b"\n" for letter in letters)
        )
    manifest = Manifest(
        run=run,
        created_at="2026-01-01T00:00:00Z",
        settings={"run": run, "generation": {"samples": samples, "system": 'be "kind"\n---\n```'}},
        input={"name": "prompts.jsonl"},
        parts=rows,
        completed=len(records),
        dead=len(letters),
        accepted=len(records) + len(letters) if accepted is None else accepted,
        finished_at="2026-01-01T01:00:00Z" if finished else None,
    )
    (folder / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    return folder
