"""One job from claim to outcome: ask the server, judge the answer, make the record or decide what else.

All I/O here is the request itself and the probe after a broken connection; every decision is a pure function
of `client.retry` or `quality`.
"""

from __future__ import annotations

import random
import time
from typing import Final

import msgspec

from common import crashpoints, keys
from common.jobs import ForgedJobError, decode_job
from common.log import get_logger
from common.records import DeadLetter, DeadReason, PromptJob, Record, Response, Turn, Verdict
from common.settings import GenerationSettings, RunSettings
from common.store.claims import Again, Claim, ClaimStore, Completed, Dead, HandedBack, Outcome, forged
from common.store.runs import iso_now
from consumers.client.http import InferenceClient
from consumers.client.outcome import Failure, FailureKind, Success
from consumers.client.request import ChatRequest, build_request
from consumers.client.retry import GiveUp, HandBack, RetryPolicy, decide
from consumers.client.turns import history_for, turns_to_generate
from consumers.figures import Figures
from consumers.gate import ServerGate
from consumers.quality.boilerplate import RecentAnswers
from consumers.quality.policy import Keep, RetryWithSeed, apply, retry_seed
from consumers.quality.verdict import Judgement, judge

LAST_ERROR_CHARS: Final = 2000

log = get_logger("consumer")


class Performer:
    """Turns claims into outcomes against one server."""

    def __init__(
        self, store: ClaimStore, client: InferenceClient, gate: ServerGate, figures: Figures
    ) -> None:
        """Use one client and its gate; `figures` is told of every end."""
        self.store = store
        self.client = client
        self.gate = gate
        self.figures = figures
        self.recent: dict[str, RecentAnswers] = {}

    async def __call__(self, claim: Claim) -> Outcome:
        """Do one job; may be cancelled at any await."""
        run, unit = keys.parse_job_id(claim.job)
        settings = await self.store.settings(run)
        samples = settings.generation.samples
        try:
            prompt = decode_job(claim.data)
        except ForgedJobError as error:
            log.warning("forged_job", job=claim.job)
            return forged(claim, unit // samples, str(error))
        if prompt.unit(samples) != unit:
            log.warning("forged_job", job=claim.job)
            return forged(
                claim, unit // samples, f"the job holds prompt {prompt.index}, its id says unit {unit}"
            )
        if claim.deaths >= settings.consumer.max_deaths:
            words = f"{claim.deaths} consumers or servers died while they held this prompt"
            return self._dead(prompt, claim, DeadReason.KILLED_CONSUMERS, words)
        if claim.attempts >= settings.consumer.max_attempts:
            words = f"{claim.attempts} attempts failed inside the consumer; see event job_fault in its log"
            return self._dead(prompt, claim, DeadReason.SERVER_FAULT, words)
        return await self._generate(claim, settings, prompt)

    async def _generate(self, claim: Claim, settings: RunSettings, prompt: PromptJob) -> Outcome:
        positions = turns_to_generate(prompt.messages, settings.generation.regenerate)
        if not positions:
            words = "the conversation has no turn to answer: it needs a user's message"
            return self._dead(prompt, claim, DeadReason.BAD_REQUEST, words)
        started_at, begun = iso_now(), time.perf_counter()
        answers: dict[int, Response] = {}
        turns: list[Turn] = []
        seed = seed_for(prompt, settings.generation, claim.tries)
        for position in positions:
            history = history_for(prompt.messages, position, answers)
            request = build_request(prompt, settings.generation, self.gate.info, messages=history, seed=seed)
            sent = time.monotonic()
            with crashpoints.point("server.generate"):
                result = await self.client.generate(request, settings.consumer.request_timeout)
            if isinstance(result, Failure):
                return await self._failed(prompt, claim, settings, result)
            self.gate.answered(result.usage.completion_tokens or 0, time.monotonic() - sent)
            judgement = self._judge(settings.run, request, result)
            verdict = judgement.verdict
            decision = apply(
                verdict,
                claim.tries + 1,
                settings.quality,
                unit=prompt.unit(settings.generation.samples),
                sampled=(request.params.get("temperature") or 0) > 0,
            )
            if isinstance(decision, RetryWithSeed):
                log.info(
                    "verdict_retry", job=claim.job, id=prompt.id, verdict=verdict.value, tries=claim.tries + 1
                )
                return Again(0.0, claim.attempts, claim.tries + 1, verdict, prompt.id)
            if not isinstance(decision, Keep):
                words = f"verdict {verdict.value}: {judgement.detail}"
                return self._dead(prompt, claim, DeadReason.REJECTED, words, verdict=verdict)
            answers[position] = result.response
            if position != positions[-1]:
                turns.append(Turn(position, result.response, result.finish_reason, result.usage, verdict))
                continue
            latency = time.perf_counter() - begun
            record = self._record(
                claim,
                settings,
                prompt,
                request,
                result,
                verdict=verdict,
                turns=turns,
                started_at=started_at,
                latency_s=round(latency, 4),
            )
            tokens = sum(t.usage.completion_tokens or 0 for t in turns) + (
                result.usage.completion_tokens or 0
            )
            self.figures.completed(settings.run, verdict, tokens, latency, result.speculation)
            return Completed(msgspec.json.encode(record), verdict, tokens, prompt.id)
        raise AssertionError("the last position returns")

    def _record(
        self,
        claim: Claim,
        settings: RunSettings,
        prompt: PromptJob,
        request: ChatRequest,
        result: Success,
        *,
        verdict: Verdict,
        turns: list[Turn],
        started_at: str,
        latency_s: float,
    ) -> Record:
        return Record(
            run=settings.run,
            index=prompt.index,
            id=prompt.id,
            messages=request.messages,
            response=result.response,
            finish_reason=result.finish_reason,
            verdict=verdict,
            usage=result.usage,
            model=result.model or self.gate.info.model or "",
            server=self.client.url,
            params=request.params,
            attempts=claim.attempts + claim.tries + 1,
            started_at=started_at,
            latency_s=latency_s,
            metadata=prompt.metadata,
            sample=prompt.sample if settings.generation.samples > 1 else msgspec.UNSET,
            speculation=result.speculation or msgspec.UNSET,
            turns=turns or msgspec.UNSET,
            rank=prompt.rank,
        )

    async def _failed(
        self, prompt: PromptJob, claim: Claim, settings: RunSettings, failure: Failure
    ) -> Outcome:
        self.figures.failed(failure.kind.value)
        gone = False
        if failure.kind.is_setup and "model" not in prompt.params:
            # Every other prompt would meet the same there. It is nobody's dead letter.
            self.gate.refused(failure.summary)
            return HandedBack()
        if failure.kind is FailureKind.OVERLOADED:
            self.gate.overloaded()
        elif failure.kind in (FailureKind.UNREACHABLE, FailureKind.DISCONNECTED):
            gone = not await self.gate.still_there()
        if failure.kind in (FailureKind.DISCONNECTED, FailureKind.SERVER_FAULT) and not gone:
            gone = self.gate.faulted(claim.job)
        policy = RetryPolicy(
            max_attempts=settings.consumer.max_attempts, max_deaths=settings.consumer.max_deaths
        )
        decision = decide(
            failure,
            attempts=claim.attempts,
            deaths=claim.deaths,
            policy=policy,
            jitter=random.random(),  # noqa: S311  # spreads retries; nothing secret
            server_gone=gone,
        )
        log.info(
            "attempt_failed",
            job=claim.job,
            id=prompt.id,
            server=self.client.url,
            kind=failure.kind.value,
            status=failure.status,
            attempt=claim.attempts + 1,
            then=type(decision).__name__,
        )
        if isinstance(decision, GiveUp):
            return self._dead(prompt, claim, decision.reason, decision.message, spent=1)
        if isinstance(decision, HandBack):
            return HandedBack(death=decision.counts_death)
        return Again(decision.after_s, claim.attempts + int(decision.spends_attempt), claim.tries)

    def _dead(
        self,
        prompt: PromptJob,
        claim: Claim,
        reason: DeadReason,
        words: str,
        *,
        spent: int = 0,
        verdict: Verdict | None = None,
    ) -> Dead:
        self.figures.buried(reason.value)
        attempts = claim.attempts + claim.tries + spent
        log.warning(
            "dead_letter",
            job=claim.job,
            id=prompt.id,
            reason=reason.value,
            server=self.client.url,
            attempt=attempts,
        )
        return Dead(
            DeadLetter(
                index=prompt.index,
                id=prompt.id,
                reason=reason,
                last_error=words[:LAST_ERROR_CHARS],
                attempts=attempts,
                sample=prompt.sample,
                server=self.client.url,
                at=iso_now(),
                rank=prompt.rank,
            ),
            verdict,
        )

    def _judge(self, run: str, request: ChatRequest, result: Success) -> Judgement:
        recent = self.recent.get(run)
        if recent is None:
            recent = self.recent[run] = RecentAnswers()
        drafts = self.gate.info.draft_tokens
        return judge(
            result.response,
            result.finish_reason,
            result.usage,
            thinking=request.thinking,
            max_tokens=request.params.get("max_output_tokens"),
            repeats=recent.see(result.response, request.messages),
            matched_stop=result.matched_stop,
            speculation=result.speculation,
            accept_max=float(drafts) if drafts else None,
        )


def seed_for(prompt: PromptJob, generation: GenerationSettings, tries: int) -> int | None:
    """The seed to ask for, if one is needed: another for every try, and for every sample where none is set.

    It is the same whenever that try of that sample is made again. Servers without seeds ignore it.
    """
    seeded = "seed" in prompt.params or "seed" in generation.extra_body
    if tries or (generation.samples > 1 and not seeded):
        return retry_seed(prompt.unit(generation.samples), tries)
    return None
