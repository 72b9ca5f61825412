"""The shapes of exported rows, and how a record becomes one. Pure.

Text is never stripped or re-encoded. What differs from row to row in its very type (`params`, `metadata`,
tool calls, a message made of parts) is carried as JSON text, so that every column has one type throughout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from common.records import Message, Record, Response, Speculation, Usage
from ops.export.errors import ExportError

if TYPE_CHECKING:
    from collections.abc import Sequence

encode = msgspec.json.Encoder().encode


class RowMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message with columns of one type each: parts and tool calls are JSON text."""

    role: str
    content: str | None
    name: str | None = None
    tool_calls: str | None = None
    tool_call_id: str | None = None
    content_parts: str | None = None


class RowTurn(msgspec.Struct, frozen=True):
    """An earlier turn that the run made anew."""

    position: int
    response: Response
    finish_reason: str
    usage: Usage
    verdict: str = "ok"


class Lean(msgspec.Struct, kw_only=True, gc=False):
    """A record read for a `jsonl` export: what is passed on as it is stays undecoded."""

    run: str
    index: int
    id: str
    messages: list[Message]
    response: msgspec.Raw
    finish_reason: str
    verdict: str
    usage: Usage
    model: str
    server: str
    params: msgspec.Raw
    attempts: int
    started_at: str
    latency_s: float
    metadata: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    sample: int = 0
    speculation: Speculation | None = None
    turns: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class Columnar(msgspec.Struct, kw_only=True, gc=False):
    """A record read for a `parquet` export, whose columns are made from it directly."""

    run: str
    index: int
    id: str
    messages: list[Message]
    response: Response
    finish_reason: str
    verdict: str
    usage: Usage
    model: str
    server: str
    params: msgspec.Raw
    attempts: int
    started_at: str
    latency_s: float
    metadata: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    sample: int = 0
    speculation: Speculation | None = None
    turns: list[RowTurn] | None = None


class Row(msgspec.Struct, gc=False):
    """One line of a `jsonl` export, one row of a `parquet` one. Field order is column order."""

    id: str
    run: str
    index: int
    sample: int
    messages: list[RowMessage]
    response: msgspec.Raw
    turns: list[RowTurn] | None
    finish_reason: str
    verdict: str
    usage: Usage
    model: str
    server: str
    params: str
    attempts: int
    started_at: str
    latency_s: float
    speculation: Speculation | None
    metadata: str | None


class ConversationMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message of a `sharegpt` row; the assistant's last always has `reasoning_content`, maybe empty."""

    role: str
    content: str
    reasoning_content: str | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class Conversation(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a `sharegpt` export. No other field: trainers hand unknown ones to the chat template."""

    id: str
    conversations: list[ConversationMessage]
    tools: str | None = None


def row_id(record: Record) -> str:
    """The prompt's id, with `#sample` after it from the second sample on."""
    sample = sample_of(record)
    return f"{record.id}#{sample}" if sample else record.id


def sample_of(record: Record) -> int:
    """Which of its prompt's samples a record is."""
    return 0 if isinstance(record.sample, msgspec.UnsetType) else record.sample


def text_of(content: str | list[dict[str, Any]] | None) -> str | None:
    """A message's text; of parts, the texts one after the other, as chat templates join them.

    None where it has none, or has a part that is not text.
    """
    if not isinstance(content, list):
        return content
    texts = [part.get("text") for part in content if part.get("type") == "text"]
    if len(texts) < len(content) or not all(isinstance(text, str) for text in texts):
        return None
    return "".join(text for text in texts if isinstance(text, str))


def to_row(record: Lean) -> Row:
    """The row of a `jsonl` export."""
    return Row(
        record.id,
        record.run,
        record.index,
        record.sample,
        [row_message(message) for message in record.messages],
        record.response,
        _uniform_turns(record.turns),
        record.finish_reason,
        record.verdict,
        record.usage,
        record.model,
        record.server,
        str(record.params, "utf-8"),
        record.attempts,
        record.started_at,
        record.latency_s,
        record.speculation,
        None if isinstance(record.metadata, msgspec.UnsetType) else str(record.metadata, "utf-8"),
    )


def row_message(message: Message) -> RowMessage:
    """A message with columns of one type each."""
    content = message.content
    if message.tool_calls is None and not isinstance(content, list):
        return RowMessage(message.role, content, message.name, None, message.tool_call_id)
    return RowMessage(
        message.role,
        text_of(content),
        message.name,
        None if message.tool_calls is None else encode(message.tool_calls).decode(),
        message.tool_call_id,
        encode(content).decode() if isinstance(content, list) else None,
    )


def to_conversation(record: Record) -> Conversation:
    """The row of a `sharegpt` export: the conversation with the answer as its last message.

    Raises:
        ExportError: a message has a part that is not text, or a regenerated turn is not in the conversation;
            said of the answer, as a clause.
    """
    messages = [_conversation_message(message) for message in record.messages]
    for place, thinking in _thinking_by_place(record):
        messages[place] = msgspec.structs.replace(messages[place], reasoning_content=thinking)
    answer = record.response
    messages.append(
        ConversationMessage(
            answer.role, answer.content or "", reasoning_content=answer.reasoning_content or ""
        )
    )
    tools = record.params.get("tools")
    return Conversation(row_id(record), messages, tools=encode(tools).decode() if tools else None)


def to_batch_line(record: Record) -> dict[str, Any]:
    """The line of an `openai-batch` export: one of a Batch output file, with the request beside it."""
    name = row_id(record)
    usage = record.usage
    total = None
    if usage.prompt_tokens is not None and usage.completion_tokens is not None:
        total = usage.prompt_tokens + usage.completion_tokens
    request = {"model": record.model, "messages": record.messages, **_request_fields(record)}
    body = {
        "id": f"chatcmpl-{record.run}-{name}",
        "object": "chat.completion",
        "model": record.model,
        "choices": [{"index": 0, "message": record.response, "finish_reason": record.finish_reason}],
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": total,
            "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        },
    }
    return {
        "id": f"batch_req_{record.run}-{name}",
        "custom_id": name,
        "response": {"status_code": 200, "request_id": f"{record.run}-{name}", "body": body},
        "error": None,
        "request": {"method": "POST", "url": "/v1/chat/completions", "body": request},
    }


def locate_turns(messages: Sequence[Message], record: Record) -> list[int]:
    """Where in `messages` each of the record's regenerated turns stands.

    A turn's `position` counts in the input's conversation, which a system prompt in front or several
    assistant messages in a row shift; its text, as history carries it, does not.

    Raises:
        ExportError: a turn is not there; said of the answer, as a clause.
    """
    if isinstance(record.turns, msgspec.UnsetType):
        return []
    places: list[int] = []
    start = 0
    for turn in record.turns:
        text = (turn.response.content or "").lstrip("\n")
        for place in range(start, len(messages)):
            message = messages[place]
            if message.role == "assistant" and not message.tool_calls and message.content == text:
                break
        else:
            raise ExportError("have a turn made anew that is not in the conversation that was sent")
        places.append(place)
        start = place + 1
    return places


def _thinking_by_place(record: Record) -> list[tuple[int, str]]:
    if isinstance(record.turns, msgspec.UnsetType):
        return []
    places = locate_turns(record.messages, record)
    return [
        (place, turn.response.reasoning_content or "")
        for place, turn in zip(places, record.turns, strict=True)
    ]


def _uniform_turns(turns: msgspec.Raw | msgspec.UnsetType) -> list[RowTurn] | None:
    """Turns with every field there, those that the record leaves out as defaults too."""
    return None if isinstance(turns, msgspec.UnsetType) else msgspec.json.decode(turns, type=list[RowTurn])


def _conversation_message(message: Message) -> ConversationMessage:
    text = text_of(message.content)
    if text is None and message.content is not None:
        raise ExportError("have a message with a part that is not text, which only jsonl and parquet carry")
    return ConversationMessage(
        message.role,
        text or "",
        name=message.name,
        tool_calls=message.tool_calls,
        tool_call_id=message.tool_call_id,
    )


def _request_fields(record: Record) -> dict[str, Any]:
    """The record's params by the names that the endpoint has for them."""
    params = dict(record.params)
    if "max_output_tokens" in params:
        params["max_completion_tokens"] = params.pop("max_output_tokens")
    thinking = params.pop("thinking", None)
    if thinking is not None:
        params["chat_template_kwargs"] = {
            "enable_thinking": thinking,
            **params.get("chat_template_kwargs", {}),
        }
    for taken in ("model", "messages"):
        params.pop(taken, None)
    return params
