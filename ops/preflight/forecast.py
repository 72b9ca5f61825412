"""How long the input will take, from whatever was measured, and what that rests on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from consumers.client.info import ServerInfo
from consumers.concurrency import first_target
from ops.preflight.rates import Point, best_rate, estimate, rate_at
from ops.preflight.server_checks import Asked
from ops.preflight.values import Batch, Check, Curve, Estimate, ServerFacts, warned

_SINGLE: Final = (
    "the speed of one request alone, as if a full server were no slower for each "
    "(--canary or --sweep measure it)"
)


def forecast(
    *,
    servers: Sequence[ServerFacts],
    batch: Batch | None,
    curves: Sequence[Curve],
    completions: int | None,
    expected_tokens: float | None,
    max_tokens: int,
    concurrency: int,
) -> Estimate | None:
    """Wall time and GPU hours for the whole input; `None` where no rate is known or there is no input."""
    if not completions:
        return None
    length, length_words, at_most = _length(batch, expected_tokens, max_tokens)
    if any(best_rate(curve) for curve in curves):
        rates = [best_rate(curve) for curve in curves]
        knees = sorted({curve.knee for curve in curves if curve.knee})
        words = f"the sweep's rate at its knee ({', '.join(map(str, knees))} in flight)"
        at_best = False
    else:
        rates, words, at_best = _extrapolated(servers, batch, concurrency)
    return estimate(
        completions=completions,
        tokens_each=length,
        rates=[rate for rate in rates if rate],
        rests_on=f"{words}, and {length_words}",
        at_most=at_most,
        at_best=at_best,
    )


def _length(batch: Batch | None, expected: float | None, most: int) -> tuple[float, str, bool]:
    if expected:
        return expected, f"the {expected:,.0f} tokens that were said to be expected", False
    if batch and batch.mean_tokens:
        return batch.mean_tokens, f"the mean length of {batch.judged} canary answers", False
    return float(most), "every answer as long as its limit (--expected-tokens or --canary tell better)", True


def _extrapolated(
    servers: Sequence[ServerFacts], batch: Batch | None, concurrency: int
) -> tuple[list[float], str, bool]:
    rates, measured = [], False
    for facts in servers:
        points = _points(facts, batch)
        measured = measured or len(points) > 1
        if facts.info is not None and points:
            rates.append(rate_at(points, _running(facts.info, concurrency)) or 0.0)
    if measured and batch:
        most = max((flying for flying, _ in batch.rates.values()), default=0.0)
        words = f"rates at one and at {most:.1f} in flight, extrapolated to what each server runs"
        return rates, words, False
    return rates, _SINGLE, True


def _points(facts: ServerFacts, batch: Batch | None) -> list[Point]:
    points = []
    if facts.canary is not None and facts.canary.tokens_per_s:
        points.append((1.0, facts.canary.tokens_per_s))
    if batch and facts.url in batch.rates:
        points.append(batch.rates[facts.url])
    return points


def _running(info: ServerInfo, concurrency: int) -> int:
    flying = first_target(concurrency, info)
    return min(flying, info.effective_running or flying)


def check_timeout(facts: ServerFacts, asked: Asked) -> list[Check]:
    """Whether the longest answer ends before its request times out, its wait in the queue included."""
    rate = facts.canary.tokens_per_s if facts.canary else None
    if not rate or facts.info is None:
        return []
    flying, runs = first_target(asked.concurrency, facts.info), _running(facts.info, asked.concurrency)
    needed = asked.generation.max_output_tokens / rate * max(1.0, flying / runs)
    if needed <= asked.request_timeout:
        return []
    words = f"an answer of {asked.generation.max_output_tokens:,} tokens takes {needed:,.0f} s at best here"
    remedy = f"raise --request-timeout, now {asked.request_timeout:,.0f} s"
    return [warned(facts.url, "request timeout", words, remedy)]
