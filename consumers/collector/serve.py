"""The collector process: holds the lease, serves every active run, looks after what fell out of the lists."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from typing import Final

from common.errors import PromptmillError, QueueError, StorageError
from common.log import get_logger
from common.store.connection import RedisUnavailableError
from common.store.runs import RunStore
from common.timing import Timing, timing
from consumers.collector.collect import RunCollector
from consumers.collector.tell import Teller

IDLE_S: Final = 0.25

BACKOFF_MOST_S: Final = 30.0
RESTORE_CHUNK: Final = 1000

log = get_logger("collector")


class Lease:
    """The collector's lease, kept by a thread so that a slow upload does not lose it."""

    def __init__(self, store: RunStore, ttl_s: float | None = None) -> None:
        """Use `store`'s Redis through a connection of its own."""
        self.store = store
        self.ttl_s = ttl_s or timing().lease_s
        self.token = uuid.uuid4().hex
        self.held = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def start(self) -> None:
        """Try for the lease now and go on trying and keeping it."""
        self._try()
        self._thread.start()

    def _keep(self) -> None:
        while not self._stop.wait(self.ttl_s / 3):
            self._try()

    def _try(self) -> None:
        try:
            held = self.store.take_lease(self.token, self.ttl_s)
        except QueueError as error:
            log.warning("lease_unknown", error=str(error))
            return
        if held != self.held:
            if held:
                log.info("lease_taken", token=self.token[:8])
            else:
                log.warning("lease_lost", token=self.token[:8])
        self.held = held

    def release(self) -> None:
        """Stop keeping it and let it go."""
        self._stop.set()
        self._thread.join(timeout=self.ttl_s)
        with contextlib.suppress(QueueError):
            self.store.release_lease(self.token)


class Collecting:
    """The loop over runs. `stop` may be called from a signal handler."""

    def __init__(
        self,
        store: RunStore,
        lease: Lease,
        *,
        flush_s: float,
        until_idle: bool = False,
        times: Timing | None = None,
    ) -> None:
        """Serve all runs of `store`; with `until_idle`, end when none is active."""
        self.times = times or timing()
        self.store = store
        self.lease = lease
        self.flush_s = flush_s
        self.until_idle = until_idle
        self.teller = Teller()
        self.runs: dict[str, RunCollector] = {}
        self._stop = threading.Event()
        self._upkeep_at = float("-inf")
        self._blocked: dict[str, tuple[float, float]] = {}

    def stop(self) -> None:
        """End after the step at hand."""
        self._stop.set()

    def loop(self) -> None:
        """Serve until stopped; what is known then is published once more."""
        self._loop()
        for collector in self.runs.values():
            if collector.over:
                continue  # its last word is written
            with contextlib.suppress(PromptmillError):
                collector.publish(now=True)

    def _loop(self) -> None:
        backoff = 0.5
        while not self._stop.is_set():
            self.teller.metrics.lease_held.set(int(self.lease.held))
            if not self.lease.held:
                self.runs.clear()
                self.teller.forget()
                self._stop.wait(1.0)
                continue
            try:
                busy = self.round()
                backoff = 0.5
            except QueueError as error:
                log.warning("redis_unavailable", error=str(error), retry_in_s=backoff)
                self._stop.wait(backoff)
                backoff = min(backoff * 2, BACKOFF_MOST_S / 4)
                continue
            if not busy:
                if self.until_idle and not self.store.runs(active=True):
                    return
                self._stop.wait(IDLE_S)

    def round(self) -> bool:
        """One step of every active run; true if any has more to do."""
        self._upkeep()
        active = self.store.runs(active=True)
        for gone in set(self.runs) - set(active):
            del self.runs[gone]
        if not active:
            return False
        redis_run_id = self.store.server_run_id()
        busy = False
        for run in active:
            busy |= self._step(run, redis_run_id)
        return busy

    def _step(self, run: str, redis_run_id: str) -> bool:
        until, delay = self._blocked.get(run, (0.0, 0.5))
        if time.monotonic() < until:
            return False
        try:
            if run not in self.runs:
                settings = self.store.settings(run)
                self.runs[run] = RunCollector(
                    self.store,
                    settings,
                    self.lease.token,
                    flush_s=self.flush_s,
                    metrics=self.teller.metrics,
                    stopping=lambda: self._stop.is_set() or not self.lease.held,
                )
            busy = self.runs[run].step(redis_run_id)
        except StorageError as error:
            self.teller.metrics.upload_failures.labels(run).inc()
            if error.transient:
                log.warning("storage_failing", run=run, error=str(error), retry_in_s=delay)
            else:
                log.error("storage_refuses", run=run, error=str(error), retry_in_s=delay)  # noqa: TRY400  # no traceback
            self._blocked[run] = (time.monotonic() + delay, min(delay * 2, BACKOFF_MOST_S))
            return False
        except RedisUnavailableError:
            raise
        except PromptmillError as error:
            log.error("run_step_failed", run=run, error=str(error), retry_in_s=delay)  # noqa: TRY400  # no traceback
            self.runs.pop(run, None)
            self._blocked[run] = (time.monotonic() + delay, min(delay * 2, BACKOFF_MOST_S))
            return False
        if self._blocked.pop(run, None):
            log.info("storage_works_again", run=run)
        return busy

    def _upkeep(self) -> None:
        now = time.monotonic()
        if now - self._upkeep_at < self.times.upkeep_s:
            return
        self._upkeep_at = now
        self.teller.look(self.store, self.store.runs(active=True))
        if back := self.store.reap(self.times.claim_ttl_s):
            log.warning("abandoned_jobs_requeued", jobs=back)
        since, queued, listed, flying, started = self.store.balance()
        if since < self.times.unbalanced_s:
            return
        log.warning(
            "counters_and_lists_disagree", queued=queued, listed=listed, in_flight=flying, started=started
        )
        for run in self.store.runs(active=True):
            lost = self.store.find_lost(run)
            for at in range(0, len(lost), RESTORE_CHUNK):
                back = self.store.restore(run, lost[at : at + RESTORE_CHUNK])
                log.warning("lost_jobs_requeued", run=run, jobs=back)
            if moved := self.store.recount(run):
                log.warning("counters_corrected", run=run, jobs=moved)
