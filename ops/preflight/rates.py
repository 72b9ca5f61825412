"""From measured requests to rates, from rates to hours. Pure arithmetic."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ops.preflight.values import Answer, Batch, Curve, CurvePoint, Estimate

KNEE: Final = 0.95
"""The knee is the fewest in flight that reach this share of the best rate."""

Point = tuple[float, float]
"""Requests in flight at one server, and its tokens a second with them."""


def mean_point(answers: Sequence[Answer]) -> Point | None:
    """The mean number in flight while these requests ran, and the mean rate; `None` for no data.

    By Little's law: the sum of all latencies over the time from the first start to the last end. A batch
    whose tail runs out therefore counts as the fewer requests in flight that it was.
    """
    done = [answer for answer in answers if answer.tokens]
    wall = _span(done)
    if not done or wall <= 0:
        return None
    return sum(a.took for a in done) / wall, sum(a.tokens or 0 for a in done) / wall


def steady_rate(answers: Sequence[Answer], in_flight: int, slots: int | None = None) -> float | None:
    """Tokens a second while all `in_flight` were at work: from the first end to the first with no successor.

    A request counts by the share of its running time that lies in that window, for tokens come evenly.

    Args:
        answers: all requests of one level.
        in_flight: how many were kept in flight.
        slots: how many the server runs at once, where that is known; the others waited in its queue.
    """
    done = [answer for answer in answers if answer.tokens and answer.took > 0]
    if not done:
        return None
    ends = sorted(answer.began + answer.took for answer in done)
    start, stop = ends[0], ends[max(0, len(ends) - in_flight)]
    if stop <= start:
        return None
    inside = 0.0
    for began, ended, tokens in _running(done, slots or in_flight):
        overlap = min(stop, ended) - max(start, began)
        inside += tokens * max(0.0, overlap) / (ended - began)
    return inside / (stop - start)


def _running(answers: Sequence[Answer], slots: int) -> Iterator[tuple[float, float, int]]:
    """When each request began to run, ended, and its tokens: taken in order as slots fall free."""
    ends: list[float] = []
    for answer in sorted(answers, key=lambda answer: answer.began):
        ended = answer.began + answer.took
        freed = heapq.heappop(ends) if len(ends) >= slots else answer.began
        began = max(answer.began, freed)
        heapq.heappush(ends, ended)
        yield (began if began < ended else answer.began), ended, answer.tokens or 0


def _span(answers: Sequence[Answer]) -> float:
    if not answers:
        return 0.0
    return max(a.began + a.took for a in answers) - min(a.began for a in answers)


def rate_at(points: Sequence[Point], in_flight: float) -> float | None:
    """A server's rate at `in_flight`, extrapolated from `points`.

    A decoding step takes a fixed time and some more for each request in it, so `in_flight / rate` grows in a
    straight line. One point alone cannot tell the slope: it gives the rate without any slowdown.
    """
    sound = [(n, rate) for n, rate in points if n > 0 and rate > 0]
    if not sound:
        return None
    fixed, each = _line([(n, n / rate) for n, rate in sound])
    return in_flight / (fixed + each * in_flight)


def _line(points: Sequence[Point]) -> tuple[float, float]:
    """The least-squares line through `points` with neither intercept nor slope below zero."""
    count = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread > 0 else 0.0
    slope = max(0.0, slope)
    intercept = mean_y - slope * mean_x
    if intercept < 0:
        return 0.0, sum(x * y for x, y in points) / sum(x * x for x, _ in points)
    return intercept, slope


def knee_of(points: Sequence[CurvePoint]) -> int | None:
    """The fewest in flight that reach 95 % of the best rate: beyond it requests only wait."""
    best = max((point.tokens_per_s for point in points), default=0.0)
    if best <= 0:
        return None
    return min(point.in_flight for point in points if point.tokens_per_s >= KNEE * best)


def curve_point(answers: Sequence[Answer], in_flight: int, slots: int | None = None) -> CurvePoint:
    """One level of a sweep from its requests. Arguments as of `steady_rate`."""
    done = [answer for answer in answers if answer.failure is None]
    latencies = sorted(answer.took for answer in done)
    accepted = [answer.accept_length for answer in done if answer.accept_length]
    return CurvePoint(
        in_flight=in_flight,
        tokens_per_s=steady_rate(done, in_flight, slots) or 0.0,
        requests=len(answers),
        failures=len(answers) - len(done),
        p50_s=quantile(latencies, 0.5),
        p95_s=quantile(latencies, 0.95),
        accept_length=sum(accepted) / len(accepted) if accepted else None,
    )


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """The value below which `share` of the sorted values lie, by the nearest rank."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def batch_of(by_server: Mapping[str, Sequence[Answer]]) -> Batch:
    """Add up a canary batch. An answer without a token count is left out of the mean length."""
    answers = [answer for found in by_server.values() for answer in found]
    lengths = [answer.tokens for answer in answers if answer.tokens]
    accepted = [answer.accept_length for answer in answers if answer.accept_length]
    rates = {url: point for url, found in by_server.items() if (point := mean_point(found))}
    return Batch(
        asked=len(answers),
        verdicts=dict(Counter(a.verdict.value for a in answers if a.verdict).most_common()),
        failures=dict(Counter(a.failure.value for a in answers if a.failure).most_common()),
        mean_tokens=sum(lengths) / len(lengths) if lengths else None,
        accept_length=sum(accepted) / len(accepted) if accepted else None,
        rates=rates,
    )


def estimate(
    *,
    completions: int,
    tokens_each: float,
    rates: Sequence[float],
    rests_on: str,
    at_most: bool = False,
    at_best: bool = False,
) -> Estimate | None:
    """How long `completions` of `tokens_each` take on servers of these rates; `None` without a rate."""
    total = sum(rates)
    if total <= 0:
        return None
    wall = completions * tokens_each / total
    return Estimate(
        completions=completions,
        tokens_each=tokens_each,
        tokens_per_s=total,
        wall_s=wall,
        server_hours=wall * len(rates) / 3600,
        servers=len(rates),
        rests_on=rests_on,
        at_most=at_most,
        at_best=at_best,
    )


def best_rate(curve: Curve) -> float:
    """The rate of a server at its knee; 0 where nothing was measured."""
    return next((p.tokens_per_s for p in curve.points if p.in_flight == curve.knee), 0.0)
