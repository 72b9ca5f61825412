"""No answer, however odd, breaks its reader; no text is changed on the way."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from consumers.client.completion import decode_completion, lenient_completion
from consumers.client.fields import decode
from consumers.client.info import assemble
from consumers.client.load import read_load
from consumers.client.outcome import Failure, Success
from consumers.client.response import classify, retry_after_s, split_thinking
from consumers.client.retry import Retry, RetryPolicy, decide

NAMES = st.sampled_from(
    [
        "choices",
        "message",
        "content",
        "reasoning_content",
        "finish_reason",
        "usage",
        "error",
        "detail",
        "code",
        "type",
    ]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)
STATUSES = st.integers(100, 599)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@given(STATUSES, st.binary(max_size=200), st.dictionaries(st.just("Retry-After"), st.text(max_size=20)))
def test_any_bytes_have_an_outcome(status, body, headers):
    outcome = classify(status, headers, body)
    assert isinstance(outcome, Failure)
    assert outcome.message


@given(STATUSES, VALUES)
def test_any_json_has_an_outcome(status, value):
    outcome = classify(status, {}, json.dumps(value).encode())
    assert isinstance(outcome, Failure | Success)


@given(VALUES, VALUES, VALUES, VALUES)
def test_odd_fields_in_a_completion_do_not_break_it(content, finish, usage, stop):
    choice = {"message": {"content": content}, "finish_reason": finish, "matched_stop": stop}
    outcome = classify(200, {}, json.dumps({"choices": [choice], "usage": usage}).encode())
    if isinstance(outcome, Success):
        assert isinstance(finish, str)
        assert isinstance(content, str | None)


@given(TEXTS, TEXTS, st.sampled_from(["stop", "length"]))
def test_text_is_kept_to_the_letter(content, reasoning, finish):
    message = {"content": content, "reasoning_content": reasoning or "t"}
    body = json.dumps({"choices": [{"message": message, "finish_reason": finish}]}).encode()
    outcome = classify(200, {}, body)
    assert isinstance(outcome, Success)
    assert outcome.response.content == content
    assert outcome.response.reasoning_content == (reasoning or "t")


@given(TEXTS, TEXTS)
def test_splitting_loses_the_tags_alone(before, after):
    text = f"{before}</think>{after}"
    thinking, answer = split_thinking(text) or (None, None)
    assert answer == text.split("</think>", 1)[1]
    assert text.endswith(f"{thinking}</think>{answer}")


@given(st.integers(0, 9), st.integers(0, 9), st.none() | TEXTS, st.none() | TEXTS)
def test_the_strict_and_the_lenient_reading_agree(prompt, made, content, reasoning):
    document = {
        "model": "m",
        "choices": [
            {
                "message": {"content": content, "reasoning_content": reasoning},
                "finish_reason": "stop",
                "meta_info": {"spec_verify_ct": 3},
            }
        ],
        "usage": {"prompt_tokens": prompt, "completion_tokens": made},
    }
    body = json.dumps(document).encode()
    strict, lenient = decode_completion(body), lenient_completion(document)
    assert strict is not None
    assert lenient is not None
    assert strict.choices[0].message == lenient.choices[0].message
    assert classify(200, {}, body) == classify(200, {}, body.replace(b'"m"', b"3")[:-1] + b', "model": "m"}')


@given(VALUES, VALUES, VALUES, VALUES)
def test_any_document_describes_a_server(models, server_info, props, version):
    assemble(models=models, server_info=server_info, props=props, version=version)


@given(
    st.sampled_from(["/v1/loads?include=core,spec", "/get_load", "/metrics", "/slots"]),
    st.binary(max_size=200),
)
def test_any_bytes_at_a_load_endpoint(path, body):
    read_load(path, body)


@given(st.binary(max_size=100))
def test_decoding_never_raises(body):
    decode(body)


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_header_is_read(value, date):
    found = retry_after_s(value, date)
    assert found is None or found >= 0


@given(st.integers(0, 3), st.floats(0, 1), st.none() | st.floats(0, 1e9), st.floats(0, 10))
def test_a_retry_waits_within_bounds(attempts, jitter, asked, held):
    failure = classify(500, {}, b"")
    assert isinstance(failure, Failure)
    policy = RetryPolicy()
    found = decide(
        Failure(kind=failure.kind, message="x", retry_after=asked, hold_s=held),
        attempts=attempts,
        policy=policy,
        jitter=jitter,
    )
    assert isinstance(found, Retry)
    assert max(policy.least_s, held) <= found.after_s
    assert found.after_s <= max(policy.max_retry_after_s + policy.max_s, held)
    assert found.after_s >= min(asked or 0.0, policy.max_retry_after_s)
