"""Why a line could not be decoded, in words. Off the fast path: it may look at the line a second time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_UTF16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")
_OUR_NAMES: Final = re.compile(
    rb'"(?:id|custom_id|prompt|messages|conversations|method|url|body|params|metadata'
    rb'|role|content|from|value|name|tool_calls|tool_call_id)"[ \t\r\n]*:'
)
_ESCAPED_PRINTABLE: Final = re.compile(rb"\\u00[2-7]")
_TYPE_FAULT: Final = re.compile(r"Expected `(\w+)[^`]*`, got `(\w+)`(?: - at `\$\.(\w+)(\[[^\]]+\])?)?")
_RANGE_FAULT: Final = re.compile(r"out of range - at `\$\.(\w+)")
_WORDS: Final = {
    "array": "an array",
    "object": "an object",
    "str": "a string",
    "int": "an integer",
    "float": "a number with a fraction",
    "bool": "a boolean",
    "null": "null",
}
_TOO_DEEP: Final = "is nested too deeply"


def decode_fault(raw: bytes, error: Exception) -> str:
    """The reason why decoding `raw` ended in `error`."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as fault:
        if raw.startswith(_UTF16_MARKS):
            return "is not UTF-8; it looks like UTF-16: save the file as UTF-8"
        return f"is not UTF-8 at byte {fault.start} of the line"
    return _text_fault(raw, text, error)


def _text_fault(raw: bytes, text: str, error: Exception) -> str:
    if "\0" in text:
        return f"holds a NUL byte at byte {raw.index(0)} of the line"
    if raw.startswith(_BYTE_ORDER_MARK):
        return "starts with a byte order mark, which belongs at the start of a file only"
    if isinstance(error, RecursionError):
        return _TOO_DEEP
    if isinstance(error, msgspec.ValidationError):
        return _type_fault(str(error))
    return _json_fault(text, error)


def _type_fault(message: str) -> str:
    large = _RANGE_FAULT.search(message)
    if large is not None:
        return f'"{large[1]}" holds a number that is out of range'
    found = _TYPE_FAULT.search(message)
    if found is None:
        return message
    wanted, got, field, item = found.groups()
    wanted, got = _WORDS.get(wanted, wanted), _WORDS.get(got, got)
    if field is None:
        return f"is not a JSON object but {got}"
    subject = f"{field}{item}" if item else f'"{field}"'
    return f"{subject} must be {wanted}, not {got}"


def _json_fault(text: str, error: Exception) -> str:
    try:
        json.dumps(json.loads(text, parse_constant=_refuse), ensure_ascii=False).encode()
    except json.JSONDecodeError as fault:
        return f"is not JSON: {fault.msg} (character {fault.pos} of the line)"
    except UnicodeEncodeError as fault:
        return f"holds a lone surrogate, \\u{ord(fault.object[fault.start]):04x}: half of a character"
    except RecursionError:
        return _TOO_DEEP
    except ValueError as fault:
        return f"is not JSON: {fault}"
    return f"is not JSON: {error}"


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON value")


class _Pairs(list[tuple[str, Any]]):
    """An object with its keys in order and none lost."""


def may_repeat_key(raw: bytes, expected: int, *named: dict[str, Any] | None) -> bool:
    """Whether a key might be there twice in one object that is used. False is certain, true is not.

    Decoders keep the last of two in silence, so the bytes are looked at. A line with no more names of ours,
    quoted and followed by a colon, than its decoded fields account for repeats none; that clears nearly all
    lines in one pass. A line that may spell a name with escapes is never cleared.

    Args:
        raw: the line.
        expected: how many of our names the decoded fields account for, at the least.
        named: objects with names of their own, `params` and `body`.
    """
    if len(_OUR_NAMES.findall(raw)) != expected:
        return True
    if b"\\u00" in raw and _ESCAPED_PRINTABLE.search(raw):
        return True
    return any(raw.count(f'"{key}"'.encode()) > 1 for given in named if given for key in given)


def repeated_key(raw: bytes) -> str | None:
    """The first key that is there twice in the line itself, in a message, in `params` or in `body`."""
    try:
        line = json.loads(raw, object_pairs_hook=_Pairs, parse_int=str, parse_float=str)
    except RecursionError:
        return None
    return _repeated_in(line)


def _repeated_in(line: _Pairs) -> str | None:
    fields = dict(line)
    objects: list[Any] = [line, fields.get("params"), body := fields.get("body")]
    for turns in (fields.get("messages"), fields.get("conversations"), _get(body, "messages")):
        if isinstance(turns, list):
            objects.extend(turns)
    for item in objects:
        if isinstance(item, _Pairs):
            key = _first_repeated(name for name, _ in item)
            if key is not None:
                return key
    return None


def _get(pairs: Any, key: str) -> Any:
    return dict(pairs).get(key) if isinstance(pairs, _Pairs) else None


def _first_repeated(keys: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            return key
        seen.add(key)
    return None
