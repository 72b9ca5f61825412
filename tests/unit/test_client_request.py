"""What is sent: every sampling parameter, by dialect and version, and what overrides what."""

from __future__ import annotations

import msgspec
import pytest

from common.errors import UsageError
from common.records import Message, PromptJob
from common.settings import GenerationSettings
from consumers.client import request
from consumers.client.info import Dialect, ServerInfo
from consumers.client.request import PROTECTED, build_request, check_extra_body, encode

SGLANG = ServerInfo(dialect=Dialect.SGLANG, version="0.5.23", model="qwen")
SAMPLING = {
    "temperature": 0.6,
    "top_p": 0.95,
    "top_k": 20,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}


def job(*, sample=0, **params) -> PromptJob:
    return PromptJob(index=3, id="p3", messages=[Message("user", "Hi")], params=params, sample=sample)


def body(server=SGLANG, *, seed=None, generation=None, sample=0, **params) -> dict:
    request = build_request(
        job(sample=sample, **params), generation or GenerationSettings(), server, seed=seed
    )
    return msgspec.json.decode(encode(request, "r" * 32))


@pytest.mark.parametrize("dialect", Dialect)
def test_every_sampling_parameter_is_always_sent(dialect):
    sent = body(ServerInfo(dialect=dialect))
    assert {name: sent[name] for name in SAMPLING} == SAMPLING
    assert sent["max_tokens"] == 4096
    assert sent["chat_template_kwargs"] == {"enable_thinking": True}
    assert sent["messages"] == [{"role": "user", "content": "Hi"}]
    assert "stream" not in sent


@pytest.mark.parametrize(
    ("dialect", "version", "expected"),
    [
        (
            Dialect.SGLANG,
            "0.5.11",
            {"max_completion_tokens": 4096, "separate_reasoning": True, "rid": "r" * 32},
        ),
        (Dialect.SGLANG, "0.5.12.post1", {"return_meta_info": None, "return_spec_tokens_details": None}),
        (Dialect.SGLANG, "0.5.13", {"return_meta_info": True, "return_spec_tokens_details": None}),
        (Dialect.SGLANG, "0.5.19", {"return_meta_info": True}),
        (Dialect.SGLANG, "0.5.20", {"return_meta_info": None, "return_spec_tokens_details": True}),
        (Dialect.SGLANG, "0.6.0", {"return_spec_tokens_details": True}),
        (Dialect.SGLANG, None, {"return_meta_info": None, "return_spec_tokens_details": None}),
        (Dialect.VLLM, "0.32.0", {"max_completion_tokens": 4096, "request_id": "r" * 32, "rid": None}),
        (Dialect.LLAMA_CPP, None, {"repeat_penalty": 1.0, "reasoning_format": "deepseek", "rid": None}),
        (Dialect.UNKNOWN, None, {"max_completion_tokens": None, "separate_reasoning": None, "rid": None}),
    ],
)
def test_fields_by_dialect_and_version(dialect, version, expected):
    sent = body(ServerInfo(dialect=dialect, version=version))
    assert {name: sent.get(name) for name in expected} == expected


def test_the_models_name_comes_from_the_line_the_run_or_the_server():
    named = GenerationSettings(model="run-model")
    assert body()["model"] == "qwen"
    assert body(ServerInfo())["model"] == "default"
    assert body(generation=named)["model"] == "run-model"
    assert body(generation=named, model="line-model")["model"] == "line-model"


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"temperature": 0.0}, {"temperature": 0.0}),
        ({"temperature": None}, {"temperature": 0.6}),
        ({"max_output_tokens": 9}, {"max_tokens": 9, "max_completion_tokens": 9}),
        ({"max_tokens": 9}, {"max_tokens": 9, "max_completion_tokens": 9}),
        ({"max_tokens": 9, "max_completion_tokens": 8}, {"max_tokens": 8, "max_completion_tokens": 8}),
        ({"thinking": False}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ({"enable_thinking": False}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ({"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}),
        (
            {"chat_template_kwargs": {"enable_thinking": False, "x": 1}},
            {"chat_template_kwargs": {"enable_thinking": False, "x": 1}},
        ),
        ({"top_k": 0}, {"top_k": -1}),
        ({"top_k": -1}, {"top_k": -1}),
        ({"stop": "END"}, {"stop": ["END"]}),
        ({"stop": []}, {"stop": None}),
        ({"seed": 5}, {"seed": 5}),
        ({"presence_penalty": 1.5}, {"presence_penalty": 1.5}),
        ({"response_format": {"type": "json_object"}}, {"response_format": {"type": "json_object"}}),
        (
            {"extra_body": {"ignore_eos": True, "min_p": 0.1}, "min_p": 0.2},
            {"ignore_eos": True, "min_p": 0.1},
        ),
        ({"extra_body": "nonsense"}, {"extra_body": None}),
    ],
)
def test_a_line_overrides_the_run(params, expected):
    sent = body(**params)
    assert {name: sent.get(name) for name in expected} == expected


def test_order_of_precedence():
    generation = GenerationSettings(
        temperature=0.1,
        stop=["RUN"],
        extra_body={"temperature": 0.2, "top_p": 0.2, "custom": "run", "min_p": 0.2},
    )
    sent = body(generation=generation, top_p=0.3, min_p=0.3, extra_body={"min_p": 0.4})
    assert (sent["temperature"], sent["top_p"], sent["min_p"]) == (0.2, 0.3, 0.4)
    assert (sent["custom"], sent["stop"]) == ("run", ["RUN"])


def test_settings_in_the_extra_body_take_effect_whatever_they_are_called():
    sent = body(generation=GenerationSettings(extra_body={"max_tokens": 7, "chat_template_kwargs": {"a": 1}}))
    assert (sent["max_tokens"], sent["max_completion_tokens"]) == (7, 7)
    assert sent["chat_template_kwargs"] == {"a": 1, "enable_thinking": True}


def test_a_lines_word_on_thinking_counts_however_the_run_put_its_own():
    generation = GenerationSettings(extra_body={"chat_template_kwargs": {"enable_thinking": False, "a": 1}})
    assert body(generation=generation)["chat_template_kwargs"] == {"enable_thinking": False, "a": 1}
    assert body(generation=generation, thinking=True)["chat_template_kwargs"] == {
        "enable_thinking": True,
        "a": 1,
    }


@pytest.mark.parametrize("name", sorted(PROTECTED))
def test_what_the_client_decides_cannot_be_overridden(name):
    sent = body(**{name: "mine"}, extra_body={name: "mine"})
    assert sent.get(name) != "mine"
    with pytest.raises(UsageError, match=name):
        check_extra_body({name: 1, "top_p": 1})


def test_ordinary_extra_fields_are_fine():
    check_extra_body({"ignore_eos": True, "logit_bias": {}})


def test_seeds():
    assert "seed" not in body()
    assert body(seed=11)["seed"] == 11
    assert body(seed=11, extra_body={"seed": 4})["seed"] == 11
    assert body(sample=2, extra_body={"seed": 4})["seed"] == 6
    assert "seed" not in body(sample=2)


def test_the_system_prompt_goes_in_front_once():
    generation = GenerationSettings(system="Be brief.")
    assert body(generation=generation)["messages"][0] == {"role": "system", "content": "Be brief."}
    own = PromptJob(index=0, id="x", messages=[Message("system", "Mine."), Message("user", "Hi")])
    request = build_request(own, generation, SGLANG)
    assert [message.content for message in request.messages] == ["Mine.", "Hi"]
    assert body(generation=generation, system="Line.")["messages"][0]["content"] == "Line."
    assert request.body["messages"] == request.messages


def test_the_last_answer_of_the_input_is_not_sent():
    asked = PromptJob(index=0, id="x", messages=[Message("user", "Hi"), Message("assistant", "old")])
    assert build_request(asked, GenerationSettings(), SGLANG).messages == [Message("user", "Hi")]


def test_a_given_history_is_sent_as_it_is():
    history = [Message("user", "a"), Message("assistant", "b"), Message("user", "c")]
    assert build_request(job(), GenerationSettings(), SGLANG, messages=history).messages == history


def test_the_record_says_what_was_sent_whatever_the_dialect():
    expected = {"max_output_tokens": 4096, **SAMPLING, "thinking": True}
    for dialect in Dialect:
        request = build_request(job(), GenerationSettings(), ServerInfo(dialect=dialect, version="0.5.23"))
        assert request.params == expected
        assert request.thinking is True
    changed = build_request(
        job(top_k=0, stop="END", enable_thinking=False, ignore_eos=True), GenerationSettings(), SGLANG, seed=3
    )
    assert changed.params == {
        **expected,
        "top_k": -1,
        "stop": ["END"],
        "seed": 3,
        "thinking": False,
        "ignore_eos": True,
    }
    assert changed.thinking is False


def test_a_form_once_made_serves_only_its_own_settings_and_server():
    first, second = GenerationSettings(temperature=0.1), GenerationSettings(temperature=0.2)
    for generation in (first, second, first):
        assert body(generation=generation)["temperature"] == generation.temperature
    assert body(ServerInfo(model="a"))["model"] == "a"
    assert body(ServerInfo(model="b"))["model"] == "b"
    # Far more settings than are kept, each made and dropped: an address used again must not find an old form.
    for number in range(200):
        assert body(generation=GenerationSettings(max_output_tokens=number + 1))["max_tokens"] == number + 1
    assert len(request._forms) <= request._FORMS_KEPT


def test_ids_are_new_and_only_where_the_server_takes_them():
    request = build_request(job(), GenerationSettings(), SGLANG)
    one, two = (msgspec.json.decode(encode(request, rid)) for rid in ("a" * 32, "b" * 32))
    assert (one.pop("rid"), two.pop("rid")) == ("a" * 32, "b" * 32)
    assert one == two
