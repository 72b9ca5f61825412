"""Putting servers under load: the canary batch and the sweep."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from common.records import PromptJob
from common.settings import GenerationSettings
from consumers.client.http import InferenceClient
from consumers.client.info import ServerInfo
from consumers.concurrency import first_target
from consumers.quality import RecentAnswers
from ops.preflight.ask import ask_all, jobs_from, limited
from ops.preflight.rates import batch_of, curve_point, knee_of
from ops.preflight.values import Batch, Curve, CurvePoint

BATCH_S: Final = 1800.0
"""The batch has so long, or one request's timeout if that is less; what ends later counts as failed."""

LEVEL_S: Final = 300.0
ROUNDS: Final = 3
"""Requests per place in flight at a level: the first fills them, the last drains them."""

Say = Callable[[str], None]


class Target(msgspec.Struct, frozen=True):
    """A server that is ready, and its client."""

    client: InferenceClient
    info: ServerInfo


async def run_batch(
    targets: Sequence[Target],
    prompts: Sequence[PromptJob],
    generation: GenerationSettings,
    *,
    count: int,
    concurrency: int,
    request_timeout: float,
) -> Batch:
    """Have `count` prompts answered in full, shared out over the servers, as a run would ask for them."""
    jobs = jobs_from(prompts, count)
    recent = RecentAnswers()
    shares = [jobs[place :: len(targets)] for place in range(len(targets))]
    answers = await asyncio.gather(
        *(
            ask_all(
                target.client,
                target.info,
                share,
                generation,
                in_flight=first_target(concurrency, target.info),
                timeout_s=min(BATCH_S, request_timeout),
                recent=recent,
            )
            for target, share in zip(targets, shares, strict=True)
        )
    )
    return batch_of(dict(zip((target.client.url for target in targets), answers, strict=True)))


async def run_sweep(
    targets: Sequence[Target],
    prompts: Sequence[PromptJob],
    generation: GenerationSettings,
    *,
    levels: Sequence[int],
    tokens: int,
    say: Say,
) -> list[Curve]:
    """Every server at every number in flight, all servers at once, answers cut at `tokens`."""
    found: list[list[CurvePoint]] = [[] for _ in targets]
    # Each server goes through the prompts in order, so that its prefix cache meets none again soon.
    supplies = [itertools.cycle(prompts) for _ in targets]
    for level in levels:
        say(f"sweep: {level} in flight")
        points = await asyncio.gather(
            *(
                _level(target, list(itertools.islice(supply, ROUNDS * level)), generation, level, tokens)
                for target, supply in zip(targets, supplies, strict=True)
            )
        )
        for points_of_server, point in zip(found, points, strict=True):
            points_of_server.append(point)
    return [
        Curve(url=target.client.url, points=points, knee=knee_of(points))
        for target, points in zip(targets, found, strict=True)
    ]


async def _level(
    target: Target, jobs: Sequence[PromptJob], generation: GenerationSettings, level: int, tokens: int
) -> CurvePoint:
    answers = await ask_all(
        target.client,
        target.info,
        jobs,
        limited(generation, tokens),
        in_flight=level,
        timeout_s=LEVEL_S,
    )
    return curve_point(answers, level, target.info.effective_running)
