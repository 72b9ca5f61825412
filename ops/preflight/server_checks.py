"""Checks of the servers: each for itself, and all against each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from common.settings import GenerationSettings
from consumers.client.health import HealthState
from consumers.client.info import Dialect, ServerInfo
from consumers.concurrency import first_target
from ops.preflight.known import TESTED, is_tested, known_faults
from ops.preflight.values import Check, ServerFacts, failed, passed, skipped, warned

ALL: Final = "servers"

_LEAST_ACCEPTED: Final = 1.2
_TOO_MANY: Final = 1.25
_VERSIONS: Final = " to ".join(".".join(map(str, version)) for version in TESTED)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a run asks of its servers. `waits`: a server that is down is waited for, not an error."""

    generation: GenerationSettings
    concurrency: int = 0
    request_timeout: float = 3600.0
    waits: bool = False


def check_server(facts: ServerFacts, asked: Asked) -> list[Check]:
    """One server: it answers, and is what the run needs. Its canary is checked apart."""
    health = check_health(facts, waits=asked.waits)
    if facts.info is None:
        return [health]
    info, url = facts.info, facts.url
    return [
        health,
        *check_version(url, info),
        check_model(url, info, asked.generation),
        check_context(url, info),
        *check_parser(url, info, asked.generation),
        *check_drafts(url, info, asked.generation),
        check_running(url, info),
        *check_concurrency(url, info, asked.concurrency),
        *check_load(url, info),
    ]


def check_health(facts: ServerFacts, *, waits: bool) -> Check:
    """Whether it can be reached, takes work and lets us in."""
    name = "reachable"
    if facts.refused_key:
        return failed(facts.url, name, facts.fault, "set SGLANG_API_KEY to the server's key")
    if facts.ready:
        return passed(facts.url, name, "and ready")
    state = facts.health.state if facts.health else HealthState.UNREACHABLE
    words = facts.fault or (facts.health.detail if facts.health else "") or state.value
    remedy = _REMEDIES.get(state, "look at the server's log")
    if waits:
        return warned(facts.url, name, words, f"{remedy}; its consumer waits for it")
    return failed(facts.url, name, words, remedy)


_REMEDIES: Final = {
    HealthState.UNREACHABLE: "start the server or correct its URL",
    HealthState.STARTING: "wait until it has loaded its model",
    HealthState.DRAINING: "it is being shut down: start it again",
    HealthState.UNHEALTHY: "look at its log; a stuck server has to be started again",
}


def check_version(url: str, info: ServerInfo) -> list[Check]:
    """The engine, and what is known against its version."""
    name = "version"
    words = f"{info.dialect.value} {info.version or 'of unknown version'}"
    faults = known_faults(info)
    if faults:
        return [warned(url, name, f"{words}: {fault.words}", fault.remedy) for fault in faults]
    if info.dialect is Dialect.UNKNOWN:
        remedy = "see that it speaks OpenAI's chat API: --conformance tries it out"
        return [warned(url, name, "an engine that is not known here", remedy)]
    if not is_tested(info):
        remedy = "--conformance tries it out"
        return [warned(url, name, f"{words}, not one of those tested ({_VERSIONS})", remedy)]
    return [passed(url, name, words)]


def check_model(url: str, info: ServerInfo, generation: GenerationSettings) -> Check:
    """The model that it serves against the one that is asked for."""
    served, wanted = info.model or "unnamed", generation.model
    base = (wanted or "").split(":")[0]
    if not wanted or served in (wanted, base):
        return passed(url, "model", served)
    return warned(
        url,
        "model",
        f"it serves {served}, the run asks for {wanted}: SGLang would answer all the same, under that name",
        "correct --model, or leave it out to take what is served",
    )


def check_context(url: str, info: ServerInfo) -> Check:
    """Its context length, and whether its cache can hold as much."""
    if info.context_length is None:
        return skipped(url, "context", "the server does not tell its context length")
    words = f"{info.context_length:,} tokens"
    if info.reserved_tokens:
        words += f", {info.reserved_tokens} of them kept for drafts"
    if info.kv_tokens and info.kv_tokens < info.context_length:
        return warned(
            url,
            "context",
            f"{words}, but its cache holds {info.kv_tokens:,}: longer conversations are refused",
            "give the cache more memory (--mem-fraction-static), or serve a shorter context",
        )
    return passed(url, "context", words)


def check_parser(url: str, info: ServerInfo, generation: GenerationSettings) -> list[Check]:
    """Whether it separates thinking from answers, where thinking is asked for. Only SGLang tells."""
    if not generation.thinking or info.dialect is not Dialect.SGLANG:
        return []
    if info.reasoning_parser:
        return [passed(url, "reasoning parser", info.reasoning_parser)]
    return [
        warned(
            url,
            "reasoning parser",
            "none: thinking comes within the answer; it is split off here, but not where it is cut off",
            "start the server with --reasoning-parser qwen3 (or the model's own), or use --no-thinking",
        )
    ]


def check_drafts(url: str, info: ServerInfo, generation: GenerationSettings) -> list[Check]:
    """Speculative decoding: how it is set up, and whether it helps."""
    name = "speculation"
    if not info.speculative_algorithm:
        return [passed(url, name, "off")] if info.dialect is Dialect.SGLANG else []
    shape = f"{info.speculative_steps}/{info.speculative_topk}/{info.draft_tokens}"
    words = f"{info.speculative_algorithm} {shape}"
    checks = []
    if info.accept_length is None:
        checks.append(passed(url, name, f"{words}, accept length not told yet"))
    elif info.accept_length < _LEAST_ACCEPTED:
        words += f", accept length {info.accept_length:.2f}: drafts are hardly ever accepted"
        remedy = "check that the draft weights belong to the model, or switch speculation off"
        checks.append(warned(url, name, words, remedy))
    else:
        checks.append(passed(url, name, f"{words}, accept length {info.accept_length:.2f}"))
    if generation.min_p > 0:
        words = f"min-p {generation.min_p} is ignored while decoding speculatively"
        checks.append(warned(url, "min-p", words, "leave --min-p at 0, or switch speculation off"))
    return checks


def check_running(url: str, info: ServerInfo) -> Check:
    """How many requests it really runs at once, against what its command line asked for."""
    name, runs, wanted = "runs at once", info.effective_running, info.requested_running
    if not runs:
        return skipped(url, name, "the server does not tell")
    if not wanted or runs >= wanted:
        return passed(url, name, f"{runs} requests")
    return warned(
        url,
        name,
        f"{runs} requests, though it was started for {wanted}: its cache of states or keys holds no more",
        f"start it with --max-running-requests {runs} (asking for more wastes memory on some versions), or "
        "give the cache more: --max-mamba-cache-size, --mamba-ssm-dtype bfloat16, --mem-fraction-static",
    )


def check_concurrency(url: str, info: ServerInfo, concurrency: int) -> list[Check]:
    """How many requests a consumer keeps in flight, against how many the server runs."""
    name, runs = "concurrency", info.effective_running
    flying = first_target(concurrency, info)
    said = str(concurrency) if concurrency else f"auto ({flying} in flight)"
    checks = []
    if not runs:
        words = f"{said}; how many the server runs is not known"
        checks.append(passed(url, name, words) if concurrency else skipped(url, name, words))
    elif flying > _TOO_MANY * runs + 1:
        words = f"{flying} in flight at a server that runs {runs}: {flying - runs} only wait in its queue"
        checks.append(warned(url, name, words, f"use --concurrency auto ({first_target(0, info)} here)"))
    elif flying < runs:
        words = f"{flying} in flight at a server that runs {runs}: {runs - flying} of its slots stay idle"
        checks.append(warned(url, name, words, f"use --concurrency auto ({first_target(0, info)} here)"))
    else:
        checks.append(passed(url, name, f"{said} for {runs} that run"))
    if runs and info.max_queued is not None and flying - runs > info.max_queued:
        words = f"{flying} in flight, but it refuses more than {runs} running and {info.max_queued} waiting"
        checks.append(warned(url, "queue", words, "lower --concurrency, or start it with a longer queue"))
    return checks


def check_load(url: str, info: ServerInfo) -> list[Check]:
    """Whether somebody else is using it now."""
    load = info.load
    if load is None or not ((load.running or 0) + (load.waiting or 0)):
        return []
    words = f"it is at work already: {load.running or 0} running, {load.waiting or 0} waiting"
    return [warned(url, "load", words, "see who uses it: two runs on one server share its speed")]


def check_together(servers: Sequence[ServerFacts]) -> list[Check]:
    """What must be the same on all servers that answered."""
    infos = [facts.info for facts in servers if facts.info is not None]
    if len(servers) < 2 or not infos:  # noqa: PLR2004  # two are needed to differ
        return []
    checks = [_check_models(servers)]
    versions = sorted({f"{info.dialect.value} {info.version}" for info in infos})
    if len(versions) > 1:
        words = f"{', '.join(versions)}: answers may differ in their white space and fields"
        checks.append(warned(ALL, "versions", words, "serve one version on all"))
    contexts = sorted({info.context_length for info in infos if info.context_length})
    if len(contexts) > 1:
        words = f"contexts from {contexts[0]:,} to {contexts[-1]:,} tokens"
        remedy = "serve one context length: a prompt that one refuses is a dead letter, whatever others take"
        checks.append(warned(ALL, "contexts", words, remedy))
    return checks


def _check_models(servers: Sequence[ServerFacts]) -> Check:
    by_model: dict[str, list[str]] = {}
    for facts in servers:
        if facts.info is not None:
            by_model.setdefault(facts.info.model or "unnamed", []).append(facts.url)
    if len(by_model) == 1:
        return passed(ALL, "same model", next(iter(by_model)))
    words = "; ".join(f"{model} on {', '.join(urls)}" for model, urls in by_model.items())
    return failed(ALL, "same model", f"several: {words}", "one run is of one model: serve the same on all")
