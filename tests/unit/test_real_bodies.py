"""What real SGLang 0.5.23 and vLLM 0.32.0 answered: the client reads it, the simulator says it alike."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from support.real_bodies import real_answers

from common.records import Response, Usage
from consumers.client.info import Dialect, assemble
from consumers.client.load import parse_loads, parse_metrics
from consumers.client.outcome import Failure, FailureKind, Success, ThinkingFrom
from consumers.client.response import classify
from ops.simulator import info, replies
from ops.simulator.answers import compose, draw
from ops.simulator.asks import read_ask
from ops.simulator.info import LoadNow
from ops.simulator.refusals import (
    Refusal,
    check,
    draining,
    queue_full,
    unauthorized,
    wrong_media_type,
)
from ops.simulator.replies import Reply
from ops.simulator.settings import Dialect as SimulatorDialect
from ops.simulator.settings import ServerSettings
from ops.simulator.traits import traits_of

SGLANG, VLLM = real_answers("sglang-0.5.23"), real_answers("vllm-0.32.0")
BOTH = {"sglang": SGLANG, "vllm": VLLM}


def read(dialect: str, name: str) -> Success | Failure:
    answer = BOTH[dialect][name]
    return classify(answer.status, {}, answer.body)


# The client


def text(content: str | None, thinking: str | None) -> Response:
    return Response(content=content, reasoning_content=thinking)


THOUGHT = "\ncount from 1 to 9\n"
PLAIN = "1 2 3 4 5 6 7 8 9"


@pytest.mark.parametrize(
    ("dialect", "name", "response", "end"),
    [
        ("sglang", "chat_ok", text("\n\n8", "\n3 plus 4 is 8\n"), ("stop", 15, 11)),
        ("vllm", "chat_ok", text("\n\n7", "\n3 plus 4 is 7\n"), ("stop", 15, 9)),
        ("sglang", "chat_nothink", text(PLAIN, None), ("stop", 18, 0)),
        ("vllm", "chat_nothink", text(PLAIN, None), ("stop", 18, 0)),
        ("sglang", "chat_cut4", text("", "\ncount"), ("length", 4, 4)),
        ("vllm", "chat_cut4", text(None, "\ncount"), ("length", 4, 3)),
        ("sglang", "chat_cut_in_answer", text("\n\n1 2 3 ", THOUGHT), ("length", 20, 12)),
        ("vllm", "chat_cut_in_answer", text("\n\n1 2 3 ", THOUGHT), ("length", 20, 10)),
        ("sglang", "chat_stop_in_thinking", text("", "\ncount "), ("stop", 5, 5)),
        ("vllm", "chat_stop_in_thinking", text(None, "\ncount "), ("stop", 5, 4)),
    ],
)
def test_texts_stand_in_their_fields(dialect, name, response, end):
    found = read(dialect, name)
    assert isinstance(found, Success)
    assert found.response == response
    assert (found.finish_reason, found.usage.completion_tokens, found.usage.reasoning_tokens) == end
    assert found.model == "tiny-qwen3"
    assert found.usage.prompt_tokens
    thought = ThinkingFrom.FIELD if response.reasoning_content else ThinkingFrom.NOWHERE
    assert found.thinking_from is thought
    assert found.speculation is None


def test_what_ended_the_text():
    assert [read(dialect, "chat_stop_string").matched_stop for dialect in BOTH] == ["7", "7"]
    assert [read(dialect, "chat_ok").matched_stop for dialect in BOTH] == [2, None]


def test_unparsed_thinking_is_split_here():
    found = read("sglang", "chat_sep_false")
    assert found.thinking_from is ThinkingFrom.CONTENT
    assert found.response == Response(
        content="\n\n1 2 3 4 5 6 7 8 9", reasoning_content="\ncount from 1 to 9\n"
    )


def test_meta_info_without_drafts_is_no_speculation():
    found = read("sglang", "chat_meta_info")
    assert isinstance(found, Success)
    assert found.speculation is None
    assert found.usage == Usage(16, 32, 12)


@pytest.mark.parametrize(
    ("dialect", "name", "kind", "words"),
    [
        ("sglang", "chat_too_long", FailureKind.TOO_LONG, "(4413 tokens) is longer than"),
        ("sglang", "chat_fits_not_with_max", FailureKind.TOO_LONG, "a total of 3213 tokens"),
        ("vllm", "chat_too_long", FailureKind.TOO_LONG, "at least 2049 input tokens"),
        ("vllm", "chat_very_long", FailureKind.TOO_LONG, "contains 300050 characters"),
        ("vllm", "chat_max_over_ctx", FailureKind.TOO_LONG, "cannot be greater than max_model_len=2048"),
        ("vllm", "chat_prompt_fills_context", FailureKind.TOO_LONG, "must be at least 1, got 0"),
        ("vllm", "chat_engine_died", FailureKind.SERVER_FAULT, "EngineCore encountered an issue"),
        ("sglang", "chat_lora_model", FailureKind.BAD_REQUEST, "LoRA is not enabled"),
        ("sglang", "bad_temp_neg", FailureKind.BAD_REQUEST, "got -1.0"),
        ("sglang", "bad_not_json", FailureKind.BAD_REQUEST, "JSON decode error"),
        ("sglang", "bad_content_type", FailureKind.BAD_REQUEST, "Unsupported Media Type"),
        ("sglang", "bad_image", FailureKind.BAD_REQUEST, "only supports text"),
        ("sglang", "chat_duplicate_id", FailureKind.BAD_REQUEST, "Duplicate request ID"),
        ("sglang", "bad_path_post", FailureKind.NOT_FOUND, "Not Found"),
        ("sglang", "bad_method", FailureKind.NOT_FOUND, "Method Not Allowed"),
        ("sglang", "bad_max0", FailureKind.SERVER_FAULT, "cost no token"),
        ("sglang", "chat_aborted", FailureKind.SERVER_FAULT, '"abort"'),
        ("sglang", "chat_aborted_waiting", FailureKind.SERVER_FAULT, '"abort"'),
        ("vllm", "chat_aborted_by_shutdown", FailureKind.SERVER_FAULT, '"abort"'),
        ("vllm", "chat_while_draining", FailureKind.SERVER_FAULT, "cannot schedule new futures"),
        ("sglang", "chat_queue_full", FailureKind.OVERLOADED, "queue is full"),
        ("sglang", "chat_wrong_key", FailureKind.UNAUTHORIZED, "Unauthorized"),
        ("vllm", "chat_queue_full", FailureKind.OVERLOADED, "currently busy"),
        ("vllm", "chat_wrong_key", FailureKind.UNAUTHORIZED, "Unauthorized"),
        ("vllm", "chat_wrong_model", FailureKind.NOT_FOUND, "Valid aliases: tiny-qwen3"),
        ("vllm", "bad_temp_99", FailureKind.BAD_REQUEST, "must be in [0, 2]"),
        ("vllm", "bad_image", FailureKind.BAD_REQUEST, "not a multimodal model"),
    ],
)
def test_refusals_and_aborts(dialect, name, kind, words):
    found = read(dialect, name)
    assert isinstance(found, Failure)
    assert found.kind is kind
    assert words in found.message


def test_what_sglang_tells_of_itself():
    load = parse_loads(SGLANG["loads_waiting"].document)
    assert load is not None
    assert (load.running, load.waiting, load.max_running, load.accept_length) == (10, 60, 64, None)
    found = assemble(models=SGLANG["models"].document, server_info=SGLANG["server_info"].document, load=load)
    assert (found.dialect, found.version, found.model) == (Dialect.SGLANG, "0.5.23", "tiny-qwen3")
    assert (found.context_length, found.max_prompt_tokens, found.kv_tokens) == (2048, 2042, 16384)
    assert (found.effective_running, found.requested_running) == (64, 64)
    assert (found.reasoning_parser, found.reserved_tokens, found.accept_length) == ("qwen3", 0, None)
    assert parse_loads(b"Internal Server Error") is None


def test_what_vllm_tells_of_itself():
    load = parse_metrics(VLLM["metrics"].body.decode())
    assert load is not None
    assert (load.running, load.waiting, load.max_running) == (2, 0, None)
    found = assemble(models=VLLM["models"].document, version=VLLM["version"].document, load=load)
    assert (found.dialect, found.version, found.model) == (Dialect.VLLM, "0.32.0", "tiny-qwen3")
    assert (found.context_length, found.effective_running) == (2048, None)


def test_gauges_of_sglang_without_drafts():
    load = parse_metrics(SGLANG["metrics"].body.decode())
    assert load is not None
    assert (load.running, load.waiting, load.accept_length) == (2, 0, None)
    assert load.tokens_per_s == pytest.approx(371.42, abs=0.01)


# The simulator


def server(dialect: SimulatorDialect, **changes: Any) -> ServerSettings:
    named = {"model": "tiny-qwen3", "context": 2048, "kv_tokens": 16_384, "slots": 64}
    return ServerSettings(dialect=dialect, cache_report=False, accept_length=0, **{**named, **changes})


def simulated(dialect: SimulatorDialect, limit: int = 200, **asked: Any) -> dict[str, Any]:
    settings = server(dialect)
    body = {"messages": [{"role": "user", "content": "Count to 9"}], **asked}
    ask = read_ask("chat", msgspec.json.encode(body), settings)
    draws = draw(ask.texts, None, 0)
    answer = compose(settings, draws, ask.prompt, thinking=ask.thinking, limit=limit, stop=ask.stop)
    reply = Reply(
        ask=ask,
        settings=settings,
        traits=traits_of(settings),
        draws=draws,
        answers=[answer],
        id="r",
        created=1,
    )
    return msgspec.json.decode(replies.body(reply))


def shape(value: Any) -> Any:
    """A document's keys, in order, and its kinds of values: what a reader may rely on."""
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return "number" if isinstance(value, int | float) else type(value).__name__


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("chat_ok", {}),
        ("chat_nothink", {"chat_template_kwargs": {"enable_thinking": False}}),
        ("chat_cut4", {"limit": 4}),
        ("chat_cut_in_answer", {"limit": 70}),
        ("chat_stop_string", {"stop": ", 7"}),
    ],
)
def test_completions_have_the_real_shape(dialect, name, asked):
    assert shape(simulated(dialect, **asked)) == shape(BOTH[dialect][name].document)


def said(answer: bytes) -> tuple[Any, ...]:
    """An error's fields, numbers in its words aside."""
    document = msgspec.json.decode(answer)
    fields = document.get("error", document)
    if isinstance(fields, str):
        return (fields,)
    words = re.sub(r"\d+(\.0)?", "N", fields["message"])
    return (list(document), list(fields), words, fields["type"], fields["param"], fields["code"])


def refused(dialect: SimulatorDialect, **asked: Any) -> bytes:
    settings = server(dialect)
    body = {"messages": [{"role": "user", "content": "Count to 9"}], **asked}
    refusal = check(read_ask("chat", msgspec.json.encode(body), settings), settings, traits_of(settings))
    assert isinstance(refusal, Refusal)
    return refusal.body(dialect)


LONG = [{"role": "user", "content": "word " * 4000}]
FULL = [{"role": "user", "content": "x" * (4 * (2048 - 11) - 4)}]  # the simulator's count: 2,048 tokens


@pytest.mark.parametrize(
    ("dialect", "name", "asked"),
    [
        ("sglang", "chat_too_long", {"messages": LONG}),
        ("sglang", "chat_fits_not_with_max", {"max_tokens": 2040}),
        ("sglang", "bad_temp_neg", {"temperature": -1}),
        ("sglang", "bad_topk0", {"top_k": 0}),
        ("sglang", "bad_no_messages", {"messages": []}),
        ("vllm", "chat_too_long", {"messages": LONG}),
        ("vllm", "chat_max_over_ctx", {"max_tokens": 100_000}),
        ("vllm", "chat_prompt_fills_context", {"messages": FULL}),
        ("vllm", "chat_wrong_model", {"model": "other"}),
        ("vllm", "bad_temp_neg", {"temperature": -1.0}),
        ("vllm", "bad_temp_99", {"temperature": 99.0}),
        ("vllm", "bad_max0", {"max_tokens": 0}),
        ("vllm", "bad_no_messages", {"messages": []}),
    ],
)
def test_refusals_are_in_the_real_words(dialect, name, asked):
    assert said(refused(dialect, **asked)) == said(BOTH[dialect][name].body)


def test_refusals_that_come_before_or_instead_of_work():
    streamed = SGLANG["stream_queue_full"].body.split(b"\n")[0].removeprefix(b"data: ")
    assert said(queue_full("sglang").body("sglang", nested=True)) == said(streamed)
    assert said(unauthorized("sglang")) == said(SGLANG["chat_wrong_key"].body)
    for dialect, answers in BOTH.items():
        assert said(queue_full(dialect).body(dialect)) == said(answers["chat_queue_full"].body)
    assert said(draining().body("vllm")) == said(VLLM["chat_while_draining"].body)
    assert said(unauthorized("vllm")) == said(VLLM["chat_wrong_key"].body)
    for dialect, answers in BOTH.items():
        assert said(wrong_media_type(dialect).body(dialect)) == said(answers["bad_content_type"].body)


def test_models_have_the_real_shape():
    for dialect, answers in BOTH.items():
        assert shape(info.models(server(dialect), 1.0)) == shape(answers["models"].document)


def test_what_sglang_tells_has_at_most_the_real_fields():
    settings = server("sglang")
    traits, load = traits_of(settings), LoadNow(limit=64)
    asked = frozenset({"core", "spec"})
    real = SGLANG["loads"].document
    made = info.loads(settings, traits, load, asked)
    assert list(made) == list(real)
    assert isinstance(made["timestamp"], str)
    assert set(made["loads"][0]) <= set(real["loads"][0])
    info_made, info_real = info.server_info(settings, traits, load), SGLANG["server_info"].document
    assert set(info_made) <= set(info_real)
    assert set(info_made["internal_states"][0]) <= set(info_real["internal_states"][0])
    assert set(info.model_info(settings, traits)) <= set(SGLANG["model_info"].document)
