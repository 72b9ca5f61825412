"""The settings of a run as command line options: the same names for `producer enqueue` and `ops run`.

Each option can be set by the environment as well: `--max-output-tokens` is `PROMPTMILL_MAX_OUTPUT_TOKENS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import click
import msgspec

from common.errors import UsageError
from common.records import Verdict
from common.settings import (
    ConsumerSettings,
    GenerationSettings,
    OnVerdict,
    Order,
    QualitySettings,
    check_quality,
)

F = TypeVar("F", bound=Callable[..., Any])

MAX_CONCURRENCY: Final = 4096
_ACTIONS: Final = ("keep", "retry", "dead")


class Chosen(msgspec.Struct, frozen=True):
    """The settings that a command line asked for."""

    generation: GenerationSettings
    quality: QualitySettings
    consumer: ConsumerSettings
    batch_size: int
    high_water: int
    skip_invalid: bool
    order: Order
    order_field: str | None


def option(*names: str, **attributes: Any) -> Callable[[F], F]:
    """A click option that the environment can set too, shown with its default."""
    long = next(name for name in names if name.startswith("--")).split("/")[0]
    attributes.setdefault("envvar", "PROMPTMILL_" + long[2:].upper().replace("-", "_"))
    attributes.setdefault("show_default", True)
    return click.option(*names, **attributes)


_OPTIONS: Final = (
    option("--model", default=None, help="Model name to ask for; default: the one the server serves."),
    option("--max-output-tokens", type=click.IntRange(1), default=4096, help="Thinking counts towards it."),
    option("--temperature", type=click.FloatRange(0, 2), default=0.6),
    option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=0.95),
    option("--top-k", type=click.IntRange(-1), default=20, help="-1 is off."),
    option("--min-p", type=click.FloatRange(0, 1), default=0.0),
    option("--thinking/--no-thinking", default=True, help="Have the model think before it answers."),
    option("--system", default=None, help="System prompt for conversations that have none."),
    option("--stop", multiple=True, help="Stop string; may be given several times."),
    option("--extra-body", default=None, metavar="JSON", help="More fields for every request, as an object."),
    option(
        "--regenerate",
        type=click.Choice(["last", "all"]),
        default="last",
        help="Of a conversation with several assistant turns, make the last or all anew.",
    ),
    option("--samples", type=click.IntRange(1, 1000), default=1, help="Completions per prompt."),
    option("--concurrency", default="auto", help="Requests in flight per server, or auto."),
    option(
        "--request-timeout",
        type=click.FloatRange(1),
        default=3600.0,
        help="Seconds for one request, waiting in the server's queue included.",
    ),
    option("--batch-size", type=click.IntRange(1, 100_000), default=500, help="Records in a part at most."),
    option("--high-water", type=click.IntRange(1), default=50_000, help="Jobs kept in Redis at most."),
    option("--max-attempts", type=click.IntRange(1), default=5, help="Attempts at a prompt that fails."),
    option(
        "--max-deaths",
        type=click.IntRange(1),
        default=10,
        help="Deaths of consumers or servers under a prompt before it is given up.",
    ),
    option(
        "--on-verdict",
        multiple=True,
        metavar="VERDICT=keep|retry|dead",
        help="What becomes of completions with that verdict; may be given several times.",
    ),
    option("--guard/--no-guard", default=True, help="Pause the run when its answers go bad."),
    option(
        "--guard-limit", type=click.FloatRange(0, 1), default=0.2, help="Share of bad answers that pauses."
    ),
    option(
        "--order",
        type=click.Choice(["input", "longest-first", "prefix"]),
        default="input",
        help="Admit as the input has them, the longest first, or those that begin alike together.",
    ),
    option(
        "--order-field",
        default=None,
        metavar="NAME",
        help="With longest-first: the number in `metadata` that says how long, not the prompt's length.",
    ),
    option("--skip-invalid", is_flag=True, help="Make each unusable line a dead letter instead of stopping."),
)


def settings_options(function: F) -> F:
    """Add every setting of a run to a command; `chosen` makes values of them."""
    for decorate in reversed(_OPTIONS):
        function = decorate(function)
    return function


def chosen(values: dict[str, Any]) -> Chosen:
    """The settings from a command's keyword arguments.

    Raises:
        UsageError: a value cannot be used.
    """
    return Chosen(
        generation=GenerationSettings(
            model=values["model"],
            max_output_tokens=values["max_output_tokens"],
            temperature=values["temperature"],
            top_p=values["top_p"],
            top_k=values["top_k"],
            min_p=values["min_p"],
            thinking=values["thinking"],
            system=values["system"],
            stop=list(values["stop"]),
            extra_body=parse_object("--extra-body", values["extra_body"]),
            regenerate=values["regenerate"],
            samples=values["samples"],
        ),
        quality=check_quality(
            QualitySettings(
                policy=parse_policy(values["on_verdict"]),
                guard=values["guard"],
                limit=values["guard_limit"],
            )
        ),
        consumer=ConsumerSettings(
            concurrency=parse_concurrency(values["concurrency"]),
            request_timeout=values["request_timeout"],
            max_attempts=values["max_attempts"],
            max_deaths=values["max_deaths"],
        ),
        batch_size=values["batch_size"],
        high_water=values["high_water"],
        skip_invalid=values["skip_invalid"],
        order=values["order"],
        order_field=values["order_field"],
    )


def parse_object(name: str, text: str | None) -> dict[str, Any]:
    """A JSON object from an option's text; empty when there is none.

    Raises:
        UsageError: it is not a JSON object.
    """
    if not text:
        return {}
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise UsageError(f"{name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"{name} must be a JSON object, as '{{\"logit_bias\": {{}}}}'")
    return value


def parse_policy(pairs: tuple[str, ...]) -> dict[Verdict, OnVerdict]:
    """`("looping=dead",)` as a policy.

    Raises:
        UsageError: a verdict or an action is unknown.
    """
    policy: dict[Verdict, OnVerdict] = {}
    for pair in pairs:
        name, _, action = pair.partition("=")
        if name not in set(Verdict) or action not in _ACTIONS:
            known = ", ".join(Verdict)
            raise UsageError(f"--on-verdict {pair!r}: give VERDICT=keep|retry|dead with one of {known}")
        policy[Verdict(name)] = cast("OnVerdict", action)
    return policy


def parse_concurrency(text: str) -> int:
    """A number of requests in flight, or 0 for `auto`.

    Raises:
        UsageError: it is neither `auto` nor a number from 1 to 4096.
    """
    if text.strip().lower() == "auto":
        return 0
    if not text.strip().isascii() or not text.strip().isdigit() or not 1 <= int(text) <= MAX_CONCURRENCY:
        raise UsageError(f"concurrency {text!r} is neither `auto` nor a number from 1 to {MAX_CONCURRENCY}")
    return int(text)
