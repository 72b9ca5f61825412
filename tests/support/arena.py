"""A real Redis with runs in it, driven step by step, and what must be true of it after every step."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from typing import Any, NamedTuple, Self

import msgspec
from rq import Queue
from rq.exceptions import NoSuchJobError
from rq.job import Job
from rq.registry import FailedJobRegistry, StartedJobRegistry
from rq.serializers import JSONSerializer

from common import keys
from common.jobs import encode_job
from common.parts import part_name
from common.records import (
    DeadLetter,
    DeadReason,
    Fingerprint,
    Message,
    PartRow,
    PromptJob,
    Record,
    Response,
    Usage,
    Verdict,
)
from common.settings import QUEUE_NAME, GenerationSettings, RunSettings
from common.store import Admission, ClaimStore, Position, RunStore, async_client, client_from_url
from common.store.claims import Again, Claim, ClaimReply, Completed, Dead, Ended, FinishReply, HandedBack
from common.store.runs import Counts, Part, Seal, open_units
from common.timing import Timing
from consumers.collector.decide import next_part, next_seal, part_bytes


class Sealed(NamedTuple):
    """A seal, and the next part under it."""

    seal: Seal
    part: Part
    data: bytes


def read_sealed(store: RunStore, run: str, seal: Seal) -> Sealed | None:
    """The next part under a seal, as any collector makes it."""
    found = store.results(run, "", seal.last, seal.records)
    made = next_part(found, seal, store.part_count(run))
    return Sealed(seal, made[0], part_bytes(made[1])) if made else None


SERVER = "http://server"
TTL_S = 20.0
EPOCH = "2026-01-01T00:00:00Z"


def settings_of(run: str, *, samples: int = 1, output: str = "/nowhere", prompts: int = 0) -> RunSettings:
    return RunSettings(
        run=run,
        output=output,
        input_name="prompts.jsonl",
        fingerprint=Fingerprint("0" * 64, prompts, prompts),
        created_at=EPOCH,
        generation=GenerationSettings(samples=samples),
    )


def prompt_of(unit: int, samples: int = 1) -> PromptJob:
    index, sample = divmod(unit, samples)
    return PromptJob(
        index=index, id=f"p{index}", messages=[Message(role="user", content=f"Say {index}")], sample=sample
    )


def record_line(run: str, unit: int, words: str = "an answer") -> bytes:
    record = Record(
        run=run,
        index=unit,
        id=f"p{unit}",
        messages=[Message(role="user", content=f"Say {unit}")],
        response=Response(content=words),
        finish_reason="stop",
        verdict=Verdict.OK,
        usage=Usage(1, 7, 0),
        model="m",
        server=SERVER,
        params={},
        attempts=1,
        started_at=EPOCH,
        latency_s=0.1,
    )
    return msgspec.json.encode(record)


def letter_of(unit: int, reason: DeadReason = DeadReason.TOO_LONG) -> DeadLetter:
    return DeadLetter(index=unit, id=f"p{unit}", reason=reason, last_error="too long", attempts=1)


class Hand:
    """One consumer, as far as Redis sees it."""

    def __init__(self, arena: Arena, name: str, server: str = SERVER, **limits: int) -> None:
        self.arena = arena
        self.name = name
        self.server = server
        self.limits = limits
        self.held: list[Claim] = []
        self.client = async_client(client_from_url(arena.url))
        self.store = ClaimStore(
            self.client, worker=name, server=server, times=Timing(claim_ttl_s=TTL_S), **limits
        )

    def _do(self, work: Any) -> Any:
        return self.arena.runner.run(work)

    def exchange(
        self, ended: list[Ended], want: int, suspects: int = 1
    ) -> tuple[FinishReply, ClaimReply | None]:
        return self._do(self.store.exchange(ended, want=want, prefix=uuid.uuid4().hex, suspects=suspects))

    def claim(self, want: int = 1, *, suspects: int = 1) -> list[Claim]:
        reply = self.look(want, suspects=suspects)
        self.held += reply.claims
        return reply.claims

    def look(self, want: int = 1, *, suspects: int = 1) -> ClaimReply:
        reply = self.exchange([], want, suspects)[1]
        assert reply is not None
        return reply

    def finish(self, *ended: Ended) -> list[bool]:
        reply = self.exchange(list(ended), 0)[0]
        for item in ended:
            if item.claim in self.held:
                self.held.remove(item.claim)
        return reply.accepted

    def complete(self, claim: Claim, words: str = "an answer") -> bool:
        return self.finish(self.completion(claim, words))[0]

    def completion(self, claim: Claim, words: str = "an answer") -> Ended:
        run, unit = keys.parse_job_id(claim.job)
        return Ended(claim, Completed(record_line(run, unit, words), Verdict.OK, 7, f"p{unit}"))

    def bury(self, claim: Claim, reason: DeadReason = DeadReason.TOO_LONG) -> bool:
        _, unit = keys.parse_job_id(claim.job)
        return self.finish(Ended(claim, Dead(letter_of(unit, reason))))[0]

    def again(self, claim: Claim, delay_s: float = 0.0) -> bool:
        return self.finish(Ended(claim, Again(delay_s, claim.attempts + 1, claim.tries)))[0]

    def hand_back(self, claim: Claim, *, death: bool = False) -> bool:
        return self.finish(Ended(claim, HandedBack(death)))[0]

    def beat(self) -> list[Claim]:
        """Heartbeat; returns the claims it turned out to have lost."""
        _, lost = self._do(
            self.store.heartbeat(self.held, worker_ttl=480, well=0, badly=0, state="busy", figures={})
        )
        return lost

    def disown(self) -> int:
        return self._do(self.store.disown(self.held))


class Arena:
    """Runs, consumers and the truth about them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.runner = asyncio.Runner()
        self.client = client_from_url(url)
        self.store = RunStore(self.client)
        self.hands: list[Hand] = []
        self.samples: dict[str, int] = {}
        self.adopted: set[int] = set()  # dead letters whose job went with the part that was taken over

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for hand in self.hands:
            self.runner.run(hand.store.close())
        self.runner.close()
        self.client.close()

    # Set-up

    def run(self, name: str = "r", count: int = 0, *, samples: int = 1) -> str:
        """A run with so many prompts admitted, the input not ended."""
        self.samples[name] = samples
        self.store.create_run(settings_of(name, samples=samples))
        if count:
            assert self.admit(name, count) == 1
        return name

    def admit(
        self,
        run: str,
        count: int,
        *,
        token: str = "",
        ended: bool = False,
        dead: Iterable[int] = (),
        at: int = -1,
    ) -> int:
        position = self.store.position(run)
        start = at if at >= 0 else position.index if position else 0
        samples = self.samples[run]
        letters = set(dead)
        jobs, buried = [], []
        for unit in range(start * samples, (start + count) * samples):
            if unit in letters:
                letter = letter_of(unit, DeadReason.INVALID_LINE)
                buried.append((unit, msgspec.json.encode(letter), letter.reason.value))
            else:
                jobs.append((unit, f"{run}/p{unit}", encode_job(prompt_of(unit, samples))))
        where = Position(start + count, start + count + 1, 100 * (start + count), ended)
        chunk = Admission(token or uuid.uuid4().hex, start, where, jobs, buried)
        return self.store.admit(run, chunk, job_timeout=60)

    def hand(self, name: str = "", server: str = SERVER, **limits: int) -> Hand:
        hand = Hand(self, name or f"w{len(self.hands)}", server, **limits)
        self.hands.append(hand)
        return hand

    # Time

    def silence(self, *hands: Hand) -> None:
        """These consumers have not been heard of for longer than their claims last."""
        for hand in hands:
            for claim in hand.held:
                self.client.zadd(keys.STARTED, {f"{claim.job}:{claim.execution}": self.now() - 1}, xx=True)

    def reap(self) -> int:
        """Look for abandoned jobs, as one who has looked all along."""
        self.client.set("pm:reaped", self.now())
        return self.store.reap(TTL_S)

    def due(self) -> None:
        """Every retry is due."""
        for job in self.client.zrange(keys.SCHEDULED, 0, -1):
            self.client.zadd(keys.SCHEDULED, {job: 1})

    def now(self) -> float:
        seconds, micros = self.client.time()
        return seconds + micros / 1e6

    # Collecting

    def seal(self, run: str, token: str = "collector", records: int = 500, **more: Any) -> Sealed | None:
        """Seal all that waits, in parts of so many records; what is the next part of it, if any."""
        assert self.store.take_lease(token, 60)
        waiting = self.store.results_waiting(run)
        if not waiting.count:
            return None
        seal = msgspec.structs.replace(next_seal(waiting, records), **({} if waiting.seal else more))
        self.store.seal(run, token, waiting.number, waiting.seal, seal, wait_ms=1)
        return self.sealed(run, seal)

    def sealed(self, run: str, seal: Seal) -> Sealed | None:
        """The next part under a seal."""
        return read_sealed(self.store, run, seal)

    def commit(self, run: str, sealed: Sealed | None) -> bool:
        assert sealed
        row = PartRow(part_name(sealed.part.number), sealed.part.records, "0" * 64)
        return self.store.commit(run, sealed.seal, sealed.part, row)

    # Truth

    def counts(self, run: str = "r") -> Counts:
        return self.store.counts(run)

    def event(self, name: str, run: str = "r") -> int:
        return self.counts(run).other.get(name, 0)

    def queue(self) -> list[str]:
        return [job.decode() for job in self.client.lrange(keys.QUEUE, 0, -1)]

    def waiting(self, run: str = "r") -> list[int]:
        """Units whose completion waits for a part, in order."""
        return [msgspec.json.decode(line)["index"] for _, line in self.store.waiting_lines(run)]

    def open(self, run: str) -> list[int]:
        position = self.store.position(run)
        assert position is not None
        return list(open_units(self.store.done_bits(run), position.index * self.samples[run]))

    def job(self, run: str, unit: int) -> dict[str, str]:
        raw = self.client.hgetall(keys.job_key(keys.job_id(run, unit)))
        return {k.decode(): v.decode(errors="replace") for k, v in raw.items() if k != b"data"}

    def check(self, *, tidy: bool = True, rq: bool = True) -> None:
        """Every run's counters against bits, lists and parts.

        `tidy` while nobody has damaged the lists; `rq` for what RQ's own classes see as well.
        """
        for run in self.store.runs():
            self._check_run(run, tidy=tidy)
        if tidy and rq:
            self._check_rq()

    def _check_run(self, run: str, *, tidy: bool) -> None:
        counts = self.counts(run)
        assert counts.balanced, counts
        assert min(counts.completed, counts.dead, counts.stored) >= 0, counts
        assert counts.stored <= counts.completed, counts
        bits = sum(byte.bit_count() for byte in self.store.done_bits(run))
        assert bits == counts.completed + counts.dead, counts
        assert counts.dead == self.client.hlen(keys.run_key(run, "dead")), counts
        lines = [line for _, line in self.store.waiting_lines(run)]
        waiting = [msgspec.json.decode(line)["index"] for line in lines]
        assert len(waiting) == len(set(waiting)), waiting
        assert counts.completed == counts.stored + len(waiting), (counts, waiting)
        assert counts.stored == sum(row.records for row in self.store.parts(run))
        assert counts.other.get("waiting_bytes", 0) == sum(len(line) for line in lines)
        if tidy:
            still_open = self.open(run)
            with self.client.pipeline(transaction=False) as pipe:
                for unit in still_open:
                    pipe.hget(keys.job_key(keys.job_id(run, unit)), "owner")
                owned = [owner for owner in pipe.execute() if owner]
            assert counts.in_flight == len(owned), (counts, owned)
            assert counts.queued == len(still_open) - len(owned), counts
            assert sum(counts.tally("dead").values()) == counts.dead, counts

    def _check_rq(self) -> None:
        """What RQ's own classes see."""
        queue = Queue(QUEUE_NAME, connection=self.client, serializer=JSONSerializer)
        queued = set(queue.job_ids)
        started = set(StartedJobRegistry(queue=queue).get_job_ids(cleanup=False))
        failed = set(FailedJobRegistry(queue=queue).get_job_ids(cleanup=False))
        scheduled = {job.decode() for job in self.client.zrange(keys.SCHEDULED, 0, -1)}
        for run in self.store.runs():
            held = {job.decode() for job in self.client.lrange(keys.run_key(run, "held"), 0, -1)}
            missing = set(self.store.missing(run))
            for unit in self.open(run):
                name = keys.job_id(run, unit)
                if unit in missing:
                    continue
                try:
                    job = Job.fetch(name, connection=self.client, serializer=JSONSerializer)
                except NoSuchJobError:
                    # Deleted by somebody; the claim that comes to its list entry notices.
                    assert name in queued | held | scheduled | started
                    continue
                status = job.get_status().value
                where = {"queued": queued | held, "scheduled": scheduled, "started": started}
                assert name in where[status], (name, status)
            for unit, letter in self.store.dead_letters(run).items():
                name = keys.job_id(run, unit)
                try:
                    job = Job.fetch(name, connection=self.client, serializer=JSONSerializer)
                except NoSuchJobError:
                    assert letter.reason is DeadReason.INVALID_LINE or letter.index in self.adopted
                    continue
                if job.get_status().value == "failed":
                    assert name in failed
                    assert letter.reason.value in (job.latest_result().exc_string or "")
