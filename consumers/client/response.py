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

from common.records import Response, Speculation, Usage
from consumers.client.fields import as_dict, as_float, as_int, as_str, decode, first_float, first_int
from consumers.client.outcome import Failure, FailureKind, Outcome, Success, ThinkingFrom

NAN_STOP: Final = "NaN happened"
"""SGLang's matched stop of an answer that numerical trouble ended; its finish reason is "stop"."""

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
    document = decode(body)
    if _OK <= status < _REDIRECT:
        if isinstance(document, dict) and isinstance(document.get("choices"), list):
            return _completion(document, status, thinking=thinking)
        return _no_completion(status, document, body)
    error = read_error(document, body)
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


def _completion(document: dict[str, Any], status: int, *, thinking: bool) -> Outcome:
    choice = as_dict((document["choices"] or [None])[0])
    message = as_dict(choice.get("message"))
    finish, matched = choice.get("finish_reason"), choice.get("matched_stop", choice.get("stop_reason"))
    usage_document = as_dict(document.get("usage"))
    usage = _usage(usage_document)
    content = message.get("content")
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    fault = _fault(finish, matched, content, reasoning)
    if fault is None and usage.completion_tokens == 0 and not content and not reasoning:
        fault = "the answer is empty and cost no token"
    if fault is not None:
        return Failure(kind=FailureKind.SERVER_FAULT, message=f"HTTP {status}, but {fault}", status=status)
    origin = ThinkingFrom.FIELD if reasoning else ThinkingFrom.NOWHERE
    if thinking and not reasoning and content and (parts := split_thinking(content)) is not None:
        reasoning, content = parts
        origin = ThinkingFrom.CONTENT
    cached = as_int(as_dict(usage_document.get("prompt_tokens_details")).get("cached_tokens"))
    return Success(
        response=Response(content=content, reasoning_content=reasoning),
        finish_reason=str(finish),
        usage=usage,
        model=as_str(document.get("model")),
        matched_stop=matched if isinstance(matched, str) else as_int(matched),
        speculation=_speculation(document, choice),
        cached_tokens=cached,
        thinking_from=origin,
    )


def _fault(finish: Any, matched: Any, content: Any, reasoning: Any) -> str | None:
    """Why a completion is none, if it is none."""
    if not isinstance(finish, str) or not finish:
        return "it has no finish reason"
    if finish in ("abort", "error"):
        return f'its finish reason is "{finish}"'
    if matched == NAN_STOP:
        return "the model's numbers broke (NaN)"
    if not isinstance(content, str | None) or not isinstance(reasoning, str | None):
        return "its text is no text"
    return None


def _usage(usage: dict[str, Any]) -> Usage:
    details = as_dict(usage.get("completion_tokens_details"))
    reasoning = first_int(usage, "reasoning_tokens")
    return Usage(
        prompt_tokens=first_int(usage, "prompt_tokens"),
        completion_tokens=first_int(usage, "completion_tokens"),
        reasoning_tokens=first_int(details, "reasoning_tokens") if reasoning is None else reasoning,
    )


def _speculation(document: dict[str, Any], choice: dict[str, Any]) -> Speculation | None:
    """Draft figures from SGLang's extension or meta info, or from llama.cpp's timings."""
    details = as_dict(as_dict(document.get("sglext")).get("spec_tokens_details")) or as_dict(
        choice.get("meta_info")
    )
    steps = as_int(details.get("spec_verify_ct"))
    if steps:
        return Speculation(
            accept_length=first_float(details, "spec_accept_length"),
            accept_rate=first_float(details, "spec_accept_rate"),
            verify_steps=steps,
        )
    timings = as_dict(document.get("timings"))
    drafted, accepted = as_int(timings.get("draft_n")), as_int(timings.get("draft_n_accepted"))
    made = as_int(timings.get("predicted_n"))
    if not drafted or accepted is None:
        return None
    steps = made - accepted if made is not None else None  # each step adds one token of the model's own
    return Speculation(
        accept_length=made / steps if made and steps and steps > 0 else None,
        accept_rate=accepted / drafted,
        verify_steps=steps if steps and steps > 0 else None,
    )


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
