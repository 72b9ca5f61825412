"""Settings from flags and environment, the same for every command that takes them."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from common.errors import UsageError
from common.options import (
    MAX_CONCURRENCY,
    chosen,
    parse_concurrency,
    parse_object,
    parse_policy,
    settings_options,
)
from common.records import Verdict
from common.settings import ConsumerSettings, GenerationSettings, QualitySettings


def choose(*argv, env=None):
    found = []

    @click.command()
    @settings_options
    def command(**values):
        found.append(chosen(values))

    done = CliRunner().invoke(command, list(argv), env=env or {}, standalone_mode=False)
    if done.exception:
        raise done.exception
    return found[0]


def test_without_a_word_every_default_is_the_structs_own():
    asked = choose()
    assert asked.generation == GenerationSettings()
    assert asked.quality == QualitySettings()
    assert asked.consumer == ConsumerSettings()
    assert (asked.batch_size, asked.high_water, asked.skip_invalid) == (500, 50_000, False)


def test_a_flag_comes_before_the_environment_and_that_before_the_default():
    env = {"PROMPTMILL_TEMPERATURE": "0.9", "PROMPTMILL_TOP_P": "0.5", "PROMPTMILL_THINKING": "0"}
    asked = choose("--temperature", "0.1", env=env).generation
    assert (asked.temperature, asked.top_p, asked.top_k, asked.thinking) == (0.1, 0.5, 20, False)


def test_every_flag_lands_in_its_field():
    words = (
        "--model m --max-output-tokens 9 --top-k -1 --min-p 0.2 --no-thinking --system S --stop A --stop B "
        "--regenerate all --samples 3 --concurrency 48 --request-timeout 60 --batch-size 5 --high-water 6 "
        "--max-attempts 2 --max-deaths 3 --on-verdict looping=dead --no-guard --guard-limit 0.5 "
        "--skip-invalid"
    )
    asked = choose(*words.split(), "--extra-body", '{"logit_bias": {"1": 2}}')
    assert asked.generation == GenerationSettings(
        model="m",
        max_output_tokens=9,
        top_k=-1,
        min_p=0.2,
        thinking=False,
        system="S",
        stop=["A", "B"],
        extra_body={"logit_bias": {"1": 2}},
        regenerate="all",
        samples=3,
    )
    assert asked.quality == QualitySettings(policy={Verdict.LOOPING: "dead"}, guard=False, limit=0.5)
    assert asked.consumer == ConsumerSettings(
        concurrency=48, request_timeout=60.0, max_attempts=2, max_deaths=3
    )
    assert (asked.batch_size, asked.high_water, asked.skip_invalid) == (5, 6, True)


@pytest.mark.parametrize(
    ("text", "number"), [("auto", 0), (" AUTO ", 0), ("1", 1), ("4096", MAX_CONCURRENCY)]
)
def test_concurrency(text, number):
    assert parse_concurrency(text) == number


@pytest.mark.parametrize("text", ["", "0", "-1", "4097", "4.5", "many", "\u0663"])
def test_no_concurrency(text):
    with pytest.raises(UsageError, match="neither `auto` nor a number"):
        parse_concurrency(text)


@pytest.mark.parametrize("pair", ["looping", "looping=", "looping=forget", "nice=keep", "=keep"])
def test_no_policy(pair):
    with pytest.raises(UsageError, match="truncated_thinking"):
        parse_policy((pair,))


@pytest.mark.parametrize(
    ("text", "words"), [("{", "is not JSON"), ("[1]", "must be a JSON object"), ("1", "object")]
)
def test_no_object(text, words):
    with pytest.raises(UsageError, match=words):
        parse_object("--extra-body", text)


def test_no_object_at_all_is_an_empty_one():
    assert parse_object("--extra-body", None) == parse_object("--extra-body", "") == {}


@pytest.mark.parametrize("words", ["ok=dead", "truncated=retry", "truncated_thinking=retry"])
def test_policies_that_cannot_be_followed(words):
    with pytest.raises(UsageError, match="the policy for"):
        choose("--on-verdict", words)
