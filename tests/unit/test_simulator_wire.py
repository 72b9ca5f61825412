"""What simulated servers put on the wire, by engine and version."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ops.simulator import info, replies
from ops.simulator.answers import compose, draw
from ops.simulator.asks import read_ask
from ops.simulator.distort import distort
from ops.simulator.faults import FaultKind
from ops.simulator.info import LoadNow
from ops.simulator.refusals import Refusal, check, unauthorized
from ops.simulator.replies import Reply
from ops.simulator.settings import ServerSettings
from ops.simulator.traits import traits_of, version_tuple

MESSAGES = [{"role": "user", "content": "Explain queues."}]
OLD, NEW = "0.5.11", "0.5.23"


def reply_of(settings: ServerSettings, *, kind: FaultKind | None = None, ran: bool = True, **body) -> Reply:
    ask = read_ask("chat", msgspec.json.encode({"messages": MESSAGES, **body}), settings)
    draws = draw(ask.texts, ask.seed, 0)
    answer = compose(
        settings, draws, ask.prompt, thinking=ask.thinking, limit=ask.max_tokens or 9999, stop=ask.stop
    )
    if kind is not None:
        answer = distort(answer, kind, limit=ask.max_tokens or 9999, draw=draws.spare)
    return Reply(
        ask=ask,
        settings=settings,
        traits=traits_of(settings),
        draws=draws,
        answers=[answer],
        id="r1",
        created=1,
        ran=ran,
    )


def body_of(settings: ServerSettings, **options) -> dict[str, Any]:
    return msgspec.json.decode(replies.body(reply_of(settings, **options)))


def message_of(settings: ServerSettings, **options) -> dict[str, Any]:
    return body_of(settings, **options)["choices"][0]["message"]


def sglang(version: str = NEW, **settings) -> ServerSettings:
    return ServerSettings(version=version, median_tokens=80, **settings)


def refusal_of(settings: ServerSettings, api: str = "chat", **body) -> Refusal | None:
    if api == "chat":
        body.setdefault("messages", MESSAGES)
    ask = read_ask(api, msgspec.json.encode(body), settings)
    return check(ask, settings, traits_of(settings))


def test_versions_compare_as_numbers():
    assert version_tuple("0.5.9") < version_tuple("0.5.11.post1") < version_tuple("0.5.23")


# Thinking and answer


def test_new_versions_keep_the_line_breaks_around_the_end_of_thinking():
    message = message_of(sglang(NEW))
    assert message["content"].startswith("\n\n")
    assert message["reasoning_content"].endswith("\n")


def test_old_versions_strip_both_fields():
    message = message_of(sglang(OLD))
    assert message["content"] == message["content"].strip()
    assert message["reasoning_content"] == message["reasoning_content"].strip()


@pytest.mark.parametrize(
    ("version", "empty"), [("0.5.11", None), ("0.5.12", None), ("0.5.13", ""), (NEW, "")]
)
def test_empty_content_is_null_or_empty_by_version(version, empty):
    message = message_of(sglang(version), max_tokens=5)
    assert message["content"] == empty
    assert message["reasoning_content"]


@pytest.mark.parametrize("options", [{"reasoning_parser": False}, {}])
def test_without_a_parser_content_holds_thinking_without_its_opening_tag(options):
    asked = {} if options else {"separate_reasoning": False}
    message = message_of(sglang(**options), **asked)
    thinking, end, answer = message["content"].partition("\n</think>\n\n")
    assert thinking
    assert end
    assert answer
    assert "<think>" not in message["content"]
    assert message["reasoning_content"] is None


@pytest.mark.parametrize(
    "asked", [{"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}]
)
def test_thinking_off(asked):
    message = message_of(sglang(), **asked)
    assert message["reasoning_content"] is None
    assert not message["content"].startswith("\n")
    assert "</think>" not in message["content"]


def test_template_arguments_overrule_the_effort():
    asked = {"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "none"}
    assert message_of(sglang(), **asked)["reasoning_content"]


def test_vllm_names_the_field_reasoning():
    message = message_of(ServerSettings(dialect="vllm"))
    assert message["reasoning"]
    assert "reasoning_content" not in message


def test_stopping_without_the_end_of_thinking_looks_like_success():
    body = body_of(sglang(), kind=FaultKind.NO_THINK_END)
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["choices"][0]["message"]["content"] == ""
    assert body["choices"][0]["message"]["reasoning_content"]


# Fields by version


@pytest.mark.parametrize(("version", "there"), [(OLD, True), ("0.5.20", True), (NEW, False)])
def test_tool_calls_key(version, there):
    assert ("tool_calls" in message_of(sglang(version))) is there


def test_reasoning_tokens_and_totals():
    usage = body_of(sglang())["usage"]
    assert 0 < usage["reasoning_tokens"] < usage["completion_tokens"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": usage["reasoning_tokens"]}


def test_completion_details_are_new():
    assert "completion_tokens_details" not in body_of(sglang("0.5.20"))["usage"]


def test_no_reasoning_tokens_without_a_parser():
    assert body_of(sglang(reasoning_parser=False))["usage"]["reasoning_tokens"] == 0


def test_model_is_echoed_by_sglang_alone():
    assert body_of(sglang(), model="anything")["model"] == "anything"
    assert body_of(ServerSettings(dialect="llamacpp"), model="anything")["model"] == "qwen3.6-27b"


def test_meta_info_by_version():
    assert "meta_info" not in body_of(sglang(OLD), return_meta_info=True)["choices"][0]
    meta = body_of(sglang("0.5.13"), return_meta_info=True)["choices"][0]["meta_info"]
    assert 2.5 < meta["spec_accept_length"] <= 4.0
    assert meta["spec_num_correct_drafts"] + meta["spec_verify_ct"] == meta["completion_tokens"]
    assert 0 <= meta["spec_accept_rate"] <= 1
    assert meta["finish_reason"]["type"] == "stop"
    assert meta["num_retractions"] == 0


def test_generate_uses_the_first_names_in_the_first_version():
    settings = sglang(OLD)
    ask = read_ask("generate", b'{"text": "hello", "sampling_params": {"max_new_tokens": 9}}', settings)
    reply = msgspec.structs.replace(reply_of(settings), ask=ask)
    meta = msgspec.json.decode(replies.body(reply))["meta_info"]
    assert {"spec_accepted_drafts", "spec_proposed_drafts", "total_retractions"} <= meta.keys()


@pytest.mark.parametrize(("version", "there"), [("0.5.18", False), ("0.5.20", True)])
def test_speculation_per_request(version, there):
    body = body_of(sglang(version), return_spec_tokens_details=True)
    assert ("sglext" in body) is there
    if there:
        assert body["sglext"]["spec_tokens_details"]["spec_accept_length"] > 1


def test_a_loop_is_accepted_almost_whole():
    reply = msgspec.structs.replace(reply_of(sglang()), looping=True)
    assert replies.speculation(reply, reply.answers[0])["spec_accept_length"] > 3.9


def test_abort_before_running_reports_no_prompt():
    body = body_of(sglang(), kind=FaultKind.ABORT_EMPTY, ran=False)
    assert body["choices"][0]["finish_reason"] == "abort"
    assert body["usage"]["prompt_tokens"] == 0
    assert body["usage"]["completion_tokens"] == 0


def test_nan_looks_like_a_stop():
    choice = body_of(sglang(), kind=FaultKind.NAN)["choices"][0]
    assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", "NaN happened")


def test_overcount():
    usage = body_of(sglang(), kind=FaultKind.OVERCOUNT)["usage"]
    assert usage["reasoning_tokens"] == usage["completion_tokens"] + 3


def test_token_ids_and_cached_details_where_the_version_has_them():
    body = body_of(sglang("0.5.18"), return_token_ids=True, return_cached_tokens_details=True)
    choice, usage = body["choices"][0], body["usage"]
    assert len(choice["prompt_token_ids"]) == usage["prompt_tokens"]
    assert len(choice["response_token_ids"]) == usage["completion_tokens"]
    assert "device" in body["sglext"]["cached_tokens_details"]
    assert "response_token_ids" not in body_of(sglang("0.5.16"), return_token_ids=True)["choices"][0]


def test_llamacpp_adds_timings():
    body = body_of(ServerSettings(dialect="llamacpp"))
    assert body["timings"]["predicted_n"] == body["usage"]["completion_tokens"]
    assert body["id"] == "chatcmpl-r1"
    assert "matched_stop" not in body["choices"][0]
    assert "reasoning_tokens" not in body["usage"]


def test_vllm_tells_the_stop_string():
    said = body_of(ServerSettings(dialect="vllm"))["choices"][0]["message"]["content"].split()[-1]
    choice = body_of(ServerSettings(dialect="vllm"), stop=[said])["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", said)


def test_streams_hold_the_same_text_as_the_whole_body():
    settings = sglang()
    reply = reply_of(settings, stream=True, stream_options={"include_usage": True})
    data = (
        replies.opening(reply)
        + b"".join(piece.data for piece in replies.pieces(reply))
        + replies.closing(reply)
    )
    lines = [line.removeprefix(b"data: ") for line in data.split(b"\n\n") if line]
    assert lines.pop() == b"[DONE]"
    chunks = [msgspec.json.decode(line) for line in lines]
    assert chunks.pop()["usage"] == body_of(settings)["usage"]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    message = message_of(settings)
    assert "".join(delta.get("content") or "" for delta in deltas) == message["content"]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == message["reasoning_content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    dues = [piece.tokens for piece in replies.pieces(reply)]
    assert dues == sorted(dues)
    assert dues[-1] <= reply.answers[0].tokens


# Refusals

PROMPT_TOKENS = 16


@pytest.mark.parametrize(
    ("settings", "asked", "said"),
    [
        (ServerSettings(context=20), {}, "longer than the model's context length (20 tokens)"),
        (ServerSettings(context=60), {"max_tokens": 50}, "exceeds the model's maximum context length of 60"),
        (
            ServerSettings(context=60, context_flag=True),
            {"max_tokens": 61},
            "max_completion_tokens is too large: 61",
        ),
        (ServerSettings(kv_tokens=20), {}, "exceeds the maximum allowed length (14 tokens)"),
        (
            ServerSettings(dialect="vllm", context=60),
            {"max_tokens": 61},
            "max_tokens=61 cannot be greater than max_model_len=60",
        ),
        (
            ServerSettings(dialect="vllm", context=15),
            {},
            "maximum context length is 15 tokens. However, your prompt contains at least 16 input tokens",
        ),
        (ServerSettings(dialect="llamacpp", context=16), {}, "exceeds the available context size"),
    ],
)
def test_too_long_in_every_engines_words(settings, asked, said):
    refusal = refusal_of(settings, **asked)
    assert refusal is not None
    assert refusal.status == 400
    assert said in refusal.message
    assert said in refusal.body(settings.dialect).decode()


def test_drafts_take_four_tokens_of_the_context():
    prompt = read_ask("chat", msgspec.json.encode({"messages": MESSAGES}), ServerSettings()).prompt_tokens
    fits = prompt + 4 + 30
    assert refusal_of(ServerSettings(context=fits), max_tokens=30) is None
    assert refusal_of(ServerSettings(context=fits - 1), max_tokens=30) is not None
    assert refusal_of(ServerSettings(context=fits - 4, accept_length=0), max_tokens=30) is None


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 2.5}, "repetition_penalty"),
        ({"presence_penalty": -3}, "presence_penalty"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"messages": []}, "empty"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"return_meta_info": True, "stream": True}, "return_meta_info"),
    ],
)
def test_values_out_of_range_are_refused_by_name(asked, named):
    refusal = refusal_of(sglang(), **asked)
    assert refusal is not None
    assert (refusal.status, named in refusal.message) == (400, True)


@pytest.mark.parametrize(
    "asked", [{"top_k": -1}, {"temperature": 0}, {"top_p": 1}, {"unknown": 1}, {"seed": 7}]
)
def test_values_at_the_edge_are_taken(asked):
    assert refusal_of(sglang(), **asked) is None


@pytest.mark.parametrize(("version", "taken"), [("0.5.11", False), ("0.5.12", True)])
def test_efforts_by_version(version, taken):
    assert (refusal_of(sglang(version), reasoning_effort="max") is None) is taken


def test_only_vllm_checks_the_model():
    for name in ("other", "default"):
        refusal = refusal_of(ServerSettings(dialect="vllm"), model=name)
        assert refusal is not None
        assert (refusal.status, refusal.type) == (404, "NotFoundError")
    assert refusal_of(ServerSettings(dialect="vllm")) is None
    assert refusal_of(sglang(), model="other") is None


@pytest.mark.parametrize(
    ("asked", "sglang_takes", "vllm_takes"),
    [
        ({"max_tokens": 0}, True, False),
        ({"top_k": 0}, False, True),
        ({"repetition_penalty": 2.5}, False, True),
        ({"temperature": 99}, True, False),
    ],
)
def test_engines_differ_in_what_they_take(asked, sglang_takes, vllm_takes):
    assert (refusal_of(sglang(), **asked) is None) is sglang_takes
    assert (refusal_of(ServerSettings(dialect="vllm"), **asked) is None) is vllm_takes


def test_vllm_gives_an_answer_the_room_that_is_left_where_sglang_refuses():
    vllm, other = ServerSettings(dialect="vllm", context=60), ServerSettings(context=60)
    assert refusal_of(vllm, max_tokens=55) is None
    assert refusal_of(other, max_tokens=55) is not None


def test_error_bodies():
    refusal = Refusal(status=503, message="full", type="503")
    flat = {"object": "error", "message": "full", "type": "503", "param": None, "code": 503}
    assert msgspec.json.decode(refusal.body("sglang")) == flat
    nested = {"error": {**flat, "type": "SERVICE_UNAVAILABLE"}}
    assert msgspec.json.decode(refusal.body("sglang", nested=True)) == nested
    assert msgspec.json.decode(refusal.body("vllm"))["error"]["code"] == 503
    assert msgspec.json.decode(refusal.body("llamacpp"))["error"]["type"] == "unavailable_error"
    assert msgspec.json.decode(unauthorized("sglang")) == {"error": "Unauthorized"}
    assert msgspec.json.decode(unauthorized("llamacpp"))["error"]["type"] == "authentication_error"


# What a server tells of itself


def test_server_info_tells_requested_and_effective_limits():
    settings = sglang(slots=16, requested_slots=64, api_key="k")
    told = info.server_info(settings, traits_of(settings), LoadNow(limit=16))
    assert told["max_running_requests"] == 64
    assert told["internal_states"][0]["effective_max_running_requests_per_dp"] == 16
    assert told["speculative_algorithm"] == "EAGLE"
    assert told["context_length"] is None
    assert told["version"] == NEW
    assert told["api_key"] == "k"


@pytest.mark.parametrize(
    ("dialect", "name"),
    [
        ("sglang", "sglang:num_running_reqs{"),
        ("vllm", "vllm:num_requests_running{"),
        ("llamacpp", "llamacpp:requests_processing "),
    ],
)
def test_metrics_names(dialect, name):
    text = info.metrics(ServerSettings(dialect=dialect), LoadNow(running=3, limit=4))
    line = next(line for line in text.splitlines() if line.startswith(name))
    assert line.endswith(" 3.0")


def test_old_load_counts_waiting_requests_too():
    assert info.get_load(LoadNow(running=2, waiting=3))[0]["num_reqs"] == 5
