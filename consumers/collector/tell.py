"""What a collector tells Prometheus of its runs: read from Redis, so that any collector can tell it."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Gauge

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
        """Bring the gauges of these runs up to date; those of other runs, or that no longer hold, go."""
        used, limit = store.memory()
        self.metrics.redis_used_bytes.set(used)
        self.metrics.redis_limit_bytes.set(limit)
        told: set[tuple[str, ...]] = set()
        for run in runs:
            told |= self._run(run, store.counts(run), store)
        self._keep(told)

    def _run(self, run: str, counts: Counts, store: RunStore) -> set[tuple[str, ...]]:
        metrics = self.metrics
        readings: list[tuple[Gauge, tuple[str, ...], float]] = [
            *((metrics.run_jobs, (run, state), getattr(counts, state)) for state in _STATES),
            *((metrics.run_events, (run, event), counts.other.get(event, 0)) for event in _EVENTS),
            *((metrics.run_dead, (run, reason), number) for reason, number in counts.tally("dead").items()),
            *((metrics.run_paused, (run, scope), 1) for scope in store.paused(run)),
            (metrics.results_waiting, (run,), store.results_waiting(run).count),
        ]
        for gauge, labels, value in readings:
            gauge.labels(*labels).set(value)
        return {(str(id(gauge)), *labels) for gauge, labels, _ in readings}

    def _keep(self, told: set[tuple[str, ...]]) -> None:
        for gauge in self._of_runs():
            for labels in {
                tuple(sample.labels.values()) for family in gauge.collect() for sample in family.samples
            }:
                if (str(id(gauge)), *labels) not in told:
                    gauge.remove(*labels)

    def _of_runs(self) -> tuple[Gauge, ...]:
        metrics = self.metrics
        runs = (metrics.run_jobs, metrics.run_dead, metrics.run_events, metrics.run_paused)
        return (*runs, metrics.results_waiting)

    def forget(self) -> None:
        """Tell nothing of runs: another collector does."""
        self._keep(set())
