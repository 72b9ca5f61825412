"""The gate's verdicts, one by one and in their precedence."""

from __future__ import annotations

import pytest

from common.records import Response, Speculation, Usage, Verdict
from consumers.quality.verdict import RULES, has_stray_think_tag, judge

USAGE = Usage(prompt_tokens=10, completion_tokens=50, reasoning_tokens=20)
LOOP = "I must check this again, then. " * 60
THOUGHT = "The user asks for a sum."
SHORT_LOOP = "again " * 130  # 780 bytes: over the bar of a cut text, under that of a finished one


def verdict(thought, answer, finish="stop", usage=USAGE, thinking=True, **options):  # noqa: FBT002  # a test's shorthand
    response = Response(content=answer, reasoning_content=thought)
    return judge(response, finish, usage, thinking=thinking, **options).verdict


@pytest.mark.parametrize(
    ("thought", "answer", "finish", "expected"),
    [
        (THOUGHT, "7", "stop", "ok"),
        (None, "7", "stop", "ok"),
        (THOUGHT, "\n\n7", "tool_calls", "ok"),
        (None, None, "stop", "empty"),
        ("", "", "length", "empty"),
        (" \n", "\n\n", "stop", "empty"),
        (THOUGHT, None, "stop", "no_answer"),
        (THOUGHT, "\n\n", "stop", "no_answer"),
        (THOUGHT, None, "length", "truncated_thinking"),
        (THOUGHT, "", "length", "truncated_thinking"),
        (THOUGHT, "The ans", "length", "truncated"),
        (THOUGHT, LOOP, "length", "looping"),
        (THOUGHT, LOOP, "stop", "looping"),
        (LOOP, None, "length", "looping"),
        (LOOP, "7", "stop", "looping"),
        (THOUGHT, SHORT_LOOP, "length", "looping"),
        (THOUGHT, SHORT_LOOP, "stop", "ok"),
        (SHORT_LOOP, "The ans", "length", "truncated"),
        (THOUGHT, "some text", "repetition", "looping"),
        (THOUGHT, "7", "abort", "aborted"),
        (None, None, "abort", "aborted"),
        (THOUGHT, "7", "", "aborted"),
        (THOUGHT, "7", "content_filter", "aborted"),
        (None, "Well, the user wa", "length", "parser_mismatch"),
        (THOUGHT, "so 7.\n</think>\n\n7", "stop", "parser_mismatch"),
        (THOUGHT, "中文回答,没有问题。", "stop", "ok"),
        (THOUGHT, "ответ: семь", "stop", "ok"),
    ],
)
def test_verdicts_with_thinking(thought, answer, finish, expected):
    assert verdict(thought, answer, finish) == expected


@pytest.mark.parametrize(
    ("thought", "answer", "finish", "expected"),
    [
        (None, "7", "stop", "ok"),
        (None, "The ans", "length", "truncated"),
        ("7", None, "stop", "parser_mismatch"),
        ("The ans", "", "length", "parser_mismatch"),
        (THOUGHT, "7", "stop", "ok"),
        (None, "", "stop", "empty"),
    ],
)
def test_verdicts_without_thinking(thought, answer, finish, expected):
    assert verdict(thought, answer, finish, thinking=False) == expected


@pytest.mark.parametrize(("completion_tokens", "expected"), [(0, "parser_mismatch"), (None, "ok"), (1, "ok")])
def test_text_without_any_token_counted_is_a_mismatch(completion_tokens, expected):
    assert verdict(THOUGHT, "7", usage=Usage(completion_tokens=completion_tokens)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a cut character \ufffd", "ok"),
        ("The sign \ufffd\ufffd\ufffd stands for a lost character.", "ok"),
        ("b\ufffdd t\ufffdxt \ufffdnd m\ufffdre", "broken"),
        (" ".join(str(n) for n in range(400)) + "\ufffd" * 4, "ok"),
        ("x\x00\x01\x02\x03", "broken"),
        ("\x1b[31mred\x1b[0m, \x1b[32mgreen\x1b[0m\tand\r\nmore\f", "ok"),
        ("half a pair \ud83d", "broken"),
    ],
)
def test_damage_counts_beyond_a_small_share(text, expected):
    assert verdict(THOUGHT, text) == expected
    assert verdict(text, "7") == expected


def test_a_nan_marker_is_broken():
    assert verdict(THOUGHT, "7", matched_stop="NaN happened") == "broken"
    assert verdict(THOUGHT, "7", matched_stop=151645) == "ok"
    assert verdict(THOUGHT, "7", matched_stop="END") == "ok"


@pytest.mark.parametrize(
    ("text", "stray"),
    [
        ("so it is 7.\n</think>\n\n7", True),
        ("so it is 7.</think>7", True),
        ("</think>7", True),
        ("7\n</think>", True),
        ("<think>\nWell, the user", True),
        ("  <think>", True),
        ("Qwen ends its thought with `</think>` and answers.", False),
        ("Use ``</think>`` there.", False),
        ('It writes "</think>" before the answer.', False),
        ("Es schreibt „</think>“ davor.", False),
        ("Split at the first </think> tag of the text.", False),
        ("Wrap it in <think>...</think> tags first.", False),
        ("The tag (</think>) closes it.", False),
        ("```xml\n<think>\na\n</think>\n```\nThat is the form.", False),
        ("```\nunfinished fence\n</think>\n", False),
        ("```\ncode\n```\n</think>\n7", True),
        ("`code` and\n</think>\n7", True),
        ("nothing of the kind", False),
        ("", False),
    ],
)
def test_stray_think_tags_are_told_from_words_about_them(text, stray):
    assert has_stray_think_tag(text) is stray


@pytest.mark.parametrize(
    ("speculation", "accept_max", "expected"),
    [
        (None, None, "ok"),
        (Speculation(accept_rate=0.99), None, "looping"),
        (Speculation(accept_rate=0.7), None, "ok"),
        (Speculation(accept_length=3.95), 4.0, "looping"),
        (Speculation(accept_length=3.0), 4.0, "ok"),
        (Speculation(accept_length=3.95), None, "ok"),
        (Speculation(accept_length=1.0), 1.0, "ok"),
    ],
)
def test_high_acceptance_lowers_the_bar_for_a_loop(speculation, accept_max, expected):
    options = {"speculation": speculation, "accept_max": accept_max}

    assert verdict(THOUGHT, SHORT_LOOP, **options) == expected
    assert verdict(THOUGHT, "An answer like any other.", **options) == "ok"


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (("thinking", "OK.", "stop", True, 4), "ok"),
        (("thinking", "OK.", "stop", True, 5), "boilerplate"),
        ((None, "OK.", "stop", True, 5), "boilerplate"),
        ((None, "OK.", "stop", False, 460), "ok"),
        ((None, "OK.", "stop", False, 461), "boilerplate"),
        ((None, "I cannot help with that.", "stop", False, 15), "ok"),
        ((None, "I cannot help with that.", "stop", False, 16), "boilerplate"),
        (("thinking", None, "stop", True, 5), "boilerplate"),
        (("Okay, the", None, "length", True, 500), "truncated_thinking"),
    ],
)
def test_boilerplate_takes_more_prompts_without_thinking(case, expected):
    thought, answer, finish, thinking, repeats = case

    assert verdict(thought, answer, finish, thinking=thinking, repeats=repeats) == expected


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ({"finish": "abort", "matched_stop": "NaN happened", "thought": None, "answer": None}, "aborted"),
        ({"matched_stop": "NaN happened", "thought": None, "answer": None}, "broken"),
        ({"thought": None, "answer": None, "usage": Usage(completion_tokens=0)}, "empty"),
        ({"answer": LOOP, "usage": Usage(completion_tokens=0), "repeats": 9}, "parser_mismatch"),
        ({"answer": LOOP, "repeats": 9}, "looping"),
        ({"thought": LOOP, "answer": None, "finish": "length"}, "looping"),
        ({"answer": None, "repeats": 9}, "boilerplate"),
        ({"answer": None}, "no_answer"),
        ({"answer": None, "finish": "length", "repeats": 9}, "truncated_thinking"),
        ({"finish": "length"}, "truncated"),
        ({}, "ok"),
    ],
)
def test_precedence(faults, expected):
    case = {"thought": THOUGHT, "answer": "7"} | faults

    assert verdict(**case) == expected


def test_every_verdict_but_ok_has_one_rule():
    assert [rule[0] for rule in RULES] == list(dict.fromkeys(rule[0] for rule in RULES))
    assert {rule[0] for rule in RULES} == set(Verdict) - {Verdict.OK}


@pytest.mark.parametrize(
    ("made", "limit", "words"),
    [
        (4096, 4096, "its limit of 4096 tokens"),
        (4099, 4096, "its limit of 4096 tokens"),
        (700, 4096, "the end of the context"),
        (700, None, "the end of the context"),
        (None, 4096, "its limit of 4096 tokens"),
    ],
)
def test_the_detail_says_what_cut_it(made, limit, words):
    response = Response(content="The ans", reasoning_content=THOUGHT)
    judged = judge(response, "length", Usage(completion_tokens=made), thinking=True, max_tokens=limit)

    assert words in judged.detail


def test_details_never_quote_the_completion():
    secret = "hunter2 is the word. "
    for text, finish in ((secret * 90, "length"), (secret + "\x00" * 9, "stop"), (secret, "abort")):
        judged = judge(Response(content=text), finish, USAGE, thinking=False)
        assert judged.verdict is not Verdict.OK
        assert "hunter2" not in judged.detail
