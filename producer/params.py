"""Per-line generation parameters: which names are known, and what values they may have.

A known name is checked here, so that a mistake is named with its line before any work instead of coming
back from a server hours later. Names that are not known go to the server as they are: servers have their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

MAX_DEPTH: Final = 100
"""The most objects and arrays that may be nested in one another in a line's free-form fields."""

_TYPE_NAMES: Final = {
    type(None): "null",
    bool: "a boolean",
    int: "an integer",
    float: "a number with a fraction",
    str: "a string",
    list: "an array",
    dict: "an object",
}
_OUTPUT_LIMITS: Final = ("max_output_tokens", "max_completion_tokens", "max_tokens")
_RESERVED: Final = frozenset(
    {"messages", "prompt", "rid", "request_id", "stream_options", "samples", "regenerate"}
)


class UnusableError(Exception):
    """A line cannot be used; the text is the reason. Never leaves the parser."""


def type_name(value: Any) -> str:
    """What JSON calls the type of `value`, with its article."""
    return _TYPE_NAMES.get(type(value), type(value).__name__)


def too_deep(value: Any, limit: int = MAX_DEPTH) -> bool:
    """Whether `value` nests objects and arrays more than `limit` deep."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(limit):
        if not level:
            return False
        level = [
            item
            for parent in level
            for item in (parent.values() if type(parent) is dict else parent)
            if type(item) is dict or type(item) is list
        ]
    return bool(level)


def _is_number(value: Any) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _number(low: float, high: float = math.inf, *, open_low: bool = False) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        return _is_number(value) and (low < value if open_low else low <= value) and value <= high

    return check


def _integer(low: int | None = None) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        return type(value) is int and (low is None or value >= low)

    return check


def _all(kind: type) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        return type(value) is list and all(type(item) is kind for item in value)

    return check


def _is(*kinds: type) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        return type(value) in kinds

    return check


def _text(value: Any) -> bool:
    return type(value) is str and value != ""


def _texts(value: Any) -> bool:
    return _text(value) or (type(value) is list and all(_text(item) for item in value))


def _template_kwargs(value: Any) -> bool:
    return type(value) is dict and "chat_template" not in value


_PENALTY: Final = (_number(-2, 2), "a number from -2 to 2")
_SHARE: Final = (_number(0, 1), "a number from 0 to 1")
_TOKENS: Final = (_integer(1), "an integer of at least 1")
_FLAG: Final = (_is(bool), "true or false")
_OBJECT: Final = (_is(dict), "an object")
_TEXTS: Final = (_texts, "a non-empty string or an array of them")

_KNOWN: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "model": (_text, "a non-empty string"),
    "max_output_tokens": _TOKENS,
    "max_completion_tokens": _TOKENS,
    "max_tokens": _TOKENS,
    "min_tokens": (_integer(0), "an integer of at least 0"),
    "temperature": (_number(0), "a number of at least 0"),
    "top_p": (_number(0, 1, open_low=True), "a number above 0 and up to 1"),
    "top_k": (lambda value: _integer(1)(value) or (type(value) is int and value == -1), "-1 or at least 1"),
    "min_p": _SHARE,
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
    "repetition_penalty": (_number(0, 2), "a number from 0 to 2"),
    "stop": _TEXTS,
    "stop_regex": _TEXTS,
    "stop_token_ids": (_all(int), "an array of integers"),
    "seed": (_integer(), "an integer"),
    "priority": (_integer(), "an integer"),
    "ignore_eos": _FLAG,
    "no_stop_trim": _FLAG,
    "skip_special_tokens": _FLAG,
    "separate_reasoning": _FLAG,
    "thinking": _FLAG,
    "system": (_is(str), "a string"),
    "reasoning_effort": (_text, "a non-empty string"),
    "chat_template_kwargs": (_template_kwargs, 'an object without "chat_template"'),
    "extra_body": _OBJECT,
    "logit_bias": _OBJECT,
    "response_format": _OBJECT,
    "tools": (_all(dict), "an array of objects"),
    "tool_choice": (_is(str, dict), "a string or an object"),
    "n": (lambda value: type(value) is int and value == 1, "1: use --samples for more"),
    "stream": (lambda value: value is False, "false: how an answer travels is not the line's to choose"),
}
_DROPPED: Final = frozenset({"n", "stream"})


def check_params(given: dict[str, Any], where: str) -> dict[str, Any]:
    """The parameters of one line, checked; null means not given and is left out.

    The three names for the most output tokens (`max_output_tokens`, `max_completion_tokens`, `max_tokens`)
    become the first, so that an override can never lose against a run's setting of another name.

    Args:
        given: the object as the line has it; not changed.
        where: the field it came from, for the reason: `params` or `body`.

    Raises:
        UnusableError: a name is not a line's to set, or a known name has a value it cannot have.
    """
    for name, value in given.items():
        if name in _RESERVED:
            raise UnusableError(f'{where} may not set "{name}"')
        if value is None or name not in _KNOWN:
            continue
        fits, wanted = _KNOWN[name]
        if not fits(value):
            shown = value if _is_number(value) or type(value) is bool else type_name(value)
            raise UnusableError(f'{where}: "{name}" must be {wanted}, not {_json_word(shown)}')
    extra = given.get("extra_body")
    if extra:
        check_params(extra, f"{where}.extra_body")
    if too_deep(given):
        raise UnusableError(f"{where} is nested more than {MAX_DEPTH} deep")
    return _one_output_limit(given, where)


def _json_word(value: Any) -> str:
    return str(value).lower() if type(value) is bool else str(value)


def _one_output_limit(given: dict[str, Any], where: str) -> dict[str, Any]:
    limits = {name: given[name] for name in _OUTPUT_LIMITS if given.get(name) is not None}
    if len(set(limits.values())) > 1:
        names = " and ".join(f'"{name}"' for name in limits)
        raise UnusableError(f"{where}: {names} differ, and mean the same")
    kept = {
        name: value
        for name, value in given.items()
        if value is not None and name not in _DROPPED and name not in _OUTPUT_LIMITS
    }
    if limits:
        kept["max_output_tokens"] = next(iter(limits.values()))
    return kept
