"""A consumer's live figures: what `ops status` shows of it, and what its metrics count."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

from prometheus_client import CollectorRegistry

from common.metrics import ConsumerMetrics
from common.records import Speculation, Verdict

MINUTE_S: Final = 60.0
PAUSE_REASONS: Final = ("guard", "suspended", "results_full", "server", "draining")
_PAUSES: Final = {
    "paused": "guard",
    "suspended": "suspended",
    "full": "results_full",
    "draining": "draining",
}


class Figures:
    """Counts of one consumer since it started, and over the last minute."""

    def __init__(self) -> None:
        """Start at zero, with a metrics registry of its own."""
        self.registry = CollectorRegistry()
        self.metrics = ConsumerMetrics(self.registry)
        self.started = time.time()
        self.completions = 0
        self.output_tokens = 0
        self.verdicts: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.dead: Counter[str] = Counter()
        self.latency_total = 0.0
        self.accept_length: float | None = None
        self._counting: dict[tuple[str, Verdict], tuple[Callable[[], None], Callable[[float], None]]] = {}
        self._ends: deque[tuple[float, int]] = deque()
        self._faults: deque[float] = deque()

    def completed(
        self, run: str, verdict: Verdict, tokens: int, latency_s: float, speculation: Speculation | None
    ) -> None:
        """One completion."""
        counting = self._counting.get((run, verdict))
        if counting is None:
            # To look a metric up by its labels takes longer than all else here.
            counting = self._counting[run, verdict] = (
                self.metrics.completions.labels(run, verdict.value).inc,
                self.metrics.output_tokens.labels(run).inc,
            )
        counting[0]()
        counting[1](tokens)
        self.metrics.attempt_seconds.observe(latency_s)
        self.completions += 1
        self.output_tokens += tokens
        self.verdicts[verdict.value] += 1
        self.latency_total += latency_s
        self._ends.append((time.monotonic(), tokens))
        if speculation and speculation.accept_length is not None:
            before = self.accept_length
            fresh = speculation.accept_length
            self.accept_length = fresh if before is None else before * 0.95 + fresh * 0.05

    def failed(self, kind: str) -> None:
        """One request that brought no answer."""
        self.metrics.request_errors.labels(kind).inc()
        self.errors[kind] += 1
        self._faults.append(time.monotonic())

    def buried(self, reason: str) -> None:
        """One dead letter."""
        self.dead[reason] += 1

    def gauge(self, *, server: str, state: str, ready: bool, in_flight: int, limit: int) -> None:
        """Bring the gauges up to date: what the consumer does, and why it takes no jobs if it does not."""
        metrics = self.metrics
        metrics.in_flight.set(in_flight)
        metrics.limit.set(limit)
        metrics.server_up.labels(server).set(int(ready))
        if self.accept_length is not None:
            metrics.accept_length.labels(server).set(self.accept_length)
        why = _PAUSES.get(state, "" if ready else "server")
        for reason in PAUSE_REASONS:
            metrics.paused.labels(reason).set(int(reason == why))

    def last_minute(self) -> dict[str, Any]:
        """Rates over the last minute, or since the start where that is shorter."""
        now = time.monotonic()
        while self._ends and self._ends[0][0] < now - MINUTE_S:
            self._ends.popleft()
        while self._faults and self._faults[0] < now - MINUTE_S:
            self._faults.popleft()
        span = max(1.0, min(MINUTE_S, time.time() - self.started))
        return {
            "completions_per_s": round(len(self._ends) / span, 3),
            "output_tokens_per_s": round(sum(tokens for _, tokens in self._ends) / span, 1),
            "errors": len(self._faults),
        }
