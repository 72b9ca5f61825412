"""Runs in a real Redis: the real producer and collector, and a stand-in for the consumers between them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from support.outputs import answer

from common.jobs import decode_job
from common.keys import parse_job_id
from common.records import DeadLetter, DeadReason, PromptJob
from common.settings import GenerationSettings, RunSettings
from common.storage import open_storage
from common.store import ClaimStore, RunStore, async_client, client_from_url
from common.store.claims import Claim, Completed, Dead, Ended, Outcome
from consumers.collector.collect import RunCollector
from producer.admit import Admitter
from producer.parse import Prompt
from producer.prepare import prepare_run
from producer.scan import read_prompts, scan
from producer.source import Source

Decide = Callable[[PromptJob, RunSettings], Outcome]


def write_prompts(path: Path, count: int) -> Path:
    """An input of so many short prompts."""
    path.write_text("".join(f'{{"id": "p{n}", "prompt": "Say {n}"}}\n' for n in range(count)))
    return path


def enqueue(store: RunStore, source: Path, output: str | Path, *, run: str = "r", **more: Any) -> RunSettings:
    """Admit every prompt of `source`; `more` are fields of the run's settings or of its generation."""
    own = {name: more.pop(name) for name in list(more) if name in RunSettings.__struct_fields__}
    here = Source(name=source.name, path=str(source))
    report = scan(here)
    wanted = RunSettings(
        **{
            "run": run,
            "output": str(output),
            "input_name": source.name,
            "fingerprint": report.fingerprint,
            "created_at": "2026-01-01T00:00:00Z",
            "generation": GenerationSettings(**more),
            "skip_invalid": True,
            **own,
        }
    )
    settings = prepare_run(store, open_storage(wanted.destination), wanted)
    Admitter(
        store,
        settings,
        lambda start: read_prompts(here, report, start=start),
        high_water=10**9,
        on_progress=lambda *_: None,
    ).run()
    return settings


def completed(job: PromptJob, settings: RunSettings) -> Completed:
    """A good completion."""
    prompt = Prompt(job.index, 0, job.id, job.messages, job.params, job.metadata)
    record = answer(settings.run, prompt, job.sample, settings.generation)
    return Completed(msgspec.json.encode(record), record.verdict, 20, job.id)


def buried(reason: DeadReason = DeadReason.TOO_LONG, words: str = "no") -> Decide:
    """What makes every job a dead letter."""

    def decide(job: PromptJob, settings: RunSettings) -> Dead:
        del settings
        return Dead(
            DeadLetter(
                index=job.index, id=job.id, reason=reason, last_error=words, attempts=1, sample=job.sample
            )
        )

    return decide


def work(url: str, decide: Decide = completed, *, most: int | None = None, server: str = "http://s") -> int:
    """Claim and end what is queued, up to `most` jobs; returns how many."""

    async def all_of_it() -> int:
        store = ClaimStore(async_client(client_from_url(url)), worker="stand-in", server=server)
        done = 0
        try:
            while most is None or done < most:
                want = 500 if most is None else min(500, most - done)
                _, reply = await store.exchange([], want=want, prefix=uuid.uuid4().hex, suspects=1)
                if reply is None or not reply.claims:
                    return done
                ended = [await end(store, claim) for claim in reply.claims]
                await store.exchange(ended, want=0, prefix="", suspects=1)
                done += len(ended)
            return done
        finally:
            await store.close()

    async def end(store: ClaimStore, claim: Claim) -> Ended:
        settings = await store.settings(parse_job_id(claim.job)[0])
        return Ended(claim, decide(decode_job(claim.data), settings))

    return asyncio.run(all_of_it())


def claim(url: str, count: int, *, worker: str = "stand-in", server: str = "http://s") -> int:
    """Take jobs and do nothing with them; returns how many."""

    async def take() -> int:
        store = ClaimStore(async_client(client_from_url(url)), worker=worker, server=server)
        _, reply = await store.exchange([], want=count, prefix=uuid.uuid4().hex, suspects=1)
        await store.close()
        return len(reply.claims) if reply else 0

    return asyncio.run(take())


def collect(store: RunStore, settings: RunSettings) -> RunCollector:
    """Make every part that is due, as one collector that then goes."""
    token = uuid.uuid4().hex
    store.client.delete("pm:lease")
    store.take_lease(token, 60)
    collector = RunCollector(store, settings, token, flush_s=0.0)
    while collector.step(store.server_run_id()):
        pass
    store.release_lease(token)
    return collector
