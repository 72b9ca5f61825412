"""Asking a server for completions and judging them as a run would."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Final

import msgspec

from common.records import Message, PromptJob
from common.settings import GenerationSettings
from consumers.client.http import InferenceClient
from consumers.client.info import ServerInfo
from consumers.client.outcome import Failure, FailureKind
from consumers.client.request import build_request
from consumers.quality import RecentAnswers, judge
from ops.preflight.values import Answer

CANARY: Final = PromptJob(
    index=0, id="preflight", messages=[Message("user", "What is 3 plus 4? Answer in one short sentence.")]
)


async def ask(
    client: InferenceClient,
    info: ServerInfo,
    job: PromptJob,
    generation: GenerationSettings,
    *,
    timeout_s: float,
    recent: RecentAnswers | None = None,
) -> Answer:
    """Have one prompt answered and judged. `recent` counts equal answers over several calls."""
    loop = asyncio.get_running_loop()
    request = build_request(job, generation, info)
    began = loop.time()
    outcome = await client.generate(request, timeout_s)
    took = loop.time() - began
    if isinstance(outcome, Failure):
        return Answer(began=began, took=took, failure=outcome.kind, words=outcome.message)
    judgement = judge(
        outcome.response,
        outcome.finish_reason,
        outcome.usage,
        thinking=request.thinking,
        max_tokens=request.params.get("max_output_tokens"),
        repeats=recent.see(outcome.response, request.messages) if recent else 0,
        matched_stop=outcome.matched_stop,
        speculation=outcome.speculation,
        accept_max=float(info.draft_tokens) if info.draft_tokens else None,
    )
    return Answer(
        began=began,
        took=took,
        verdict=judgement.verdict,
        words=judgement.detail,
        tokens=outcome.usage.completion_tokens,
        thinking=request.thinking,
        thinking_from=outcome.thinking_from,
        answered=bool((outcome.response.content or "").strip()),
        accept_length=outcome.speculation.accept_length if outcome.speculation else None,
    )


async def ask_all(
    client: InferenceClient,
    info: ServerInfo,
    jobs: Sequence[PromptJob],
    generation: GenerationSettings,
    *,
    in_flight: int,
    timeout_s: float,
    recent: RecentAnswers | None = None,
) -> list[Answer]:
    """Have all `jobs` answered, so many at once; one left when the time is over is given up as timed out."""
    waiting = iter(jobs)
    answers: list[Answer] = []
    until = asyncio.get_running_loop().time() + timeout_s

    async def work() -> None:
        loop = asyncio.get_running_loop()
        for job in waiting:
            left = until - loop.time()
            if left > 0:
                answers.append(await ask(client, info, job, generation, timeout_s=left, recent=recent))
            else:
                answers.append(Answer(began=loop.time(), took=0.0, failure=FailureKind.TIMEOUT))

    await asyncio.gather(*(work() for _ in range(min(in_flight, len(jobs)))))
    return answers


def jobs_from(prompts: Sequence[PromptJob], count: int) -> list[PromptJob]:
    """`count` jobs: `prompts` evenly spread over, or over and over where they are too few."""
    if len(prompts) >= count:
        return [prompts[place * len(prompts) // count] for place in range(count)]
    return list(itertools.islice(itertools.cycle(prompts), count))


def limited(generation: GenerationSettings, tokens: int) -> GenerationSettings:
    """The same settings with an answer of at most `tokens`."""
    return msgspec.structs.replace(generation, max_output_tokens=min(generation.max_output_tokens, tokens))
