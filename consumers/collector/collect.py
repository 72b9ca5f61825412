"""The collector's work on one run: parts, the manifest, progress and dead letters.

The order of steps keeps the promises: the parts are fixed in Redis and on its disk before an object is made,
the object is made before its range is let go. A kill between any two steps leaves a seal whose object is made
again, byte for byte, or found there.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
from prometheus_client import CollectorRegistry

from common.adopt import adopt_part, adopt_parts
from common.errors import StorageConflictError
from common.log import get_logger
from common.metrics import CollectorMetrics
from common.parts import DEAD_LETTERS, MANIFEST, part_name
from common.records import Manifest, PartRow
from common.settings import RunSettings
from common.storage import Storage, open_storage
from common.store.connection import RedisUnavailableError
from common.store.runs import Counts, Part, RunStore, Seal, Waiting, iso_now
from consumers.collector.assembly import Assembly
from consumers.collector.decide import (
    Sample,
    next_seal,
    part_due,
    progress_of,
    rates,
    run_over,
)

PROGRESS: Final = "progress.json"
PROGRESS_S: Final = 2.0
MANIFEST_S: Final = 10.0
RATE_WINDOW_S: Final = 60.0
DISK_MS: Final = 2000

log = get_logger("collector")


class Look(NamedTuple):
    """What a step goes by."""

    waiting: Waiting
    counts: Counts
    ended: bool


class RunCollector:
    """Collects one run. Only the holder of the lease should; a late one can do no harm."""

    def __init__(
        self,
        store: RunStore,
        settings: RunSettings,
        token: str,
        *,
        flush_s: float,
        metrics: CollectorMetrics | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """Open the run's output. No new part is begun when `stopping`.

        Raises:
            StorageError: the output cannot be used.
        """
        self.store = store
        self.settings = settings
        self.run = settings.run
        self.token = token
        self.flush_s = flush_s
        self.stopping = stopping
        self.metrics = metrics or CollectorMetrics(CollectorRegistry())
        self.storage: Storage = open_storage(settings.destination)
        self.samples: deque[Sample] = deque()
        self.over = False
        self._kept: Seal | None = None
        self._rows: list[PartRow] = []
        self._checked_for: str | None = None
        self._progress_at = float("-inf")
        self._manifest_at = float("-inf")
        self._written: tuple[int, int, int] | None = None
        self._letters_written: tuple[int, ...] | None = None

    def step(self, redis_run_id: str) -> bool:
        """Do what is due; true if there may be more at once.

        Raises:
            StorageError: the output could not be written; nothing is lost, the step can be repeated.
            QueueError: Redis could not be asked, or the lease is another's.
        """
        if self._checked_for != redis_run_id:
            # A Redis we have not seen before, or one that restarted and may have lost its last second.
            adopt_parts(self.store, self.storage, self.run, self.settings.generation.samples)
            self._checked_for, self._kept = redis_run_id, None
        look = self.look()
        made = self.make_parts(look)
        over = not made and run_over(look.waiting, look.counts, ended=look.ended)
        self.publish(final=over)
        self.over = over and self.store.retire(self.run)
        if self.over:
            counts = look.counts
            log.info("run_finished", run=self.run, completed=counts.completed, dead=counts.dead)
        return made

    def look(self) -> Look:
        """What is there to do."""
        counts = self.store.counts(self.run)
        waiting = self.store.results_waiting(self.run)
        position = self.store.position(self.run)
        return Look(waiting, counts, position is not None and position.ended)

    def make_parts(self, look: Look) -> bool:
        """Seal what waits, and write and commit its parts in order; false if none is due."""
        waiting, size = look.waiting, self.settings.batch_size
        if not part_due(waiting, look.counts, ended=look.ended, batch_size=size, flush_s=self.flush_s):
            return False
        kept, self._kept = self._kept, None
        on_disk = kept is not None and waiting.seal == str(kept)
        seal = kept if kept is not None and on_disk else next_seal(waiting, size)
        assembly = Assembly(
            self.store,
            self.run,
            seal,
            waiting.number,
            promise=(lambda: True) if on_disk else partial(self._promise, waiting, seal),
            put=partial(self._put, seal),
            stopping=self.stopping,
        )
        if not assembly.make():
            self._kept = seal  # parts are left under it, for the next step
        return True

    def _promise(self, waiting: Waiting, seal: Seal) -> bool:
        """Once it is on its disk, no loss of Redis's last second can fix other parts any more."""
        token, standing = self.token, waiting.seal
        if not self.store.seal(self.run, token, waiting.number, standing, seal, wait_ms=DISK_MS):
            raise RedisUnavailableError(f"Redis has not written to its disk within {DISK_MS} ms")
        return True

    def _put(self, seal: Seal, part: Part, data: bytes) -> bool:
        """Write a part and commit it; false when it is another's, so that the ones after it are void."""
        name = part_name(part.number)
        row = PartRow(name, part.records, hashlib.sha256(data).hexdigest())
        try:
            with self.metrics.upload_seconds.time():
                self.storage.create(name, data, sha256=row.sha256)
        except StorageConflictError:
            log.warning("part_exists_already", run=self.run, part=name, note="taking it over as it is")
            adopt_part(self.store, self.storage, self.run, part.number, self.settings.generation.samples)
            return False
        if not self.store.commit(self.run, seal, part, row):
            log.info("part_committed_by_another", run=self.run, part=name)
            return False
        self.metrics.parts.labels(self.run).inc()
        self.metrics.stored.labels(self.run).inc(part.records)
        log.info("part_stored", run=self.run, part=name, records=part.records, bytes=len(data))
        return True

    def publish(self, *, final: bool = False, now: bool = False) -> None:
        """Write progress, dead letters and manifest where they are due, or all of them `now`."""
        at = time.monotonic()
        if not (final or now) and at - self._progress_at < PROGRESS_S:
            return
        counts = self.store.counts(self.run)
        self._take_sample(at, counts)
        # One letter may have come as another went: their number alone does not tell.
        letters = (counts.dead, *(counts.other.get(name, 0) for name in ("revived", "adopted")))
        if final or letters != self._letters_written:
            self._write_dead_letters()
            self._letters_written = letters
        state = "finished" if final else self._state()
        rate, tokens_rate = rates(list(self.samples))
        progress = progress_of(
            self.settings, counts, at=iso_now(), state=state, rate=rate, tokens_rate=tokens_rate
        )
        self.storage.replace(PROGRESS, msgspec.json.encode(progress))
        self._progress_at = at
        written = (counts.stored, counts.completed, counts.dead)
        due = now or at - self._manifest_at >= MANIFEST_S
        if final or (due and written != self._written):
            self._write_manifest(counts, finished_at=iso_now() if final else None)
            self._manifest_at, self._written = at, written
        if not self.store.holds_lease(self.token):
            # This process was held up while it wrote, and may have put old values over newer ones: whoever
            # has the lease writes them again, for a finished run too.
            log.warning("lease_lost_while_writing", run=self.run)
            self.store.unretire(self.run)

    def _state(self) -> str:
        paused: dict[str, Any] = self.store.paused(self.run)
        return "paused" if "*" in paused else "running"

    def _take_sample(self, now: float, counts: Counts) -> None:
        self.samples.append(Sample(now, counts.completed, counts.other.get("output_tokens", 0)))
        while len(self.samples) > 2 and self.samples[0].at < now - RATE_WINDOW_S:  # noqa: PLR2004  # two points
            self.samples.popleft()

    def _write_dead_letters(self) -> None:
        letters = self.store.dead_letters(self.run).values()
        if not letters and self.storage.stat(DEAD_LETTERS) is None:
            return
        lines = [msgspec.json.encode(letter) for letter in letters]
        self.storage.replace(DEAD_LETTERS, b"".join(line + b"\n" for line in lines))

    def _write_manifest(self, counts: Counts, *, finished_at: str | None) -> None:
        if self.store.part_count(self.run) < len(self._rows):
            self._rows = []
        self._rows += self.store.parts(self.run, len(self._rows))
        manifest = manifest_of(self.settings, self._rows, counts, finished_at=finished_at)
        self.storage.replace(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1))


def manifest_of(
    settings: RunSettings, rows: list[PartRow], counts: Counts, *, finished_at: str | None
) -> Manifest:
    """The manifest of a run at one moment."""
    plain: dict[str, Any] = msgspec.to_builtins(settings)
    source = {"name": settings.input_name, **msgspec.to_builtins(settings.fingerprint)}
    return Manifest(
        run=settings.run,
        created_at=settings.created_at,
        settings=plain,
        input=source,
        parts=rows,
        verdicts=counts.tally("verdict"),
        completed=counts.completed,
        dead=counts.dead,
        accepted=counts.accepted,
        finished_at=finished_at,
    )
