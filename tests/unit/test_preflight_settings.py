"""Preflight on settings and input: what a look over the file and a tokenizer's counts lead to."""

from __future__ import annotations

import msgspec
import pytest

from common.records import Message
from common.settings import GenerationSettings
from consumers.client.info import ServerInfo
from ops.preflight.settings_checks import check_fit, check_input, check_settings
from ops.preflight.survey import Survey
from ops.preflight.tokens import Fit, fit_of
from ops.preflight.values import Status
from producer.parse import Prompt


def prompt(text: str = "hello", index: int = 0, **params) -> Prompt:
    return Prompt(index, index + 1, f"p{index}", [Message("user", text)], params)


def found(**changes) -> Survey:
    base = Survey(name="p.jsonl", lines=10, exact=True, sample=[prompt()], longest=[prompt()], parsed=10)
    return msgspec.structs.replace(base, **changes)


def statuses(checks):
    return {check.name: check.status.value for check in checks}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"token limit": "warn"}),
        ({"max_output_tokens": 16_383}, {"token limit": "warn"}),
        ({"max_output_tokens": 16_384}, {"token limit": "pass"}),
        ({"max_output_tokens": 32_768}, {"token limit": "pass"}),
        ({"thinking": False}, {"token limit": "pass"}),
        ({"thinking": False, "stop": ["END"]}, {"token limit": "pass"}),
        ({"stop": ["END"]}, {"token limit": "warn", "stop strings": "warn"}),
        ({"samples": 2, "temperature": 0.0}, {"token limit": "warn", "samples": "warn"}),
        ({"samples": 2}, {"token limit": "warn"}),
        ({"extra_body": {"logit_bias": {}}}, {"token limit": "warn"}),
        ({"extra_body": {"stream": True}}, {"extra body": "fail"}),
    ],
)
def test_settings(settings, expected):
    assert statuses(check_settings(GenerationSettings(**settings))) == expected


def test_a_small_limit_names_what_the_published_recipes_use():
    [check] = check_settings(GenerationSettings())
    assert "4,096" in check.detail
    assert "32,768" in check.detail
    assert "--max-output-tokens" in check.remedy


MUTE = Prompt(1, 2, "m", [Message("system", "be brief")], {})


@pytest.mark.parametrize(
    ("changes", "skip_invalid", "expected"),
    [
        ({}, False, {"prompts": "pass", "lines": "pass"}),
        ({"lines": 0}, False, {"prompts": "fail"}),
        ({"invalid_total": 2, "invalid": ["line 3: bad"]}, False, {"prompts": "pass", "lines": "fail"}),
        ({"invalid_total": 2, "invalid": ["line 3: bad"]}, True, {"prompts": "pass", "lines": "warn"}),
        ({"sample": [prompt(), MUTE]}, False, {"prompts": "pass", "lines": "pass", "turns": "warn"}),
    ],
)
def test_input(changes, skip_invalid, expected):
    checks = check_input(found(**changes), GenerationSettings(), skip_invalid=skip_invalid)
    assert statuses(checks) == expected


def test_lines_that_were_not_all_read_are_counted_as_about():
    exact, about = (
        check_input(found(lines=902_087, exact=exact), GenerationSettings(), skip_invalid=False)[0].detail
        for exact in (True, False)
    )
    assert exact.startswith("902,087 prompts")
    assert about.startswith("about 902,087 prompts")


FIT = Fit(
    limit=8192,
    longest=1000,
    longest_need=5100,
    typical_need=4500,
    reserved=4,
    over=0,
    of=100,
    counted=True,
)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, "pass"),
        ({"longest_need": 8192}, "pass"),
        ({"longest_need": 8193}, "warn"),
        ({"over": 3}, "warn"),
        ({"typical_need": 8193, "over": 60}, "fail"),
        ({"typical_need": 8193, "over": 60, "counted": False}, "warn"),
        ({"typical_need": 8693, "over": 60, "counted": False}, "fail"),
        ({"limit": None}, "skip"),
    ],
)
def test_fit(changes, status):
    assert check_fit(msgspec.structs.replace(FIT, **changes)).status.value == status


def test_nothing_to_measure_is_skipped():
    assert check_fit(None).status is Status.SKIP


def test_a_prompt_needs_itself_its_drafts_and_its_own_limit():
    info = ServerInfo(context_length=1000, reserved_tokens=4)
    short, wide = prompt("x" * 35), prompt("x" * 350, 1, max_tokens=950)
    fit = fit_of(
        found(sample=[short, wide], longest=[wide]), info, GenerationSettings(max_output_tokens=100), {}
    )
    assert fit is not None
    assert not fit.counted
    assert fit.longest == 100 + 16
    assert fit.longest_need == 116 + 4 + 950
    assert (fit.over, fit.of) == (1, 2)


def test_exact_counts_set_the_ratio_for_the_rest():
    a, b = prompt("x" * 100), prompt("x" * 200, 1)
    fit = fit_of(
        found(sample=[a, b], longest=[]),
        ServerInfo(context_length=4096),
        GenerationSettings(max_output_tokens=10),
        {id(a): 50},
    )
    assert fit is not None
    assert fit.counted
    assert fit.longest == 100


def test_a_prompt_longer_than_the_cache_holds_does_not_fit():
    info = ServerInfo(context_length=100_000, max_prompt_tokens=20)
    fit = fit_of(found(sample=[prompt("x" * 100)]), info, GenerationSettings(), {})
    assert fit is not None
    assert fit.over == 1


def test_the_system_prompt_counts_too():
    with_system = GenerationSettings(system="s" * 700)
    plain, longer = (
        fit_of(found(), ServerInfo(context_length=4096), settings, {})
        for settings in (GenerationSettings(), with_system)
    )
    assert plain is not None
    assert longer is not None
    assert longer.longest - plain.longest == 200


def test_no_prompts_do_not_fit_anywhere():
    assert fit_of(found(sample=[], longest=[]), ServerInfo(), GenerationSettings(), {}) is None
