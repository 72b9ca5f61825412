"""What a server's answer means: a completion, or a failure and whose fault it is.

Told by status, finish reason and shape. The server's words are read in one case only: a prompt that is too
long is a 400 like any other, and nothing but its text says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import msgspec

from common.records import Response, Usage
from consumers.client.completion import (
    WireCompletion,
    decode_completion,
    lenient_completion,
    speculation_of,
)
from consumers.client.fields import as_dict, as_float, as_int, as_str, decode
from consumers.client.outcome import Failure, FailureKind, Outcome, Success, ThinkingFrom

NAN_STOP: Final = "NaN happened"
"""SGLang's matched stop of an answer that numerical trouble ended; its finish reason is "stop"."""

_FAILED: Final = frozenset({"abort", "error"})
_OPEN: Final = "<think>"
_CLOSE: Final = "</think>"
_MESSAGE_LIMIT: Final = 600
_OK: Final = 200
_REDIRECT: Final = 300
_CLIENT_ERROR: Final = 400
_SERVER_ERROR: Final = 500

_KINDS: Final = {
    401: FailureKind.UNAUTHORIZED,
    403: FailureKind.UNAUTHORIZED,
    404: FailureKind.NOT_FOUND,
    405: FailureKind.NOT_FOUND,
    407: FailureKind.UNAUTHORIZED,
    408: FailureKind.SERVER_FAULT,
    413: FailureKind.TOO_LONG,
    425: FailureKind.OVERLOADED,
    429: FailureKind.OVERLOADED,
    499: FailureKind.SERVER_FAULT,
    503: FailureKind.OVERLOADED,
    529: FailureKind.OVERLOADED,
}

_TOO_LONG: Final = re.compile(
    r"longer than the model's context length"
    r"|maximum context length"
    r"|maximum model length"
    r"|(?:max_completion_tokens|max_tokens)\W.{0,20}too large"
    r"|exceeds the maximum allowed length"
    r"|max_tokens=\d+ cannot be greater than max_model_len"
    r"|max_tokens must be at least 1, got 0"  # vLLM, of what a prompt of just the context leaves
    r"|exceeds? the available context size"
    r"|exceed_context_size_error|context_length_exceeded",
    re.IGNORECASE,
)


class ErrorBody(msgspec.Struct, frozen=True):
    """An error as the server put it, whatever the shape of its body."""

    message: str
    type: str = ""
    code: int | None = None


def classify(status: int, headers: Mapping[str, str], body: bytes, *, thinking: bool = True) -> Outcome:
    """Say what an answer means.

    Args:
        status: the HTTP status.
        headers: the response's headers.
        body: the whole body, whatever it holds.
        thinking: whether thinking was asked for; without it a `</think>` in the content is left where it is.
    """
    if _OK <= status < _REDIRECT:
        return _success(status, body, thinking=thinking)
    error = read_error(decode(body), body)
    return Failure(
        kind=_kind(status, error),
        message=error.message or f"HTTP {status} with an empty body",
        status=status,
        retry_after=_retry_after(headers),
    )


def read_error(document: Any, body: bytes = b"") -> ErrorBody:
    """Read an error body: SGLang's flat one, the nested one of vLLM and llama.cpp, a string, or no JSON."""
    if isinstance(document, str):
        return ErrorBody(_short(document))
    top = as_dict(document)
    inner = top.get("error")
    if isinstance(inner, str):
        return ErrorBody(_short(inner))
    fields = as_dict(inner) or top
    found = fields.get("message") or fields.get("detail")
    if found is None and not fields:
        found = body.decode("utf-8", "replace")
    text = found if isinstance(found, str) else _as_json(found if found is not None else fields)
    return ErrorBody(_short(text), as_str(fields.get("type")) or "", as_int(fields.get("code")))


def retry_after_s(value: str | None, date: str | None) -> float | None:
    """The seconds that a `Retry-After` header asks for.

    A date in it is taken against the response's own `Date`, so that the two clocks need not agree.
    """
    if not value:
        return None
    try:
        return max(0.0, as_float(float(value)) or 0.0)
    except ValueError:
        pass
    asked, now = _http_date(value), _http_date(date)
    return max(0.0, (asked - now).total_seconds()) if asked and now else None


def split_thinking(text: str) -> tuple[str, str | None] | None:
    """Split text at the first `</think>` into thinking and answer; `None` where there is nothing to split.

    The opening tag may be missing, for the chat template puts it into the prompt. Text that opens thinking
    and never closes it is all thinking, and its answer is `None`.
    """
    before, closed, after = text.partition(_CLOSE)
    opened = before.lstrip().startswith(_OPEN)
    thinking = before.lstrip().removeprefix(_OPEN) if opened else before
    if closed:
        return thinking, after
    return (thinking, None) if opened else None


def _kind(status: int, error: ErrorBody) -> FailureKind:
    known = _KINDS.get(status)
    if known is not None:
        return known
    if status >= _SERVER_ERROR:
        return FailureKind.SERVER_FAULT
    if status >= _CLIENT_ERROR:
        too_long = _TOO_LONG.search(error.message) or _TOO_LONG.search(error.type)
        return FailureKind.TOO_LONG if too_long else FailureKind.BAD_REQUEST
    return FailureKind.NOT_FOUND if status >= _REDIRECT else FailureKind.SERVER_FAULT


def _no_completion(status: int, document: Any, body: bytes) -> Failure:
    """A success status over something else: an error object, a web page, a body cut short, nothing."""
    top = as_dict(document)
    if "error" in top or top.get("object") == "error":
        error = read_error(document)
        inner = error.code if error.code is not None and error.code >= _CLIENT_ERROR else _SERVER_ERROR
        return Failure(kind=_kind(inner, error), message=error.message, status=inner)
    shown = _short(body.decode("utf-8", "replace"), 200)
    message = f"HTTP {status} without a completion; the body ({len(body)} bytes) begins: {shown}"
    return Failure(kind=FailureKind.SERVER_FAULT, message=message, status=status)


def _success(status: int, body: bytes, *, thinking: bool) -> Outcome:
    completion = decode_completion(body)
    if completion is None:
        document = decode(body)
        completion = lenient_completion(document)
        if completion is None:
            return _no_completion(status, document, body)
    fault = _fault(completion)
    if fault is not None:
        return Failure(kind=FailureKind.SERVER_FAULT, message=f"HTTP {status}, but {fault}", status=status)
    choice = completion.choices[0]
    message = choice.message
    content = message.content
    # Null and empty text mean the same; what is kept is what the server wrote.
    reasoning = message.reasoning_content or message.reasoning or message.reasoning_content
    origin = ThinkingFrom.FIELD if reasoning else ThinkingFrom.NOWHERE
    if thinking and not reasoning and content and (parts := split_thinking(content)) is not None:
        reasoning, content = parts
        origin = ThinkingFrom.CONTENT
    usage = completion.usage
    return Success(
        response=Response(content=content, reasoning_content=reasoning),
        finish_reason=choice.finish_reason,
        usage=usage.read() if usage else Usage(),
        model=completion.model,
        matched_stop=choice.stop_reason if choice.matched_stop is None else choice.matched_stop,
        speculation=speculation_of(completion, choice),
        cached_tokens=usage.cached_tokens if usage else None,
        thinking_from=origin,
    )


def _fault(completion: WireCompletion) -> str | None:
    """Why a completion is none, if it is none."""
    if not completion.choices:
        return "it holds no choice"
    choice = completion.choices[0]
    if not choice.finish_reason:
        return "it has no finish reason, or its text is no text"
    if choice.finish_reason in _FAILED:
        return f'its finish reason is "{choice.finish_reason}"'
    if choice.matched_stop == NAN_STOP:
        return "the model's numbers broke (NaN)"
    message = choice.message
    free = completion.usage is not None and completion.usage.completion_tokens == 0
    if free and not (message.content or message.reasoning_content or message.reasoning):
        return "the answer is empty and cost no token"
    return None


def _retry_after(headers: Mapping[str, str]) -> float | None:
    return retry_after_s(
        headers.get("Retry-After") or headers.get("retry-after"), headers.get("Date") or headers.get("date")
    )


def _http_date(text: str | None) -> datetime | None:
    try:
        found = parsedate_to_datetime(text or "")
    except (ValueError, OverflowError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _as_json(value: Any) -> str:
    return msgspec.json.encode(value).decode() if value else ""


def _short(text: str, limit: int = _MESSAGE_LIMIT) -> str:
    cleaned = " ".join(text.split())
    return cleaned if len(cleaned) <= limit else f"{cleaned[:limit]}..."
