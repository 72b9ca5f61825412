"""One suite of checks that any server must pass for a run on it to be trusted.

It runs against the simulator in every dialect and against live servers alike. A check fails where a run would
go wrong, and warns where it would go on with less: no thinking field, no load figures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any, Final

import msgspec

from common.errors import ServerError
from common.records import Message, PromptJob
from common.settings import GenerationSettings
from consumers.client.fields import as_dict, decode
from consumers.client.http import CHAT_PATH, InferenceClient
from consumers.client.info import Dialect, ServerInfo
from consumers.client.outcome import Blame, Failure, FailureKind, Outcome, Success, ThinkingFrom
from consumers.client.request import ChatRequest, build_request, encode
from consumers.client.response import classify
from consumers.client.transport import Reply, new_rid

ANSWER_TOKENS: Final = 512
ANSWER_TIMEOUT_S: Final = 300.0
_SHORT_TOKENS: Final = 4
_LONG_TOKENS: Final = 100_000
_PROMPT_ROOM: Final = 256
_ABORT_AFTER_S: Final = 0.3
_ABORT_WITHIN_S: Final = 15.0
_PARALLEL: Final = 4
_DRAFT_SLACK: Final = 8


class CheckStatus(StrEnum):
    """How one check ended."""

    PASS = "pass"  # noqa: S105 - the name of an ending, no password
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


class CheckResult(msgspec.Struct, frozen=True):
    """One check: its name, how it ended, and what was seen, with the remedy where there is one."""

    name: str
    status: CheckStatus
    detail: str = ""


class _Suite:
    """The checks, over one client and what the server told of itself."""

    def __init__(self, client: InferenceClient, api_key: str | None) -> None:
        self.client = client
        self.api_key = api_key
        self.info = ServerInfo()

    async def run(self) -> list[CheckResult]:
        ready = await self.health()
        known = await self.server_info()
        if CheckStatus.FAIL in (ready.status, known.status):
            return [ready, known]
        asked = [await check(self) for check in _CHECKS]
        return [ready, known, *self.told(), *asked]

    # What the server says of itself

    async def health(self) -> CheckResult:
        health = await self.client.probe(timeout_s=30.0)
        return _result("health", health.ready, f"{health.state.value} {health.detail}".strip())

    async def server_info(self) -> CheckResult:
        try:
            self.info = await self.client.info()
        except ServerError as error:
            return CheckResult("server_info", CheckStatus.FAIL, str(error))
        info = self.info
        words = (
            f"{info.dialect.value} {info.version or 'of unknown version'}, model {info.model or 'unnamed'}"
        )
        return _soft("server_info", info.dialect is not Dialect.UNKNOWN and bool(info.model), words)

    def told(self) -> list[CheckResult]:
        info = self.info
        running = f"{info.effective_running} at once" if info.effective_running else "not told: 48 is assumed"
        results = [
            _soft("context_length", info.context_length is not None, f"{info.context_length} tokens"),
            _soft("effective_running", bool(info.effective_running), running),
            _soft(
                "load", info.load is not None, info.load.source if info.load else "no endpoint tells the load"
            ),
        ]
        if info.dialect is Dialect.SGLANG:
            words = info.reasoning_parser or "none: start the server with --reasoning-parser"
            results.append(_soft("reasoning_parser", info.reasoning_parser is not None, words))
        return results

    # What it answers

    async def answer(self) -> CheckResult:
        outcome = await self.ask("What is 3 plus 4? Answer in one short sentence.")
        if isinstance(outcome, Failure):
            return CheckResult("answer", CheckStatus.FAIL, outcome.message)
        cut = outcome.finish_reason == "length"
        words = f"finish_reason {outcome.finish_reason}, {outcome.usage.completion_tokens} tokens"
        return _soft("answer", bool(outcome.response.content) and not cut, words)

    async def usage(self) -> CheckResult:
        outcome = await self.ask("Say hello.", max_output_tokens=64)
        if isinstance(outcome, Failure):
            return CheckResult("usage", CheckStatus.FAIL, outcome.message)
        counts = outcome.usage
        return _soft("usage", bool(counts.prompt_tokens and counts.completion_tokens), str(counts))

    async def thinking(self) -> CheckResult:
        outcome = await self.ask("What is 12 times 3?")
        if isinstance(outcome, Failure):
            return CheckResult("thinking", CheckStatus.FAIL, outcome.message)
        words = {
            ThinkingFrom.FIELD: "in a field of its own",
            ThinkingFrom.CONTENT: "within the content: it is split off here, a parser on the server is safer",
            ThinkingFrom.NOWHERE: "none: the model or its template does not think, or no parser finds it",
        }[outcome.thinking_from]
        return _soft("thinking", outcome.thinking_from is ThinkingFrom.FIELD, words)

    async def no_thinking(self) -> CheckResult:
        outcome = await self.ask("What is 12 times 3?", thinking=False)
        if isinstance(outcome, Failure):
            return CheckResult("no_thinking", CheckStatus.FAIL, outcome.message)
        text = outcome.response
        thought = bool(text.reasoning_content) or "</think>" in (text.content or "")
        return _soft("no_thinking", not thought, "it thinks although told not to" if thought else "kept to")

    async def length_limit(self) -> CheckResult:
        outcome = await self.ask("Count to 9, slowly.", max_output_tokens=_SHORT_TOKENS)
        if isinstance(outcome, Failure):
            return CheckResult("length_limit", CheckStatus.FAIL, outcome.message)
        made = outcome.usage.completion_tokens
        kept = outcome.finish_reason == "length" and (made is None or made <= _SHORT_TOKENS + _DRAFT_SLACK)
        words = f"finish_reason {outcome.finish_reason} after {made} tokens of {_SHORT_TOKENS}"
        return _result("length_limit", kept, words)

    async def conversation(self) -> CheckResult:
        job = PromptJob(
            index=0,
            id="conformance",
            messages=[
                Message("user", "Remember the word heron."),
                Message("assistant", "I will."),
                Message("user", "Which word?"),
            ],
        )
        settings = _settings(max_output_tokens=64, system="You are brief.")
        outcome = await self.client.generate(build_request(job, settings, self.info), ANSWER_TIMEOUT_S)
        bad = outcome.message if isinstance(outcome, Failure) else ""
        return _result("conversation", not bad, bad or "system prompt and several turns are taken")

    async def parallel(self) -> CheckResult:
        asked = (self.ask(f"Say the number {n}.", max_output_tokens=32) for n in range(_PARALLEL))
        outcomes = await asyncio.gather(*asked)
        bad = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
        if bad and all(outcome.blame is Blame.LOAD for outcome in bad):
            words = f"{len(bad)} of {_PARALLEL} at once are refused for load: a run would ask for fewer"
            return CheckResult("parallel", CheckStatus.WARN, words)
        return _result("parallel", not bad, bad[0].message if bad else f"{_PARALLEL} at once are answered")

    async def speculation(self) -> CheckResult:
        if not self.info.speculative_algorithm or not self.info.at_least(0, 5, 13):
            return CheckResult("speculation", CheckStatus.SKIP, "not in use, or SGLang older than 0.5.13")
        outcome = await self.ask("Count to 9.", max_output_tokens=64)
        found = outcome.speculation if isinstance(outcome, Success) else None
        if found is None:
            return CheckResult("speculation", CheckStatus.WARN, "no accept length per request")
        return CheckResult("speculation", CheckStatus.PASS, f"accept length {found.accept_length}")

    # How it refuses

    async def too_long(self) -> CheckResult:
        if self.info.context_length is None:
            return CheckResult("too_long", CheckStatus.SKIP, "the context length is not known")
        outcome = await self.ask("word " * (self.info.context_length + 64), max_output_tokens=16)
        if isinstance(outcome, Success):
            words = "a prompt over the context was cut silently: start the server without auto-truncation"
            return CheckResult("too_long", CheckStatus.FAIL, words)
        return _result("too_long", outcome.kind is FailureKind.TOO_LONG, outcome.summary)

    async def bad_value(self) -> CheckResult:
        outcome = await self.ask("Hello.", max_output_tokens=16, temperature=-1.0)
        return self._refusal("bad_value", outcome, tolerated=True)

    async def no_messages(self) -> CheckResult:
        body = {**self.request("", max_output_tokens=16).body, "messages": []}
        return self._refusal("no_messages", await self.post(body), tolerated=True)

    async def not_json(self) -> CheckResult:
        return self._refusal("not_json", await self.post(b'{"model": '), tolerated=True)

    def _refusal(self, name: str, outcome: Outcome, *, tolerated: bool) -> CheckResult:
        """A request that is wrong in itself is to be refused as the row's fault, or a run would retry it."""
        if isinstance(outcome, Success):
            return CheckResult(name, CheckStatus.WARN if tolerated else CheckStatus.FAIL, "it is accepted")
        return _soft(name, outcome.blame is Blame.ROW, outcome.summary)

    async def unknown_path(self) -> CheckResult:
        reply = await self.client.fetch("POST", "/v1/no/such/path", body={})
        outcome = reply if isinstance(reply, Failure) else classify(reply.status, reply.headers, reply.body)
        found = outcome.kind if isinstance(outcome, Failure) else None
        return _soft("unknown_path", found is FailureKind.NOT_FOUND, found.value if found else "answered")

    async def wrong_key(self) -> CheckResult:
        if not self.api_key:
            return CheckResult("wrong_key", CheckStatus.SKIP, "no API key is set")
        wrong = {"Authorization": "Bearer not-the-key"}
        body = self.request("Hello.", max_output_tokens=16).body
        reply = await self.client.fetch("POST", CHAT_PATH, body=body, headers=wrong, timeout_s=60.0)
        outcome = reply if isinstance(reply, Failure) else classify(reply.status, reply.headers, reply.body)
        refused = isinstance(outcome, Failure) and outcome.kind is FailureKind.UNAUTHORIZED
        return _soft("wrong_key", refused, "refused" if refused else "the server does not check keys")

    # How it lets go

    async def request_id(self) -> CheckResult:
        request = self.request("Hello.", max_output_tokens=16)
        if request.rid_field is None:
            return CheckResult("request_id", CheckStatus.SKIP, "the server makes its own")
        rid = new_rid()
        reply = await self.client.fetch(
            "POST", CHAT_PATH, body=encode(request, rid), timeout_s=ANSWER_TIMEOUT_S
        )
        got = as_dict(decode(reply.body)).get("id") if isinstance(reply, Reply) else None
        kept = got in (rid, f"chatcmpl-{rid}")
        return _soft("request_id", kept, "kept" if kept else f"sent {rid}, got {got}")

    async def abort(self) -> CheckResult:
        tokens = (self.info.context_length or _LONG_TOKENS) - _PROMPT_ROOM
        request = self.request("Count upwards.", max_output_tokens=max(tokens, 1), ignore_eos=True)
        if request.rid_field != "rid":
            return CheckResult("abort", CheckStatus.SKIP, "no abort endpoint")
        rid = new_rid()
        task = asyncio.create_task(
            self.client.fetch("POST", CHAT_PATH, body=encode(request, rid), timeout_s=_ABORT_WITHIN_S)
        )
        await asyncio.sleep(_ABORT_AFTER_S)
        await self.client.fetch("POST", "/abort_request", body={"rid": rid, "abort_all": False})
        reply = await task
        if isinstance(reply, Failure):
            return CheckResult(
                "abort", CheckStatus.WARN, f"not within {_ABORT_WITHIN_S:.0f} s: {reply.summary}"
            )
        outcome = classify(reply.status, reply.headers, reply.body)
        if isinstance(outcome, Success):
            return CheckResult("abort", CheckStatus.WARN, "it had ended before it was aborted")
        return _result("abort", outcome.kind is FailureKind.SERVER_FAULT, outcome.message)

    # Helpers

    def request(self, prompt: str, **settings: Any) -> ChatRequest:
        params = {name: settings.pop(name) for name in ("ignore_eos",) if name in settings}
        job = PromptJob(index=0, id="conformance", messages=[Message("user", prompt)], params=params)
        return build_request(job, _settings(**settings), self.info)

    async def ask(self, prompt: str, **settings: Any) -> Outcome:
        return await self.client.generate(self.request(prompt, **settings), ANSWER_TIMEOUT_S)

    async def post(self, body: Any) -> Outcome:
        reply = await self.client.fetch("POST", CHAT_PATH, body=body, timeout_s=60.0)
        return reply if isinstance(reply, Failure) else classify(reply.status, reply.headers, reply.body)


_CHECKS: Final[tuple[Callable[[_Suite], Awaitable[CheckResult]], ...]] = (
    _Suite.answer,
    _Suite.usage,
    _Suite.thinking,
    _Suite.no_thinking,
    _Suite.length_limit,
    _Suite.conversation,
    _Suite.parallel,
    _Suite.speculation,
    _Suite.too_long,
    _Suite.bad_value,
    _Suite.no_messages,
    _Suite.not_json,
    _Suite.unknown_path,
    _Suite.wrong_key,
    _Suite.request_id,
    _Suite.abort,
)


async def run_conformance(url: str, *, api_key: str | None = None) -> list[CheckResult]:
    """Run every check against a live server, one after the other; some ask it for a few hundred tokens.

    Raises:
        UsageError: the URL cannot be used.
    """
    async with InferenceClient(url, api_key=api_key) as client:
        return await _Suite(client, api_key).run()


def _settings(**settings: Any) -> GenerationSettings:
    return GenerationSettings(**{"max_output_tokens": ANSWER_TOKENS, **settings})


def _result(name: str, passed: bool, detail: str) -> CheckResult:  # noqa: FBT001 - the question is the argument
    return CheckResult(name, CheckStatus.PASS if passed else CheckStatus.FAIL, detail)


def _soft(name: str, passed: bool, detail: str) -> CheckResult:  # noqa: FBT001 - the question is the argument
    return CheckResult(name, CheckStatus.PASS if passed else CheckStatus.WARN, detail)
