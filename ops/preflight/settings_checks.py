"""Checks of the settings and the input."""

from __future__ import annotations

from typing import Final

from common.errors import UsageError
from common.settings import GenerationSettings
from consumers.client.request import check_extra_body
from consumers.client.turns import turns_to_generate
from ops.preflight.survey import Survey
from ops.preflight.tokens import Fit
from ops.preflight.values import Check, failed, passed, skipped, warned

SETTINGS: Final = "settings"
INPUT: Final = "input"

SMALL_LIMIT: Final = 16_384
"""A limit of new tokens below which a thinking model's answers often end inside the thinking."""

_GUESS_ERROR: Final = 0.5
"""What an estimate of a prompt's tokens may be too high by, before the input is called unfit."""


def check_settings(generation: GenerationSettings) -> list[Check]:
    """The settings in themselves, before any server is asked."""
    try:
        check_extra_body(generation.extra_body)
    except UsageError as error:
        return [failed(SETTINGS, "extra body", str(error), "leave these fields out of --extra-body")]
    checks = [_check_limit(generation)]
    if generation.thinking and generation.stop:
        checks.append(
            warned(
                SETTINGS,
                "stop strings",
                "a stop string that occurs inside the thinking ends the answer there",
                "use --stop only with strings that no thinking holds, or --no-thinking",
            )
        )
    if generation.samples > 1 and generation.temperature == 0:
        checks.append(
            warned(
                SETTINGS,
                "samples",
                f"{generation.samples} samples at temperature 0 are {generation.samples} times the same text",
                "raise --temperature, or take one sample",
            )
        )
    return checks


def _check_limit(generation: GenerationSettings) -> Check:
    limit = generation.max_output_tokens
    words = f"{limit:,} new tokens at most"
    if not generation.thinking:
        return passed(SETTINGS, "token limit", f"{words}, without thinking")
    if limit >= SMALL_LIMIT:
        return passed(SETTINGS, "token limit", f"{words}, thinking included")
    return warned(
        SETTINGS,
        "token limit",
        f"{words}, thinking included: many answers will end inside the thinking (the published recipes for "
        "regenerating data with Qwen3.6-27B use 32,768)",
        "raise --max-output-tokens, use --no-thinking, or see with --canary 32 how many are cut",
    )


def check_input(found: Survey, generation: GenerationSettings, *, skip_invalid: bool) -> list[Check]:
    """The lines of the input: how many, whether they can be used, whether they ask for an answer."""
    if found.lines == 0:
        return [
            failed(INPUT, "prompts", f"{found.name} has no prompts", "give a file with one prompt a line")
        ]
    about = "" if found.exact else "about "
    words = f"{about}{found.lines:,} prompts, {found.mean_bytes:,.0f} bytes of text on average"
    lines = _check_lines(found, skip_invalid=skip_invalid)
    return [passed(INPUT, "prompts", words), lines, *_check_turns(found, generation)]


def _check_lines(found: Survey, *, skip_invalid: bool) -> Check:
    if not found.invalid_total:
        return passed(INPUT, "lines", f"{found.parsed:,} sampled lines can be used")
    words = f"{found.invalid_total:,} of {found.parsed:,} sampled lines cannot be used: " + "; ".join(
        found.invalid
    )
    if skip_invalid:
        return warned(INPUT, "lines", words, "with --skip-invalid each becomes a dead letter")
    return failed(INPUT, "lines", words, "correct them, or say --skip-invalid to make dead letters of them")


def _check_turns(found: Survey, generation: GenerationSettings) -> list[Check]:
    mute = sum(not turns_to_generate(p.messages, generation.regenerate) for p in found.sample)
    if not mute:
        return []
    return [
        warned(
            INPUT,
            "turns",
            f"{mute:,} of {len(found.sample):,} sampled conversations have no user's message to answer",
            "they become dead letters; give them one, or leave them out",
        )
    ]


def check_fit(fit: Fit | None) -> Check:
    """The longest prompt and its answer against the shortest context of all servers."""
    name = "longest prompt"
    if fit is None:
        return skipped(INPUT, name, "no prompt to measure")
    if fit.limit is None:
        return skipped(INPUT, name, f"{fit.longest:,} tokens; no server tells its context length")
    how = "counted by the server" if fit.counted else "estimated from bytes"
    words = (
        f"{fit.longest:,} tokens ({how}); with drafts ({fit.reserved}) and answer at most "
        f"{fit.longest_need:,} of {fit.limit:,}"
    )
    remedy = "lower --max-output-tokens, serve a longer context, or shorten the prompts"
    doubt = 0 if fit.counted else _GUESS_ERROR * fit.longest
    if fit.of and fit.typical_need - doubt > fit.limit:
        share = f"a typical prompt needs {fit.typical_need:,} tokens, the context has {fit.limit:,}"
        return failed(INPUT, name, f"{share}: most prompts would be refused", remedy)
    if fit.over or fit.longest_need > fit.limit:
        share = f"{fit.over:,} of {fit.of:,} sampled prompts" if fit.over else "the longest prompts"
        return warned(INPUT, name, f"{words}: {share} would be refused and become dead letters", remedy)
    return passed(INPUT, name, words)
