"""Outputs of runs as consumers and the collector leave them, made in memory so that tests can spoil them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from common.parts import DEAD_LETTERS, MANIFEST, PROGRESS, part_name
from common.records import (
    DeadLetter,
    DeadReason,
    Manifest,
    PartRow,
    Progress,
    Record,
    Response,
    Turn,
    Usage,
    Verdict,
)
from common.settings import GenerationSettings, RunSettings
from common.storage import open_storage
from consumers.client.info import ServerInfo
from consumers.client.request import build_request
from consumers.client.turns import history_for, turns_to_generate
from consumers.collector.decide import part_bytes
from producer.parse import InvalidLine, Prompt
from producer.scan import read_prompts, scan
from producer.source import Source


@dataclass
class Draft:
    """A run's output before it is written; change what you like."""

    settings: RunSettings
    records: list[Record]
    letters: list[DeadLetter]
    batch: int = 3
    finished: bool = True
    manifest: dict[str, Any] = field(default_factory=dict)
    progress: dict[str, Any] = field(default_factory=dict)

    def write(self, output: str | Path) -> str:
        """Write it below `output`; returns the run's own place."""
        place = f"{output}/{self.settings.run}"
        storage = open_storage(place)
        rows = []
        for start in range(0, len(self.records), self.batch):
            lines = [msgspec.json.encode(record) for record in self.records[start : start + self.batch]]
            data, name = part_bytes(lines), part_name(len(rows))
            storage.create(name, data)
            rows.append(PartRow(name, len(lines), hashlib.sha256(data).hexdigest()))
        if self.letters:
            text = b"".join(msgspec.json.encode(letter) + b"\n" for letter in self.letters)
            storage.replace(DEAD_LETTERS, text)
        counts = {
            "completed": len(self.records),
            "dead": len(self.letters),
            "accepted": len(self.records) + len(self.letters),
        }
        tally: dict[str, int] = {}
        for record in self.records:
            tally[record.verdict.value] = tally.get(record.verdict.value, 0) + 1
        settings = self.settings
        manifest = {
            "run": settings.run,
            "created_at": settings.created_at,
            "settings": msgspec.to_builtins(settings),
            "input": {"name": settings.input_name, **msgspec.to_builtins(settings.fingerprint)},
            "parts": rows,
            "verdicts": tally,
            "finished_at": "2026-01-01T01:00:00Z" if self.finished else None,
            **counts,
            **self.manifest,
        }
        progress = {
            "run": settings.run,
            "stored": len(self.records),
            "queued": 0,
            "in_flight": 0,
            "at": "2026-01-01T01:00:00Z",
            "state": "finished" if self.finished else "running",
            **counts,
            **self.progress,
        }
        storage.replace(MANIFEST, msgspec.json.encode(Manifest(**manifest)))
        storage.replace(PROGRESS, msgspec.json.encode(Progress(**progress)))
        return place


def draft(source: Path, *, run: str = "r", **generation: Any) -> Draft:
    """What a run over the input at `source` leaves when every prompt is answered."""
    settings = GenerationSettings(**generation)
    here = Source(name=source.name, path=str(source))
    report = scan(here)
    records: list[Record] = []
    letters: list[DeadLetter] = []
    with read_prompts(here, report) as reader:
        for item in reader:
            for sample in range(settings.samples):
                if isinstance(item, InvalidLine):
                    letters.append(invalid(item, sample))
                else:
                    records.append(answer(run, item, sample, settings))
    return Draft(
        RunSettings(
            run=run,
            output=str(source.parent),
            input_name=source.name,
            fingerprint=report.fingerprint,
            created_at="2026-01-01T00:00:00Z",
            generation=settings,
            skip_invalid=True,
        ),
        records,
        letters,
    )


def answer(run: str, prompt: Prompt, sample: int, settings: GenerationSettings) -> Record:
    """A good record for one unit, made the way that consumers make it."""
    job = prompt.job(sample)
    *earlier, last = turns_to_generate(job.messages, settings.regenerate)
    answers = {place: Response(content=f"\n\nearlier answer {place}") for place in earlier}
    history = history_for(job.messages, last, answers)
    request = build_request(job, settings, ServerInfo(), messages=history)
    turns = [Turn(place, made, "stop", Usage(5, 6, 0)) for place, made in answers.items()]
    return Record(
        run=run,
        index=job.index,
        id=job.id,
        messages=request.messages,
        response=Response(content=f"answer {job.index}.{sample}", reasoning_content="hm"),
        finish_reason="stop",
        verdict=Verdict.OK,
        usage=Usage(10, 20, 5),
        model="m",
        server="http://server",
        params=request.params,
        attempts=1,
        started_at="2026-01-01T00:00:00Z",
        latency_s=1.0,
        metadata=job.metadata,
        sample=sample if settings.samples > 1 else msgspec.UNSET,
        turns=turns or msgspec.UNSET,
    )


def invalid(line: InvalidLine, sample: int = 0) -> DeadLetter:
    """The dead letter of a line that cannot be used."""
    return DeadLetter(
        index=line.index,
        id=line.id,
        reason=DeadReason.INVALID_LINE,
        last_error=f"line {line.line}: {line.reason}",
        attempts=0,
        sample=sample,
        line=line.line,
    )


def dead(record: Record, reason: DeadReason = DeadReason.TOO_LONG) -> DeadLetter:
    """A dead letter in the place of a record."""
    sample = 0 if isinstance(record.sample, msgspec.UnsetType) else record.sample
    return DeadLetter(
        index=record.index, id=record.id, reason=reason, last_error="no", attempts=1, sample=sample
    )
