"""A server that fails one prompt after the other is at fault itself."""

from __future__ import annotations

from consumers.client.breaker import FIRST_PAUSE_S, LONGEST_PAUSE_S, PROMPTS, WHOLE, Breaker, after_fault


def after(prompts, breaker: Breaker = WHOLE, now: float = 100.0) -> Breaker:
    for prompt in prompts:
        breaker = after_fault(breaker, prompt, now)
    return breaker


def names(count: int) -> list[str]:
    return [f"r-{number}" for number in range(count)]


def test_a_prompt_that_fails_again_and_again_says_nothing_of_the_server():
    breaker = after(["r-1"] * 100)
    assert not breaker.tripped
    assert not breaker.paused(100.0)


def test_many_prompts_that_fail_in_a_row_are_the_servers_doing():
    assert not after(names(PROMPTS - 1)).tripped
    breaker = after(names(PROMPTS))
    assert breaker.tripped
    assert breaker.paused(100.0)
    assert not breaker.paused(100.0 + FIRST_PAUSE_S)


def test_what_was_under_way_when_the_pause_began_does_not_lengthen_it():
    breaker = after(names(PROMPTS))
    assert after(names(200), breaker, now=100.5) == breaker


def test_pauses_double_up_to_a_limit_while_nothing_is_finished():
    breaker, now, pauses = after(names(PROMPTS - 1)), 100.0, []
    for number in range(8):
        breaker = after_fault(breaker, f"more-{number}", now)
        pauses.append(breaker.until - now)
        now = breaker.until
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_S]


def test_nothing_is_kept_of_a_server_that_fails_for_ever():
    breaker, now = WHOLE, 0.0
    for number in range(10_000):
        breaker = after_fault(breaker, f"r-{number}", now)
        now += 60.0
    assert len(breaker.failed) == PROMPTS
    assert breaker.until < now + LONGEST_PAUSE_S
