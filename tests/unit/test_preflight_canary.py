"""Preflight on what servers answered."""

from __future__ import annotations

import msgspec
import pytest

from common.records import Verdict
from common.settings import QualitySettings
from consumers.client.outcome import FailureKind, ThinkingFrom
from ops.preflight.canary_checks import check_batch, check_canary
from ops.preflight.values import Answer, Batch

URL = "http://one"
GOOD = Answer(
    began=0.0,
    took=2.0,
    verdict=Verdict.OK,
    tokens=200,
    thinking=True,
    thinking_from=ThinkingFrom.FIELD,
    answered=True,
    accept_length=3.0,
)


@pytest.mark.parametrize(
    ("changes", "alone", "in_a_run"),
    [
        ({}, "pass", "pass"),
        ({"thinking": False, "thinking_from": ThinkingFrom.NOWHERE}, "pass", "pass"),
        ({"thinking_from": ThinkingFrom.CONTENT}, "warn", "warn"),
        ({"thinking_from": ThinkingFrom.NOWHERE}, "fail", "warn"),
        ({"verdict": Verdict.TRUNCATED}, "pass", "pass"),
        ({"verdict": Verdict.TRUNCATED_THINKING, "answered": False}, "warn", "pass"),
        ({"verdict": Verdict.PARSER_MISMATCH}, "fail", "warn"),
        ({"verdict": Verdict.EMPTY}, "fail", "warn"),
        ({"verdict": Verdict.NO_ANSWER}, "fail", "warn"),
        ({"verdict": Verdict.LOOPING}, "fail", "warn"),
        ({"verdict": None, "failure": FailureKind.TIMEOUT}, "fail", "warn"),
        ({"verdict": None, "failure": FailureKind.DISCONNECTED}, "fail", "warn"),
        ({"verdict": None, "failure": FailureKind.OVERLOADED}, "fail", "warn"),
        ({"verdict": None, "failure": FailureKind.SERVER_FAULT}, "fail", "warn"),
        ({"verdict": None, "failure": FailureKind.BAD_REQUEST}, "fail", "fail"),
        ({"verdict": None, "failure": FailureKind.TOO_LONG}, "fail", "fail"),
        ({"verdict": None, "failure": FailureKind.UNAUTHORIZED}, "fail", "fail"),
        ({"verdict": None, "failure": FailureKind.NOT_FOUND}, "fail", "fail"),
    ],
)
def test_one_canary(changes, alone, in_a_run):
    answer = msgspec.structs.replace(GOOD, **changes)
    for waits, status in ((False, alone), (True, in_a_run)):
        check = check_canary(URL, answer, waits=waits)
        assert check.status.value == status
        assert bool(check.remedy) == (status != "pass")


def test_a_canary_tells_its_speed_and_accept_length():
    detail = check_canary(URL, GOOD, waits=False).detail
    assert "200 tokens in 2.0 s, 100 tokens/s" in detail
    assert "accept length 3.00" in detail


def test_no_canary_is_skipped():
    assert check_canary(URL, None, waits=False).status.value == "skip"


def found(verdicts, failures=None, **quality):
    failures = failures or {}
    asked = sum(verdicts.values()) + sum(failures.values())
    batch = Batch(asked=asked, verdicts=verdicts, failures=failures, mean_tokens=900.0)
    return {check.name: check.status.value for check in check_batch(batch, QualitySettings(**quality))}


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ({"ok": 32}, {"verdicts": "pass", "cut off": "pass"}),
        ({"ok": 31, "truncated": 1}, {"verdicts": "pass", "cut off": "pass"}),
        ({"ok": 28, "truncated_thinking": 4}, {"verdicts": "pass", "cut off": "warn"}),
        (
            {"ok": 24, "truncated_thinking": 8},
            {"verdicts": "pass", "cut off": "warn", "quality guard": "fail"},
        ),
        (
            {"ok": 6, "truncated_thinking": 4},
            {"verdicts": "pass", "cut off": "warn", "quality guard": "warn"},
        ),
        ({"ok": 20, "truncated": 12}, {"verdicts": "pass", "cut off": "warn"}),
        ({"ok": 31, "looping": 1}, {"verdicts": "pass", "cut off": "pass", "bad answers": "warn"}),
        (
            {"ok": 4, "boilerplate": 28},
            {"verdicts": "pass", "cut off": "pass", "bad answers": "warn", "quality guard": "fail"},
        ),
    ],
)
def test_a_batch(verdicts, expected):
    assert found(verdicts) == expected


def test_without_the_guard_nobody_would_stop_the_run():
    assert "quality guard" not in found({"ok": 4, "boilerplate": 28}, guard=False)


def test_failed_requests_are_told_and_none_answered_fails():
    assert found({"ok": 30}, {"timeout": 2})["failures"] == "warn"
    assert found({}, {"timeout": 32}) == {"failures": "warn", "answers": "fail"}


def test_the_share_inside_the_thinking_is_named():
    batch = Batch(asked=32, verdicts={"ok": 24, "truncated_thinking": 6, "truncated": 2})
    [cut] = [check for check in check_batch(batch, QualitySettings()) if check.name == "cut off"]
    assert cut.detail == "25% ended cut off, 19% inside the thinking"
    assert "--max-output-tokens" in cut.remedy
