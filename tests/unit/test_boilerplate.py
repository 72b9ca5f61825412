"""Counting how many different prompts got the same short output."""

from __future__ import annotations

from random import Random

import pytest

from common.records import Message, Response, Usage, Verdict
from consumers.quality.boilerplate import LONGEST, RecentAnswers, fingerprint
from consumers.quality.verdict import judge

USAGE = Usage(completion_tokens=6)


def response(thought, answer):
    return Response(content=answer, reasoning_content=thought)


def prompt(number):
    return [Message("user", f"question {number}")]


def seen_as(recent, said, number, thinking=True):  # noqa: FBT002  # a test's shorthand
    repeats = recent.see(said, prompt(number))
    return judge(said, "stop", USAGE, thinking=thinking, repeats=repeats).verdict


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (("thinking", "response, OK."), ("Thinking...", "\n\nResponse: OK"), True),
        (("thinking", "OK."), ("thinking OK.", None), False),
        (("It is 2 + 2.", "4"), ("It is 3 + 1.", "4"), False),
        ((None, "4"), (None, "5"), False),
        ((None, "..."), (None, "!!!"), False),
        ((None, "..."), ("", " ...\n"), True),
        ((None, "好的。"), (None, "好的"), True),
    ],
)
def test_fingerprints_look_past_case_signs_and_spaces(one, other, same):
    assert (fingerprint(response(*one)) == fingerprint(response(*other))) is same


def test_long_and_blank_outputs_are_not_compared():
    assert fingerprint(response(None, "x" * LONGEST)) is not None
    assert fingerprint(response("y", "x" * LONGEST)) is None
    assert fingerprint(response(None, " \n")) is None
    assert fingerprint(response(None, None)) is None
    assert fingerprint(response(None, "half a pair \ud83d")) is not None


def test_the_same_prompt_asked_again_counts_once():
    recent = RecentAnswers()
    said = response("Two and two.", "4")

    assert [recent.see(said, prompt(1)) for _ in range(20)] == [1] * 20
    assert recent.see(said, prompt(2)) == 2


def test_only_the_last_window_counts():
    recent = RecentAnswers(window=10)
    said = response("thinking", "OK.")
    assert [recent.see(said, prompt(n)) for n in range(12)] == [*range(1, 11), 10, 10]

    for n in range(10):
        assert recent.see(response("A long trace. " * 40, str(n)), prompt(n)) == 0
    assert recent.see(said, prompt(99)) == 1
    assert len(recent._recent) == 10
    assert len(recent._prompts) == 1


def test_memory_stays_bounded():
    recent = RecentAnswers(window=50)
    for n in range(1_000):
        recent.see(response("a", f"answer {n}"), prompt(n))

    assert len(recent._recent) == len(recent._prompts) == 50


@pytest.mark.parametrize("variants", [1, 3, 6])
def test_the_disaster_shows_within_a_hundred_completions_of_one_consumer(variants):
    random = Random(variants)
    recent = RecentAnswers()
    verdicts = []
    for n in range(100):
        if random.random() < 0.87:
            said = response("thinking", f"response, OK.{'!?' * random.randrange(variants)} {n % variants}")
        else:
            said = response(f"The question is about {n}, so I look for it. " * 8, f"It is {n}.")
        verdicts.append(seen_as(recent, said, n))

    assert verdicts.count(Verdict.BOILERPLATE) > 50
    assert set(verdicts) == {Verdict.OK, Verdict.BOILERPLATE}


def test_short_answers_after_different_thoughts_are_honest():
    recent = RecentAnswers()
    verdicts = {seen_as(recent, response(f"The sum of {n} and {4 - n} is four.", "4"), n) for n in range(500)}

    assert verdicts == {Verdict.OK}


def test_a_yes_no_classification_without_thinking_is_honest():
    random = Random(1)
    recent = RecentAnswers()
    said = [random.choice(["Yes.", "No", "No", "No", "no"]) for _ in range(2_000)]

    assert {seen_as(recent, response(None, word), n, thinking=False) for n, word in enumerate(said)} == {"ok"}


def test_one_word_for_all_is_found_even_without_thinking():
    recent = RecentAnswers()
    verdicts = [seen_as(recent, response(None, "OK."), n, thinking=False) for n in range(600)]

    assert verdicts.index(Verdict.BOILERPLATE) == 460
