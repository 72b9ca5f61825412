"""Per-line parameters: known names checked by type and range, others let through."""

from __future__ import annotations

import pytest

from producer.params import UnusableError, check_params, too_deep

GOOD = {
    "model": ["m", "org/m:lora"],
    "max_output_tokens": [1, 10**6],
    "min_tokens": [0],
    "temperature": [0, 0.0, 5],
    "top_p": [0.001, 1],
    "top_k": [-1, 1, 500],
    "min_p": [0, 1, 0.5],
    "presence_penalty": [-2, 2],
    "frequency_penalty": [-2, 2.0],
    "repetition_penalty": [0, 2],
    "stop": ["x", ["x", "y"], []],
    "stop_regex": ["a+"],
    "stop_token_ids": [[], [1]],
    "seed": [-1, 2**40],
    "priority": [-5],
    "ignore_eos": [True],
    "no_stop_trim": [False],
    "skip_special_tokens": [True],
    "separate_reasoning": [True],
    "thinking": [False],
    "system": ["", "s"],
    "reasoning_effort": ["none"],
    "chat_template_kwargs": [{"enable_thinking": False}],
    "extra_body": [{}, {"a": 1}],
    "logit_bias": [{"5": 1}],
    "response_format": [{"type": "json_object"}],
    "tools": [[{"type": "function"}]],
    "tool_choice": ["auto", {"type": "function"}],
    "unheard_of": [1, "x", [None]],
}

BAD = [
    ("model", "", "a non-empty string, not a string"),
    ("model", 1, "a non-empty string, not 1"),
    ("max_output_tokens", 0, "an integer of at least 1, not 0"),
    ("max_output_tokens", 1.0, "an integer of at least 1, not 1.0"),
    ("max_output_tokens", True, "an integer of at least 1, not true"),
    ("max_tokens", "9", "an integer of at least 1, not a string"),
    ("max_completion_tokens", -1, "an integer of at least 1, not -1"),
    ("min_tokens", -1, "an integer of at least 0, not -1"),
    ("temperature", -0.1, "a number of at least 0, not -0.1"),
    ("temperature", False, "a number of at least 0, not false"),
    ("temperature", "0", "a number of at least 0, not a string"),
    ("top_p", 0, "a number above 0 and up to 1, not 0"),
    ("top_p", 1.01, "a number above 0 and up to 1, not 1.01"),
    ("top_k", 0, "-1 or at least 1, not 0"),
    ("top_k", -2, "-1 or at least 1, not -2"),
    ("top_k", 1.5, "-1 or at least 1, not 1.5"),
    ("min_p", 1.1, "a number from 0 to 1, not 1.1"),
    ("presence_penalty", 2.5, "a number from -2 to 2, not 2.5"),
    ("frequency_penalty", -2.5, "a number from -2 to 2, not -2.5"),
    ("repetition_penalty", 3, "a number from 0 to 2, not 3"),
    ("stop", "", "a non-empty string or an array of them, not a string"),
    ("stop", ["a", ""], "a non-empty string or an array of them, not an array"),
    ("stop_token_ids", ["1"], "an array of integers, not an array"),
    ("seed", 1.5, "an integer, not 1.5"),
    ("ignore_eos", 1, "true or false, not 1"),
    ("thinking", "yes", "true or false, not a string"),
    ("system", 1, "a string, not 1"),
    ("chat_template_kwargs", {"chat_template": "x"}, 'an object without "chat_template", not an object'),
    ("extra_body", [], "an object, not an array"),
    ("tools", {}, "an array of objects, not an object"),
    ("n", 2, "1: use --samples for more, not 2"),
    ("stream", True, "false: how an answer travels is not the line's to choose, not true"),
]


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in GOOD.items() for value in values]
)
def test_good_values_are_kept(name, value):
    assert check_params({name: value}, "params") == {name: value}


@pytest.mark.parametrize(("name", "value", "rest"), BAD)
def test_bad_values_say_what_was_wanted(name, value, rest):
    with pytest.raises(UnusableError) as caught:
        check_params({name: value}, "params")
    assert str(caught.value) == f'params: "{name}" must be {rest}'


@pytest.mark.parametrize(
    "name", ["messages", "prompt", "rid", "request_id", "stream_options", "samples", "regenerate"]
)
def test_what_is_not_a_lines_to_set_is_refused(name):
    with pytest.raises(UnusableError, match=f'^body may not set "{name}"$'):
        check_params({name: None}, "body")
    with pytest.raises(UnusableError, match=f'^params.extra_body may not set "{name}"$'):
        check_params({"extra_body": {name: 1}}, "params")


def test_null_and_harmless_defaults_are_left_out():
    given = {"stop": None, "n": 1, "stream": False, "seed": 1}
    assert check_params(given, "body") == {"seed": 1}
    assert given == {"stop": None, "n": 1, "stream": False, "seed": 1}


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
def test_the_output_limit_has_one_name(name):
    assert check_params({name: 5}, "body") == {"max_output_tokens": 5}


def test_equal_output_limits_agree_and_others_do_not():
    assert check_params({"max_tokens": 5, "max_completion_tokens": 5}, "body") == {"max_output_tokens": 5}
    with pytest.raises(UnusableError) as caught:
        check_params({"max_tokens": 5, "max_completion_tokens": 6}, "body")
    assert str(caught.value) == 'body: "max_completion_tokens" and "max_tokens" differ, and mean the same'


@pytest.mark.parametrize(("value", "depth"), [(1, 0), ([], 1), ({"a": []}, 2), ([[], {"a": [1]}], 3)])
def test_depth_counts_objects_and_arrays(value, depth):
    assert not too_deep(value, depth)
    if depth:
        assert too_deep(value, depth - 1)
