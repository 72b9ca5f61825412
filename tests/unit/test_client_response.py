"""What every kind of answer means, dialect by dialect."""

from __future__ import annotations

import json

import pytest

from common.records import Response, Speculation, Usage
from consumers.client.outcome import Blame, Failure, FailureKind, Success, ThinkingFrom
from consumers.client.response import classify, read_error, retry_after_s, split_thinking


def completion(content="\n\nSeven.", *, finish="stop", message=None, choice=None, **top):
    """A completion as SGLang 0.5.23 gives it, with changes."""
    body = {
        "id": "0" * 32,
        "object": "chat.completion",
        "created": 1767225600,
        "model": "qwen3.6-27b",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": content,
                    "reasoning_content": "3 + 4 is 7.\n",
                    **(message or {}),
                },
                "logprobs": None,
                "finish_reason": finish,
                "matched_stop": 151645,
                **(choice or {}),
            }
        ],
        "usage": {
            "prompt_tokens": 20,
            "total_tokens": 32,
            "completion_tokens": 12,
            "prompt_tokens_details": None,
            "reasoning_tokens": 8,
        },
        "metadata": {"weight_version": "default"},
        **top,
    }
    return json.dumps(body).encode()


def success(body, **arguments) -> Success:
    outcome = classify(200, {}, body, **arguments)
    assert isinstance(outcome, Success), outcome
    return outcome


def failure(status, body, headers=None) -> Failure:
    outcome = classify(status, headers or {}, body)
    assert isinstance(outcome, Failure), outcome
    return outcome


def test_an_answer_is_kept_exactly():
    outcome = success(completion())
    assert outcome == Success(
        response=Response(content="\n\nSeven.", reasoning_content="3 + 4 is 7.\n"),
        finish_reason="stop",
        usage=Usage(20, 12, 8),
        model="qwen3.6-27b",
        matched_stop=151645,
        thinking_from=ThinkingFrom.FIELD,
    )


@pytest.mark.parametrize(
    "text", ["\u2028\u0085 é 漢字 🦩 \x00", " lead and trail \n", "a\r\nb\tc", "\\u00e9"]
)
def test_any_text_comes_through_unchanged(text):
    outcome = success(completion(text, message={"reasoning_content": text}))
    assert (outcome.response.content, outcome.response.reasoning_content) == (text, text)


@pytest.mark.parametrize(
    ("message", "finish", "expected", "origin"),
    [
        pytest.param(
            {"content": None, "reasoning_content": "hm"},
            "length",
            (None, "hm"),
            "field",
            id="cut while thinking, old",
        ),
        pytest.param(
            {"content": "", "reasoning_content": "hm"},
            "length",
            ("", "hm"),
            "field",
            id="cut while thinking, new",
        ),
        pytest.param(
            {"content": None, "reasoning_content": "hm"},
            "stop",
            (None, "hm"),
            "field",
            id="stopped while thinking",
        ),
        pytest.param(
            {"content": "a", "reasoning_content": None}, "stop", ("a", None), "nowhere", id="did not think"
        ),
        pytest.param(
            {"content": "t\n</think>\n\na", "reasoning_content": None},
            "stop",
            ("\n\na", "t\n"),
            "content",
            id="no parser, no opening tag",
        ),
        pytest.param(
            {"content": "<think>\nt</think>a", "reasoning_content": ""},
            "stop",
            ("a", "\nt"),
            "content",
            id="no parser, opening tag",
        ),
        pytest.param(
            {"content": "<think>\nt and", "reasoning_content": None},
            "length",
            (None, "\nt and"),
            "content",
            id="no parser, cut while thinking",
        ),
        pytest.param(
            {"content": "t</think>a</think>b", "reasoning_content": None},
            "stop",
            ("a</think>b", "t"),
            "content",
            id="only the first closing tag splits",
        ),
        pytest.param(
            {"content": "a</think>b", "reasoning_content": "t"},
            "stop",
            ("a</think>b", "t"),
            "field",
            id="a parser has split already",
        ),
        pytest.param(
            {"content": "a", "reasoning_content": None, "reasoning": "t"},
            "stop",
            ("a", "t"),
            "field",
            id="vLLM's name",
        ),
        pytest.param(
            {"content": "a", "reasoning_content": "", "reasoning": "t"},
            "stop",
            ("a", "t"),
            "field",
            id="both names",
        ),
        pytest.param(
            {"content": None, "reasoning_content": None}, "stop", (None, None), "nowhere", id="nothing"
        ),
        pytest.param({"content": "", "reasoning_content": ""}, "stop", ("", ""), "nowhere", id="empty texts"),
    ],
)
def test_where_thinking_is_found(message, finish, expected, origin):
    outcome = success(completion(message=message, finish=finish))
    assert (outcome.response.content, outcome.response.reasoning_content) == expected
    assert outcome.thinking_from == origin
    assert outcome.finish_reason == finish


def test_without_thinking_a_closing_tag_is_text_like_any_other():
    body = completion(message={"content": "say </think> aloud", "reasoning_content": None})
    assert success(body, thinking=False).response == Response(content="say </think> aloud")


def test_a_message_without_the_optional_fields():
    body = json.dumps({"choices": [{"message": {"content": "a"}, "finish_reason": "length"}]}).encode()
    outcome = success(body)
    assert outcome.response == Response(content="a")
    assert outcome.usage == Usage()
    assert outcome.model is None


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 1, "completion_tokens": 2, "reasoning_tokens": 5}, Usage(1, 2, 5)),
        ({"completion_tokens": 2, "completion_tokens_details": {"reasoning_tokens": 1}}, Usage(None, 2, 1)),
        (
            {"completion_tokens": 2, "completion_tokens_details": None, "reasoning_tokens": None},
            Usage(None, 2),
        ),
        ({"prompt_tokens": "1", "completion_tokens": 2.0, "reasoning_tokens": True}, Usage(None, 2)),
        ("none", Usage()),
        (None, Usage()),
    ],
)
def test_no_count_is_required(usage, expected):
    assert success(completion(usage=usage)).usage == expected


def test_cached_tokens_where_reported():
    usage = {"completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 64}}
    assert success(completion(usage=usage)).cached_tokens == 64


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"matched_stop": None}, None),
        ({"matched_stop": "END"}, "END"),
        ({"matched_stop": None, "stop_reason": "END"}, "END"),
        ({"matched_stop": None, "stop_reason": 151643}, 151643),
        ({"matched_stop": [1]}, None),
    ],
)
def test_what_stopped_it(choice, expected):
    assert success(completion(choice=choice)).matched_stop == expected


SPEC = {"spec_accept_rate": 0.5, "spec_accept_length": 2.5, "spec_verify_ct": 40}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (completion(sglext={"spec_tokens_details": SPEC}), Speculation(2.5, 0.5, 40)),
        (
            completion(choice={"meta_info": {"id": "x", "e2e_latency": 1.0, **SPEC}}),
            Speculation(2.5, 0.5, 40),
        ),
        (completion(choice={"meta_info": {"spec_verify_ct": 0}}), None),
        (completion(sglext={"spec_tokens_details": None}), None),
        (completion(sglext=None, timings={"predicted_n": 60}), None),
        (
            completion(timings={"predicted_n": 60, "draft_n": 80, "draft_n_accepted": 40}),
            Speculation(3.0, 0.5, 20),
        ),
        (
            completion(timings={"predicted_n": 5, "draft_n": 8, "draft_n_accepted": 8}),
            Speculation(None, 1.0, None),
        ),
    ],
)
def test_draft_figures(body, expected):
    assert success(body).speculation == expected


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(completion("partial", finish="abort"), id="aborted with partial text"),
        pytest.param(
            completion("", finish="abort", usage={"prompt_tokens": 0, "completion_tokens": 0}),
            id="aborted waiting",
        ),
        pytest.param(completion(finish="error"), id="vLLM's error"),
        pytest.param(completion(choice={"matched_stop": "NaN happened"}), id="numbers broke"),
        pytest.param(completion(finish=None), id="no finish reason"),
        pytest.param(completion(finish=3), id="a finish reason that is none"),
        pytest.param(completion([{"type": "text", "text": "a"}]), id="content is no text"),
        pytest.param(completion(message={"reasoning_content": {}}), id="thinking is no text"),
        pytest.param(completion(choices=[]), id="no choices"),
        pytest.param(completion(choices=[None]), id="a choice that is null"),
        pytest.param(completion(choices=None), id="choices are null"),
        pytest.param(
            completion(None, message={"reasoning_content": None}, usage={"completion_tokens": 0}),
            id="nothing for nothing",
        ),
        pytest.param(b"", id="empty body"),
        pytest.param(b"null", id="null"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b"OK", id="not JSON"),
        pytest.param(b"\xff\xfe\x00", id="not UTF-8"),
        pytest.param(completion()[:-40], id="cut short"),
        pytest.param(completion("X").replace(b'"X"', b'"\\ud800"'), id="a lone surrogate"),
        pytest.param(b"data: {}\n\ndata: [DONE]\n\n", id="a stream"),
        pytest.param(b"<html>502</html>", id="a web page"),
        pytest.param(b'{"error": {"message": "x", "code": 500}}', id="an error under HTTP 200"),
        pytest.param(b"[" * 100_000, id="absurdly deep"),
    ],
)
def test_http_200_that_is_no_success(body):
    found = failure(200, body)
    assert found.kind is FailureKind.SERVER_FAULT
    assert found.message
    assert found.blame is Blame.SERVER


def test_an_error_under_http_200_keeps_its_own_code():
    full = b'{"error": {"message": "The request queue is full.", "type": "503", "code": 503}}'
    assert failure(200, full).kind is FailureKind.OVERLOADED


FLAT = {"object": "error", "message": "words", "type": "BadRequestError", "param": None, "code": 400}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (json.dumps(FLAT).encode(), "words"),
        (b'{"error": {"message": "words", "type": "BadRequestError", "param": null, "code": 400}}', "words"),
        (b'{"error": {"code": 401, "message": "words", "type": "authentication_error"}}', "words"),
        (b'{"error": "Unauthorized"}', "Unauthorized"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"detail": [{"loc": ["body"], "msg": "required"}]}', '[{"loc":["body"],"msg":"required"}]'),
        (b'"a string"', "a string"),
        (b"Internal Server Error", "Internal Server Error"),
        (b"[1]", "[1]"),
        (b'{"odd": 1}', '{"odd":1}'),
        (b"\xff", "\ufffd"),
        (b"", ""),
        (b'{"message": null}', '{"message":null}'),
        (b'{"message": "two\\n lines"}', "two lines"),
    ],
)
def test_error_bodies_of_every_shape(body, message):
    found = failure(500, body)
    assert found.message == (message or "HTTP 500 with an empty body")


def test_a_long_error_is_shortened():
    body = json.dumps({"message": "x" * 10_000}).encode()
    assert len(failure(400, body).message) < 700


@pytest.mark.parametrize(
    ("status", "kind", "blame"),
    [
        (301, FailureKind.NOT_FOUND, Blame.ROW),
        (400, FailureKind.BAD_REQUEST, Blame.ROW),
        (401, FailureKind.UNAUTHORIZED, Blame.ROW),
        (403, FailureKind.UNAUTHORIZED, Blame.ROW),
        (404, FailureKind.NOT_FOUND, Blame.ROW),
        (405, FailureKind.NOT_FOUND, Blame.ROW),
        (408, FailureKind.SERVER_FAULT, Blame.SERVER),
        (413, FailureKind.TOO_LONG, Blame.ROW),
        (422, FailureKind.BAD_REQUEST, Blame.ROW),
        (429, FailureKind.OVERLOADED, Blame.LOAD),
        (499, FailureKind.SERVER_FAULT, Blame.SERVER),
        (500, FailureKind.SERVER_FAULT, Blame.SERVER),
        (501, FailureKind.SERVER_FAULT, Blame.SERVER),
        (502, FailureKind.SERVER_FAULT, Blame.SERVER),
        (503, FailureKind.OVERLOADED, Blame.LOAD),
        (504, FailureKind.SERVER_FAULT, Blame.SERVER),
    ],
)
def test_the_status_decides(status, kind, blame):
    # Words that would say otherwise, were they listened to.
    found = failure(status, b'{"message": "Internal server error: request queue is full, abort"}')
    assert (found.kind, found.blame, found.status) == (kind, blame, status)


@pytest.mark.parametrize(
    "message",
    [
        "The input (2100 tokens) is longer than the model's context length (2048 tokens).",
        "Requested token count exceeds the model's maximum context length of 2048 tokens. You requested ...",
        "max_completion_tokens is too large: 4096. This model supports at most 2048 completion tokens",
        "Input length (2100 tokens) exceeds the maximum allowed length (2042 tokens). Use a shorter input",
        "This model's maximum context length is 2048 tokens. However, you requested 4096 tokens",
        "'max_tokens' or 'max_completion_tokens' is too large: 5000.",
        "The decoder prompt (length 2100) is longer than the maximum model length of 2048.",
        "the request exceeds the available context size (2048 tokens), try increasing it",
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_a_prompt_that_is_too_long(message, nested):
    fields = {**FLAT, "message": message}
    found = failure(400, json.dumps({"error": fields} if nested else fields).encode())
    assert found.kind is FailureKind.TOO_LONG
    assert found.message == message


def test_llama_cpp_says_too_long_by_type():
    body = b'{"error": {"code": 400, "message": "no", "type": "exceed_context_size_error", "n_ctx": 512}}'
    assert failure(400, body).kind is FailureKind.TOO_LONG


def test_too_long_is_heard_in_client_errors_only():
    assert failure(500, b'{"message": "maximum context length"}').kind is FailureKind.SERVER_FAULT
    assert failure(400, b'{"message": "the context of this is bad"}').kind is FailureKind.BAD_REQUEST


DATE = "Thu, 01 Jan 2026 00:00:00 GMT"


@pytest.mark.parametrize(
    ("value", "date", "seconds"),
    [
        (None, None, None),
        ("", DATE, None),
        ("3", None, 3.0),
        (" 2.5 ", None, 2.5),
        ("-1", None, 0.0),
        ("nan", None, 0.0),
        ("inf", None, 0.0),
        ("soon", None, None),
        ("Thu, 01 Jan 2026 00:00:30 GMT", DATE, 30.0),
        ("Wed, 31 Dec 2025 23:59:30 GMT", DATE, 0.0),
        ("Thu, 01 Jan 2026 00:00:30 GMT", None, None),
        ("Thu, 01 Jan 2026 00:00:30 GMT", "no date", None),
        ("Thu, 01 Jan 2026 00:00:30 -0000", DATE, 30.0),
    ],
)
def test_retry_after(value, date, seconds):
    assert retry_after_s(value, date) == seconds


def test_retry_after_comes_with_the_failure():
    assert failure(503, b"", {"Retry-After": "7"}).retry_after == 7.0
    assert failure(429, b"", {"retry-after": "7"}).retry_after == 7.0


def test_a_summary_holds_no_words_of_the_server():
    found = failure(400, b'{"message": "the secret prompt is bad"}')
    assert found.summary == "bad_request (HTTP 400)"


def test_setup_faults_are_told_from_bad_rows():
    assert {kind for kind in FailureKind if kind.is_setup} == {
        FailureKind.UNAUTHORIZED,
        FailureKind.NOT_FOUND,
    }


def test_plain_text_is_not_split():
    assert split_thinking("no tags at all") is None
    assert read_error(None, b"plain").message == "plain"
