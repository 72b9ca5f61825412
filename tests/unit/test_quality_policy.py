"""What becomes of a verdict: keep, retry with another seed, reject."""

from __future__ import annotations

import pytest

from common.errors import UsageError
from common.records import DeadReason, Verdict
from common.settings import DEFAULT_POLICY, QualitySettings, check_quality
from consumers.quality.policy import Keep, Reject, RetryWithSeed, apply

DEFAULTS = QualitySettings()


@pytest.mark.parametrize(
    ("verdict", "outcomes"),
    [
        ("ok", [Keep, Keep, Keep]),
        ("truncated", [Keep, Keep, Keep]),
        ("truncated_thinking", [Keep, Keep, Keep]),
        ("parser_mismatch", [Keep, Keep, Keep]),
        ("empty", [RetryWithSeed, RetryWithSeed, Reject]),
        ("no_answer", [RetryWithSeed, RetryWithSeed, Reject]),
        ("looping", [RetryWithSeed, RetryWithSeed, Reject]),
        ("boilerplate", [RetryWithSeed, RetryWithSeed, Reject]),
        ("aborted", [RetryWithSeed, RetryWithSeed, Reject]),
        ("broken", [RetryWithSeed, RetryWithSeed, Reject]),
    ],
)
def test_defaults(verdict, outcomes):
    assert [type(apply(Verdict(verdict), tries, DEFAULTS)) for tries in (1, 2, 3)] == outcomes


def test_every_verdict_has_a_default():
    assert set(DEFAULT_POLICY) == set(Verdict)


def test_a_run_can_choose_otherwise():
    settings = QualitySettings(policy={Verdict.LOOPING: "keep", Verdict.TRUNCATED: "dead"}, retries=0)

    assert apply(Verdict.LOOPING, 1, settings) == Keep()
    assert apply(Verdict.TRUNCATED, 1, settings) == Reject(DeadReason.REJECTED)
    assert apply(Verdict.EMPTY, 1, settings) == Reject()


def test_greedy_decoding_is_not_paid_for_twice():
    assert apply(Verdict.LOOPING, 1, DEFAULTS, sampled=False) == Reject()
    assert apply(Verdict.TRUNCATED, 1, DEFAULTS, sampled=False) == Keep()


def test_what_a_retry_cannot_change_is_never_retried():
    settings = QualitySettings(policy={Verdict.TRUNCATED: "retry", Verdict.TRUNCATED_THINKING: "retry"})

    assert apply(Verdict.TRUNCATED, 1, settings) == Keep()
    assert apply(Verdict.TRUNCATED_THINKING, 1, settings) == Keep()


def test_seeds_differ_by_try_and_unit_and_are_repeatable():
    seeds = [apply(Verdict.EMPTY, tries, DEFAULTS, unit=unit) for unit in range(50) for tries in (1, 2)]

    assert len({decision.seed for decision in seeds}) == 100
    assert all(0 <= decision.seed < 2**31 for decision in seeds)
    assert seeds[0] == apply(Verdict.EMPTY, 1, DEFAULTS, unit=0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (QualitySettings(policy={Verdict.TRUNCATED: "retry"}), "--max-output-tokens"),
        (QualitySettings(policy={Verdict.OK: "dead"}), "only be kept"),
        (QualitySettings(limit=0), "share"),
        (QualitySettings(limits={Verdict.LOOPING: 20}), "looping"),
        (QualitySettings(retries=-1), "retries"),
        (QualitySettings(window=0), "window"),
        (QualitySettings(least=0), "least"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(settings, words):
    with pytest.raises(UsageError, match=words):
        check_quality(settings)


def test_good_settings_pass():
    assert check_quality(DEFAULTS) is DEFAULTS
