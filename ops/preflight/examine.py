"""The whole preflight: what is found out in which order, and the report made of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import msgspec

from common.errors import InputError, UsageError
from common.options import Chosen
from common.records import PromptJob
from common.storage import StorageReport
from common.store.connection import RedisFacts
from consumers.client.conformance import run_conformance
from consumers.client.http import InferenceClient
from ops.preflight import gather, place_checks, settings_checks
from ops.preflight.canary_checks import check_batch, check_canary
from ops.preflight.forecast import check_timeout, forecast
from ops.preflight.gather import FULL, QUICK
from ops.preflight.load import Say, Target, run_batch, run_sweep
from ops.preflight.server_checks import Asked, check_server, check_together
from ops.preflight.survey import Survey, completions_each, survey
from ops.preflight.tokens import Fit, fit
from ops.preflight.values import Batch, Check, Curve, Report, ServerFacts, failed, warned
from producer.source import Source

SURVEY_SPARE_S: Final = 30.0
SWEEP_TOKENS: Final = 512


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a preflight is to look at.

    `quick` is the form that `ops run` uses: a short canary, servers that are down are waited for, and
    unusable lines are left to the producer, which names every one. `state` is the folder of an embedded
    Redis, which takes the place of `redis_url`.
    """

    servers: Sequence[str]
    chosen: Chosen
    source: Source | None = None
    output: str | None = None
    redis_url: str | None = None
    state: Path | None = None
    quick: bool = False
    canary: int = 0
    expected_tokens: float | None = None
    sweep: Sequence[int] = ()
    sweep_tokens: int = SWEEP_TOKENS
    conformance: bool = False


def run_preflight(wanted: Wanted, *, say: Say = lambda _: None) -> Report:
    """Look at everything that a run rests on, and say what would go wrong.

    Args:
        wanted: what to look at, and how closely.
        say: told what takes long while it does.

    Raises:
        UsageError: a server's URL or the output cannot be one, or there is no input to load servers with.
    """
    if (wanted.canary or wanted.sweep) and wanted.source is None:
        raise UsageError("--canary and --sweep take their prompts from the input: name a file")
    return asyncio.run(_examine(wanted, os.environ.get("SGLANG_API_KEY"), say))


async def _examine(wanted: Wanted, api_key: str | None, say: Say) -> Report:
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(InferenceClient(url, api_key=api_key)) for url in wanted.servers
        ]
        return await _Examination(wanted, clients, api_key, say).run()


class _Examination:
    """One preflight on its way: what was found, and the checks made of it."""

    def __init__(
        self, wanted: Wanted, clients: Sequence[InferenceClient], api_key: str | None, say: Say
    ) -> None:
        self.wanted = wanted
        self.clients = clients
        self.api_key = api_key
        self.say = say
        self.limits = QUICK if wanted.quick else FULL
        self.generation = wanted.chosen.generation
        self.checks: list[Check] = settings_checks.check_settings(self.generation)

    async def run(self) -> Report:
        found, redis, output, servers = await asyncio.gather(
            self._survey(), self._redis(), self._output(), self._look()
        )
        targets = [
            Target(client, facts.info)
            for client, facts in zip(self.clients, servers, strict=True)
            if facts.ready and facts.info is not None
        ]
        measured = await self._fit(found, targets) if found and found.lines else None
        batch, curves = await self._load(found, targets)
        prediction = forecast(
            servers=servers,
            batch=batch,
            curves=curves,
            completions=self._completions(found) if found else None,
            expected_tokens=self.wanted.expected_tokens,
            max_tokens=self.generation.max_output_tokens,
            concurrency=self.wanted.chosen.consumer.concurrency,
        )
        self._check_input(found, measured)
        self._check_redis(redis, found)
        if output:
            expected = None
            if prediction and found and not prediction.at_most:
                expected = place_checks.output_bytes(
                    prediction.completions, found.mean_bytes, prediction.tokens_each
                )
            self.checks += place_checks.check_output(output, expected_bytes=expected)
        self._check_servers(servers)
        if batch:
            self.checks += check_batch(batch, self.wanted.chosen.quality)
        if self.wanted.conformance:
            self.checks += await self._conform()
        return Report(checks=self.checks, servers=servers, batch=batch, curves=curves, estimate=prediction)

    # Finding out

    async def _survey(self) -> Survey | None:
        source = self.wanted.source
        if source is None:
            return None
        seconds = self.limits.survey_s
        try:
            return await gather.in_thread(lambda: survey(source, seconds=seconds), seconds + SURVEY_SPARE_S)
        except InputError as error:
            remedy = "give a file that can be read"
            self.checks.append(failed(settings_checks.INPUT, "prompts", str(error), remedy))
        except TimeoutError:
            words = f"{source.name} could not be sampled within {seconds + SURVEY_SPARE_S:.0f} s"
            self.checks.append(warned(settings_checks.INPUT, "prompts", words, "look at the disk it is on"))
        return None

    async def _redis(self) -> RedisFacts | str | None:
        url = self.wanted.redis_url
        return await gather.redis_of(url) if url else None

    async def _output(self) -> StorageReport | None:
        return await gather.output_of(self.wanted.output) if self.wanted.output else None

    async def _look(self) -> list[ServerFacts]:
        return await asyncio.gather(
            *(gather.look(client, self.generation, self.limits) for client in self.clients)
        )

    async def _fit(self, found: Survey, targets: Sequence[Target]) -> Fit | None:
        """Against the server with the shortest context: what it refuses is a dead letter."""
        if not targets:
            return None
        least = min(targets, key=lambda target: target.info.context_length or float("inf"))
        return await fit(least.client, least.info, found, self.generation)

    async def _load(
        self, found: Survey | None, targets: Sequence[Target]
    ) -> tuple[Batch | None, list[Curve]]:
        batch: Batch | None = None
        curves: list[Curve] = []
        if found is None or not found.sample:
            return batch, curves
        prompts: list[PromptJob] = [prompt.job() for prompt in found.sample]
        if self.wanted.canary and targets:
            self.say(f"canary: {self.wanted.canary} prompts of the input, answered in full")
            batch = await run_batch(
                targets,
                prompts,
                self.generation,
                count=self.wanted.canary,
                concurrency=self.wanted.chosen.consumer.concurrency,
                request_timeout=self.wanted.chosen.consumer.request_timeout,
            )
        if self.wanted.sweep and targets:
            curves = await run_sweep(
                targets,
                prompts,
                self.generation,
                levels=self.wanted.sweep,
                tokens=self.wanted.sweep_tokens,
                say=self.say,
            )
        return batch, curves

    async def _conform(self) -> list[Check]:
        self.say("conformance: every server is asked in every way")
        suites = await asyncio.gather(
            *(run_conformance(url, api_key=self.api_key) for url in self.wanted.servers)
        )
        return [
            Check(f"conformance {client.url}", result.name, result.status, result.detail)
            for client, results in zip(self.clients, suites, strict=True)
            for result in results
        ]

    # Checks

    def _completions(self, found: Survey) -> int:
        each = completions_each(found.sample, self.generation.regenerate)
        return round(found.lines * self.generation.samples * each)

    def _check_input(self, found: Survey | None, measured: Fit | None) -> None:
        if found is None:
            return
        checks = settings_checks.check_input(
            found, self.generation, skip_invalid=self.wanted.chosen.skip_invalid
        )
        if self.wanted.quick:
            checks = [check for check in checks if check.name != "lines"]
        self.checks += checks
        if found.lines:
            self.checks.append(settings_checks.check_fit(measured))

    def _check_redis(self, redis: RedisFacts | str | None, found: Survey | None) -> None:
        jobs = size = None
        if found is not None:
            jobs = min(found.lines * self.generation.samples, self.wanted.chosen.high_water)
            size = found.mean_bytes
        if isinstance(redis, str):
            self.checks.append(place_checks.unreachable_redis(redis))
        elif redis is not None:
            self.checks += place_checks.check_redis(redis, jobs=jobs, prompt_bytes=size)
        elif self.wanted.state is not None:
            room = gather.free_bytes(self.wanted.state)
            self.checks.append(
                place_checks.check_state_room(
                    room, str(self.wanted.state), jobs=jobs or 0, prompt_bytes=size or 0.0
                )
            )

    def _check_servers(self, servers: Sequence[ServerFacts]) -> None:
        consumer = self.wanted.chosen.consumer
        asked = Asked(
            generation=self.generation,
            concurrency=consumer.concurrency,
            request_timeout=consumer.request_timeout,
            waits=self.wanted.quick,
        )
        for facts in servers:
            self.checks += check_server(facts, asked)
            if facts.ready:
                self.checks.append(check_canary(facts.url, facts.canary, waits=asked.waits))
                self.checks += check_timeout(facts, asked)
        self.checks += check_together(servers)
