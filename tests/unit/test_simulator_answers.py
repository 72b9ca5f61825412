"""What simulated models say: the same to the same prompt, of lognormal length, in the prompt's language."""

from __future__ import annotations

import subprocess
import sys
from statistics import median

import msgspec
import pytest

from ops.simulator.answers import EOS_TOKEN, Answer, compose, cut, draw, sampled_tokens
from ops.simulator.settings import ServerSettings
from ops.simulator.text import language_of, river, tokens_in

SETTINGS = ServerSettings(median_tokens=300)


def answer_to(prompt: str, *, seed: int | None = None, limit: int = 32_768, **options) -> Answer:
    draws = draw([b"user", prompt.encode()], seed, 0)
    return compose(SETTINGS, draws, prompt, **{"thinking": True, "limit": limit, **options})


def plain(thinking: str | None, text: str) -> Answer:
    reasoning = 0 if thinking is None else tokens_in(thinking) + 1
    return Answer(
        thinking=thinking,
        closed=thinking is not None,
        text=text,
        finish="stop",
        matched=EOS_TOKEN,
        tokens=reasoning + tokens_in(text),
        reasoning_tokens=reasoning,
    )


def test_same_prompt_same_words():
    assert answer_to("Explain queues.") == answer_to("Explain queues.")


def test_same_words_in_another_process():
    code = """
from ops.simulator.answers import compose, draw
from ops.simulator.settings import ServerSettings
draws = draw([b"user", b"Explain queues."], None, 0)
settings = ServerSettings(median_tokens=300)
answer = compose(settings, draws, "Explain queues.", thinking=True, limit=32768)
print(answer.tokens, ascii(answer.raw))
"""
    mine = answer_to("Explain queues.")
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == f"{mine.tokens} {mine.raw!a}"


def test_another_seed_another_answer():
    answers = {answer_to("Explain queues.", seed=seed).raw for seed in (None, 0, 1, 2)}
    assert len(answers) == 4


def test_every_prompt_gets_its_own_text():
    answers = [answer_to(f"Explain queues, part {number}.") for number in range(500)]
    assert len({answer.text for answer in answers}) == 500
    assert all(f"part {number}." in answer.text for number, answer in enumerate(answers))


def test_lengths_are_lognormal_around_the_median():
    lengths = [sampled_tokens(SETTINGS, draw([b"%d" % number], None, 0)) for number in range(4000)]
    assert 285 < median(lengths) < 315
    assert max(lengths) > 1500
    assert sum(length > 600 for length in lengths) / 4000 == pytest.approx(0.161, abs=0.03)


def test_counts_agree_with_the_text():
    for number in range(200):
        answer = answer_to(f"prompt {number}")
        assert answer.reasoning_tokens == tokens_in(answer.thinking or "") + 1
        assert answer.tokens == answer.reasoning_tokens + tokens_in(answer.text) + 1


@pytest.mark.parametrize(
    ("prompt", "language"),
    [
        ("How do I sort a list in Python?", "en"),
        ("Wie ist das und warum nicht?", "de"),
        ("Pourquoi les pommes et une poire?", "fr"),
        ("Por que una casa es como el mar?", "es"),
        ("什么是缓存", "zh"),
        ("Что такое очередь", "ru"),
        ("das", "en"),
        ("", "en"),
    ],
)
def test_language_follows_the_prompt(prompt, language):
    assert language_of(prompt) == language


@pytest.mark.parametrize("language", ["en", "de", "fr", "es", "zh", "ru", "thinking"])
def test_passages_have_the_length_asked_for(language):
    for tokens in (20, 400, 30_000):
        passage = river(language).passage(tokens, tokens)
        assert 0.9 * tokens <= tokens_in(passage) <= 1.1 * tokens + 150


def test_texts_hold_code_and_lists():
    said = "".join(answer_to(f"Tell me about topic {number}").text for number in range(60))
    assert "```" in said
    assert "\n- " in said or "\n1. " in said


def test_no_thinking_when_it_is_off():
    answer = answer_to("Explain queues.", thinking=False)
    assert answer.thinking is None
    assert answer.reasoning_tokens == 0
    assert answer.raw == answer.text


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("What is 3 plus 4?", "7"),
        ("Count to 9", "1, 2, 3, 4, 5, 6, 7, 8, 9"),
        ("Repeat: red queue", "red queue"),
    ],
)
def test_questions_with_one_answer_get_it(prompt, said):
    answer = answer_to(prompt)
    assert answer.text == said
    assert answer.tokens < 200


def test_a_limit_within_thinking_leaves_no_answer():
    whole = answer_to("Explain queues.")
    short = answer_to("Explain queues.", limit=whole.reasoning_tokens - 5)
    assert (short.finish, short.closed, short.text, short.matched) == ("length", False, "", None)
    assert short.tokens == short.reasoning_tokens == whole.reasoning_tokens - 5
    assert (whole.thinking or "").startswith(short.thinking or "?")


def test_a_limit_within_the_answer_cuts_it():
    whole = answer_to("Explain queues.")
    short = answer_to("Explain queues.", limit=whole.tokens - 20)
    assert (short.finish, short.closed, short.tokens) == ("length", True, whole.tokens - 20)
    assert whole.text.startswith(short.text)
    assert len(short.text) < len(whole.text)


def test_a_limit_not_reached_changes_nothing():
    whole = answer_to("Explain queues.")
    assert cut(whole, whole.tokens) == whole


def test_ignoring_the_end_runs_to_the_limit():
    answer = answer_to("Explain queues.", limit=900, ignore_eos=True)
    assert (answer.finish, answer.tokens) == ("length", 900)


def test_stop_strings_match_inside_thinking_and_are_trimmed():
    answer = cut(plain("first we think STOP more", "the answer"), 1000, ["STOP"])
    assert (answer.thinking, answer.closed, answer.text) == ("first we think ", False, "")
    assert (answer.finish, answer.matched) == ("stop", "STOP")


def test_the_earliest_stop_string_wins():
    answer = cut(plain(None, "one two three"), 1000, ["three", "two", "", "absent"])
    assert (answer.text, answer.matched) == ("one ", "two")


def test_a_stop_string_in_the_answer_keeps_thinking_whole():
    answer = cut(plain("thought", "one two three"), 1000, ["two"])
    assert (answer.thinking, answer.closed, answer.text) == ("thought", True, "one ")


@pytest.mark.parametrize(
    "change", [{"slots": 0}, {"time_scale": 0}, {"thinking_share": 1.0}, {"median_tokens": -1}]
)
def test_impossible_settings_are_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        msgspec.structs.replace(SETTINGS, **change)
