"""Admitting prompts to the queue: chunk by chunk, each with the position it ends at, all or nothing.

A kill loses no line and admits none twice: the position is in Redis with the jobs. Whoever admits compares it
before every chunk, so two producers of one run cannot both admit a chunk.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar

import msgspec

from common.errors import QueueError
from common.jobs import encode_job
from common.log import get_logger
from common.records import DeadLetter, DeadReason
from common.settings import RunSettings
from common.store.connection import RedisFullError, RedisUnavailableError
from common.store.runs import Admission, RunStore, iso_now
from common.store.runs import Position as StoredPosition
from producer.lines import Position
from producer.parse import InvalidLine, Prompt

CHUNK_JOBS: Final = 500
CHUNK_BYTES: Final = 2 * 1024 * 1024
WAIT_S: Final = 0.2
FULL_WAIT_S: Final = 1.0
MEMORY_SHARE: Final = 0.85
"""Of `maxmemory`: the rest is for completions, which must fit while the queue is full."""

DESCRIPTION_CHARS: Final = 200

T = TypeVar("T")

log = get_logger("producer")


class Reader(Protocol):
    """An input being read: its lines in order, and the position after the last one handed out."""

    @property
    def position(self) -> Position:
        """Where reading goes on; its index is how many lines were handed out from the beginning."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def __iter__(self) -> Iterator[Prompt | InvalidLine]: ...


class Waiting(msgspec.Struct, frozen=True):
    """Why admission pauses: `high_water` or `redis_full` or `redis_unavailable`."""

    reason: str


Report = Callable[[int, Waiting | None], None]
"""Called with how many prompts are admitted, and why it waits if it does."""


class ChunkBuilder:
    """Collects jobs and dead letters until a chunk is full."""

    def __init__(self, settings: RunSettings) -> None:
        """Start empty."""
        self.settings = settings
        self.jobs: list[tuple[int, str, bytes]] = []
        self.dead: list[tuple[int, bytes, str]] = []
        self.bytes = 0

    def add(self, item: Prompt | InvalidLine, place: int) -> None:
        """Take one line with all its samples; `place` is its place in the order of admission."""
        samples = self.settings.generation.samples
        rank = msgspec.UNSET if self.settings.order == "input" else place
        for sample in range(samples):
            unit = place * samples + sample
            if isinstance(item, InvalidLine):
                self.dead.append((unit, letter_bytes(item, sample, rank), DeadReason.INVALID_LINE.value))
            else:
                data = encode_job(item.job(sample, rank))
                self.jobs.append((unit, describe(self.settings.run, item.id, sample, samples), data))
                self.bytes += len(data)

    @property
    def full(self) -> bool:
        """Whether it is time to admit."""
        return len(self.jobs) + len(self.dead) >= CHUNK_JOBS or self.bytes >= CHUNK_BYTES

    @property
    def empty(self) -> bool:
        """Whether there is nothing to admit."""
        return not self.jobs and not self.dead


def describe(run: str, prompt_id: str, sample: int, samples: int) -> str:
    """What RQ's tools show of a job: `run/id`, never the prompt."""
    name = f"{run}/{prompt_id}"[:DESCRIPTION_CHARS]
    return f"{name}#{sample}" if samples > 1 else name


def letter_bytes(line: InvalidLine, sample: int, rank: int | msgspec.UnsetType = msgspec.UNSET) -> bytes:
    """The dead letter of a line that cannot be used."""
    return msgspec.json.encode(
        DeadLetter(
            index=line.index,
            id=line.id,
            reason=DeadReason.INVALID_LINE,
            last_error=f"line {line.line}: {line.reason}",
            attempts=0,
            sample=sample,
            line=line.line,
            at=iso_now(),
            rank=rank,
        )
    )


class Admitter:
    """Admits one input to one run, from wherever it stands to its end."""

    def __init__(
        self,
        store: RunStore,
        settings: RunSettings,
        read_from: Callable[[Position], Reader],
        *,
        high_water: int,
        on_progress: Report,
    ) -> None:
        """Prepare; nothing is read before `run`. `read_from` opens the input at a position."""
        self.store = store
        self.settings = settings
        self.read_from = read_from
        self.high_water = high_water
        self.on_progress = on_progress
        self.job_timeout = int(settings.consumer.request_timeout) + 60
        self._since_look = 0

    def run(self) -> int:
        """Admit until the input ends; returns how many chunks this call admitted.

        Raises:
            QueueError: Redis refused in a way that waiting does not cure.
            InputError: the input changed meanwhile.
        """
        self._put_back_missing()
        chunks = 0
        while True:
            stored = self._patiently(lambda: self.store.position(self.settings.run))
            if stored is None:
                raise QueueError(
                    f"run {self.settings.run} is gone from Redis: run the same command again to rebuild it "
                    "from the output and the input"
                )
            if stored.ended:
                return chunks
            chunks += self._from(Position(stored.index, max(stored.line, 1), stored.offset))

    def _from(self, start: Position) -> int:
        """Admit from `start` to the end, or until another producer has moved the position."""
        chunks = 0
        with self.read_from(start) as reader:
            before, chunk = start, ChunkBuilder(self.settings)
            for item in reader:
                chunk.add(item, reader.position.index - 1)
                if chunk.full:
                    if not self._admit(chunk, before, reader, ended=False):
                        return chunks
                    chunks += 1
                    before, chunk = reader.position, ChunkBuilder(self.settings)
            self._admit(chunk, before, reader, ended=True)
        return chunks + 1

    def _admit(self, chunk: ChunkBuilder, before: Position, reader: Reader, *, ended: bool) -> bool:
        self._wait_for_room(before.index, len(chunk.jobs))
        after = reader.position
        admission = Admission(
            token=uuid.uuid4().hex,
            expected_index=before.index,
            position=StoredPosition(after.index, after.line, after.offset, ended),
            jobs=chunk.jobs,
            dead=chunk.dead,
        )
        result = self._patiently(
            lambda: self.store.admit(self.settings.run, admission, job_timeout=self.job_timeout)
        )
        self.on_progress(after.index, None)
        return result > 0

    def _wait_for_room(self, index: int, jobs: int) -> None:
        """Wait while Redis holds as many jobs as it should, or most of the memory it may have."""
        self._since_look -= jobs
        if self._since_look >= 0:
            return
        while True:
            used, limit = self._patiently(self.store.memory)
            backlog = self._patiently(self.store.backlog)
            if limit and used > limit * MEMORY_SHARE:
                self.on_progress(index, Waiting("redis_full"))
            elif backlog + jobs > self.high_water and backlog:
                self.on_progress(index, Waiting("high_water"))
            else:
                # Nobody but producers adds to the backlog: until the room seen here is used, no other look.
                self._since_look = max(0, min(self.high_water - backlog - jobs, 10 * CHUNK_JOBS))
                return
            time.sleep(WAIT_S)

    def _patiently(self, call: Callable[[], T]) -> T:
        """Repeat a call, each safe to repeat, while Redis is full or away."""
        waited = False
        while True:
            try:
                result = call()
            except (RedisFullError, RedisUnavailableError) as error:
                full = isinstance(error, RedisFullError)
                if not waited:
                    log.warning("admission_waits", run=self.settings.run, error=str(error))
                waited = True
                self.on_progress(-1, Waiting("redis_full" if full else "redis_unavailable"))
                time.sleep(FULL_WAIT_S)
            else:
                if waited:
                    log.info("admission_goes_on", run=self.settings.run)
                return result

    def _put_back_missing(self) -> None:
        """Admit again the jobs that somebody deleted from Redis."""
        missing = set(self.store.missing(self.settings.run))
        if not missing:
            return
        log.warning("missing_jobs", run=self.settings.run, jobs=len(missing), note="deleted from Redis")
        places = {unit // self.settings.generation.samples for unit in missing}
        chunk = ChunkBuilder(self.settings)
        with self.read_from(Position()) as reader:
            for item in reader:
                place = reader.position.index - 1
                if place in places:
                    chunk.add(item, place)
                if chunk.full:
                    self._readmit(chunk)
                    chunk = ChunkBuilder(self.settings)
        self._readmit(chunk)

    def _readmit(self, chunk: ChunkBuilder) -> None:
        if chunk.jobs:
            self.store.readmit(self.settings.run, chunk.jobs, job_timeout=self.job_timeout)
