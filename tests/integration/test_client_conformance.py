"""The conformance suite: green on a sound server, and each flaw found by its own check."""

from __future__ import annotations

import asyncio
import json

import pytest
from support.wire_stub import Asked, Wire, WireStub, reply

from consumers.client.conformance import CheckStatus, run_conformance

KEY = "canary-key"
CONTEXT = 2048
BUSY = {"full": 503, "fails some": 500}
DRAFTS = {"spec_accept_rate": 0.6, "spec_accept_length": 2.8, "spec_verify_ct": 9}


def refusal(status: int, message: str) -> bytes:
    return reply(status, {"object": "error", "message": message, "type": "BadRequestError", "code": status})


class Engine:
    """A small SGLang: thinks, answers, counts, refuses and aborts. `flaw` names what it does wrong."""

    def __init__(self, flaw: str = "") -> None:
        self.flaw = flaw
        self.running: dict[str, asyncio.Event] = {}

    async def answer(self, asked: Asked, wire: Wire) -> bytes:
        path = asked.path.split("?")[0]
        if path in ("/ready", "/health"):
            return reply(200)
        if self.flaw != "no key check" and asked.headers.get("authorization") != f"Bearer {KEY}":
            return reply(401, {"error": "Unauthorized"})
        if path == "/v1/chat/completions":
            if self.flaw in BUSY and b"number 3" in asked.body:
                return refusal(BUSY[self.flaw], "The request queue is full.")
            return await self.chat(asked)
        if path == "/abort_request":
            self.running[asked.json["rid"]].set()
            return reply(200)
        document = self.documents().get(path)
        return reply(404, {"detail": "Not Found"}) if document is None else reply(200, document)

    def documents(self) -> dict[str, object]:
        card = {"id": "tiny", "owned_by": "sglang", "max_model_len": CONTEXT}
        info = {
            "version": "0.5.23",
            "reasoning_parser": None if self.flaw == "no parser" else "qwen3",
            "speculative_algorithm": "EAGLE",
            "internal_states": [{"effective_max_running_requests_per_dp": 4}],
        }
        load = {"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 0}]}
        return {"/v1/models": {"data": [card]}, "/server_info": info, "/v1/loads": load}

    async def chat(self, asked: Asked) -> bytes:
        try:
            body = asked.json
        except json.JSONDecodeError:
            return refusal(400, "not JSON")
        words = " ".join(message["content"] for message in body["messages"]).split()
        if not words:
            return refusal(400, "Messages cannot be empty.")
        if body["temperature"] < 0:
            return refusal(
                500 if self.flaw == "500 for bad values" else 400, "temperature must be non-negative"
            )
        if len(words) > CONTEXT and self.flaw != "cuts prompts":
            return refusal(400, f"The input is longer than the model's context length ({CONTEXT} tokens).")
        if body.get("ignore_eos"):
            return await self.until_aborted(body)
        return reply(200, self.completion(body))

    async def until_aborted(self, body: dict) -> bytes:
        aborted = self.running[body["rid"]] = asyncio.Event()
        await aborted.wait()
        return reply(200, {**self.completion(body), "choices": [choice({"content": "1 2"}, "abort")]})

    def completion(self, body: dict) -> dict:
        thinks = body["chat_template_kwargs"]["enable_thinking"] or self.flaw == "always thinks"
        message = {"content": "Seven.", "reasoning_content": "Hm." if thinks else None}
        if thinks and self.flaw == "no parser":
            message = {"content": "Hm.</think>\n\nSeven.", "reasoning_content": None}
        short = body["max_tokens"] < 8
        found = choice(message, "length" if short else "stop")
        if self.flaw == "numbers break":
            found["matched_stop"] = "NaN happened"
        return {
            "id": body["rid"],
            "model": "tiny",
            "choices": [found],
            "usage": {"prompt_tokens": 5, "completion_tokens": body["max_tokens"] if short else 9},
            "sglext": {"spec_tokens_details": DRAFTS},
        }


def choice(message: dict, finish: str) -> dict:
    return {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}


async def statuses(flaw: str = "", key: str = KEY) -> dict[str, CheckStatus]:
    async with WireStub(Engine(flaw).answer) as stub:
        results = await run_conformance(stub.url, api_key=key)
    assert all(result.detail for result in results)
    assert KEY not in repr(results)
    return {result.name: result.status for result in results}


async def test_a_sound_server_passes_every_check():
    found = await statuses()
    assert set(found.values()) == {CheckStatus.PASS}
    assert len(found) == 22


@pytest.mark.parametrize(
    ("flaw", "check", "status"),
    [
        ("cuts prompts", "too_long", CheckStatus.FAIL),
        ("numbers break", "answer", CheckStatus.FAIL),
        ("no parser", "thinking", CheckStatus.WARN),
        ("no parser", "reasoning_parser", CheckStatus.WARN),
        ("always thinks", "no_thinking", CheckStatus.WARN),
        ("500 for bad values", "bad_value", CheckStatus.WARN),
        ("no key check", "wrong_key", CheckStatus.WARN),
        ("full", "parallel", CheckStatus.WARN),
        ("fails some", "parallel", CheckStatus.FAIL),
    ],
)
async def test_each_flaw_is_found_by_its_check(flaw, check, status):
    assert (await statuses(flaw))[check] is status


async def test_a_wrong_key_ends_the_suite_early():
    found = await statuses(key="wrong")
    assert found == {"health": CheckStatus.PASS, "server_info": CheckStatus.FAIL}


async def test_nobody_there():
    async with WireStub(Engine().answer) as stub:
        stub.stop_listening()
        results = await run_conformance(stub.url)
    assert {result.status for result in results} == {CheckStatus.FAIL}
