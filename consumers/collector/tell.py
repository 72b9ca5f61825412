"""What a collector tells Prometheus of its runs: read from Redis, so that any collector can tell it."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry

from common.metrics import CollectorMetrics
from common.store.runs import Counts, RunStore

_STATES: Final = ("accepted", "completed", "stored", "dead", "queued", "in_flight")
_EVENTS: Final = ("redeliveries", "second_finishes", "handed_back", "restored")


class Teller:
    """Keeps the metrics of one collector."""

    def __init__(self) -> None:
        """Use a registry of its own."""
        self.registry = CollectorRegistry()
        self.metrics = CollectorMetrics(self.registry)

    def look(self, store: RunStore, runs: list[str]) -> None:
        """Bring the gauges of these runs up to date, and forget all others."""
        metrics = self.metrics
        used, limit = store.memory()
        metrics.redis_used_bytes.set(used)
        metrics.redis_limit_bytes.set(limit)
        for gauge in (metrics.run_jobs, metrics.run_dead, metrics.run_events, metrics.run_paused):
            gauge.clear()
        metrics.results_waiting.clear()
        for run in runs:
            self._run(run, store.counts(run), store)

    def _run(self, run: str, counts: Counts, store: RunStore) -> None:
        metrics = self.metrics
        for state in _STATES:
            metrics.run_jobs.labels(run, state).set(getattr(counts, state))
        for event in _EVENTS:
            metrics.run_events.labels(run, event).set(counts.other.get(event, 0))
        for reason, number in counts.tally("dead").items():
            metrics.run_dead.labels(run, reason).set(number)
        for scope in store.paused(run):
            metrics.run_paused.labels(run, scope).set(1)
        metrics.results_waiting.labels(run).set(store.results_waiting(run)[0])

    def forget(self) -> None:
        """Tell nothing of runs: another collector does."""
        metrics = self.metrics
        for gauge in (metrics.run_jobs, metrics.run_dead, metrics.run_events, metrics.run_paused):
            gauge.clear()
        metrics.results_waiting.clear()
